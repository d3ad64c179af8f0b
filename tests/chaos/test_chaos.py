"""Real processes that are killed: no acknowledged change is lost, and none is doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import checks, scenario
from chaos.ingesters import start_ingest


def test_a_run_that_is_killed_often_equals_a_clean_run_and_the_replay(tmp_path: Path) -> None:
    """An ingester may die at any moment. The shards alone state where the next one continues."""
    report = checks.run_killed(
        tmp_path, engine="local", kills=5, seed=1, span_s=0.5, tick_bytes=6_000
    )

    assert report.minutes > 30
    assert report.ticks >= 20


def test_a_run_on_spark_that_is_killed_equals_a_clean_run_and_the_replay(tmp_path: Path) -> None:
    """Both engines compute the same result. One may begin a run, and the other end it."""
    report = checks.run_killed(
        tmp_path, engine="spark", kills=1, seed=2, span_s=2, tick_bytes=12_000
    )

    assert report.minutes > 30


def test_a_run_with_killed_merges_equals_a_clean_run(tmp_path: Path) -> None:
    """Merges, collections and sweeps may die at any moment of an ingest."""
    report = checks.run_maintained(tmp_path, kills=4, seed=6, span_s=0.5, tick_bytes=6_000)

    assert report.minutes > 30
    assert report.kills > 8


def test_a_follower_has_each_snapshot(tmp_path: Path) -> None:
    """Its first snapshot and its steps give the snapshot at 50 times, over three shards."""
    report = checks.run_followed(tmp_path, kills=3, seed=8, tick_bytes=6_000)

    assert report.minutes == 50
    assert report.kills > 5


def test_two_ingesters_at_once_equal_one(tmp_path: Path) -> None:
    """The loser of a commit computed the same, and continues after the winner."""
    report = checks.run_two(tmp_path, engine="local", seed=3, tick_bytes=6_000)

    assert min(report.won) > 0


def test_the_comparison_fails_where_a_row_is_lost(tmp_path: Path) -> None:
    """The canary: the comparison fails if an event is missing from a collection."""
    whole, url, clean_url = checks.prepare(tmp_path, seed=4)
    start_ingest(clean_url, engine="local", tick_bytes=1 << 20).finish()
    first = min((tmp_path / "events").iterdir())
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join(x for x in lines if '"key": "k07"' not in x))
    start_ingest(url, engine="local", tick_bytes=1 << 20).finish()

    with pytest.raises(AssertionError):
        checks.check_equal(url, clean_url, whole)


def test_the_scenario_changes_one_key_several_times_at_one_time(tmp_path: Path) -> None:
    """The comparison proves little unless a key changes several times at one time."""
    made = scenario.write_scenario(tmp_path / "events", events_count=500, seed=5)
    pairs = [(e["at"], e["key"]) for e in made.events]

    assert len(pairs) - len(set(pairs)) > 50
