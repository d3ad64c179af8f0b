"""``kind`` ``log`` in a stream: each record once, across stops and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tidelog
from kit.doc_blocks import run_block
from kit.lake_logs import append, batches_of, collect, folder_of, make, on_log, records, roll_up
from kit.spark_queries import run_available
from tidelog.core.clock import SystemClock
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.log_options import LogSettings
from tidelog.spark.log_source import LOG_SCHEMA
from tidelog.spark.log_stream import LogStreamReader
from tidelog.spark.log_view import LogView
from tidelog.spark.options import SourceError
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.log import Log
from tidelog.wal.opening import PROTOCOLS

WIDE = Rollover()


def stream(spark: SparkSession, lake: Path, **options: str) -> DataFrame:
    reader = spark.readStream.format("tidelog").option("kind", "log")
    return reader.options(location=str(lake), **options).load("log")


def run_once(frame: DataFrame, place: Path) -> list[dict[str, Any]]:
    """Write all available records into files, from the checkpoint; return the batches' progress."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(place / "check"))
    return run_available(writer, str(place / "out"))


def written(place: Path) -> list[dict[str, Any]]:
    """Return the rows that Spark committed to the sink, in the order of positions."""
    return pq.read_table(place / "out").sort_by("position").to_pylist()


def reader_of(lake: Path, **settings: Any) -> LogStreamReader:
    return LogStreamReader(LogSettings(location_url=str(lake), name="log", **settings))


def positions(reader: LogStreamReader, start: int, limit: int) -> Iterator[int]:
    for partition in reader.partitions({"position": start}, {"position": limit}):
        for batch in reader.read(partition):
            yield from batch.column("position").to_numpy().tolist()


def test_a_query_that_is_started_again_has_each_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A restarted query continues at its checkpoint; after a kill it reads the same batch again."""
    make(tmp_path, "log", "slot")
    append(tmp_path, "log", batches_of(6))
    first = run_once(stream(spark, tmp_path, maxRecordsPerBatch="25"), tmp_path)
    assert [p["numInputRows"] for p in first if p["numInputRows"]] == [25, 25, 10]
    assert [row["position"] for row in written(tmp_path)] == list(range(1, 61))

    roll_up(tmp_path, "log")
    append(tmp_path, "log", batches_of(5, first=6))
    run_once(stream(spark, tmp_path), tmp_path)
    assert written(tmp_path) == records(tmp_path, "log").to_pylist()

    # State after a kill: files of the last batch exist, but neither sink nor query lists them.
    (tmp_path / "check" / "commits" / "3").unlink()
    (tmp_path / "out" / "_spark_metadata" / "3").unlink()
    append(tmp_path, "log", batches_of(4, first=11))
    on_log(tmp_path, "log", lambda log: log.seal())
    again = run_once(stream(spark, tmp_path), tmp_path)
    assert [p["numInputRows"] for p in again if p["numInputRows"]] == [50, 40]
    committed = spark.read.parquet(str(tmp_path / "out")).orderBy("position").toArrow()
    assert committed.to_pylist() == records(tmp_path, "log").to_pylist()


def test_a_stream_of_one_key_passes_over_the_rest(spark: SparkSession, tmp_path: Path) -> None:
    """A stream of one key advances past other records, and misses none of its own."""
    make(tmp_path, "log", "slot")

    async def fill(log: Log) -> None:
        async with log:
            for number in range(6):
                await log.append([b"%d" % number], key=b"even" if number % 2 == 0 else b"odd")

    on_log(tmp_path, "log", fill)
    run_once(stream(spark, tmp_path, key="even", maxRecordsPerBatch="2"), tmp_path)
    on_log(tmp_path, "log", fill)
    run_once(stream(spark, tmp_path, key="even"), tmp_path)

    assert written(tmp_path) == [
        row for row in records(tmp_path, "log").to_pylist() if row["key"] == b"even"
    ]
    assert len(written(tmp_path)) == 6


def test_errors_are_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """An error in the query's Python process reaches the user as a sentence."""
    make(tmp_path, "log", "slot")
    with pytest.raises(PySparkException) as raised:
        run_once(stream(spark, tmp_path, start="99"), tmp_path)

    assert "[TIDELOG_USAGE_ERROR] start 99 is after the end of the log: start at 1" in str(
        raised.value
    )


def test_a_query_that_collection_overtook_is_told_how_to_go_on(tmp_path: Path) -> None:
    """A query behind the collection fails, since to continue would lose records silently."""
    make(tmp_path, "log", "slot")
    append(tmp_path, "log", batches_of(5), rollover=WIDE)
    roll_up(tmp_path, "log", rollover=WIDE)
    assert collect(tmp_path, "log", 2) == 21
    reader, start = reader_of(tmp_path), {"position": 20}

    assert reader.initialOffset() == {"position": 21}
    for ask in (
        lambda: reader.latestOffset(start, ReadAllAvailable()),
        lambda: reader.partitions(start, {"position": 30}),
    ):
        with pytest.raises(SourceError, match=r"COLLECTED\] .* 20 were .* needs a new checkpoint"):
            ask()


def test_a_sealed_log_gives_no_more(tmp_path: Path) -> None:
    """A sealed log gives no more records, and the stream reads no object of it again."""
    make(tmp_path, "log", "slot")
    append(tmp_path, "log", batches_of(2))
    on_log(tmp_path, "log", lambda log: log.seal())
    reader, start = reader_of(tmp_path), {"position": 1}

    for _ in range(3):
        assert reader.latestOffset(start, ReadAllAvailable()) == {"position": 21}
    for path in folder_of(tmp_path, "log").rglob("*.parquet"):
        path.write_bytes(b"read, and this would be damage")
    assert reader.latestOffset(start, ReadAllAvailable()) == {"position": 21}


def test_what_a_stream_cannot_do_is_refused(tmp_path: Path) -> None:
    """A stream of a collection and a stream with an end are refused."""
    given = {"location": str(tmp_path), "path": "log"}

    with pytest.raises(SourceError, match="a stream of a collection reads its changes"):
        TidelogDataSource(given).streamReader(LOG_SCHEMA).initialOffset()
    limited = TidelogDataSource({**given, "kind": "log", "limit": "9"})
    with pytest.raises(SourceError, match="a stream has no end"):
        limited.streamReader(LOG_SCHEMA).initialOffset()


def test_the_way_that_the_docs_show_appends_each_batch_at_least_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """After a lost commit, Spark appends the batch again, with the same batch number."""
    make(tmp_path, "orders", "slot")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"flight": "1"}\n{"flight": "2"}\n')
    check = tmp_path / "check"
    names = {
        "tidelog": tidelog,
        "url": str(tmp_path),
        "events": spark.readStream.schema("flight string").json(str(tmp_path / "in")),
        "checkpoint": str(check),
    }
    shown = run_block(
        "docs/guides/spark-logs.md", "readStream", location=tmp_path, spark=spark, **names
    )
    assert shown["orders"].columns == shown["stream"].columns
    run_block("docs/guides/spark-logs.md", "foreachBatch", location=tmp_path, **names)
    (check / "commits" / "0").unlink()
    run_block("docs/guides/spark-logs.md", "foreachBatch", location=tmp_path, **names)

    found = records(tmp_path, "orders").column("body").to_pylist()
    once = [{"batch_id": 0, "flight": "1"}, {"batch_id": 0, "flight": "2"}]
    assert [json.loads(body) for body in found if body is not None] == 2 * once


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_offsets_follow_the_log(tmp_path: Path, protocol: str) -> None:
    """The end follows appends and roll-ups; the records between two offsets never change."""
    make(tmp_path, "log", protocol)
    append(tmp_path, "log", batches_of(2))
    reader, everything = reader_of(tmp_path), ReadAllAvailable()
    start = reader.initialOffset()
    assert start == {"position": 1}
    assert reader_of(tmp_path, from_latest=True).initialOffset() == {"position": 21}
    assert reader_of(tmp_path, start=7).initialOffset() == {"position": 7}
    assert reader.latestOffset(start, everything) == {"position": 21}
    for first in (2, 5, 8):
        append(tmp_path, "log", batches_of(3, first=first))
        if protocol == "slot" and first != 5:
            roll_up(tmp_path, "log")
        end = reader.latestOffset(start, everything)["position"]
        assert end == 10 * (first + 3) + 1
        assert list(positions(reader, end - 35, end)) == list(range(end - 35, end))
    assert list(positions(reader_of(tmp_path), 1, 111)) == list(range(1, 111))
    assert list(positions(reader, 111, 111)) == []


class StillClock(SystemClock):
    """A clock that moves only by hand."""

    at_us = 0

    def monotonic_us(self) -> int:
        return self.at_us


def test_an_idle_query_looks_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks a hundred times a second, and each look costs two requests."""
    looks, renew = [0], LogView.renew

    async def counted(view: LogView) -> None:
        looks[0] += 1
        await renew(view)

    monkeypatch.setattr(LogView, "renew", counted)
    make(tmp_path, "log", "slot")
    clock, everything = StillClock(), ReadAllAvailable()
    settings = LogSettings(location_url=str(tmp_path), name="log")
    reader = LogStreamReader(settings, clock=clock)
    end = reader.initialOffset()

    def ask(seconds: int) -> dict[str, Any]:
        for _ in range(100 * seconds):
            clock.at_us += 10_000
            found = reader.latestOffset(end, everything)
        return found

    assert ask(10) == end
    assert 10 <= looks[0] <= 20
    append(tmp_path, "log", batches_of(1))
    assert ask(1) == {"position": 11}
    looks[0] = 0
    assert reader.latestOffset(end, everything) == {"position": 11}
    assert looks[0] == 1


def test_limits_are_kept(tmp_path: Path) -> None:
    """A batch respects the record limit and the end at the query's start."""
    make(tmp_path, "log", "slot")
    append(tmp_path, "log", batches_of(3))
    reader = reader_of(tmp_path, batch_records_max=12)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(12)
    assert reader_of(tmp_path).getDefaultReadLimit() == ReadAllAvailable()
    reader.prepareForTriggerAvailableNow()
    append(tmp_path, "log", batches_of(2, first=3))

    seen = [reader.initialOffset()]
    while len(seen) < 2 or seen[-1] != seen[-2]:
        seen.append(reader.latestOffset(seen[-1], limit))
    assert [offset["position"] for offset in seen] == [1, 13, 25, 31, 31]


def test_a_query_does_not_read_a_new_log_of_the_name(tmp_path: Path) -> None:
    """A query must not take a new log for the old one, or it would skip its first records."""
    make(tmp_path / "one", "log", "slot")
    append(tmp_path / "one", "log", batches_of(5))
    make(tmp_path / "other", "log", "slot")
    append(tmp_path / "other", "log", batches_of(2))
    reader = reader_of(tmp_path / "one")
    assert reader.latestOffset({"position": 1}, ReadAllAvailable()) == {"position": 51}

    with pytest.raises(SourceError, match=r"\[TIDELOG_NO_SUCH_LOG\] .* the log ends at 21"):
        reader_of(tmp_path / "other").latestOffset({"position": 51}, ReadAllAvailable())
    with pytest.raises(SourceError, match=r"\[TIDELOG_NO_SUCH_LOG\] .* the log ends at 21"):
        reader_of(tmp_path / "other").partitions({"position": 1}, {"position": 51})
    roll_up(tmp_path / "one", "log")
    reader.latestOffset({"position": 1}, ReadAllAvailable())
    (tmp_path / "one" / "log").rename(tmp_path / "gone")
    (tmp_path / "other" / "log").rename(tmp_path / "one" / "log")
    with pytest.raises(SourceError, match=r"\[TIDELOG_NO_SUCH_LOG\] another log has replaced"):
        reader.latestOffset({"position": 1}, ReadAllAvailable())
