"""The time of an address, before and after its ingestion."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kit.sources import ingest, lake_of, reopened, run_once, write_numbers
from tidelog.errors import AsOfBeforeSince, UsageError
from tidelog.location import Location


async def times(lake: Location) -> dict[int, int]:
    """Return the time of each number in the collection."""
    updates = await (await lake.collection("c")).changes(since=0)
    return {row["n"]: row["_time"] for row in updates.to_pylist()}


def lines(folder: Path, name: str, *numbers: int) -> int:
    """Write a file of numbers and return its size in bytes."""
    return len(write_numbers(folder / "in" / name, *numbers).read_bytes())


async def test_an_address_has_its_time_before_its_ingestion(tmp_path: Path) -> None:
    """The ingester obeys the binding that the call made."""
    lake = await lake_of(tmp_path)
    size = lines(tmp_path, "a.jsonl", 1, 2)

    found = await lake.sources.get_binding("c", "a.jsonl", size - 1)

    assert (found.path, found.start, found.limit) == ("a.jsonl", 0, size)
    assert (await lake.sources.ingester("c")).upper.time == 0  # Nothing was computed.
    assert await lake.sources.get_binding("c", "a.jsonl", 0) == found
    await ingest(lake, "c")
    assert await times(lake) == {1: found.time, 2: found.time}
    assert await lake.sources.get_binding("c", "a.jsonl", 0) == found


async def test_later_addresses_get_later_times(tmp_path: Path) -> None:
    """A waiting binding is committed before the call makes another."""
    lake = await lake_of(tmp_path)
    lines(tmp_path, "a.jsonl", 1)
    first = await lake.sources.get_binding("c", "a.jsonl", 0)
    lines(tmp_path, "b.jsonl", 2)

    second = await lake.sources.get_binding("c", "b.jsonl", 0)

    assert second.time > first.time
    assert await lake.sources.get_binding("c", "a.jsonl", 0) == first
    await ingest(lake, "c")
    assert await times(lake) == {1: first.time, 2: second.time}


async def test_a_call_leaves_the_rows_to_the_ingester(tmp_path: Path) -> None:
    """An ingester commits few rows together with their binding. Its report must count them."""
    lake = await lake_of(tmp_path)
    lines(tmp_path, "a.jsonl", 1)
    await ingest(lake, "c")
    lines(tmp_path, "b.jsonl", 2)

    found = await lake.sources.get_binding("c", "b.jsonl", 0)

    assert set(await times(lake)) == {1}
    assert (await run_once(await lake.sources.ingester("c"))).rows == 1
    assert (await times(lake))[2] == found.time


async def test_all_callers_and_ingesters_agree(tmp_path: Path) -> None:
    """Each has its own connection, and each address has one time."""
    lake = await lake_of(tmp_path)
    for number in range(1, 9):
        lines(tmp_path, f"{number}.jsonl", number)
    others = [await reopened(tmp_path) for _ in range(4)]

    async def ask(other: Location) -> list[int]:
        return [(await other.sources.get_binding("c", f"{n}.jsonl", 0)).time for n in range(1, 9)]

    asked = await asyncio.gather(*map(ask, others), ingest(await reopened(tmp_path), "c"))

    stored = await times(lake)
    assert all(one == [stored[n] for n in range(1, 9)] for one in asked[:4])


async def test_what_has_no_time_is_refused(tmp_path: Path) -> None:
    """The source has no such message, or its rows have times of their own."""
    lake = await lake_of(tmp_path)
    size = lines(tmp_path, "a.jsonl", 1)
    await ingest(lake, "c")
    for path, address in (("a.jsonl", size), ("b.jsonl", 0)):
        with pytest.raises(UsageError, match=r"has no message of"):
            await lake.sources.get_binding("c", path, address)
    with pytest.raises(UsageError, match=r"address"):
        await lake.sources.get_binding("c", "a.jsonl", -1)


async def test_rows_with_times_of_their_own_need_no_binding(tmp_path: Path) -> None:
    """The error names the column."""
    lake = await lake_of(tmp_path, time_column="at")

    with pytest.raises(UsageError, match=r"have the times of their column 'at'"):
        await lake.sources.get_binding("c", "a.jsonl", 0)


async def test_a_forgotten_binding_is_an_error(tmp_path: Path) -> None:
    """A source that does not keep its bindings knows only the newest ones."""
    lake = await lake_of(tmp_path, keep_bindings=False)
    for number in (1, 2, 3):
        lines(tmp_path, f"{number}.jsonl", number)
        await ingest(lake, "c")

    with pytest.raises(AsOfBeforeSince, match=r"has forgotten the time of the address 0"):
        await lake.sources.get_binding("c", "1.jsonl", 0)
    assert (await lake.sources.get_binding("c", "3.jsonl", 0)).time == (await times(lake))[3]


async def test_a_moved_file_keeps_its_time(tmp_path: Path) -> None:
    """Its rows came in under its former name."""
    lake = await lake_of(tmp_path)
    lines(tmp_path, "1.jsonl", 1)
    await ingest(lake, "c")
    first = await lake.sources.get_binding("c", "1.jsonl", 0)
    (tmp_path / "in" / "1.jsonl").rename(tmp_path / "in" / "2.jsonl")
    lines(tmp_path, "3.jsonl", 3)
    await ingest(lake, "c")

    assert await lake.sources.get_binding("c", "2.jsonl", 0) == first
    with pytest.raises(UsageError, match=r"must be a str"):
        await lake.sources.get_binding("c", Path("2.jsonl"), 0)  # type: ignore[arg-type]
