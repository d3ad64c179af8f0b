"""Logs and shards whose location or folder disappears under an open writer."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidelog.core.frontier import Frontier
from tidelog.errors import Outcome, StoreRefused
from tidelog.location import Location, open_location

SCHEMA = pa.schema([("k", pa.int64())])


@dataclass(frozen=True)
class OpenedLog:
    """A writer's append, and the contents that a new reader finds."""

    append: Callable[[int], Awaitable[object]]
    contents: Callable[[Location], Awaitable[list[int]]]


def bytes_of(table: pa.Table, column: str) -> list[bytes]:
    values: list[Any] = table.column(column).to_pylist()
    return values


@asynccontextmanager
async def open_plain(lake: Location, protocol: str) -> AsyncIterator[OpenedLog]:
    async def contents(other: Location) -> list[int]:
        log = await other.log("orders")
        assert (await log.scrub()).is_clean
        return [int(body) async for table in log.scan() for body in bytes_of(table, "body")]

    async with await lake.logs.create("orders", protocol=protocol) as log:
        yield OpenedLog(lambda number: log.append([b"%d" % number]), contents)


@asynccontextmanager
async def open_keyed(lake: Location, _: str) -> AsyncIterator[OpenedLog]:
    async def contents(other: Location) -> list[int]:
        log = await other.keyed.open("orders")
        assert (await log.scrub()).is_clean
        found = await log.scan(b"k").to_arrow()
        await log.close()
        return [int(value) for value in bytes_of(found, "value")]

    log = await lake.keyed.create("orders")
    yield OpenedLog(lambda number: log.append([(b"k", b"%d" % number)]), contents)
    await log.close()


@asynccontextmanager
async def open_shard(lake: Location, _: str) -> AsyncIterator[OpenedLog]:
    shard = lake.shard("orders", schema=SCHEMA, key=["k"])

    async def append(number: int) -> None:
        rows = pa.table({"k": [number], "_time": [number], "_diff": [1]})
        lower, upper = Frontier.at(number), Frontier.at(number + 1)
        await shard.append(rows, lower=lower, upper=upper)

    async def contents(other: Location) -> list[int]:
        again = other.shard("orders")
        time = (await again.upper()).time - 1
        found = await (await again.snapshot(time)).to_arrow()
        return sorted(int(key) for key in found.column("k").to_numpy())

    yield OpenedLog(append, contents)


KINDS = {
    "slot": open_plain,
    "manifest": open_plain,
    "keyed": open_keyed,
    "shard": open_shard,
}


@pytest.mark.parametrize("is_swapped", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_writer_whose_location_is_unmounted_stores_nothing(
    kind: str, is_swapped: bool, tmp_path: Path
) -> None:
    """A writer whose location is unmounted stores nothing below the mount point."""
    folder, disk = tmp_path / "lake", tmp_path / "disk"
    lake = await open_location(folder, create=True)
    async with KINDS[kind](lake, kind) as opened:
        for number in range(3):
            await opened.append(number)
        folder.rename(disk)
        if is_swapped:
            folder.mkdir()
        for _ in range(2):
            with pytest.raises(StoreRefused, match="no longer exists") as refused:
                await opened.append(3)
            assert refused.value.outcome is Outcome.NOT_APPLIED
        assert folder.exists() == is_swapped
        assert not is_swapped or os.listdir(folder) == []

        shutil.rmtree(folder, ignore_errors=True)
        disk.rename(folder)
        await opened.append(3)
        await opened.append(4)
    again = await open_location(folder)
    assert await opened.contents(again) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "place"), [("slot", "log"), ("manifest", "log"), ("keyed", "keylog")]
)
async def test_a_writer_whose_log_is_moved_away_does_not_make_its_folder(
    kind: str, place: str, tmp_path: Path
) -> None:
    """A writer whose log is moved away raises StoreRefused and does not create the folder again."""
    folder = tmp_path / "lake" / place / "orders"
    lake = await open_location(tmp_path / "lake", create=True)
    async with KINDS[kind](lake, kind) as opened:
        await opened.append(0)
        folder.rename(tmp_path / "moved")
        for _ in range(2):
            with pytest.raises(StoreRefused, match="no longer exists"):
                await opened.append(1)
        assert not folder.exists()

        (tmp_path / "moved").rename(folder)
        await opened.append(1)
    again = await open_location(tmp_path / "lake")
    assert await opened.contents(again) == [0, 1]


async def test_a_new_writer_goes_on_after_a_remount(tmp_path: Path) -> None:
    """After a remount, a new writer continues; the first one left nothing."""
    folder, disk = tmp_path / "lake", tmp_path / "disk"
    log = await (await open_location(folder, create=True)).logs.create("orders")
    await log.append([b"0"])
    folder.rename(disk)
    folder.mkdir()
    with pytest.raises(StoreRefused, match="no longer exists"):
        await log.append([b"lost"])
    await log.close()
    assert os.listdir(folder) == []

    folder.rmdir()
    disk.rename(folder)
    async with await (await open_location(folder)).log("orders") as other:
        assert await other.append([b"1"]) == 2
        assert (await other.scrub()).is_clean
