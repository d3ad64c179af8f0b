"""Moved files: taken once under any name. A possible duplicate is reported."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from kit.sources import ingested, lake_of, numbers, write_numbers
from tidelog.collection.ingest.status import source_status
from tidelog.location import open_location

write = partial(write_numbers, at=5)
KINDS = [("json", ""), ("json", ".gz"), ("csv", ""), ("parquet", "")]


@pytest.mark.parametrize(("format", "suffix"), KINDS)
@pytest.mark.parametrize("timed", [False, True])
async def test_a_file_that_was_renamed_is_not_taken_again(
    tmp_path: Path, format: str, suffix: str, timed: bool
) -> None:
    """Any process recognises a renamed file. The run and the status report its name."""
    await lake_of(tmp_path, format=format, time_column="at" if timed else None)
    a, b, c = (tmp_path / "in" / f"{name}.{format}{suffix}" for name in "abc")
    write(a, 1, 2)
    await ingested(tmp_path)
    a.rename(b)
    first = await ingested(tmp_path)
    b.rename(c)
    write(a.with_name(f"new.{format}{suffix}"), 3)
    second = await ingested(tmp_path)

    assert (first.rows, second.rows) == (0, 1)
    assert list(first.notes) == [b.name]
    assert f"it is {a.name!r}" in first.notes[b.name]
    assert list(second.notes) == [c.name]
    assert await numbers(tmp_path) == [1, 2, 3]
    location = await open_location(str(tmp_path / "lake"))
    status = await source_status(await location.sources.ingester("c"))
    assert status.run is not None
    assert list(status.run.notes) == [c.name]
    assert status.files == 2
    assert (await ingested(tmp_path)).notes == {}


@pytest.mark.parametrize("when", ["before it was seen", "after"])
@pytest.mark.parametrize("timed", [False, True])
async def test_a_renamed_file_goes_on_growing(tmp_path: Path, when: str, timed: bool) -> None:
    """The ingester takes appended rows only. A rewritten file counts as another file."""
    await lake_of(tmp_path, time_column="at" if timed else None)
    a, b = (tmp_path / "in" / f"{name}.jsonl" for name in "ab")
    write(a, 1, 2)
    await ingested(tmp_path)
    a.rename(b)
    if when == "after":
        await ingested(tmp_path)
    with b.open("a") as file:
        file.write('{"n": 3, "at": 6}\n')

    assert (await ingested(tmp_path)).rows == 1
    assert await numbers(tmp_path) == [1, 2, 3]
    shutil.copy2(b, tmp_path / "in" / "c.jsonl")
    assert (await ingested(tmp_path)).rows == 3
    write(b, 7, 8, 9)
    os.utime(b, (1, 1))
    summary = await ingested(tmp_path)
    assert (summary.rows, "rows that both files have" in summary.notes[b.name]) == (3, True)


async def test_the_same_bytes_with_another_date_are_another_file(tmp_path: Path) -> None:
    """A daily report may repeat its bytes, so skipping it would lose rows."""
    await lake_of(tmp_path)
    a, b = (tmp_path / "in" / f"{name}.jsonl" for name in "ab")
    write(a, 1, 2)
    await ingested(tmp_path)
    a.unlink()
    write(b, 1, 2)

    summary = await ingested(tmp_path)
    assert (summary.rows, list(summary.notes)) == (2, [b.name])
    assert "may be the file 'a.jsonl'" in summary.notes[b.name]
    assert await numbers(tmp_path) == [1, 1, 2, 2]


async def test_a_copy_is_another_file(tmp_path: Path) -> None:
    """A copy next to its original is another file, also if the original was moved before."""
    await lake_of(tmp_path)
    a, b, c, d = (tmp_path / "in" / f"{name}.jsonl" for name in "abcd")
    write(a, 1)
    await ingested(tmp_path)
    shutil.copy2(a, b)
    assert ((await ingested(tmp_path)).rows, await numbers(tmp_path)) == (1, [1, 1])
    a.rename(c)
    await ingested(tmp_path)
    shutil.copy2(c, d)

    summary = await ingested(tmp_path)
    assert (summary.rows, summary.notes) == (1, {})


@pytest.mark.parametrize("rows", [100, 3])
async def test_an_object_that_may_have_been_renamed_is_taken_and_told(
    tmp_path: Path, rows: int
) -> None:
    """The ingester reads no bytes of an object to identify it, so only the size shows a rename."""
    await lake_of(tmp_path)
    a, b = (tmp_path / "in" / f"{name}.jsonl" for name in "ab")
    write(a, *range(rows))
    await ingested(tmp_path, versioned=True)
    a.rename(b)
    write(a.with_name("c.jsonl"), 1)

    summary = await ingested(tmp_path, versioned=True)
    assert (summary.rows, list(summary.notes)) == (rows + 1, [b.name])
    assert "its rows occur twice" in summary.notes[b.name]


async def test_a_file_is_taken_once_however_many_links_lead_to_it(tmp_path: Path) -> None:
    """Links may be next to the file, in a linked folder or outside, and may come first."""
    await lake_of(tmp_path)
    folder, apart = tmp_path / "in", tmp_path / "apart"
    (folder / "x").mkdir()
    apart.mkdir()
    write(folder / "x" / "b.jsonl", 1)
    (folder / "a.jsonl").symlink_to(folder / "x" / "b.jsonl")
    (folder / "y").symlink_to(folder / "x")
    write(apart / "c.jsonl", 2)
    (folder / "c1.jsonl").symlink_to(apart / "c.jsonl")
    (folder / "c2.jsonl").symlink_to(apart / "c.jsonl")
    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 2]

    os.replace(apart / "c.jsonl", folder / "c.jsonl")
    (folder / "c1.jsonl").unlink()
    (folder / "c1.jsonl").symlink_to(folder / "c.jsonl")
    summary = await ingested(tmp_path)
    assert (summary.rows, list(summary.notes)) == (0, ["c.jsonl"])
    assert await numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    "name",
    [
        "a.jsonl.tmp",
        "a.jsonl._COPYING_",
        ".a.jsonl.crc",
        "a.crc",
        ".a.jsonl",
        "_temporary/a.jsonl",
        ".a.jsonl.Xa3f",
        ".rsync-partial/a.jsonl",
        "a.jsonl.filepart",
        "a.jsonl~",
        "#a.jsonl#",
        ".a.jsonl.swp",
    ],
)
async def test_what_is_being_written_or_moved_is_passed_over(tmp_path: Path, name: str) -> None:
    """The ingester skips temporary names. It takes the file once after it has its final name."""
    await lake_of(tmp_path)
    path = tmp_path / "in" / name
    path.parent.mkdir(exist_ok=True)
    write(path, 1)
    before = await ingested(tmp_path)
    path.rename(tmp_path / "in" / "b.jsonl")

    after = await ingested(tmp_path)
    assert (before.rows, before.left_bytes, after.rows) == (0, 0, 1)
