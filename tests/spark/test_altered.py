"""Columns that come and go, on Spark: shards whose schema evolved, and altered tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import tidelog
from kit.shards import COMMITTED, on_store
from tidelog.core.clock import SystemClock
from tidelog.core.frontier import Frontier
from tidelog.errors import SchemaEvolved
from tidelog.location import Location, open_location
from tidelog.persist.format import part
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.spark import shard_frame
from tidelog.spark.collection_stream import ChangesStreamReader
from tidelog.spark.options import ReadSettings, SourceError
from tidelog.store.urls import open_store

Rows = Counter[tuple[Any, ...]]
CONDITIONS: dict[str | None, Callable[[int, float | None], bool]] = {
    None: lambda _, __: True,
    "w IS NULL": lambda _, w: w is None,
    "w > 1": lambda _, w: w is not None and w > 1,
    "id < 2 OR w = 2.5": lambda one, w: one < 2 or w == 2.5,
}
OLD = [(n, f"{n}") for n in range(4)]
NEW = [(4, "4", 0.5), (5, "5", 2.5)]


@pytest.fixture(params=["inline", "objects"], autouse=True)
def _parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store parts in the state, or all as objects, which Spark's own scan can read."""
    if request.param == "objects":
        monkeypatch.setattr(part, "INLINE_BYTES", -1)


def dicts(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(("id", "v", "w"), row, strict=False)) for row in rows]


def rows_in(frame: DataFrame) -> Rows:
    """Return the rows of a frame; the frame of a shard has their counts."""
    found: Rows = Counter()
    for row in frame.toArrow().to_pylist():
        found[row["id"], row["v"], row["w"]] += row.get("_diff", 1)
    return found


def chosen(condition: str | None, rows: list[tuple[Any, ...]]) -> Rows:
    """Return the rows of a condition, computed here."""
    return Counter(row for row in rows if CONDITIONS[condition](row[0], row[2]))


async def append(shard: Shard, rows: list[tuple[Any, ...]], time: int) -> None:
    table = pa.Table.from_pylist([{**row, "_time": time, "_diff": 1} for row in dicts(*rows)])
    done = await shard.compare_and_append(table, Frontier.at(time), Frontier.at(time + 1))
    assert done.verdict is COMMITTED


@pytest.mark.parametrize("native", [True, False], ids=["scan", "tasks"])
async def test_frames_of_an_evolved_shard_have_null_in_old_rows(
    spark: SparkSession, tmp_path: Path, native: bool
) -> None:
    """The full frame and each filtered one have the rows of both schemas."""
    first = shard_schema(
        pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.string())}).schema,
        key=["id"],
    )
    wider = pa.schema([*first.data, pa.field("w", pa.float64())])
    clock = SystemClock()
    place = on_store(open_store(str(tmp_path), clock=clock))
    shard = place.shard(schema=first, clock=clock)
    await append(shard, OLD, 0)
    await shard.evolve_schema(wider)
    later = place.shard(schema=shard_schema(wider, key=["id"]), clock=clock)
    await append(later, NEW, 1)
    for condition in CONDITIONS:
        snapshot = await later.snapshot(1, where=condition)
        frame = await shard_frame.frame_of(spark, snapshot, native=native)
        assert rows_in(frame) == chosen(condition, [*((*row, None) for row in OLD), *NEW])


async def altered(lake: Location, name: str) -> int:
    """Make a table, write it, alter it, and write it again; return the time of the first write."""
    keyed = name == "keyed"
    columns, key = "id bigint, v varchar" + ", gone varchar" * keyed, ["id"] * keyed
    table = await lake.tables.create(name, columns, key=key, shards=2)
    before = await table.insert(dicts(*OLD))
    table = await lake.tables.alter(name, add="w double", drop=["gone"] * keyed)
    await table.insert(dicts(*NEW))
    return before


@pytest.mark.parametrize("is_merged", [False, True], ids=["unmerged", "merged"])
@pytest.mark.parametrize("name", ["keyed", "loose"])
async def test_frames_of_an_altered_table_have_null_in_old_rows(
    spark: SparkSession, tmp_path: Path, name: str, is_merged: bool
) -> None:
    """Frames of contents, frames by options and filters give the same rows, now and as of then."""
    lake = await open_location(str(tmp_path), create=True)
    before = await altered(lake, name)
    old = [(*row, None) for row in OLD]
    table = await lake.table(name)
    if is_merged:
        for shard in table.shards:
            await shard.compact(full=True)
    for condition in CONDITIONS:
        for time, rows in ((None, [*old, *NEW]), (before, old)):
            expected = chosen(condition, rows)
            contents = await table.snapshot(time, where=condition)
            assert rows_in(await contents.to_spark(spark)) == expected
            options = {"location": str(tmp_path)} | ({"asOf": str(time)} if time else {})
            frame = spark.read.format("tidelog").options(**options).load(name)
            assert rows_in(frame if condition is None else frame.where(condition)) == expected
    for snapshot in await table.snapshots():
        frame = await shard_frame.frame_of(spark, snapshot)
        assert rows_in(frame) <= Counter([*old, *NEW])


async def test_a_large_base_with_few_changes_is_read_after_an_alteration(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark scans the parts of the old columns, and adds the changes of the new ones."""
    lake = await open_location(str(tmp_path), create=True)
    table = await lake.tables.create("big", "id bigint, v varchar", key=["id"], shards=1)
    await table.insert(pa.table({"id": range(3_000), "v": [f"{n}" for n in range(3_000)]}))
    table = await lake.tables.alter("big", add="w double")
    await table.upsert(dicts((1, "one", 0.5), (2, "two", None)))
    await table.delete(keys=[3])
    left = [(n, f"{n}", None) for n in range(3_000) if not 1 <= n <= 3]

    frame = await (await table.snapshot()).to_spark(spark)
    assert rows_in(frame) == Counter([*left, (1, "one", 0.5), (2, "two", None)])
    some = await (await table.snapshot(columns=["w", "id", "v"])).to_spark(spark)
    assert rows_in(some)[1, "one", 0.5] == 1


async def test_a_frame_of_a_dropped_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A handle of before, and a DataFrame that Spark has planned before, name the column."""
    lake = await open_location(str(tmp_path), create=True)
    await altered(lake, "loose")
    table = await lake.table("loose")
    frame = spark.read.format("tidelog").option("location", str(tmp_path)).load("loose")
    contents = await table.snapshot()
    await lake.tables.alter("loose", drop=["w"], discard_values=True)

    with pytest.raises(SchemaEvolved, match="column 'w' was dropped"):
        await contents.to_spark(spark)
    with pytest.raises(PySparkException, match=r"\[TIDELOG_SCHEMA_EVOLVED\].*'w' was dropped"):
        frame.collect()


def test_a_stream_goes_on_over_new_columns(tmp_path: Path) -> None:
    """It has the columns with which it began, until one of them is dropped."""
    with tidelog.connect(str(tmp_path), create=True) as lake:
        table = lake.tables.create("t", "id bigint, v varchar, w double", key=["id"], shards=2)
        table.insert(dicts(*NEW))
        reader = ChangesStreamReader(
            ReadSettings(location_url=str(tmp_path), name="t", is_changes=True)
        )
        start = reader.initialOffset()
        found: Rows = Counter()
        for number in range(2):
            table = lake.tables.alter("t", add=f"x{number} double")
            table.upsert([{"id": 4, "v": f"{number}", "w": 0.5, f"x{number}": 1.5}])
            end = reader.latestOffset(start, ReadAllAvailable())
            found.update(changes_between(reader, start, end))
            start = end
        assert {row: count for row, count in found.items() if count} == {
            (5, "5", 2.5): 1,
            (4, "1", 0.5): 1,
        }
        table = lake.tables.alter("t", drop=["w"], discard_values=True)
        table.upsert([{"id": 6, "v": "6"}])
        with pytest.raises(SourceError, match="column 'w' was dropped"):
            reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))


def changes_between(
    reader: ChangesStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> Rows:
    found: Rows = Counter()
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            for row in batch.to_pylist():
                found[row["id"], row["v"], row["w"]] += row["_diff"]
    return found


def test_spark_writes_an_altered_table(spark: SparkSession, tmp_path: Path) -> None:
    """A DataFrame may have the new column, or lack it; a dropped column is refused."""
    with tidelog.connect(str(tmp_path), create=True) as lake:
        lake.tables.create("t", "id bigint, v varchar, gone varchar", key=["id"], shards=2)
        lake.tables.alter("t", add="w double", drop=["gone"])

        def save(sql: str, **options: str) -> None:
            writer = spark.sql(sql).write.format("tidelog").option("location", str(tmp_path))
            writer.options(**options).mode("append").save("t")

        save("SELECT 1L AS id, 'a' AS v, 0.5D AS w")
        save("SELECT 2L AS id, 'b' AS v")
        save("SELECT 2L AS id, 'c' AS v, 1.5D AS w", operation="upsert")
        with pytest.raises(PySparkException, match="gone"):
            save("SELECT 3L AS id, 'b' AS v, 'x' AS gone")

        found = lake.table("t").snapshot().to_arrow().to_pylist()
    assert Counter(tuple(row.values()) for row in found) == Counter([(1, "a", 0.5), (2, "c", 1.5)])
