"""Snapshots of shards as DataFrames: every engine returns the same rows, for all types."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kit.s3_servers import MotoServer, SeaweedServer
from kit.shard_tables import KINDS, schema_of, table_of, updates
from kit.shards import append_cut, counts_in, merge_away, on_store, projected
from tidelog.core.clock import SystemClock
from tidelog.errors import UsageError
from tidelog.location import open_location
from tidelog.persist.format import parquet, part
from tidelog.persist.format.schema import DIFF, ShardSchema
from tidelog.persist.format.updates import is_sortable, sort_updates
from tidelog.persist.handle.shard import Shard
from tidelog.spark import scan, scan_plan, shard_frame
from tidelog.spark.types import arrow_schema, spark_schema
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.urls import open_store
from tidelog.testing.models import Row, accumulate, canonical, contents_of, updates_of

SCHEMA = schema_of(["int64", "string"], keys=1)
MANY = 8  # Of types: Spark takes seconds to compile more.
QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


def rows_in(frame: DataFrame, names: Sequence[str]) -> dict[Row, int]:
    """Return the rows of a frame with their counts."""
    table = frame.toArrow()
    assert table.column_names == [*names, DIFF]
    return counts_in([table], names)


async def written(
    store: Store, schema: ShardSchema, table: pa.Table, *, inline: int = 4_096
) -> Shard:
    """Write updates to a shard in two batches; row groups are of two rows."""
    shard = on_store(store).shard(schema=schema, clock=SystemClock())
    with patch.object(parquet, "ROW_GROUP_ROWS", 2), patch.object(part, "INLINE_BYTES", inline):
        await append_cut(shard, table, [3, 6])
    return shard


@st.composite
def all_kinds(draw: st.DrawFn) -> tuple[ShardSchema, pa.Table]:
    """Draw updates of many types at once, the first of which is the key's."""
    kinds = draw(st.permutations(sorted(KINDS)))[:MANY]
    schema = schema_of(list(kinds), keys=draw(st.integers(0, 2)))
    return schema, draw(updates(schema, list(kinds), max_size=10))


@settings(max_examples=3, phases=[Phase.generate], suppress_health_check=QUIET)
@given(drawn=all_kinds(), as_of=st.integers(1, 5), inline=st.sampled_from([0, 4_096]))
async def test_rows_of_all_types_are_the_same_by_every_engine(
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
    drawn: tuple[ShardSchema, pa.Table],
    as_of: int,
    inline: int,
) -> None:
    """Arrow, DuckDB, Spark's reader and Spark's tasks return equal rows."""
    schema, table = drawn
    store = open_store(str(tmp_path_factory.mktemp("store")), clock=SystemClock())
    shard = await written(store, schema, table, inline=inline)
    flat = [f.name for f in schema.data if "time64" not in str(f.type)]
    expected = accumulate(updates_of(table), as_of)

    snapshot = await shard.snapshot(as_of)
    assert contents_of(await snapshot.to_arrow(consolidated=True)) == expected
    by_tasks = await shard_frame.frame_of(spark, snapshot, native=False)
    assert rows_in(by_tasks, schema.names) == expected
    some = await shard.snapshot(as_of, columns=flat)
    assert rows_in(await some.to_spark(spark), flat) == projected(expected, schema.names, flat)


FLAT = [kind for kind, (dtype, _) in KINDS.items() if not pa.types.is_nested(dtype)]


def in_order(values: Sequence[Any]) -> list[Any]:
    return [canonical(value) for value in values]


@pytest.mark.parametrize("kind", FLAT)
def test_values_of_every_type_have_one_order(spark: SparkSession, kind: str) -> None:
    """All engines sort NaN after all numbers and nulls last, since they merge each other's runs."""
    schema = schema_of([kind], keys=1)
    strategy = st.lists(st.none() | KINDS[kind][1], min_size=30, max_size=30)
    drawn: list[list[Any]] = []

    @settings(max_examples=1, database=None)
    @given(strategy)
    def draw(values: list[Any]) -> None:
        drawn.append(values)

    draw()
    table = table_of(schema, [(value, 0, 1) for value in [*drawn[0], *HARD.get(kind, [])]])

    by_arrow = sort_updates(table, schema).column("c0")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", table)
        by_duckdb = connection.sql("SELECT c0 FROM t ORDER BY c0 NULLS LAST").to_arrow_table()
    target = arrow_schema(spark_schema(schema.data))
    frame = spark.createDataFrame(table.select(["c0"]).cast(target))
    by_spark = frame.selectExpr("c0").orderBy(frame["c0"].asc_nulls_last()).toArrow()

    assert is_sortable(schema)
    assert in_order(by_arrow.to_pylist()) == in_order(
        by_duckdb.column("c0").cast(by_arrow.type).to_pylist()
    )
    assert in_order(by_arrow.to_pylist()) == in_order(by_spark.column("c0").to_pylist())


HARD: dict[str, list[Any]] = {
    "float64": [0.0, -0.0, float("nan"), -float("nan"), float("inf"), -float("inf"), 5e-324, None],
    "float32": [0.0, -0.0, float("nan"), float("inf"), -float("inf"), None],
    "string": ["\uffff", "\U00010000", "a", "A", "", "\x00", "é", "e\u0301", None],
    "binary": [b"\xff", b"\x00", b"", b"\x7f", b"\x80", None],
}


async def test_a_plain_shard_is_scanned_without_a_shuffle(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Spark reads only the needed columns, without a shuffle and without Python."""
    store = open_store(str(tmp_path), clock=SystemClock())
    table = table_of(SCHEMA, [(n, f"row {n}", n % 6, 1) for n in range(50)])
    shard = await written(store, SCHEMA, table, inline=0)

    frame = await (await shard.snapshot(4, columns=["c1"])).to_spark(spark)
    plan = frame._jdf.queryExecution().executedPlan().toString()

    assert rows_in(frame, ["c1"]) == {(f"row {n}",): 1 for n in range(50) if n % 6 <= 4}
    assert "FileScan parquet" in plan or "Scan parquet" in plan
    assert "Exchange" not in plan
    assert "Python" not in plan
    assert "c0" not in plan.split("ReadSchema")[1]


def without_compression(table: pa.Table) -> bytes:
    """Return a file in which a changed byte is another value, and nothing else."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_page_checksum=True)
    return sink.getvalue()


async def test_a_byte_that_changed_is_told_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    """Spark checks page checksums, so a changed byte is an error."""
    schema = schema_of(["int64", "int64"], keys=1)
    table = table_of(schema, [(n, n * 7919, 0, 1) for n in range(1_000)])
    shard = on_store(open_store(str(tmp_path), clock=SystemClock())).shard(schema=schema)
    with (
        patch.object(part, "INLINE_BYTES", 0),
        patch.object(part, "encode_parquet", without_compression),
    ):
        await shard.compare_and_append(table, 0, 1)
    snapshot = await shard.snapshot(0)
    (path,) = [tmp_path / (p.path or "") for p in snapshot.parts]
    data = path.read_bytes()
    place = data.index((500).to_bytes(8, "little"))
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])

    with pytest.raises((PySparkException, Py4JError)) as error:
        (await snapshot.to_spark(spark)).selectExpr("sum(c0)").first()

    assert "checksum" in str(error.value)


async def test_many_shares_of_a_shard_are_read_by_as_many_tasks(
    moto: MotoServer, spark: SparkSession
) -> None:
    """In a bucket, tasks read by key ranges, so that updates that cancel meet."""
    store = open_store(moto.url("frames"), clock=SystemClock())
    numbers = [(n, f"row {n}", 0, 1) for n in range(3_000)]
    back = [(n, f"row {n}", 4, -1) for n in range(0, 3_000, 3)]
    shard = await written(store, SCHEMA, table_of(SCHEMA, [*numbers, *back]), inline=0)
    shard.location_url = moto.url("frames")

    with (
        patch.object(scan, "PARTITION_BYTES", 4_000),
        patch.object(scan_plan, "PARTITION_BYTES", 4_000),
    ):
        frame = await (await shard.snapshot(5)).to_spark(spark)

    assert frame.rdd.getNumPartitions() > 3
    expected = {(n, f"row {n}"): 1 for n in range(3_000) if n % 3}
    assert rows_in(frame, SCHEMA.names) == expected


async def test_what_spark_cannot_do_is_told_before_it_tries(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Memory stores and bad holds are refused before a lease is placed."""
    schema = schema_of(["int64"], keys=1)
    shard = on_store(MemoryStore()).shard(schema=schema)
    await shard.compare_and_append(table_of(schema, [(1, 0, 1)]), 0, 1)

    with pytest.raises(UsageError, match="cannot reach memory"):
        await (await shard.snapshot(0)).to_spark(spark)
    on_disk = on_store(open_store(str(tmp_path), clock=SystemClock())).shard(schema=schema)
    await on_disk.compare_and_append(table_of(schema, [(1, 0, 1)]), 0, 1)
    with pytest.raises(UsageError, match="hold"):
        await (await on_disk.snapshot(0)).to_spark(spark, hold="a while")
    assert not [name for name in on_disk.state.holds if name.startswith("term-")]


async def test_an_empty_snapshot_is_an_empty_frame(tmp_path: Path, spark: SparkSession) -> None:
    """A shard without rows gives an empty frame."""
    schema = schema_of(["int64", "struct"], keys=1)
    shard = on_store(open_store(str(tmp_path), clock=SystemClock())).shard(schema=schema)
    await shard.compare_and_append(None, 0, 1)
    snapshot = await shard.snapshot(0)

    for native in (True, False):
        frame = await shard_frame.frame_of(spark, snapshot, native=native)
        assert frame.columns == ["c0", "c1", DIFF]
        assert frame.count() == 0


CONDITIONS: dict[str, Callable[[int], bool]] = {
    "c0 >= 2000 AND c0 < 2100": lambda n: 2_000 <= n < 2_100,
    "c1 LIKE '%7' OR c0 = 3": lambda n: n % 10 == 7 or n == 3,
    "c0 // 1000 = 1 AND length(c1) > 0": lambda n: n // 1_000 == 1,  # DuckDB's integer division.
    "c0 > 10000": lambda _: False,
}


@pytest.mark.parametrize("where", CONDITIONS)
@pytest.mark.parametrize("taken_back", [False, True])
async def test_a_condition_chooses_the_same_rows_on_spark(
    tmp_path: Path, spark: SparkSession, where: str, taken_back: bool
) -> None:
    """A condition gives the same rows as in DuckDB, even on a column that is not shown."""
    shard = on_store(open_store(str(tmp_path), clock=SystemClock())).shard(schema=SCHEMA)
    rows = [(n, f"row {n}", 0, 1) for n in range(3_000)]
    back = [(n, f"row {n}", 1, -1) for n in range(0, 3_000, 3)] if taken_back else []
    with patch.object(part, "INLINE_BYTES", 0):
        await shard.compare_and_append(table_of(SCHEMA, rows[:1_500]), 0, 1)
        await shard.compare_and_append(
            table_of(SCHEMA, [(n, row, 1, 1) for n, row, _, _ in rows[1_500:]] + back), 1, 2
        )
    left = {n for n in range(3_000) if CONDITIONS[where](n) and (n % 3 or not taken_back)}

    found = await (await shard.snapshot(1, where=where)).to_spark(spark)
    assert rows_in(found, SCHEMA.names) == {(n, f"row {n}"): 1 for n in left}
    shown = await (await shard.snapshot(1, columns=["c1"], where=where)).to_spark(spark)
    assert rows_in(shown, ["c1"]) == {(f"row {n}",): 1 for n in left}


async def test_a_condition_leaves_out_parts_and_row_groups(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A frame does not read parts that the bounds exclude: they may be gone."""
    shard = on_store(open_store(str(tmp_path), clock=SystemClock())).shard(schema=SCHEMA)
    with patch.object(part, "INLINE_BYTES", 0), patch.object(parquet, "ROW_GROUP_ROWS", 100):
        for time in range(3):
            some = [(1_000 * time + n, "x", time, 1) for n in range(1_000)]
            await shard.compare_and_append(table_of(SCHEMA, some), time, time + 1)
    snapshot = await shard.snapshot(2, where="c0 BETWEEN 1120 AND 1130")
    for one in (snapshot.parts[0], snapshot.parts[2]):
        (tmp_path / (one.path or "")).unlink()

    frame = await snapshot.to_spark(spark)
    assert rows_in(frame, SCHEMA.names) == {(n, "x"): 1 for n in range(1_120, 1_131)}


async def test_a_condition_that_fails_on_a_row_is_told(tmp_path: Path, spark: SparkSession) -> None:
    """A condition that fails on a row raises the error of every other reader."""
    shard = on_store(open_store(str(tmp_path), clock=SystemClock())).shard(schema=SCHEMA)
    await shard.compare_and_append(table_of(SCHEMA, [(1, "one", 0, 1)]), 0, 1)

    frame = await (await shard.snapshot(0, where="CAST(c1 AS int) = 1")).to_spark(spark)
    with pytest.raises(PySparkException, match=r"TIDELOG_USAGE_ERROR.*where fails on a row"):
        frame.count()


@pytest.mark.parametrize("native", [True, False])
async def test_what_a_frame_holds_stays_until_its_term_is_over(
    tmp_path: Path, spark: SparkSession, native: bool
) -> None:
    """A held frame reads its parts until the hold expires, and then raises HoldExpired."""
    store = open_store(str(tmp_path), clock=SystemClock())
    table = table_of(SCHEMA, [(n, f"row {n}", n % 6, 1) for n in range(50)])
    shard = await written(store, SCHEMA, table, inline=0)
    expected = {(n, f"row {n}"): 1 for n in range(50) if n % 6 <= 4}

    snapshot = await shard.snapshot(4)
    frame = await shard_frame.frame_of(spark, snapshot, native=native, hold="6h")
    with patch.object(part, "INLINE_BYTES", 0):
        await merge_away(shard)
    assert all((tmp_path / (one.path or "")).exists() for one in snapshot.parts)
    assert rows_in(frame, SCHEMA.names) == expected
    assert frame.where("c0 < 7").count() == 6  # 5 is at a later time.

    snapshot = await shard.snapshot(4)
    short = await shard_frame.frame_of(spark, snapshot, native=native, hold="1s")
    names = [name for name in (await shard.refresh()).holds if name.startswith("term-")]
    assert len(names) == 2
    await SystemClock().sleep(1_100_000)
    for name in names:
        await shard.drop_hold(name)
    await shard.compare_and_append(table_of(SCHEMA, [(99, "more", 6, 1)]), 6, 7)
    with patch.object(part, "INLINE_BYTES", 0):
        await merge_away(shard)
    assert not any((tmp_path / (one.path or "")).exists() for one in snapshot.parts)
    with pytest.raises((PySparkException, Py4JError)) as error:
        rows_in(short, SCHEMA.names)
    assert "DataFrame has ended: create it again, with a longer hold" in str(error.value)
    assert "TIDELOG_HOLD_EXPIRED" in str(error.value)


async def test_a_frame_holds_the_current_parts(tmp_path: Path, spark: SparkSession) -> None:
    """The snapshot's parts may be merged and deleted before the frame places its hold."""
    store = open_store(str(tmp_path), clock=SystemClock())
    table = table_of(SCHEMA, [(n, f"row {n}", n % 6, 1) for n in range(50)])
    shard = await written(store, SCHEMA, table, inline=0)
    snapshot = await shard.snapshot(5)
    with patch.object(part, "INLINE_BYTES", 0):
        await merge_away(shard)

    frame = await snapshot.to_spark(spark, hold="1h")
    assert rows_in(frame, SCHEMA.names) == {(n, f"row {n}"): 1 for n in range(50)}


async def test_executors_keep_and_hedge_as_the_url_says(
    seaweed: SeaweedServer, tmp_path: Path, spark: SparkSession
) -> None:
    """The next query reads an executor's cached copies, even after the parts are deleted."""
    folder = tmp_path / "copies"
    url = f"{seaweed.url('frames/kept')}&cache={folder}&hedge=on"
    location = await open_location(url, create=True)
    shard = location.shard("s", schema=SCHEMA.data, key=["c0"])
    rows = [(n, f"row {n}", 0, 1) for n in range(2_000)]
    with patch.object(part, "INLINE_BYTES", 0):
        await shard.compare_and_append(table_of(SCHEMA, rows), 0, 1)
    snapshot = await shard.snapshot(0, where="c0 >= 1990")
    expected = {(n, f"row {n}"): 1 for n in range(1_990, 2_000)}

    first = rows_in(await snapshot.to_spark(spark, hold="1h"), SCHEMA.names)
    kept = [path for path in folder.rglob("*") if path.is_file()]
    bare = await open_location(seaweed.url("frames/kept"))
    # A deletion through a cache would delete its copies too.
    await bare.store.delete([one.path for one in snapshot.parts if one.path is not None])
    again = rows_in(await snapshot.to_spark(spark, hold="1h"), SCHEMA.names)

    assert first == again == expected
    assert kept
    gone = await bare.shard("s", schema=SCHEMA.data, key=["c0"]).snapshot(0)
    with pytest.raises((PySparkException, Py4JError), match="a part that the shard names is missi"):
        rows_in(await gone.to_spark(spark), SCHEMA.names)
