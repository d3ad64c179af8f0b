"""Keyed logs as DataFrames: the rows of a scan, by Spark's Parquet reader and by tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tidelog
from kit.keyed_lake import (
    append_keyed,
    compact_and_collect,
    keyed_rows,
    make_keyed,
    on_keyed,
    rows_in,
)
from tidelog.blocking.portal import Portal
from tidelog.errors import HandleError, SequenceRetired, UsageError
from tidelog.keyed.values import KeyedQuery, Keys
from tidelog.spark.keyed import frame, share
from tidelog.spark.keyed.frame import keyed_view

EVERYTHING = KeyedQuery(keys=Keys.all())


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with a log of three runs, each a segment, and of two loose fragments."""
    lake = tmp_path_factory.mktemp("lake")
    make_keyed(lake, "orders")
    return lake


@pytest.mark.parametrize("native", [True, False])
def test_a_frame_is_what_a_scan_gives(
    spark: SparkSession, lake: Path, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any keys, prefixes, ranges and sequences give the rows of a scan, with small shares too."""
    monkeypatch.setattr(share, "SHARE_BYTES", 2_000)
    everything = keyed_rows(lake, "orders")
    assert len(everything) == 1_000
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, lambda row: True),
        ({"keys": Keys.one(b"k3")}, lambda row: row[0] == b"k3"),
        ({"keys": Keys.one(b"")}, lambda row: row[0] == b""),
        ({"keys": Keys.one(b"absent")}, lambda row: False),
        ({"keys": Keys.prefix(b"\xff")}, lambda row: row[0][:1] == b"\xff"),
        ({"keys": Keys.between(b"k2", b"k7")}, lambda row: b"k2" <= row[0] < b"k7"),
        ({"start": 350, "limit": 750}, lambda row: 350 <= row[1] < 750),
        ({"keys": Keys.one(b"k3"), "start": 777}, lambda row: row[0] == b"k3" and row[1] >= 777),
    ]
    with tidelog.connect(str(lake)) as location, location.keyed.reader("orders") as log:
        state_handle = log._inner.state_handle
        portal: Portal = log._portal
        for asked, wanted in cases:
            query = KeyedQuery(**{"keys": Keys.all(), **asked})
            found = portal.run(keyed_view(spark, state_handle, query, native=native))
            assert rows_in(found.frame.toArrow()) == [row for row in everything if wanted(row)]
            assert found.next_sequence == min(asked.get("limit", 1_001), 1_001)


def test_spark_reads_runs_itself_and_what_is_not_wanted_is_left_out(
    spark: SparkSession, lake: Path
) -> None:
    """Spark scans only the parts that may match, with pushed conditions."""
    with tidelog.connect(str(lake)) as location, location.keyed.reader("orders") as log:
        found = log.to_spark(spark, b"k3", limit=301)
        plan = found._jdf.queryExecution().toString()
        assert len(found.inputFiles()) == 2
        everything = log.to_spark(spark)

    assert "EqualTo(key," in plan.partition("PushedFilters")[2]
    assert "LessThan(sequence,301)" in plan
    assert "MapInArrow" not in plan
    assert len(everything.inputFiles()) == 3


def test_a_frame_stays_what_it_was_and_a_later_one_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A frame keeps its rows after an append, a compaction and a collection."""
    make_keyed(tmp_path, "log", compacted=1, loose=1)
    before = keyed_rows(tmp_path, "log")
    with tidelog.connect(str(tmp_path)) as location:
        log = location.keyed.open("log")
        view = log.spark_view(spark)
        log.append([(b"new", b"1")])
        log.compact(full=True)
        log.collect()
        assert rows_in(view.frame.toArrow()) == before
        later = log.to_spark(spark, start=view.next_sequence)
        assert [row[0] for row in rows_in(later.toArrow())] == [b"new"]
        log.close()


def test_a_frame_has_what_its_own_process_flushed(spark: SparkSession, tmp_path: Path) -> None:
    """A frame has flushed records, also in the process that writes them."""
    with tidelog.connect(str(tmp_path), create=True) as location:
        log = location.keyed.create("log")
        log.append([(b"a", b"1")])
        log.append([(b"a", b"2")], durable=False)
        log.flush()

        assert len(rows_in(log.to_spark(spark).toArrow())) == 2
        log.close()


def test_a_checkpoint_is_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint keeps its records, whatever was retired since."""
    make_keyed(tmp_path, "log", compacted=2, loose=0)
    before = keyed_rows(tmp_path, "log")

    def work(log: Any) -> None:
        log.create_checkpoint("then")
        log.retire(tidelog.Retention(segments=1))
        log.collect(after_us=0)

    on_keyed(tmp_path, "log", work)
    append_keyed(tmp_path, "log", first=400)
    with (
        tidelog.connect(str(tmp_path)) as location,
        location.keyed.reader("log", checkpoint="then") as then,
        location.keyed.reader("log") as now,
    ):
        assert rows_in(then.to_spark(spark).toArrow()) == before
        with pytest.raises(SequenceRetired):
            now.to_spark(spark, start=3)
        assert len(rows_in(now.to_spark(spark).toArrow())) == 200
    reader = spark.read.format("tidelog").option("kind", "keyed").option("location", str(tmp_path))
    assert rows_in(reader.option("checkpoint", "then").load("log").toArrow()) == before


def test_bad_input_is_refused_before_anything_is_read(spark: SparkSession, lake: Path) -> None:
    """Each bad argument gives a sentence; executors cannot reach this process's memory."""
    with tidelog.connect(str(lake)) as location, location.keyed.reader("orders") as log:
        for asked, told in (
            ({"keys": "a"}, "bytes, not str"),
            ({"start": 5, "limit": 2}, "is reversed"),
        ):
            with pytest.raises(UsageError, match=told):
                log.to_spark(spark, **asked)
    with tidelog.connect("memory://", create=True) as location:
        memory = location.keyed.create("log")
        with pytest.raises(UsageError, match="cannot reach memory"):
            memory.to_spark(spark)
        memory.close()


def test_a_handle_that_is_closed_makes_no_frame(tmp_path: Path) -> None:
    """A closed handle makes no frame."""
    no_session: Any = None
    with tidelog.connect(str(tmp_path), create=True) as location:
        log = location.keyed.create("log")
        log.close()
        with pytest.raises(HandleError, match="closed"):
            log.to_spark(no_session)


def test_damage_is_told_and_never_read(spark: SparkSession, tmp_path: Path) -> None:
    """Either reader raises for a changed byte, and a task raises for a lost part."""
    make_keyed(tmp_path, "log", compacted=1, loose=0)
    (path,) = [p for p in tmp_path.glob("keyed/log/run/*/*.parquet") if "keys" not in p.name]
    whole = path.read_bytes()
    at = len(whole) // 4
    with tidelog.connect(str(tmp_path)) as location, location.keyed.reader("log") as log:
        state_handle, portal = log._inner.state_handle, log._portal
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        for native in (True, False):
            view = portal.run(keyed_view(spark, state_handle, EVERYTHING, native=native))
            told = "CRC checksum verification failed" if native else "TIDELOG_CORRUPTION_ERROR"
            with pytest.raises(Exception, match=told):
                view.frame.toArrow()
        view = portal.run(keyed_view(spark, state_handle, EVERYTHING, native=False))
        path.unlink()
        with pytest.raises(PySparkException, match="names a missing object: restore it"):
            view.frame.toArrow()


def test_what_was_planned_too_long_ago_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """A plan whose parts were compacted and deleted since is overtaken, not damaged."""
    make_keyed(tmp_path, "log", compacted=1, loose=2)
    with tidelog.connect(str(tmp_path)) as location, location.keyed.reader("log") as log:
        view = log._portal.run(keyed_view(spark, log._inner.state_handle, EVERYTHING, native=False))
        compact_and_collect(tmp_path, "log")
        append_keyed(tmp_path, "log", first=600)
        compact_and_collect(tmp_path, "log")
        with pytest.raises(
            PySparkException, match=r"TIDELOG_READ_OVERTAKEN.*load the DataFrame again"
        ):
            view.frame.toArrow()


def test_conditions_are_few(lake: Path) -> None:
    """A whole part needs no condition."""
    from tidelog.spark.keyed.wanted import KeyedScope

    assert not [*frame.conditions_of(KeyedScope(), ())]
