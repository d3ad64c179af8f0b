"""Reads of local files that share trips to threads: each caller gets its own result or error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

from tidelog.core.clock import SystemClock
from tidelog.errors import LocationError, ObjectNotFound
from tidelog.store.local import store as trips
from tidelog.store.local.store import LocalStore, SharedTrips

T = TypeVar("T")


class CountedClock(SystemClock):
    """A clock that counts trips to threads; its time advances only by hand."""

    def __init__(self) -> None:
        self.trips = 0
        self.time_us = 0

    def monotonic_us(self) -> int:
        return self.time_us

    async def offload(self, work: Callable[[], T]) -> T:
        self.trips += 1
        return await super().offload(work)


class Reads:
    """Reads of a few bytes, each of which takes some time."""

    def __init__(self) -> None:
        self.clock = CountedClock()
        self.trips = SharedTrips(self.clock)

    async def read(self, value: int, *, takes_us: int = 10, size_bytes: int = 100) -> int:
        def work() -> int:
            self.clock.time_us += takes_us
            if value < 0:
                raise LocationError("the disk failed")
            return value

        return await self.trips.run(work, lambda: size_bytes)

    async def trips_of(self, *reads: asyncio.Future[int]) -> tuple[list[int], int]:
        """Return the results of reads that begin together, and the number of their trips."""
        before = self.clock.trips
        found = await asyncio.gather(*reads)
        return found, self.clock.trips - before


async def test_small_reads_that_begin_together_share_a_thread() -> None:
    """A reader of hundreds of small parts wakes a thread for some dozens of them at a time.

    The first read waits for no other.
    """
    reads = Reads()
    await reads.read(0)

    some = await reads.trips_of(*[asyncio.ensure_future(reads.read(n)) for n in range(10)])
    many = await reads.trips_of(
        *[asyncio.ensure_future(reads.read(n)) for n in range(trips.TOGETHER_MAX + 2)]
    )

    assert some == (list(range(10)), 2)
    assert many == (list(range(trips.TOGETHER_MAX + 2)), 3)


async def test_a_large_read_has_a_thread_of_its_own() -> None:
    """Two large files are read at the same time, and small ones do not wait for them."""
    reads = Reads()
    await reads.read(0)
    large = trips.SMALL_BYTES + 1

    found = await reads.trips_of(
        asyncio.ensure_future(reads.read(1, size_bytes=large)),
        asyncio.ensure_future(reads.read(2)),
        asyncio.ensure_future(reads.read(3, size_bytes=large)),
    )

    assert found == ([1, 2, 3], 3)


async def test_reads_of_a_slow_disk_have_a_thread_each() -> None:
    """Requests to a network disk run at the same time, not one after the other."""
    reads = Reads()
    slow = trips.QUICK_US + 1
    for n in range(trips.RECENT):
        await reads.read(n, takes_us=slow)

    found = await reads.trips_of(
        *[asyncio.ensure_future(reads.read(n, takes_us=slow)) for n in range(5)]
    )

    assert found == ([0, 1, 2, 3, 4], 5)


async def test_a_trip_ends_when_it_takes_long() -> None:
    """If the disk becomes slow during a trip, the reads left have a thread each."""
    reads = Reads()
    await reads.read(0)
    slow = trips.TRIP_US + 1

    found = await reads.trips_of(
        *[asyncio.ensure_future(reads.read(n, takes_us=slow)) for n in range(4)]
    )

    assert found == ([0, 1, 2, 3], 4)


async def test_an_error_reaches_only_its_own_caller() -> None:
    """The other reads of the trip have their results."""
    reads = Reads()
    await reads.read(0)

    found = await asyncio.gather(
        reads.read(1), reads.read(-1), reads.read(2), return_exceptions=True
    )

    assert found[0] == 1
    assert isinstance(found[1], LocationError)
    assert found[2] == 2


async def test_an_unknown_size_is_the_error_of_its_own_caller() -> None:
    """The other reads of the trip succeed."""
    reads = Reads()
    await reads.read(0)

    def unknown() -> int:
        raise TypeError

    found = await asyncio.gather(
        reads.read(1),
        reads.trips.run(lambda: 2, unknown),
        reads.read(3),
        return_exceptions=True,
    )

    assert (found[0], type(found[1]), found[2]) == (1, TypeError, 3)


async def test_a_second_event_loop_may_read_at_any_moment() -> None:
    """The loops of two threads share a store, and each read ends in its own loop."""
    reads, loop, end = Reads(), asyncio.get_running_loop(), threading.Event()
    await reads.read(0)
    begins = loop.call_soon
    found: list[int] = []

    def other() -> None:
        found.append(asyncio.run(reads.read(3)))

    def begins_after_the_other(*args: Any, **kwargs: Any) -> Any:
        if not found:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return begins(*args, **kwargs)

    slow = asyncio.create_task(reads.trips.run(end.wait, lambda: 1))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        with patch.object(loop, "call_soon", begins_after_the_other):
            found.append(await reads.read(2))

    end.set()
    assert (found, await slow) == ([3, 2], True)


async def test_a_cancelled_caller_stops_no_other() -> None:
    """The trip goes on for the callers that still wait."""
    reads = Reads()
    await reads.read(0)
    tasks = [asyncio.create_task(reads.read(n)) for n in range(3)]
    await asyncio.sleep(0)

    tasks[1].cancel()

    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert found[0] == 0
    assert isinstance(found[1], asyncio.CancelledError)
    assert found[2] == 2


def test_a_store_reads_in_a_second_event_loop(tmp_path: Path) -> None:
    """The first loop ended before its trip began, and the second one does not wait for it."""
    store = LocalStore(tmp_path, clock=SystemClock())

    async def first() -> None:
        await store.put("a", b"1")
        await store.get("a")
        asyncio.create_task(store.get("a"))  # noqa: RUF006 - the loop ends before it begins
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
        await asyncio.sleep(3600)

    loop = asyncio.new_event_loop()
    task = loop.create_task(first())
    with pytest.raises(RuntimeError):
        loop.run_until_complete(task)
    assert asyncio.run(store.get("a")).data == b"1"
    loop.run_until_complete(_ended(task))
    loop.close()


async def _ended(task: asyncio.Task[None]) -> None:
    for one in asyncio.all_tasks() - {asyncio.current_task()}:
        one.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_missing_objects_among_small_ones_are_reported(tmp_path: Path) -> None:
    """A reader of parts learns which one is missing, and gets the others."""
    store = LocalStore(tmp_path, clock=SystemClock())
    for n in range(20):
        await store.put(f"part/{n}", bytes([n]))
    await store.get("part/0")
    await store.delete(["part/7"])

    found = await asyncio.gather(
        *[store.get(f"part/{n}") for n in range(20)], return_exceptions=True
    )

    assert isinstance(found.pop(7), ObjectNotFound)
    assert [one.data[0] for one in found if not isinstance(one, BaseException)] == [
        n for n in range(20) if n != 7
    ]
