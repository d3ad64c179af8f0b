"""The hold of a stream's checkpoint: a stopped query continues after retention and compaction."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tidelog
from kit.clocks import SwiftClock
from kit.spark_queries import run_available
from tidelog.errors import LocationError, StoreRefused, UsageError
from tidelog.location import open_location
from tidelog.persist.states.state import Hold, HoldKind
from tidelog.spark import checkpoint_hold
from tidelog.spark.checkpoint_hold import MOVE_US, CheckpointHold
from tidelog.spark.collection_stream import ChangesStreamReader
from tidelog.spark.options import ReadSettings, SourceError

HOUR_MS = 3_600_000
BASE = 4_000_000_000_000  # After now, because a new table is complete up to now.
Change = tuple[int, int, int]
Offset = dict[str, Any]


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A location with a table of two shards that retains no past; its first row is 0 at BASE."""
    with tidelog.connect(str(tmp_path / "lake"), create=True) as lake:
        lake.tables.create("t", "a bigint", shards=2, retain_ms=0)
        lake.table("t").insert([{"a": 0}], at=BASE)
    return str(tmp_path / "lake")


def insert(place: str, *numbers: int) -> None:
    """Insert each number as a row, at BASE plus the number."""
    with tidelog.connect(place) as lake:
        for number in numbers:
            lake.table("t").insert([{"a": number}], at=BASE + number)


def compact(place: str) -> None:
    """Merge all, and give up all times that no hold keeps."""
    command = [sys.executable, "-m", "tidelog.cli.main", "--location", place]
    for verb in (["compact", "t", "--full"], ["collect", "--grace", "0s"]):
        subprocess.run([*command, *verb], check=True, capture_output=True)


def holds_of(place: str) -> list[dict[str, Hold]]:
    """Return the holds of streams on each shard."""

    async def read() -> list[dict[str, Hold]]:
        collection = await (await open_location(place)).collection("t")
        await collection.refresh()
        return [
            {name: hold for name, hold in state.holds.items() if name.startswith("stream-")}
            for state in collection.states
        ]

    return asyncio.run(read())


def times_of(place: str) -> list[int | None]:
    """Return the time of the only hold on each shard, relative to BASE."""
    return [
        None if hold.since is None else hold.since - BASE
        for held in holds_of(place)
        for hold in held.values()
    ]


def reader_of(place: str, **told: Any) -> ChangesStreamReader:
    clock = told.pop("clock", None)
    settings = {"is_changes": True, "checkpoint_ms": HOUR_MS, **told}
    return ChangesStreamReader(ReadSettings(location_url=place, name="t", **settings), clock=clock)


def read_on(reader: ChangesStreamReader, start: Offset) -> tuple[Offset, list[Change]]:
    """Run a micro-batch as Spark does, up to the newest time; return its end and changes."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return end, changes_between(reader, start, end)


def changes_between(reader: ChangesStreamReader, start: Offset, end: Offset) -> list[Change]:
    found: list[Change] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            table = pa.Table.from_batches([batch])
            rows = table.to_pylist()
            found += [(row["_time"] - BASE, row["_diff"], row["a"]) for row in rows]
    return sorted(found)


def test_a_stopped_query_reads_each_change_once_after_a_compaction(place: str) -> None:
    """The new process finds the hold by the offset in the checkpoint."""
    end, first = read_on(reader := reader_of(place), reader.initialOffset())
    insert(place, 1, 2)
    compact(place)
    compact(place)
    insert(place, 3)
    after, later = read_on(reader_of(place), end)

    assert first == [(0, 1, 0)]
    assert later == [(1, 1, 1), (2, 1, 2), (3, 1, 3)]
    assert after["hold"] == end["hold"]
    assert times_of(place) == [0, 0]
    assert {hold.kind for held in holds_of(place) for hold in held.values()} == {HoldKind.LEASED}


def test_without_a_hold_the_same_schedule_is_a_typed_error(place: str) -> None:
    """The error names the option; the batch that Spark had planned is refused, too."""
    reader = reader_of(place, checkpoint_ms=0)
    end, _ = read_on(reader, reader.initialOffset())
    insert(place, 1)
    planned = reader.latestOffset(end, reader.getDefaultReadLimit())
    insert(place, 2)
    compact(place)

    gone = (
        r"\[TIDELOG_AS_OF_BEFORE_SINCE\] 't' is readable since .* a longer option 'checkpointHold'"
    )
    with pytest.raises(SourceError, match=gone):
        reader_of(place, checkpoint_ms=0).latestOffset(end, reader.getDefaultReadLimit())
    with pytest.raises(SourceError, match=gone):
        reader_of(place, checkpoint_ms=0).partitions(end, planned)
    assert holds_of(place) == [{}, {}]


def test_a_planned_batch_is_read_again_after_a_compaction(place: str) -> None:
    """Spark stored the offset, and was killed before the batch; its start has another hold."""
    reader = reader_of(place)
    planned = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    insert(place, 1)
    compact(place)
    again = reader_of(place)
    contents = changes_between(again, again.initialOffset(), planned)
    end, later = read_on(again, planned)

    assert contents == [(0, 1, 0)]
    assert later == [(1, 1, 1)]
    assert [sorted(held) for held in holds_of(place)] == [[planned["hold"]]] * 2
    assert end["hold"] == planned["hold"]


def test_the_hold_moves_with_committed_batches_at_most_once_a_minute(place: str) -> None:
    """A micro-batch alone writes nothing; retention follows the query."""
    clock = SwiftClock()
    reader = reader_of(place, clock=clock)
    end, _ = read_on(reader, reader.initialOffset())
    reached = []
    for number in (1, 2, 3):
        insert(place, number)
        last, (end, _) = end, read_on(reader, end)
        reader.commit(last)
        reached.append(times_of(place))
    clock.slept_us += MOVE_US
    read_on(reader, end)

    assert reached == [[0, 0], [1, 1], [1, 1]]
    assert times_of(place) == [2, 2]
    clock.slept_us += MOVE_US
    with patch.object(checkpoint_hold, "keep_lease", side_effect=AssertionError):
        read_on(reader, end)  # No batch was committed since the last move.


def test_an_idle_query_renews_its_hold(place: str) -> None:
    """The beat of a lease changes before a third of its length has passed twice."""
    clock = SwiftClock()
    reader = reader_of(place, clock=clock)
    end, _ = read_on(reader, reader.initialOffset())
    clock.slept_us += 1_000 * HOUR_MS // 3
    read_on(reader, end)

    beats = [hold.beat for held in holds_of(place) for hold in held.values()]
    assert beats == [1, 1]


def test_a_start_in_the_past_is_held(place: str) -> None:
    """The option ``since`` is the first time that the query has yet to read after."""
    insert(place, 1, 2)
    reader = reader_of(place, since=BASE + 1)
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())

    assert times_of(place) == [1, 1]


def test_a_query_without_write_access_is_told_the_option(place: str) -> None:
    """The first hold must exist; a later failure of the store does not end the query."""
    insert(place, 1)
    reader = reader_of(place)
    start = reader.initialOffset()
    with (
        patch.object(checkpoint_hold, "keep_lease", side_effect=StoreRefused("no access")),
        pytest.raises(SourceError, match=r"option\('checkpointHold', 'none'\)"),
    ):
        reader.latestOffset(start, reader.getDefaultReadLimit())


async def test_a_failed_renewal_is_tried_again(place: str) -> None:
    """The store may recover before the lease ends."""
    clock = SwiftClock()
    collection = await (await open_location(place, clock=clock)).collection("t")
    await collection.refresh()
    hold = CheckpointHold(name="stream-x", lease_us=3 * MOVE_US, clock=clock)
    await hold.keep(collection.eras, BASE)
    clock.slept_us += MOVE_US
    with patch.object(checkpoint_hold, "keep_lease", side_effect=LocationError("away")):
        await hold.keep(collection.eras, BASE)
    clock.slept_us += MOVE_US
    await hold.keep(collection.eras, BASE)

    assert [shard.state.holds["stream-x"].beat for shard in collection.shards] == [1, 1]


@pytest.fixture
def streamed(spark: SparkSession, tmp_path: Path, place: str) -> Any:
    """Run a query of the table to its end; return all rows that its sink has."""
    tidelog.spark.register(spark)

    def run(**options: str) -> list[Change]:
        reader = spark.readStream.format("tidelog").option("kind", "changes")
        frame = reader.option("location", place).options(**options).load("t")
        writer = frame.writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "check"))
        run_available(writer, str(tmp_path / "out"))
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        return sorted((row["_time"] - BASE, row["_diff"], row["a"]) for row in rows)

    return run


def test_spark_continues_from_a_checkpoint_after_a_compaction(place: str, streamed: Any) -> None:
    """By default a stopped query has a hold; each change is in the sink exactly once."""
    streamed()
    insert(place, 1, 2)
    compact(place)
    insert(place, 3)
    compact(place)

    assert streamed() == [(0, 1, 0), (1, 1, 1), (2, 1, 2), (3, 1, 3)]
    insert(place, 4)
    compact(place)
    streamed()  # The commit of the batch before moves the hold.
    assert times_of(place) == [3, 3]


def test_spark_without_a_hold_reports_the_lost_times(place: str, streamed: Any) -> None:
    """The message begins with the kind of the error, and names the remedy."""
    streamed(checkpointHold="none")
    insert(place, 1, 2)
    compact(place)

    with pytest.raises(PySparkException, match=r"TIDELOG_AS_OF_BEFORE_SINCE.*new checkpoint"):
        streamed(checkpointHold="none")


def test_spark_restarts_with_the_start_of_the_first_run(place: str, streamed: Any) -> None:
    """The checkpoint goes on after the option ``since``, whose time retention removes later."""
    insert(place, 1)
    streamed(since=str(BASE))
    insert(place, 2)
    compact(place)
    streamed(since=str(BASE))
    compact(place)
    insert(place, 3)
    with tidelog.connect(place) as lake, pytest.raises(UsageError, match="is readable since"):
        lake.collection("t").snapshot(BASE)

    assert streamed(since=str(BASE)) == [(1, 1, 1), (2, 1, 2), (3, 1, 3)]


def test_spark_follows_a_table_from_now(spark: SparkSession, place: str, streamed: Any) -> None:
    """A stream may start at the newest complete time. A read of the changes after it is refused."""
    with tidelog.connect(place) as lake:
        lake.tables.drop("t")
        lake.tables.create("t", "a bigint", mode="direct").insert([{"a": 1}])
    reader = spark.read.format("tidelog").option("kind", "changes").option("location", place)
    with pytest.raises(PySparkException, match="no time after since= is complete yet"):
        reader.option("since", "now").load("t").collect()
    streamed(since="now")
    with tidelog.connect(place) as lake:
        lake.table("t").insert([{"a": 2}])

    assert [row[1:] for row in streamed(since="now")] == [(1, 2)]
