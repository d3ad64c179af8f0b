"""Streams between tables, killed with -9 at their puts: each row is in the target once."""

from __future__ import annotations

from pathlib import Path

from chaos.table_stream import check_killed

KILLS = 2


def test_a_stream_between_tables_that_is_killed_equals_a_replay(tmp_path: Path) -> None:
    """Source and sink are killed at a put, which lands or not; merges run between the runs."""
    assert check_killed(tmp_path, kills=KILLS) == KILLS
