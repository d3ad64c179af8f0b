"""Reads of a collection at a time that is not complete yet: refused, or waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kit.clocks import SwiftClock
from kit.sources import run_once
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import AsOfNotComplete, DeadlineExceeded, UsageError
from tidelog.location import Location, open_location
from tidelog.persist.handle.port import Progress
from tidelog.store.memory import MemoryStore

SECOND_US = 1_000_000
LATER = 20


def numbers(table: pa.Table) -> list[int]:
    found: list[Any] = table["n"].to_pylist()
    return found


async def snapshot(lake: Location, **waiting: int) -> list[int]:
    contents = await (await lake.collection("c")).snapshot(LATER, **waiting)  # type: ignore[arg-type]
    return numbers(await contents.to_arrow())


async def scan(lake: Location, **waiting: int) -> list[int]:
    tables = (await lake.collection("c")).scan(LATER, **waiting)  # type: ignore[arg-type]
    return [n async for table in tables for n in numbers(table)]


async def consolidated(lake: Location, **waiting: int) -> list[int]:
    table = await (await lake.collection("c")).consolidated(LATER, **waiting)  # type: ignore[arg-type]
    return sorted(numbers(table))


async def changes(lake: Location, **waiting: int) -> list[int]:
    table = await (await lake.collection("c")).changes(0, LATER, **waiting)  # type: ignore[arg-type]
    return numbers(table)


async def sql(lake: Location, **waiting: int) -> list[int]:
    found = await lake.sql("SELECT n FROM c ORDER BY n", as_of=LATER, **waiting)  # type: ignore[arg-type]
    return numbers(found.to_arrow())


Read = Callable[..., Coroutine[Any, Any, list[int]]]
READS = {each.__name__: each for each in (snapshot, scan, consolidated, changes, sql)}


@pytest.fixture
async def store(tmp_path: Path) -> MemoryStore:
    """A location with the collection ``c``, which is not ingested yet."""
    store = MemoryStore()
    lake = await open_location("memory://", create=True, store=store)
    spec = SourceSpec(name="c", files=str(tmp_path / "*.jsonl"), time_column="at")
    (tmp_path / "1.jsonl").write_text('{"n": 1, "at": 10}\n')
    await lake.sources.create(spec)
    return store


async def ingest(store: MemoryStore) -> None:
    lake = await open_location("memory://", store=store)
    await run_once(await lake.sources.ingester("c"))


class WaitersClock(SwiftClock):
    """A clock that shows when a waiting reader sleeps for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = asyncio.Event()

    async def sleep(self, duration_us: int) -> None:
        self.asleep.set()
        await super().sleep(duration_us)


async def opened(store: MemoryStore) -> tuple[Location, WaitersClock]:
    clock = WaitersClock()
    return await open_location("memory://", store=store, clock=clock), clock


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_read_waits_if_the_caller_asks(
    read: Read, store: MemoryStore, tmp_path: Path
) -> None:
    """Without `wait`, an incomplete time is an error. With it, a reader may start first."""
    await ingest(store)
    lake, clock = await opened(store)
    with pytest.raises(AsOfNotComplete):
        await read(lake)

    waiting = asyncio.create_task(read(lake, wait=True))
    await clock.asleep.wait()
    (tmp_path / "2.jsonl").write_text('{"n": 2, "at": 20}\n')
    await ingest(store)

    assert await asyncio.wait_for(waiting, 10) == [1, 2]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_wait_ends_at_the_limit_of_the_caller(read: Read, store: MemoryStore) -> None:
    """The error has the newest complete time. A limit alone implies `wait`."""
    await ingest(store)
    lake, clock = await opened(store)

    with pytest.raises(DeadlineExceeded, match=r"'c' is complete up to 1970.*00\.010Z.*00\.020Z"):
        await read(lake, timeout_us=5 * SECOND_US)

    assert 0 < clock.slept_us <= 5 * SECOND_US


async def test_a_read_without_a_time_waits_for_the_first_one(store: MemoryStore) -> None:
    """A consumer may start before the first ingest."""
    lake, clock = await opened(store)
    collection = await lake.collection("c")
    with pytest.raises(DeadlineExceeded, match="'c' has no complete time yet"):
        await collection.snapshot(timeout_us=SECOND_US)
    clock.asleep.clear()

    waiting = asyncio.create_task(collection.snapshot(wait=True))
    newest = asyncio.create_task(collection.snapshot("now", wait=True))
    await clock.asleep.wait()
    await ingest(store)

    assert (await asyncio.wait_for(waiting, 10)).as_of == 10
    assert (await asyncio.wait_for(newest, 10)).as_of == 10


async def test_changes_and_listeners_wait_for_their_start(
    store: MemoryStore, tmp_path: Path
) -> None:
    """A reader of changes after a time waits until that time is complete."""
    await ingest(store)
    lake, clock = await opened(store)
    collection = await lake.collection("c")
    changed = asyncio.create_task(collection.changes(LATER, wait=True))
    steps = collection.listen(LATER, wait=True)

    async def next_step() -> Progress:
        return await anext(steps)

    step = asyncio.create_task(next_step())
    await clock.asleep.wait()
    (tmp_path / "2.jsonl").write_text('{"n": 2, "at": 20}\n{"n": 3, "at": 30}\n')
    await ingest(store)

    assert (await asyncio.wait_for(changed, 10))["n"].to_pylist() == [3]
    assert (await asyncio.wait_for(step, 10)).updates["n"].to_pylist() == [3]


@pytest.mark.parametrize("waiting", [{"wait": "no"}, {"timeout_us": "5s"}, {"timeout_us": -1}])
async def test_a_wrong_wait_is_refused(waiting: dict[str, int], store: MemoryStore) -> None:
    """A text would count as True, and no limit is negative."""
    lake, _ = await opened(store)
    for read in READS.values():
        with pytest.raises(UsageError, match=next(iter(waiting))):
            await read(lake, **waiting)
