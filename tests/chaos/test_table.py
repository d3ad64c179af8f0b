"""A table whose writers are killed while a process follows it."""

from __future__ import annotations

from pathlib import Path

from chaos.table_writer import run_followed_table


def test_a_follower_of_a_table_has_each_snapshot(tmp_path: Path) -> None:
    """Its first snapshot and its steps give the snapshot at 50 times, over three shards."""
    report = run_followed_table(tmp_path, kills=6, seed=9)

    assert report.minutes == 50
    assert report.kills > 6
    assert report.rows > report.ticks > 5
