"""``kind`` ``log`` in a batch: each record that the log had at the load, once."""

from __future__ import annotations

import asyncio
import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kit.lake_logs import (
    append,
    batches_of,
    collect,
    folder_of,
    make,
    make_two,
    on_log,
    records,
    roll_up,
)
from tidelog.spark import log_share
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.log_options import LogSettings
from tidelog.spark.log_share import LogPlace, LogShare
from tidelog.spark.log_source import LOG_SCHEMA, LogPin, LogReader, choose_log_pin
from tidelog.spark.options import SourceError
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.log import Log
from tidelog.wal.opening import PROTOCOLS

WIDE = Rollover()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with a log of each protocol: a tree of snapshots, and a tail of two epochs."""
    lake = tmp_path_factory.mktemp("lake")
    make_two(lake, 17)
    assert on_log(lake, "slot", lambda log: log.describe()).rolled_up == 171
    return lake


def load(spark: SparkSession, lake: Path, name: str, **options: str) -> DataFrame:
    reader = spark.read.format("tidelog").option("kind", "log")
    return reader.options(location=str(lake), **options).load(name)


def in_order(frame: DataFrame) -> pa.Table:
    return frame.orderBy("position").toArrow()


def said(frame: DataFrame) -> str:
    """Return the message of a read that must fail."""
    with pytest.raises(PySparkException) as raised:
        frame.collect()
    return str(raised.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_read_gives_what_a_scan_gives(spark: SparkSession, lake: Path, protocol: str) -> None:
    """A read gives the columns and records of a scan, of the tree and the tail, in any range."""
    assert records(lake, protocol).num_rows == (230 if protocol == "slot" else 170)
    for options in ({}, {"start": "earliest"}, {"start": "35", "limit": "138"}, {"limit": "1"}):
        frame = load(spark, lake, protocol, **options)
        start, limit = options.get("start", "0"), options.get("limit")

        within = records(lake, protocol, int(start) if start.isdigit() else 0, _number(limit))
        assert frame.schema == LOG_SCHEMA
        assert in_order(frame).to_pylist() == within.to_pylist()
    with pytest.raises(PySparkException, match="start 999 is after the end of the log: start at"):
        load(spark, lake, protocol, start="999").count()


def test_a_dataframe_stays_what_it_was_when_it_was_loaded(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A self-join after an append and a roll-up reads the records of the load on both sides."""
    make(tmp_path, "log", "slot")
    append(tmp_path, "log", batches_of(4))
    loaded = load(spark, tmp_path, "log")
    append(tmp_path, "log", batches_of(3, first=4))

    assert loaded.count() == 40
    roll_up(tmp_path, "log")
    both = loaded.alias("a").join(loaded.alias("b"), "position", "full")
    found = both.selectExpr("a.body AS one", "b.body AS other").collect()
    assert len(found) == 40
    assert all(row["one"] == row["other"] for row in found)
    assert load(spark, tmp_path, "log").count() == 70


def test_partitions_follow_the_bytes_of_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks read in parallel; each position is in exactly one task, even at cut objects."""
    make(tmp_path, "log", "slot")
    append(tmp_path, "log", batches_of(6))
    monkeypatch.setattr(log_share, "SHARE_BYTES", 1)
    place = LogPlace(location_url=str(tmp_path), name="log", is_slots=True)
    roll_up(tmp_path, "log")
    reader = LogReader(LogPin(place=place, start=5, limit=38, beyond=()))
    planned = reader.partitions()

    assert len(planned) == 4
    executor = pickle.loads(pickle.dumps(reader))
    found = [
        row["position"] for p in planned for batch in executor.read(p) for row in batch.to_pylist()
    ]
    assert found == list(range(5, 38))


def with_keys(lake: Path, name: str) -> None:
    """Make a log with fragments of one key, of many, of many that repeat, and of none."""
    many: Any = pa.array([b"key-%d" % n for n in range(100)], pa.binary())

    async def fill(log: Log) -> None:
        async with log:
            await log.append([b"one", b"two"], key=b"key-7")
            await log.append_arrow(many, key=many)
            for _ in range(2):
                await log.append_arrow(
                    pa.concat_arrays([many] * 3), key=pa.concat_arrays([many] * 3)
                )
            await log.append([b"none"])
            await log.append([b"empty"], key=b"")

    make(lake, name, "slot")
    on_log(lake, name, fill)


def test_records_of_one_key_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """A read of one key gives a scan's records, and plans only objects that may hold the key."""
    with_keys(tmp_path, "log")
    everything = records(tmp_path, "log").to_pylist()

    for key, objects in (("key-7", 4), ("stranger", 2), ("", 3)):
        wanted = [row for row in everything if row["key"] == key.encode()]
        assert in_order(load(spark, tmp_path, "log", key=key)).to_pylist() == wanted
        settings = LogSettings(location_url=str(tmp_path), name="log", key=key.encode())
        planned = LogReader(asyncio.run(choose_log_pin(settings))).partitions()
        shares = [msgspec.msgpack.decode(one.value, type=LogShare) for one in planned]
        assert sum(len(share.fragments) for share in shares) == objects
    assert in_order(load(spark, tmp_path, "log")).to_pylist() == everything
    make(tmp_path, "classic", "manifest")
    with pytest.raises(PySparkException, match="whose records have no keys"):
        load(spark, tmp_path, "classic", key="a").count()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_was_collected_is_told_with_how_to_go_on(
    spark: SparkSession, tmp_path: Path, protocol: str
) -> None:
    """The error names the oldest record and the option, before planning or before the read."""
    make(tmp_path, "log", protocol)
    append(tmp_path, "log", batches_of(5), rollover=WIDE)
    if protocol == "slot":
        roll_up(tmp_path, "log", rollover=WIDE)
    loaded = load(spark, tmp_path, "log")
    place = LogPlace(location_url=str(tmp_path), name="log", is_slots=protocol == "slot")
    reader = LogReader(LogPin(place=place, start=1, limit=51, beyond=()))
    planned = reader.partitions()
    oldest = collect(tmp_path, "log", 2)

    expected = (
        f"[TIDELOG_POSITION_COLLECTED] records from 1 were collected: the oldest record is {oldest}"
    )
    with pytest.raises(Exception, match="TIDELOG_POSITION_COLLECTED") as raised:
        list(reader.read(planned[0]))
    for message in (said(loaded), str(raised.value)):
        assert expected in message
        assert f"option('start', {oldest})" in message
        assert "Traceback" not in message
    assert load(spark, tmp_path, "log").count() == 30


def test_damage_is_told_and_never_read(spark: SparkSession, tmp_path: Path) -> None:
    """A flipped byte and a lost object each raise a CorruptionError."""
    make(tmp_path, "log", "slot")
    append(tmp_path, "log", batches_of(3))
    roll_up(tmp_path, "log")
    loaded = load(spark, tmp_path, "log")
    one, other = sorted(folder_of(tmp_path, "log").glob("epoch/*/*/*.parquet"))[1:3]
    whole = one.read_bytes()
    one.write_bytes(whole.replace(b"0.1", b"0.7", 1))

    assert one.read_bytes() != whole
    assert "[TIDELOG_CORRUPTION_ERROR] a slot's object" in said(loaded)
    one.write_bytes(whole)
    os.remove(other)
    message = said(loaded)
    assert "[TIDELOG_CORRUPTION_ERROR] the log names a missing object" in message
    assert "Traceback" not in message


def test_errors_are_a_sentence_each(spark: SparkSession, lake: Path) -> None:
    """Errors at load and at planning are one sentence each."""
    missing = spark.read.format("tidelog").option("kind", "log").option("location", str(lake))
    with pytest.raises(PySparkException) as raised:
        missing.load("other")
    late = said(load(spark, lake, "slot", start="latest"))

    assert "[TIDELOG_NO_SUCH_LOG] no log at" in str(raised.value)
    assert "[TIDELOG_USAGE_ERROR] start 'next' needs readStream" in late
    assert "Traceback" not in str(raised.value) + late


def test_a_schema_of_the_users_is_refused(lake: Path) -> None:
    """A user's schema is refused, since it could cast or drop values silently."""
    source = TidelogDataSource({"kind": "log", "location": str(lake), "path": "slot"})

    with pytest.raises(SourceError, match="has a fixed schema"):
        source.reader(StructType())
    with pytest.raises(SourceError, match="has a fixed schema"):
        source.streamReader(StructType()).initialOffset()


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
