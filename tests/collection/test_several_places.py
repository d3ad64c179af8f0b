"""A source of several folders: their files are one stream, each taken once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.sources import (
    ingested,
    lake_of,
    numbers,
    reopened,
    run_once,
    table_of,
)
from tidelog.errors import UsageError


def write(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows))


async def taken(folder: Path) -> list[int]:
    await ingested(folder)
    return await numbers(folder)


async def test_files_of_all_places_are_taken_once(tmp_path: Path) -> None:
    """Two patterns may match one file. The second place must not be ignored."""
    write(tmp_path / "a" / "1.jsonl", '{"n": 1}')
    write(tmp_path / "b" / "deep" / "2.jsonl", '{"n": 2}')
    write(tmp_path / "b" / "2.csv", "no json")
    write(tmp_path / "other" / "3.jsonl", '{"n": 3}')
    await lake_of(tmp_path, "a", "a/*.jsonl", "b/**/*.jsonl")
    assert await taken(tmp_path) == [1, 2]
    write(tmp_path / "a" / "4.jsonl", '{"n": 4}')
    write(tmp_path / "b" / "5.jsonl", '{"n": 5}')
    assert await taken(tmp_path) == [1, 2, 4, 5]


async def test_a_file_moved_from_place_to_place_is_known_again(tmp_path: Path) -> None:
    """An inbox and an archive may be two places of one source."""
    write(tmp_path / "inbox" / "1.jsonl", '{"n": 1}', '{"n": 2}')
    await lake_of(tmp_path, "inbox", "done")
    assert await taken(tmp_path) == [1, 2]
    (tmp_path / "inbox" / "1.jsonl").rename(tmp_path / "done" / "1.jsonl")
    assert await taken(tmp_path) == [1, 2]


async def test_times_of_the_data_are_cut_across_places(tmp_path: Path) -> None:
    """The upper follows the newest time of all places. Ticks end between times of all places."""
    write(tmp_path / "a" / "1.jsonl", *(f'{{"n": {n}, "at": {n}}}' for n in range(0, 100, 2)))
    write(tmp_path / "b" / "1.jsonl", *(f'{{"n": {n}, "at": {n}}}' for n in range(1, 100, 2)))
    location = await lake_of(tmp_path, "a", "b", time_column="at")
    summary = await run_once(await location.sources.ingester("c"))
    assert (summary.rows, summary.late) == (100, 0)
    found = await table_of(location, as_of=49)
    assert sorted(found.column("n").to_numpy()) == list(range(50))


async def test_folders_that_are_named_are_read_whatever_they_are_called(tmp_path: Path) -> None:
    """Tools use such names for their own folders, which users do not name."""
    write(tmp_path / "_new" / "1.jsonl", '{"n": 1}')
    write(tmp_path / "_new" / "_temporary" / "2.jsonl", '{"n": 2}')
    write(tmp_path / "old" / "3.jsonl", '{"n": 3}')
    await lake_of(tmp_path, "_new", "old")
    assert await taken(tmp_path) == [1, 3]


async def test_the_catalog_has_what_it_was_given(tmp_path: Path) -> None:
    """Another process reads the source's places from the catalog."""
    await lake_of(tmp_path, "a", "b/*.jsonl")
    info, _ = await (await reopened(tmp_path)).sources.find("c")
    assert info.patterns == ("a/**", "b/*.jsonl")
    assert info.url == f"file://{tmp_path}"


async def test_no_place_may_hold_the_location(tmp_path: Path) -> None:
    """The source would ingest the objects that its own ingester writes."""
    with pytest.raises(UsageError, match="in the source's folder"):
        await lake_of(tmp_path, "a", "lake")
