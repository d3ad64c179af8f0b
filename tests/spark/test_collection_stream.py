"""Changes of a collection in a stream: each once, by their times, across stops and merges."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import tidelog
from kit.sources import FIRST, changes, changes_spec, ingest, write_files
from tidelog.errors import UsageError
from tidelog.location import open_location
from tidelog.persist.format.schema import DIFF, TIME
from tidelog.spark.collection_stream import ChangesStreamReader, end_of_batch
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.options import ReadSettings, SourceError
from tidelog.testing.models import Row

Change = tuple[Any, ...]
LAST = FIRST + 239 // 5
COLUMNS = ("k", "text")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A location with the collection ``c`` of two shards, in many small parts."""
    root = tmp_path_factory.mktemp("lake")
    make(root)
    return str(root / "lake")


def make(root: Path) -> None:
    files = write_files(root / "in", "json", changes(240))

    async def made() -> None:
        location = await open_location(str(root / "lake"), create=True)
        await location.sources.create(changes_spec(files, shards=2))
        await ingest(location, "c", bytes_max=2_000)

    asyncio.run(made())


def reader_of(lake: str, **told: Any) -> ChangesStreamReader:
    settings = {"columns": COLUMNS, "is_changes": True, **told}
    return ChangesStreamReader(ReadSettings(location_url=lake, name="c", **settings))


def batches_of(reader: ChangesStreamReader) -> Iterator[tuple[int, list[Change]]]:
    """Yield the end and the rows of each micro-batch, until nothing is left."""
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        yield end["time"], rows_between(reader, start, end)
        start = end


def rows_between(
    reader: ChangesStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[Change]:
    found: list[Change] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def contents(lake: str, as_of: int) -> Counter[Row]:
    async def read() -> pa.Table:
        collection = await (await open_location(lake)).collection("c")
        return await collection.consolidated(as_of, columns=COLUMNS)

    table = asyncio.run(read())
    return Counter({tuple(r[n] for n in COLUMNS): r[DIFF] for r in table.to_pylist()})


def summed(rows: list[Change]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for _, diff, *row in rows:
        found[tuple(row)] += diff
    return Counter({row: count for row, count in found.items() if count})


@pytest.mark.parametrize("times_max", [None, 1, 3])
def test_contents_and_changes_add_up_at_each_micro_batch(lake: str, times_max: int | None) -> None:
    """The first micro-batch is the contents; afterwards, the sum is the contents at each end."""
    whole = list(batches_of(reader_of(lake, times_max=times_max)))
    later = list(batches_of(reader_of(lake, since=FIRST + 7, times_max=times_max)))

    assert [end for end, _ in whole] == [LAST]
    assert summed(whole[0][1]) == contents(lake, LAST)
    assert {row[0] for row in whole[0][1]} == {LAST}
    total = contents(lake, FIRST + 7)
    lower = FIRST + 7
    for end, rows in later:
        assert all(lower < row[0] <= end for row in rows)
        total.update(summed(rows))
        lower = end
        assert Counter({r: n for r, n in total.items() if n}) == contents(lake, end)
    assert lower == LAST
    assert (len(later) > 3) == (times_max is not None)


def test_the_kind_of_each_change_is_added_on_request(lake: str) -> None:
    """The contents are inserts; a changed row is an update with both of its images."""
    contents_ = [row for _, rows in batches_of(reader_of(lake, has_types=True)) for row in rows]
    later = batches_of(reader_of(lake, has_types=True, since=FIRST))
    kinds = Counter((row[2], row[1] > 0) for _, rows in later for row in rows)

    assert {row[2] for row in contents_} == {"insert"}
    assert kinds["update_preimage", False] == kinds["update_postimage", True] > 0
    assert kinds["delete", False] > 0 < kinds["insert", True]
    assert len(kinds) == 4
    with pytest.raises(UsageError, match="changeType needs the key"):
        reader_of(lake, has_types=True, columns=("text",))


def test_a_limit_of_bytes_makes_small_micro_batches(lake: str) -> None:
    """Each micro-batch has at least one part, also if the part is over the limit."""
    ends = [end for end, _ in batches_of(reader_of(lake, since=FIRST, bytes_max=1))]

    assert len(ends) > 5
    assert ends == sorted(set(ends))
    assert end_of_batch([], 9, times_max=1, bytes_max=1) == 9


def test_trigger_once_and_available_now_stop_where_they_began(tmp_path: Path) -> None:
    """Later commits belong to the next run; ``Trigger.Once`` ignores the limits, as in Spark."""
    make(tmp_path)
    reader = reader_of(str(tmp_path / "lake"), since=FIRST, times_max=1)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()

    assert reader.latestOffset(start, ReadAllAvailable())["time"] == LAST
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["time"] < LAST
    assert list(start) == ["rendition", "time", "hold"]


def test_a_checkpoint_of_another_collection_and_lost_times_are_refused(tmp_path: Path) -> None:
    """The query must not skip changes, nor read those of a new collection of the name."""
    make(tmp_path)
    place = str(tmp_path / "lake")
    reader = reader_of(place, since=FIRST + 3)
    start = reader.initialOffset()
    with pytest.raises(SourceError, match=r"\[TIDELOG_NO_SUCH_COLLECTION\] the checkpoint of"):
        reader.latestOffset({**start, "rendition": "other"}, ReadAllAvailable())
    with pytest.raises(SourceError, match="start the query with a new checkpoint"):
        reader.latestOffset({**start, "time": LAST + 9}, ReadAllAvailable())

    async def forget() -> None:
        location = await open_location(place)
        await location.collections.retain("c", 0)

    asyncio.run(forget())
    with pytest.raises(SourceError, match=r"\[TIDELOG_AS_OF_BEFORE_SINCE\] 'c' is readable since"):
        reader_of(place).latestOffset(start, ReadAllAvailable())


def test_spark_gets_batches_of_exactly_the_schema_that_it_was_given(lake: str) -> None:
    """Spark pickles the source and the reader, and refuses other types and other nullability."""
    told = {"location": lake, "path": "c", "kind": "changes", "changetype": "TRUE"}
    source = TidelogDataSource(cast("dict[str, str]", CaseInsensitiveDict(told)))
    schema = source.schema()
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    again = cloudpickle.loads(dumps(source)).streamReader(schema=schema)
    reader = cloudpickle.loads(dumps(again))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    (partition, *_) = reader.partitions(start, end)
    (batch, *_) = reader.read(partition)

    assert schema.names[:3] == [TIME, DIFF, "_change_type"]
    assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    with pytest.raises(SourceError, match="a collection has a fixed schema"):
        source.streamReader(schema=StructType(schema.fields[1:])).initialOffset()


def test_spark_tells_why_a_stream_is_refused(spark: SparkSession, lake: str) -> None:
    """PySpark has a fault that replaces an error of a new stream by one of its own."""
    contents = spark.readStream.format("tidelog").option("location", lake).load("c")

    with pytest.raises(StreamingQueryException) as caught:
        contents.writeStream.format("noop").start().awaitTermination(120)

    assert "a stream of a collection reads its changes" in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value)


def test_commits_of_other_tables_start_no_micro_batch(tmp_path: Path) -> None:
    """A stream from one table into another of its location would otherwise never be idle."""
    place = str(tmp_path / "lake")
    with tidelog.connect(place, create=True) as lake:
        ours, other = (lake.tables.create(name, "k bigint") for name in ("ours", "other"))
        ours.insert([{"k": 1}])
        reader = ChangesStreamReader(
            ReadSettings(location_url=place, name="ours", is_changes=True, since="now")
        )
        start = reader.initialOffset()
        other.insert([{"k": 1}])
        assert reader.latestOffset(start, ReadAllAvailable()) == start

        ours.insert([{"k": 2}])
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end != start
        other.insert([{"k": 2}])
        assert reader.latestOffset(end, ReadAllAvailable()) == end
