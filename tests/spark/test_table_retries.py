"""Spark runs lost tasks again: each row is in the table once, and a sweep deletes the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import tidelog
from kit.retried_tasks import KEYS, TASKS

TESTS = Path(__file__).parent.parent


def run(*command: str) -> None:
    path = os.pathsep.join([str(TESTS), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    arguments = [sys.executable, "-m", *command]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]


def parts_in(lake: Path) -> set[Path]:
    return set((lake / "shard").rglob("*.parquet"))


@pytest.mark.parametrize(("name", "operation"), [("plain", "insert"), ("keyed", "upsert")])
def test_tasks_that_are_killed_and_run_again_write_once(
    tmp_path: Path, name: str, operation: str
) -> None:
    """Each task is killed with -9 after it has written its parts, then Spark runs it again."""
    url = str(tmp_path)
    with tidelog.connect(url, create=True) as lake:
        key = ["a"] if name == "keyed" else []
        lake.tables.create(name, "a bigint, b varchar", key=key)
        lake.table(name).insert([{"a": KEYS.start, "b": "old"}])
    before = parts_in(tmp_path)
    run("kit.retried_tasks", url, name, operation)

    written = parts_in(tmp_path) - before
    assert len(written) >= 2 * TASKS
    for _ in range(3):
        run("tidelog.cli.main", "--location", url, "collect", "--grace", "0s", "--sweep")
    assert len(parts_in(tmp_path) & written) == TASKS
    with tidelog.connect(url) as lake:
        rows = lake.table(name).snapshot().to_arrow().to_pylist()
        commits = lake.table(name).history()
    old = Counter() if operation == "upsert" else Counter({(KEYS.start, "old"): 1})
    assert Counter((row["a"], row["b"]) for row in rows) == Counter((a, "new") for a in KEYS) + old
    assert len(commits) == 2
