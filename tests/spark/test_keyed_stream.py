"""``kind`` ``keyed`` in streams: each record once, out of a log and into one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tidelog
from kit.doc_blocks import run_block
from kit.keyed_lake import (
    append_keyed,
    compact_and_collect,
    keyed_rows,
    make_keyed,
    on_keyed,
)
from kit.spark_queries import run_available
from tidelog.keyed.values import KeyedQuery, Keys
from tidelog.spark.keyed.options import KeyedReadSettings
from tidelog.spark.keyed.stream import KeyedStreamReader
from tidelog.spark.keyed.wanted import KeyedScope, scope_of
from tidelog.spark.options import SourceError


def stream(spark: SparkSession, lake: Path, **options: str) -> DataFrame:
    reader = spark.readStream.format("tidelog").option("kind", "keyed")
    return reader.options(location=str(lake), **options).load("orders")


def copy(frame: DataFrame, lake: Path, check: str = "check") -> list[int]:
    """Write a stream's keys and values into the log ``copy``; return the batches' row counts."""
    writer = frame.select("key", "value").writeStream.format("tidelog").option("kind", "keyed")
    writer = writer.options(location=str(lake), checkpointLocation=str(lake / check))
    return [p["numInputRows"] for p in run_available(writer, "copy") if p["numInputRows"]]


def values(lake: Path, name: str) -> list[tuple[bytes, bytes]]:
    """Return keys and values, in order within each key."""
    rows = sorted(keyed_rows(lake, name), key=lambda row: (row[0], row[1]))
    return [(row[0], row[3]) for row in rows]


def test_each_record_goes_from_one_log_into_another_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each record is copied once, across restarts, compaction, collection and a repeated commit.

    A kill between tidelog's commit and Spark's leaves a batch in the log that the checkpoint lacks.
    The query then commits the batch again under the same number.
    """
    make_keyed(tmp_path, "orders", compacted=1, loose=1)
    make_keyed(tmp_path, "copy", compacted=0, loose=0)
    assert copy(stream(spark, tmp_path, maxRecordsPerBatch="250"), tmp_path) == [250, 150]
    assert values(tmp_path, "copy") == values(tmp_path, "orders")

    compact_and_collect(tmp_path, "orders")
    append_keyed(tmp_path, "orders", first=400)
    for lost in (False, True):
        if lost:
            compact_and_collect(tmp_path, "copy")
            last = max(int(p.name) for p in (tmp_path / "check/commits").glob("[0-9]*"))
            (tmp_path / "check/commits" / str(last)).unlink()
            (tmp_path / "check/commits" / f".{last}.crc").unlink(missing_ok=True)
        assert copy(stream(spark, tmp_path), tmp_path) == [200]
        assert values(tmp_path, "copy") == values(tmp_path, "orders")


def test_the_copy_of_a_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Two queries that share one history may not both write the batch after it."""
    make_keyed(tmp_path, "orders", compacted=0, loose=1)
    make_keyed(tmp_path, "copy", compacted=0, loose=0)
    copy(stream(spark, tmp_path), tmp_path)
    shutil.copytree(tmp_path / "check", tmp_path / "second")
    append_keyed(tmp_path, "orders", first=200)
    copy(stream(spark, tmp_path), tmp_path)

    append_keyed(tmp_path, "orders", first=400)
    with pytest.raises(StreamingQueryException, match=r"TIDELOG_CHECKPOINT_COPIED.*is a copy"):
        copy(stream(spark, tmp_path), tmp_path, "second")
    copy(stream(spark, tmp_path), tmp_path)
    assert values(tmp_path, "copy") == values(tmp_path, "orders")


def reader_of(lake: Path, **settings: Any) -> KeyedStreamReader:
    told = {"wanted": KeyedScope(), **settings}
    return KeyedStreamReader(KeyedReadSettings(location_url=str(lake), name="orders", **told))


def sequences(reader: KeyedStreamReader, start: int, limit: int) -> list[int]:
    return sorted(
        int(sequence)
        for partition in reader.partitions({"sequence": start}, {"sequence": limit})
        for batch in reader.read(partition)
        for sequence in batch.column("sequence").to_numpy()
    )


def test_offsets_are_frontiers_and_ranges_never_change(tmp_path: Path) -> None:
    """A range keeps its records after a compaction, and a batch limit counts sequences."""
    make_keyed(tmp_path, "orders", compacted=1, loose=1)
    reader = reader_of(tmp_path)
    assert reader.initialOffset() == {"sequence": 1}
    assert reader.latestOffset({"sequence": 1}, ReadMaxRows(150)) == {"sequence": 151}
    assert reader.latestOffset({"sequence": 1}, ReadAllAvailable()) == {"sequence": 401}
    assert reader.reportLatestOffset() == {"sequence": 401}
    assert sequences(reader, 101, 301) == list(range(101, 301))
    assert reader.partitions({"sequence": 7}, {"sequence": 7}) == []
    compact_and_collect(tmp_path, "orders")

    assert sequences(reader_of(tmp_path), 101, 301) == list(range(101, 301))
    assert reader_of(tmp_path, from_latest=True).initialOffset() == {"sequence": 401}


@pytest.mark.parametrize("key", [b"k3", b"", b"absent"])
def test_one_key_goes_on_with_what_others_get(tmp_path: Path, key: bytes) -> None:
    """The offset of a stream of one key is the log's frontier, from the given start."""
    make_keyed(tmp_path, "orders", compacted=1, loose=1)
    one = reader_of(tmp_path, wanted=scope_of(KeyedQuery(keys=Keys.one(key), start=9)))

    assert one.initialOffset() == {"sequence": 9}
    assert one.latestOffset({"sequence": 9}, ReadAllAvailable()) == {"sequence": 401}
    expected = [row[1] for row in keyed_rows(tmp_path, "orders", start=9) if row[0] == key]
    assert sequences(one, 9, 401) == expected
    assert bool(expected) == (key != b"absent")


def test_what_comes_after_a_query_was_told_to_end_waits(tmp_path: Path) -> None:
    """``availableNow`` ends at the end of the log when the query began."""
    make_keyed(tmp_path, "orders", compacted=0, loose=1)
    reader = reader_of(tmp_path)
    reader.prepareForTriggerAvailableNow()
    append_keyed(tmp_path, "orders", first=200)

    assert reader.latestOffset({"sequence": 1}, ReadAllAvailable()) == {"sequence": 201}
    assert reader.latestOffset({"sequence": 201}, ReadAllAvailable()) == {"sequence": 201}


def test_a_query_whose_records_were_retired_is_told(tmp_path: Path) -> None:
    """A query behind retired records fails, and so does one with an offset past the log's end."""
    make_keyed(tmp_path, "orders", compacted=2, loose=0)
    on_keyed(tmp_path, "orders", lambda log: log.retire(tidelog.Retention(segments=1)))
    append_keyed(tmp_path, "orders", first=400)

    reader = reader_of(tmp_path)
    assert reader.initialOffset() == {"sequence": 401}
    for call in (
        lambda: reader.latestOffset({"sequence": 5}, ReadAllAvailable()),
        lambda: reader.partitions({"sequence": 5}, {"sequence": 450}),
    ):
        with pytest.raises(SourceError, match="TIDELOG_SEQUENCE_RETIRED"):
            call()
    with pytest.raises(SourceError, match="the log was replaced, or lost records"):
        reader.latestOffset({"sequence": 9_999}, ReadAllAvailable())


def test_the_page_runs(spark: SparkSession, tmp_path: Path) -> None:
    """All Python of docs/guides/spark-keyed-logs.md runs in its order."""
    make_keyed(tmp_path, "orders", compacted=1, loose=0)
    make_keyed(tmp_path, "copy", compacted=0, loose=0)
    names: dict[str, Any] = {
        "spark": spark,
        "url": str(tmp_path),
        "tidelog": tidelog,
        "checkpoint": str(tmp_path / "check"),
    }
    for words in ("later = ", "by_name = ", "stream = (", "query = (", "compact("):
        names |= run_block("docs/guides/spark-keyed-logs.md", words, location=tmp_path, **names)

    assert names["everything"].count() == 200
    assert len(keyed_rows(tmp_path, "orders")) == 400
    assert values(tmp_path, "copy") == values(tmp_path, "orders")
