"""Files replaced by other files: rotation, truncation, compression.

Each row is in once, or reported.
"""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest

from kit.packing import packed
from kit.sources import bind, ingested, lake_of, numbers, reopened, write_numbers
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.moves import (
    displaced,
    family_of,
    former_path,
    record_displaced,
)

FIRST_NS = 1_700_000_000_000_000_000


def write(path: Path, *numbers: int, at: int = 1, mode: str = "w") -> Path:
    """Write numbers, with a date that no other write has."""
    os.utime(write_numbers(path, *numbers, mode=mode), ns=(FIRST_NS + at * 1_000_000_000,) * 2)
    return path


@pytest.mark.parametrize("beginning", [7, 8], ids=["the same first row", "another one"])
async def test_a_log_is_rotated_time_and_again(tmp_path: Path, beginning: int) -> None:
    """Each file changes its name, and each name its file. Each row is in once."""
    await lake_of(tmp_path)
    log, first, second = (tmp_path / "in" / f"app.log{end}" for end in ("", ".1", ".2"))
    write(log, 7)
    await ingested(tmp_path)
    log.rename(first)
    write(log, beginning, 20, at=2)
    summary = await ingested(tmp_path)
    assert (summary.rows, list(summary.notes)) == (2, [first.name])
    first.rename(second)
    log.rename(first)
    write(log, beginning, 30, at=3)
    write(second, 8, at=4, mode="a")

    summary = await ingested(tmp_path)
    assert (summary.rows, sorted(summary.notes)) == (3, [first.name, second.name])
    assert await numbers(tmp_path) == sorted([7, 8, beginning, beginning, 20, 30])
    assert (await ingested(tmp_path)).notes == {}


async def test_a_log_is_rotated_out_of_the_pattern(tmp_path: Path) -> None:
    """The new file has the same first row, but the renamed one still exists."""
    await lake_of(tmp_path, "in/app.lo[g]")
    log = write(tmp_path / "in" / "app.log", 7)
    await ingested(tmp_path)
    log.rename(tmp_path / "in" / "app.log-20261125")
    write(log, 7, 8, at=2)

    summary = await ingested(tmp_path)
    assert (summary.rows, summary.notes) == (2, {})
    assert await numbers(tmp_path) == [7, 7, 8]


@pytest.mark.parametrize("grows", [True, False])
async def test_a_log_is_copied_and_truncated(tmp_path: Path, grows: bool) -> None:
    """The copy is recognised by its name and bytes. Only its further rows are taken."""
    await lake_of(tmp_path)
    log = write(tmp_path / "in" / "app.log", 1, 2)
    await ingested(tmp_path)
    write(log, 3, at=2, mode="a")
    shutil.copy(log, tmp_path / "in" / "app.log.1")
    os.truncate(log, 0)
    write(log, *([4] if grows else []), at=3)

    summary = await ingested(tmp_path)
    assert (summary.rows, list(summary.notes)) == (1 + grows, ["app.log.1"])
    write(log, 1, 2, 5, at=4)
    await ingested(tmp_path)
    assert await numbers(tmp_path) == sorted([1, 2, 3, *([4] if grows else []), 1, 2, 5])


@pytest.mark.parametrize(("old", "new"), [("", ".gz"), ("", ".zst"), (".gz", ""), (".gz", ".zst")])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.2"], ids=["in place", "and renamed"])
async def test_a_file_that_is_compressed_otherwise_is_known(
    tmp_path: Path, old: str, new: str, name: str
) -> None:
    """Its text identifies the file. Rows appended before and after are taken."""
    await lake_of(tmp_path)
    text = write(tmp_path / "text", 1, 2).read_bytes()
    more = write(tmp_path / "more", 3).read_bytes()
    before, after = tmp_path / "in" / f"a.jsonl{old}", tmp_path / "in" / f"{name}{new}"
    if before == after:
        return
    before.write_bytes(packed(text, old) if old else text)
    await ingested(tmp_path)
    before.unlink()
    after.write_bytes(packed(text + more, new) if new else text + more)

    summary = await ingested(tmp_path)
    assert (summary.rows, list(summary.notes)) == (1, [after.name])
    with after.open("ab") as file:
        file.write(packed(more, new) if new else more)
    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 2, 3, 3]


async def test_a_copy_with_a_rotated_name_is_reported(tmp_path: Path) -> None:
    """The copy may be the first half of a copy and truncation, or of a compression."""
    await lake_of(tmp_path)
    log = write(tmp_path / "in" / "app.log", 1, 2)
    await ingested(tmp_path)
    shutil.copy(log, tmp_path / "in" / "app.log.1")
    (tmp_path / "in" / "app.log.gz").write_bytes(gzip.compress(log.read_bytes()))

    summary = await ingested(tmp_path)
    assert sorted(summary.notes) == ["app.log.1", "app.log.gz"]
    assert all("occur twice" in note for note in summary.notes.values())


async def test_a_file_that_is_written_again_with_more_goes_on(tmp_path: Path) -> None:
    """Rsync and editors write a temporary file and rename it. The run reports this."""
    await lake_of(tmp_path)
    log = write(tmp_path / "in" / "app.log", 1, 2)
    await ingested(tmp_path)
    temporary = write(tmp_path / "in" / ".app.log.Xa3f", 1, 2, 3, at=2)
    temporary.rename(log)

    summary = await ingested(tmp_path)
    assert (summary.rows, "counts as the same file" in summary.notes["app.log"]) == (1, True)
    assert await numbers(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("change", ["rename", "compress", "truncate"])
async def test_a_file_that_moves_after_it_was_bound_stops_nothing(
    tmp_path: Path, change: str
) -> None:
    """The ingester reads the bytes at their new place, and their sums prove them."""
    location = await lake_of(tmp_path)
    log = write(tmp_path / "in" / "app.log", 1, 2)
    assert await bind(await location.sources.ingester("c"))
    if change == "compress":
        (tmp_path / "in" / "app.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    else:
        shutil.copy2(log, tmp_path / "in" / "app.log.1")
    if change == "truncate":
        os.truncate(log, 0)
    else:
        log.unlink()
    write(log, 3, at=2)

    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 2, 3]


async def test_a_log_that_is_rotated_while_rows_are_held_back_stops_nothing(
    tmp_path: Path,
) -> None:
    """The held rows come first, because ranges of two files cannot share one path."""
    await lake_of(tmp_path, time_column="at", lateness="10s")
    log = write(tmp_path / "in" / "app.log", 1, 2, 30)
    await ingested(tmp_path)
    log.rename(tmp_path / "in" / "app.log.1")
    write(log, 31, at=2)

    await ingested(tmp_path, final=True)
    assert await numbers(tmp_path) == [1, 2, 30, 31]


async def test_an_object_that_was_replaced_stops_nothing(tmp_path: Path) -> None:
    """The ingester reports it as another object, and a small moved one too."""
    await lake_of(tmp_path)
    log = write(tmp_path / "in" / "app.log", 1)
    small = write(tmp_path / "in" / "b.jsonl", 5, 6)
    await ingested(tmp_path, versioned=True)
    write(log, 2, 3, 4, at=2)
    small.rename(tmp_path / "in" / "c.jsonl")

    summary = await ingested(tmp_path, versioned=True)
    assert (summary.rows, sorted(summary.notes)) == (5, ["app.log", "c.jsonl"])
    assert all("occur twice" in note for note in summary.notes.values())
    assert await numbers(tmp_path) == [1, 2, 3, 4, 5, 5, 6, 6]


async def test_a_file_that_is_gone_for_a_while_is_known_after_its_name_was_used(
    tmp_path: Path,
) -> None:
    """The frontier keeps the file's row under a path that no file can have."""
    await lake_of(tmp_path)
    log = write(tmp_path / "in" / "app.log", 1)
    await ingested(tmp_path)
    log.rename(tmp_path / "away")
    write(log, 2, at=2)
    await ingested(tmp_path)
    (tmp_path / "away").rename(tmp_path / "in" / "back.log")

    summary = await ingested(tmp_path)
    assert (summary.rows, list(summary.notes)) == (0, ["back.log"])
    location = await reopened(tmp_path)
    assert len(await (await location.sources.ingester("c")).taken(summary.upper or 0)) == 3


@pytest.mark.parametrize(
    "name",
    [
        "app.log",
        "app.log.1",
        "app.log.2.gz",
        "app.log-20261125",
        "x/app-2026-11-25.log",
        "app.log~",
    ],
)
def test_rotated_names_are_of_one_family(name: str) -> None:
    """Numbers, dates and suffixes are not part of the family's name."""
    assert family_of(name) == "app.log"
    assert family_of("3.json") == "3.json"


def row(path: str, limit: int, *, moved: str = "", late: int = 0) -> FileRange:
    return FileRange(
        path=path, start=0, limit=limit, moved=moved, late=late, e_tag=f"{path}{limit}"
    )


def test_a_former_file_has_a_row_unless_a_later_one_exists() -> None:
    """The names of one file stay together, and late rows count by path."""
    taken = {"log": row("log", 9, late=2), "old": row("old", 4), "log.1": row("log.1", 4)}
    moved = row("log.1", 9, moved=former_path(taken["log"]))
    ranges = [row("log", 3, late=1), moved]

    found = {one.path: one for one in record_displaced(ranges, taken, ["log", "log.1"])}
    assert found.keys() == {"log", "log.1", former_path(taken["log.1"])}
    assert (found["log"].late, found["log.1"].moved) == (3, "")
    assert displaced(taken, []) is taken
