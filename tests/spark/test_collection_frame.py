"""DataFrames of a collection at one time: the calls to Spark, and the rows that they read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import DataSourceReader

import tidelog
from kit.sources import changes, changes_spec, ingest, rows_of, write_files
from tidelog.collection.collection import Collection
from tidelog.errors import AsOfNotComplete, NoSuchCollection, UsageError
from tidelog.location import open_location
from tidelog.persist.format import part
from tidelog.persist.format.schema import TIME
from tidelog.spark import collection_frame, views
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.types import arrow_schema, spark_schema
from tidelog.testing import RecordedStore

EARLIER = 1_000_020


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A location with ``keyed``, with deletions, and ``appended``; each part is an object."""
    root = tmp_path_factory.mktemp("lake")
    files = write_files(root / "in", "json", changes(240))

    async def make() -> None:
        location = await open_location(str(root / "lake"), create=True)
        for name in ("keyed", "appended"):
            is_keyed = name == "keyed"
            await location.sources.create(
                changes_spec(files, is_keyed=is_keyed, name=name, shards=2)
            )
            with patch.object(part, "INLINE_BYTES", 0):
                await ingest(location, name, bytes_max=10**6)

    asyncio.run(make())
    return str(root / "lake")


@pytest.fixture(autouse=True)
def spark(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A session that records its calls."""
    for module in (collection_frame, views):
        monkeypatch.setattr(module, "register_source", lambda _: None)
    return MagicMock()


async def opened(lake: str, name: str) -> tuple[Collection, RecordedStore]:
    """Open a collection on a store that records the requests of this process."""
    collection = await (await open_location(lake)).collection(name)
    store = RecordedStore(collection.store)
    return replace(collection, store=store), store


def loaded(spark: MagicMock) -> pa.Table:
    """Return the rows that ``format("tidelog")`` reads with the options of the one call."""
    (given,) = spark.read.format.return_value.options.call_args_list
    load = spark.read.format.return_value.options.return_value.load
    source = TidelogDataSource({**given.kwargs, "path": load.call_args.args[0]})
    schema = source.schema()
    reader = source.reader(schema)
    return pa.Table.from_batches(batches_of(reader), arrow_schema(schema))


def batches_of(reader: DataSourceReader) -> list[pa.RecordBatch]:
    read = (reader.read(each) for each in reader.partitions())
    return [batch for batches in read for batch in batches if isinstance(batch, pa.RecordBatch)]


def scanned(spark: MagicMock) -> tuple[pa.Table, Any]:
    """Return the updates in the files of the one scan of Parquet, and the mock of its frame."""
    scan = spark.read.schema.return_value.option.return_value.parquet
    tables = [pq.read_table(path) for path in scan.call_args.args]
    return pa.concat_tables(tables), scan.return_value


@pytest.mark.parametrize("as_of", [None, EARLIER])
@pytest.mark.parametrize("where", [None, "k % 2 = 0"])
async def test_tasks_read_the_rows_of_the_snapshot_and_the_driver_reads_no_part(
    spark: MagicMock, lake: str, as_of: int | None, where: str | None
) -> None:
    """The options of the read contain the resolved time, the columns and the condition."""
    collection, store = await opened(lake, "keyed")
    snapshot = await collection.snapshot(as_of, columns=["text", "k"], where=where)
    await snapshot.to_spark(spark)
    assert not [record for record in store.records if "/part/" in str(record)]
    expected = await snapshot.to_arrow()
    assert [record for record in store.records if "/part/" in str(record)]
    found = await asyncio.to_thread(loaded, spark)

    assert found.num_rows > 0
    assert rows_of(found) == rows_of(expected.cast(arrow_schema(spark_schema(expected.schema))))


@pytest.mark.parametrize("as_of", [None, EARLIER])
async def test_spark_itself_scans_the_files_of_appended_rows(
    spark: MagicMock, lake: str, as_of: int | None
) -> None:
    """No row takes back another, so the scan needs no consolidation: it filters by time at most."""
    collection, store = await opened(lake, "appended")
    snapshot = await collection.snapshot(as_of, columns=["text", "k"])
    await snapshot.to_spark(spark)
    assert not [record for record in store.records if "/part/" in str(record)]
    updates, frame = scanned(spark)
    if as_of is not None:
        frame.where.assert_called_once_with(f"_time <= {EARLIER}")
        updates = updates.filter(pc.less_equal(updates[TIME], pa.scalar(EARLIER, pa.int64())))
        frame = frame.where.return_value
    frame.select.assert_called_once_with("`text`", "`k`")

    assert rows_of(updates.select(["text", "k"])) == rows_of(await snapshot.to_arrow())
    assert not spark.read.format.called


async def test_compacted_rows_are_scanned_and_held_or_inline_ones_are_not(
    spark: MagicMock, tmp_path: Path
) -> None:
    """After a compaction to one time, a collection with deletions needs no consolidation."""
    files = write_files(tmp_path / "in", "json", changes(240))
    location = await open_location(str(tmp_path / "lake"), create=True)
    await location.sources.create(changes_spec(files))
    await ingest(location, "c")
    last = [{**changes(2)[1], "k": 99, "at": 2_000_000}]
    write_files(tmp_path / "more", "json", last, files=1)
    (tmp_path / "more" / "0.json").rename(tmp_path / "in" / "9.json")
    await ingest(location, "c")
    collection = await location.collection("c")
    await (await collection.snapshot()).to_spark(spark)
    assert not spark.read.schema.called
    newest = await collection.resolve_as_of(None)
    await location.collections.retain("c", 0)
    with patch.object(part, "INLINE_BYTES", 0):
        for shard in collection.all_shards:
            await shard.compact(full=True)
    snapshot = await collection.snapshot(newest)
    await snapshot.to_spark(spark, hold="1h")
    assert not spark.read.schema.called
    await snapshot.to_spark(spark)
    updates, frame = scanned(spark)

    assert not frame.where.called
    assert updates.num_rows == (await snapshot.to_arrow()).num_rows > 0


async def test_a_limit_and_a_location_in_memory_are_refused(spark: MagicMock, lake: str) -> None:
    """The first rows of a DataFrame are not those of the collection's order."""
    collection, _ = await opened(lake, "appended")
    snapshot = await collection.snapshot(limit=3)

    with pytest.raises(UsageError, match=r"call limit\(\) of the DataFrame"):
        await snapshot.to_spark(spark)


def feed(lake: tidelog.Location, folder: Path, name: str, *times: int) -> None:
    """Ingest a row for each time into a collection."""
    place = folder / name
    place.mkdir()
    (place / "1.jsonl").write_text("".join(f'{{"n": {time}, "at": {time}}}\n' for time in times))
    spec = tidelog.SourceSpec(name=name, files=f"{place}/*.jsonl", time_column="at")
    lake.sources.create(spec)
    lake.sources.ingest(name)


def made_views(spark: MagicMock) -> dict[str, int]:
    """Return the views, each with its number of rows."""
    options = spark.read.format.return_value.options
    made = options.return_value.load.return_value.createOrReplaceTempView.call_args_list
    found = {}
    for given, load, view in zip(
        options.call_args_list, options.return_value.load.call_args_list, made, strict=True
    ):
        source = TidelogDataSource({**given.kwargs, "path": load.args[0]})
        reader = source.reader(source.schema())
        found[view.args[0]] = sum(batch.num_rows for batch in batches_of(reader))
    return found


def test_register_makes_a_view_of_each_collection_as_of_one_time(
    spark: MagicMock, tmp_path: Path
) -> None:
    """The time is the newest one that all have, or the caller's; odd names are quoted."""
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        feed(lake, tmp_path, "left", 1_000, 2_000)
        feed(lake, tmp_path, "right-1.x", 1_000, 2_000, 3_000)
        assert views.register(spark, lake) == 2_000
        assert made_views(spark) == {"`left`": 2, "`right-1.x`": 2}

        spark.reset_mock()
        assert views.register(spark, lake.url, "1970-01-01T00:00:01Z", names=["left"]) == 1_000
        assert made_views(spark) == {"`left`": 1}
        assert views.register(spark, lake, names=["right-1.x"]) == 3_000
        assert views.register(spark) is None
        with pytest.raises(AsOfNotComplete, match="'left' is complete up to"):
            views.register(spark, lake, 3_000)
        with pytest.raises(NoSuchCollection, match="no collection named 'other'"):
            views.register(spark, lake, names=["other"])
        with pytest.raises(UsageError, match="names must be a list"):
            views.register(spark, lake, names="left")
        feed(lake, tmp_path, "Left", 1_000)
        with pytest.raises(UsageError, match="differ only in case"):
            views.register(spark, lake)


async def test_register_takes_a_location_of_asyncio(spark: MagicMock, lake: str) -> None:
    """A notebook has a running event loop, which the call leaves alone."""
    location = await open_location(lake)

    assert views.register(spark, location) == 1_000_047
