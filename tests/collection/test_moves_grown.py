"""Files that were renamed and extended, renamed back, or copied: each row is in once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kit.packing import packed
from kit.sources import ingested, lake_of, numbers


def lines(*numbers: int) -> bytes:
    return b"".join(
        b'{"n": %d, "pad": "%s"}\n' % (n, os.urandom(8).hex().encode()) for n in numbers
    )


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("count", [2, 1_000], ids=["short", "long"])
async def test_a_compressed_file_that_grew_and_was_renamed_is_known(
    tmp_path: Path, suffix: str, count: int
) -> None:
    """The first member of the file, of any length, identifies it."""
    await lake_of(tmp_path, schema="n bigint")
    old, new = (tmp_path / "in" / f"{name}.jsonl{suffix}" for name in "ab")
    old.write_bytes(packed(lines(*range(count)), suffix))
    await ingested(tmp_path)
    with old.open("ab") as file:
        file.write(packed(lines(count), suffix))
    old.rename(new)

    summary = await ingested(tmp_path)
    assert (await numbers(tmp_path), summary.waiting) == (list(range(count + 1)), {})


@pytest.mark.parametrize(
    ("format", "begin", "more"),
    [
        ("json", b'{"n": 0}', b'\n{"n": 1}\n'),
        ("json-array", b'[{"n": 0},', b'{"n": 1},{"n": 2}]'),
    ],
)
async def test_a_file_without_a_line_end_that_grew_and_was_renamed_is_known(
    tmp_path: Path, format: str, begin: bytes, more: bytes
) -> None:
    """The first record identifies the file, although its line goes on after the append."""
    await lake_of(tmp_path, format=format, schema="n bigint")
    old, new = (tmp_path / "in" / f"{name}.json" for name in "ab")
    old.write_bytes(begin)
    await ingested(tmp_path)
    assert await numbers(tmp_path) == [0]
    with old.open("ab") as file:
        file.write(more)
    old.rename(new)

    await ingested(tmp_path)
    found = await numbers(tmp_path)
    assert found == list(range(len(found)))


async def test_a_copy_of_a_renamed_file_is_a_file_of_its_own(tmp_path: Path) -> None:
    """One of two equal files was renamed. The other is a file of its own."""
    await lake_of(tmp_path, schema="n bigint")
    a, b, c = (tmp_path / "in" / f"{name}.jsonl" for name in "abc")
    a.write_bytes(lines(1))
    await ingested(tmp_path)
    shutil.copy2(a, b)
    a.rename(c)

    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 1]


async def test_however_many_files_were_renamed_new_ones_are_taken(tmp_path: Path) -> None:
    """A new file is ingested next to more renamed files than a tick takes."""
    await lake_of(tmp_path, schema="n bigint")
    (tmp_path / "in" / "old").mkdir()
    count = 70
    for n in range(count):
        (tmp_path / "in" / "old" / f"{n:03}.jsonl").write_bytes(lines(n))
    await ingested(tmp_path)
    (tmp_path / "in" / "old").rename(tmp_path / "in" / "new")
    (tmp_path / "in" / "z.jsonl").write_bytes(lines(count))

    for _ in range(3):
        await ingested(tmp_path, bytes_max=1)
    assert await numbers(tmp_path) == list(range(count + 1))


async def test_a_file_that_is_renamed_to_and_fro_is_known(tmp_path: Path) -> None:
    """The ingester recognises the file under any names, in any order, with appends between."""
    await lake_of(tmp_path, schema="n bigint")
    path = tmp_path / "in" / "a.jsonl"
    path.write_bytes(lines(0))
    await ingested(tmp_path)
    for n, name in enumerate("bcabadabcb", start=1):
        path = path.rename(path.with_name(f"{name}.jsonl"))
        if n % 3:
            with path.open("ab") as file:
                file.write(lines(n))
        await ingested(tmp_path)

    assert await numbers(tmp_path) == [n for n in range(11) if n % 3 or not n]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("more", [(), (1,)], ids=["the same", "more"])
async def test_a_new_file_that_begins_as_one_that_is_gone_is_another(
    tmp_path: Path, suffix: str, more: tuple[int, ...]
) -> None:
    """A new file with the beginning of a deleted file is another file. No row may be lost."""
    await lake_of(tmp_path, schema="n bigint")
    old, new = (tmp_path / "in" / f"{name}.jsonl{suffix}" for name in "ab")
    old.write_bytes(packed(b'{"n": 0}\n', suffix) if suffix else b'{"n": 0}\n')
    first = old.read_bytes()
    await ingested(tmp_path)
    old.unlink()
    new.write_bytes(first)  # Many disks reuse the inode of the old file.
    os.utime(new, (1, 1))
    with new.open("ab") as file:
        for n in more:
            file.write(packed(lines(n), suffix) if suffix else lines(n))

    summary = await ingested(tmp_path)
    assert await numbers(tmp_path) == [0, 0, *more]
    assert "may be the file 'a.jsonl" in summary.notes[new.name]


async def test_a_file_that_was_touched_and_renamed_is_known(tmp_path: Path) -> None:
    """The file keeps its identity with a new date, and also if it grows afterwards."""
    await lake_of(tmp_path, schema="n bigint")
    path = tmp_path / "in" / "a.jsonl"
    path.write_bytes(lines(0))
    await ingested(tmp_path)
    for n, name in enumerate("bcd"):
        path = path.rename(path.with_name(f"{name}.jsonl"))
        os.utime(path, (n, n))
        summary = await ingested(tmp_path)
        assert (summary.rows, list(summary.notes)) == (0, [path.name])
    with path.open("ab") as file:
        file.write(lines(1))

    await ingested(tmp_path)
    assert await numbers(tmp_path) == [0, 1]


async def test_a_copy_with_its_date_is_the_file_that_is_gone(tmp_path: Path) -> None:
    """A file copied with its date, then deleted, counts as moved, to any name."""
    await lake_of(tmp_path, schema="n bigint")
    old, new = (tmp_path / "in" / f"{name}.jsonl" for name in "ab")
    old.write_bytes(lines(0))
    await ingested(tmp_path)
    shutil.copy2(old, new)
    old.unlink()

    assert (await ingested(tmp_path)).rows == 0
    shutil.copy2(new, old)
    new.unlink()
    assert (await ingested(tmp_path)).rows == 0
    assert await numbers(tmp_path) == [0]
