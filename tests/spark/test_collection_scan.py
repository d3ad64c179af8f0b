"""DataFrames of a collection at one time: the driver reads no part."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from kit.sources import changes, changes_spec, ingest, rows_of, write_files
from tidelog.collection.collection import Collection
from tidelog.location import open_location
from tidelog.persist.format import part
from tidelog.spark.types import arrow_schema, spark_schema
from tidelog.testing import RecordedStore

COUNT = 240


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with ``keyed``, of three shards with deletions, and ``appended``."""
    root = tmp_path_factory.mktemp("lake")
    files = write_files(root / "in", "json", changes(COUNT))

    async def make() -> None:
        location = await open_location(str(root / "lake"), create=True)
        for name, shards in (("keyed", 3), ("appended", 2)):
            is_keyed = name == "keyed"
            spec = changes_spec(files, is_keyed=is_keyed, name=name, shards=shards)
            await location.sources.create(spec)
            with patch.object(part, "INLINE_BYTES", 0):
                await ingest(location, name, bytes_max=4_000)

    asyncio.run(make())
    return root / "lake"


async def opened(lake: Path, name: str) -> tuple[Collection, RecordedStore]:
    """Open a collection on a store that records the requests of this process."""
    collection = await (await open_location(str(lake))).collection(name)
    store = RecordedStore(collection.store)
    return replace(collection, store=store), store


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("name", ["keyed", "appended"])
@pytest.mark.parametrize("where", [None, "k % 2 = 0"])
async def test_the_frame_has_the_rows_of_the_library_and_the_driver_reads_no_part(
    spark: SparkSession, lake: Path, name: str, where: str | None
) -> None:
    """Rows go from the store to Spark's tasks, now and as of an earlier time."""
    collection, store = await opened(lake, name)
    for as_of in (None, 1_000_020):
        snapshot = await collection.snapshot(as_of, columns=["text", "k"], where=where)
        frame = await snapshot.to_spark(spark)
        assert not [record for record in store.records if "/part/" in str(record)]
        table = await snapshot.to_arrow()
        assert [record for record in store.records if "/part/" in str(record)]
        store.records.clear()
        found = frame.toArrow()

        assert found.num_rows > 0
        assert rows_of(found) == rows_of(table.cast(arrow_schema(spark_schema(table.schema))))
        assert not store.records


async def test_spark_itself_scans_what_needs_no_consolidation(
    spark: SparkSession, lake: Path
) -> None:
    """A scan of appended rows has no shuffle and no Python, and one partition a part or more."""
    appended, _ = await opened(lake, "appended")
    keyed, _ = await opened(lake, "keyed")
    snapshot = await appended.snapshot(columns=["k"])
    scanned = await snapshot.to_spark(spark)
    held = await snapshot.to_spark(spark, hold="1h")
    merged = await (await keyed.snapshot()).to_spark(spark)

    assert "parquet" in plan_of(scanned)
    assert "Python" not in plan_of(scanned)
    for frame in (held, merged):
        assert "parquet" not in plan_of(frame)
        assert frame.count() == frame.toArrow().num_rows > 0
    assert "Exchange" not in plan_of(scanned) + plan_of(held) + plan_of(merged)


async def test_a_count_of_compacted_rows_reads_no_data(spark: SparkSession, tmp_path: Path) -> None:
    """The footers have the numbers of rows: a count succeeds without the bytes of any row."""
    files = write_files(tmp_path / "in", "json", changes(COUNT))
    location = await open_location(str(tmp_path / "lake"), create=True)
    await location.sources.create(changes_spec(files, shards=2))
    await ingest(location, "c")
    last = [{**changes(2)[1], "k": 99, "at": 2_000_000}]
    write_files(tmp_path / "more", "json", last, files=1)
    (tmp_path / "more" / "0.json").rename(tmp_path / "in" / "9.json")
    await ingest(location, "c")
    collection = await location.collection("c")
    newest = await collection.resolve_as_of(None)
    await location.collections.retain("c", 0)
    with patch.object(part, "INLINE_BYTES", 0):
        for shard in collection.all_shards:
            await shard.compact(full=True)
    snapshot = await collection.snapshot(newest)
    count = (await snapshot.to_arrow()).num_rows
    paths = [tmp_path / "lake" / str(p.path) for p in collection.parts_until(newest)]
    for path in paths:
        data = path.read_bytes()
        footer = int.from_bytes(data[-8:-4], "little") + 8
        path.write_bytes(data[:4] + bytes(len(data) - footer - 4) + data[-footer:])
    frame = await snapshot.to_spark(spark)

    assert sum(pq.read_metadata(path).num_rows for path in paths) == count > 0
    assert frame.count() == count
    with pytest.raises(Py4JError):
        frame.selectExpr("sum(k)").collect()
