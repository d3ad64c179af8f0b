"""Compaction by Spark's tasks: the same records, by ranges of keys, safe if it dies."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kit.keyed_lake import keyed_rows, make_keyed, on_keyed
from tidelog.errors import TidelogError
from tidelog.keyed.maintenance.compactor import Compactor
from tidelog.spark.job import run_job
from tidelog.spark.keyed import merger
from tidelog.spark.keyed.merger import SparkRunMerger


def compacted(log: Any, spark: SparkSession, *, task_bytes: int) -> int:
    by_tasks = SparkRunMerger(spark, least_bytes=0, task_bytes=task_bytes)
    work = Compactor(state_handle=log._inner.state_handle, merger=by_tasks)
    found: int = log._portal.run(work.compact(full=True))
    return found


def make_runs(lake: Path) -> None:
    """Make a log of three runs of one segment, which a full compaction merges."""
    from kit.keyed_lake import append_keyed

    make_keyed(lake, "log", compacted=0, loose=0)
    for n in range(3):
        append_keyed(lake, "log", first=200 * n)

        def work(log: Any) -> None:
            compactor = Compactor(state_handle=log._inner.state_handle)
            log._portal.run(log._inner.state_handle.refresh())
            log._portal.run(compactor._compact_loose(True))

        on_keyed(lake, "log", work)


def runs_of(lake: Path) -> Any:
    def work(log: Any) -> Any:
        log.refresh()
        return log._inner.state_handle.state.runs

    return on_keyed(lake, "log", work)


def test_tasks_merge_runs_by_ranges_of_keys(spark: SparkSession, tmp_path: Path) -> None:
    """The result is one run of several parts, in the order of keys, with the same records."""
    make_runs(tmp_path)
    before, runs = keyed_rows(tmp_path, "log"), runs_of(tmp_path)
    assert len(runs) == 3

    size = sum(run.bytes for run in runs)
    on_keyed(tmp_path, "log", lambda log: compacted(log, spark, task_bytes=size // 4))
    (run,) = runs_of(tmp_path)
    assert len(run.parts) >= 3
    assert (run.lower, run.upper, run.records) == (runs[0].lower, runs[-1].upper, 600)
    keys = [(part.first_key, part.last_key) for part in run.parts]
    assert keys == sorted(keys)
    assert all(one[1] < other[0] for one, other in pairwise(keys))
    assert keyed_rows(tmp_path, "log") == before


def test_a_merge_that_fails_leaves_the_log_and_its_rest_is_swept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks wrote parts, and the driver died before it named the run: a sweep deletes them."""
    make_runs(tmp_path)
    before = keyed_rows(tmp_path, "log")

    def dies(told: Any) -> None:
        raise TidelogError("the driver dies")

    monkeypatch.setattr(merger, "_gathered", dies)
    stored = {*tmp_path.glob("keyed/log/run/*/*.parquet")}
    with pytest.raises(TidelogError, match="the driver dies"):
        on_keyed(tmp_path, "log", lambda log: compacted(log, spark, task_bytes=1))
    monkeypatch.undo()

    assert {*tmp_path.glob("keyed/log/run/*/*.parquet")} > stored
    assert keyed_rows(tmp_path, "log") == before
    for _ in range(3):
        on_keyed(tmp_path, "log", lambda log: log.collect(after_us=0))
    assert {*tmp_path.glob("keyed/log/run/*/*.parquet")} == stored
    on_keyed(tmp_path, "log", lambda log: compacted(log, spark, task_bytes=1))
    assert keyed_rows(tmp_path, "log") == before


def test_what_a_task_meets_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """A task that meets a lost part raises tidelog's error, not one of Spark's."""
    make_runs(tmp_path)
    for path in tmp_path.glob("keyed/log/run/*/*.parquet"):
        if "keys" not in path.name:
            path.unlink()
    with pytest.raises(TidelogError, match="no object has that key"):
        on_keyed(tmp_path, "log", lambda log: compacted(log, spark, task_bytes=1))


def test_small_merges_are_done_here_and_large_ones_by_the_session_that_is_given(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``compact(spark=...)`` uses tasks only for large merges, since tasks have a start cost."""
    asked = []

    def counted(*given: Any, **told: Any) -> Any:
        asked.append(given)
        return real(*given, **told)

    real = run_job
    monkeypatch.setattr(merger, "run_job", counted)
    make_runs(tmp_path)
    on_keyed(tmp_path, "log", lambda log: log.compact(full=True, spark=spark))
    assert not asked
    assert len(runs_of(tmp_path)) == 1

    other = tmp_path / "other"
    make_runs(other)
    monkeypatch.setattr(merger, "SparkRunMerger", partial(SparkRunMerger, least_bytes=0))
    on_keyed(other, "log", lambda log: log.compact(full=True, spark=spark))
    assert len(asked) == 1
