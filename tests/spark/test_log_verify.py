"""Verifications on Spark: each task verifies a log of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

import tidelog
from kit.lying import ReadsStale
from tidelog.cli.main import main
from tidelog.errors import LocationError, NoSuchLocation, NoSuchLog, TidelogError, UsageError
from tidelog.location import open_location
from tidelog.spark import log_verify
from tidelog.spark.log_verify import verify_logs
from tidelog.verify.run import Settings

SHORT = Settings(seed=7, seconds=0.3, writers=1, readers=1, streams=5)


def logs_of(lake: Path) -> list[str]:
    """Return the names of the logs that can be read."""
    with tidelog.connect(str(lake)) as location:
        return [name for name in location.logs.list() if is_there(location, name)]


def is_there(location: tidelog.Location, name: str) -> bool:
    try:
        location.logs.open(name).close()
    except NoSuchLog:
        return False
    return True


def test_each_task_verifies_a_log_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """The reports come in the order of the seeds, and the logs are gone."""
    tidelog.connect(str(tmp_path), create=True).close()
    found = tidelog.spark.verify(spark, str(tmp_path), SHORT, tasks=3)

    assert [one.settings.seed for one in found] == [7, 8, 9]
    assert all(one.is_clean and one.figures.records > 0 for one in found)
    assert all(one.figures.records_read >= one.figures.records for one in found)
    assert logs_of(tmp_path) == []

    kept = replace(SHORT, seed=20)
    found = tidelog.spark.verify(spark, str(tmp_path), kept, keep=True)
    assert len(found) == spark.sparkContext.defaultParallelism
    again = tidelog.spark.verify(spark, str(tmp_path), kept, tasks=1, keep=True)
    assert again[0].figures.resumed_at is not None
    assert logs_of(tmp_path)[:2] == ["verify-20", "verify-20-cuts"]


def test_a_repeated_task_has_the_answer_of_its_first_try(tmp_path: Path) -> None:
    """Spark may lose a task's answer, and then runs the task again."""
    tidelog.connect(str(tmp_path), create=True).close()
    for is_repeat in (False, True):
        (found,) = verify_logs([SHORT], location_url=str(tmp_path))
        assert not isinstance(found, TidelogError), found
        assert found.is_clean
        assert (found.figures.resumed_at is not None) == is_repeat
    assert logs_of(tmp_path) == ["verify-7", "verify-7-cuts"]


def test_a_wrong_answer_is_reported_by_its_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A record that differs is no error of the task: the other reports still count."""

    async def opened(_: str) -> object:
        store = ReadsStale(name="memory://")
        return await open_location("memory://", create=True, store=store)

    monkeypatch.setattr(log_verify, "open_location", opened)
    found = [*verify_logs([SHORT, SHORT], location_url="memory://")]
    assert len(found) == 2
    assert all(isinstance(one, TidelogError) or not one.is_clean for one in found), found


def test_an_error_of_a_task_is_raised_by_the_driver(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, tmp_path: Path
) -> None:
    """Mistakes fail before a job; the error of a store comes back as it is."""
    with pytest.raises(NoSuchLocation):
        tidelog.spark.verify(spark, str(tmp_path / "none"), SHORT)
    for tasks in (0, 10_001, "2"):
        with pytest.raises(UsageError, match="tasks must be"):
            tidelog.spark.verify(spark, str(tmp_path), SHORT, tasks=tasks)  # type: ignore[arg-type]
    with pytest.raises(LocationError, match="away"):
        log_verify._in_order([LocationError("away")])


def test_the_command_prints_a_report_for_each_task(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options of Spark need Spark."""
    given = ["--location", str(tmp_path), "verify", "--seconds", "0.3", "--writers", "1"]
    with (
        patch("tidelog.spark.session.session", return_value=spark),
        patch("tidelog.spark.session.stop"),
    ):
        done = main([*given, "--engine", "spark", "--tasks", "2", "--seed", "3"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert done == 0
    assert [(one["seed"], one["problems"], one["mismatch"]) for one in lines] == [
        (3, [], None),
        (4, [], None),
    ]
    assert main([*given, "--tasks", "2"]) == 2
    assert "--tasks is for Spark" in capsys.readouterr().err
    assert main([*given, "--engine", "other"]) == 2


@pytest.mark.parametrize(
    ("url", "more", "said"),
    [
        ("memory://", [], "cannot reach memory://"),
        ("lake", ["--tasks", "0"], "tasks must be from 1 to 10,000, not 0"),
        ("lake", ["--tasks", "2", "--seed", str(2**63 - 1)], "a seed must be from 0 to 2^63 - 1"),
    ],
)
def test_the_command_fails_before_it_starts_spark(
    url: str,
    more: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A session takes seconds, and a wrong call must leave no location."""
    monkeypatch.chdir(tmp_path)
    with patch("tidelog.spark.session.session", side_effect=AssertionError):
        assert main(["--location", url, "verify", "--engine", "spark", *more]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()
