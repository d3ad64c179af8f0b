"""Skipped files under schedules: a skip is reported once, and no other row is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.sources import bound, contents_in, ingested, lake_of, reopened
from tidelog.core.frontier import Frontier
from tidelog.errors import GoneError

SCHEMA = "n bigint, at bigint, gone boolean"
UPSERT: dict[str, Any] = {"envelope": "upsert", "key": ("n",), "delete_when": "gone"}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def test_a_skipped_file_is_taken_under_another_name(tmp_path: Path) -> None:
    """A rename keeps the date, and none of the file's rows are in, as the docs state."""
    location = await lake_of(tmp_path, "*.jsonl", schema=SCHEMA)
    file = write(tmp_path / "a.jsonl", {"n": 1}, {"n": 2})
    await bound(location)
    file.rename(tmp_path.parent / "b.jsonl")
    with pytest.raises(GoneError):
        await ingested(tmp_path)
    await location.sources.skip("c", "a.jsonl")
    (tmp_path.parent / "b.jsonl").rename(tmp_path / "b.jsonl")

    await ingested(tmp_path)
    assert len(await contents_in(tmp_path, "c_errors")) == 1
    assert [row[6] for row in await contents_in(tmp_path)] == ["1", "2"]


async def test_a_skipped_range_is_one_bad_row(tmp_path: Path) -> None:
    """A skipped range is one bad row, even if some of its rows would be held back."""
    location = await lake_of(tmp_path, "*.jsonl", schema=SCHEMA, time_column="at", lateness="1s")
    file = write(tmp_path / "a.jsonl", {"n": 1, "at": 1_000}, {"n": 2, "at": 5_000})
    await bound(location)
    file.unlink()
    await location.sources.skip("c", "a.jsonl")

    summaries = [await ingested(tmp_path), await ingested(tmp_path, final=True)]
    assert sum(summary.bad for summary in summaries) == 1
    assert len(await contents_in(tmp_path, "c_errors")) == 1


async def test_a_key_has_one_row_whichever_ingester_skips_its_deletion(tmp_path: Path) -> None:
    """One ingester stalls before its commit. The one that skips the file dies during its own."""
    location = await lake_of(tmp_path, "*.jsonl", schema=SCHEMA, time_column="at", **UPSERT)
    write(tmp_path / "a.jsonl", {"n": 1, "at": 10, "gone": False})
    await ingested(tmp_path)
    file = write(tmp_path / "b.jsonl", {"n": 1, "at": 20, "gone": True})
    sleeper, binding = await bound(location)
    computed = await sleeper._compute(binding)
    file.unlink()
    await location.sources.skip("c", "b.jsonl")
    dies = await (await reopened(tmp_path)).sources.ingester("c")
    await dies._check_there()
    without = await dies._compute(binding)
    parts = dies.parts_of(without)
    await dies.outputs[0].commit_parts(
        list(parts[0]), *map(Frontier.at, (binding.lower, binding.upper))
    )

    await sleeper._commit(binding, computed)
    write(tmp_path / "d.jsonl", {"n": 1, "at": 30, "gone": False})
    await ingested(tmp_path)
    assert await contents_in(tmp_path) == ["{'n': 1, 'at': 30, 'gone': False}"]
