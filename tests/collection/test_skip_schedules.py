"""Skipped files under schedules: a skip is reported once, and no other row is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.sources import contents as contents_of
from kit.sources import ingested, make_source
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.source.binding import Binding
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.frontier import Frontier
from tidelog.errors import GoneError
from tidelog.location import Location, open_location

UPSERT: dict[str, Any] = {"envelope": "upsert", "key": ("n",), "delete_when": "gone"}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def made(folder: Path, **asked: Any) -> Location:
    given = {"schema": "n bigint, at bigint, gone boolean", **asked}
    return await make_source(
        folder / "lake", SourceSpec(name="c", files=str(folder / "*.jsonl"), **given)
    )


async def contents(folder: Path, name: str = "c") -> list[str]:
    return await contents_of(await open_location(str(folder / "lake")), name)


async def bound(location: Location) -> tuple[Ingester, Binding]:
    """Bind everything available, without computing it."""
    ingester = await location.sources.ingester("c")
    lower = ingester.upper.time
    plan = await ingester.plan(await ingester.source.head(), lower)
    assert plan is not None
    await ingester._mint(plan, lower, ingester._upper_of(plan, lower))
    binding = await ingester.pending()
    assert binding is not None
    return ingester, binding


async def test_a_skipped_file_is_taken_under_another_name(tmp_path: Path) -> None:
    """A skipped file is taken if it gets another name.

    A rename keeps the date, and none of the file's rows are in, as the docs state.
    """
    location = await made(tmp_path)
    file = write(tmp_path / "a.jsonl", {"n": 1}, {"n": 2})
    await bound(location)
    file.rename(tmp_path.parent / "b.jsonl")
    with pytest.raises(GoneError):
        await ingested(tmp_path)
    await location.sources.skip_file("c", "a.jsonl")
    (tmp_path.parent / "b.jsonl").rename(tmp_path / "b.jsonl")

    await ingested(tmp_path)
    assert len(await contents(tmp_path, "c_errors")) == 1
    assert [row[6] for row in await contents(tmp_path)] == ["1", "2"]


async def test_a_skipped_range_is_one_bad_row(tmp_path: Path) -> None:
    """A skipped range is one bad row, even if some of its rows would be held back."""
    location = await made(tmp_path, time_column="at", lateness="1s")
    file = write(tmp_path / "a.jsonl", {"n": 1, "at": 1_000}, {"n": 2, "at": 5_000})
    await bound(location)
    file.unlink()
    await location.sources.skip_file("c", "a.jsonl")

    summaries = [await ingested(tmp_path), await ingested(tmp_path, final=True)]
    assert sum(summary.bad for summary in summaries) == 1
    assert len(await contents(tmp_path, "c_errors")) == 1


async def test_a_key_has_one_row_whoever_skipped_the_file_that_deletes_it(tmp_path: Path) -> None:
    """A key has one row, whichever ingester skips the file that deletes the key.

    One ingester stalls before its commit. The one that skips the file dies during its own.
    """
    location = await made(tmp_path, time_column="at", **UPSERT)
    write(tmp_path / "a.jsonl", {"n": 1, "at": 10, "gone": False})
    await ingested(tmp_path)
    file = write(tmp_path / "b.jsonl", {"n": 1, "at": 20, "gone": True})
    sleeper, binding = await bound(location)
    computed = await sleeper._compute(binding)
    file.unlink()
    await location.sources.skip_file("c", "b.jsonl")
    dies = await (await open_location(str(tmp_path / "lake"))).sources.ingester("c")
    await dies._check_there()
    without = await dies._compute(binding)
    parts = dies.parts_of(without)
    await dies.outputs[0].commit_parts(
        list(parts[0]), *map(Frontier.at, (binding.lower, binding.upper))
    )

    await sleeper._commit(binding, computed)
    write(tmp_path / "d.jsonl", {"n": 1, "at": 30, "gone": False})
    await ingested(tmp_path)
    assert await contents(tmp_path) == ["{'n': 1, 'at': 30, 'gone': False}"]
