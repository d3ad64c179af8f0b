"""The requests of a store are counted and priced."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from kit.clocks import SwiftClock
from tidelog.errors import LocationError, ObjectExists
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.metered import MeteringStore, Usage, meter_apart, usage_of
from tidelog.testing import DelayedStore, Fault, FaultyStore, Request


async def test_requests_and_bytes_are_counted() -> None:
    """Each kind of request counts, also refreshes as gets and refused ones, which are billed."""
    store = MeteringStore(MemoryStore(), clock=SwiftClock())

    e_tag = await store.put("a", b"12345", if_absent=True)
    with pytest.raises(ObjectExists):
        await store.put("a", b"123", if_absent=True)
    await store.get("a", start=3)
    assert await store.refresh("a", e_tag) is None
    assert await store.refresh("a", "other") is not None
    await store.delete([])
    await store.delete(["b"] * 1_001)
    usage = store.usage()
    assert (usage.put_count, usage.get_count, usage.delete_count) == (2, 3, 2)
    assert (usage.written_bytes, usage.read_bytes) == (8, 7)
    assert (usage.refused_count, usage.errors_count) == (1, 0)
    assert usage.requests_count == 7


@pytest.mark.parametrize(("entries", "pages"), [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (2_000, 2)])
async def test_listings_are_counted_by_the_page(entries: int, pages: int) -> None:
    """A listing counts one request for each 1000 entries, like on every cloud."""
    store = MeteringStore(MemoryStore(), clock=SwiftClock())

    async def run() -> int:
        for number in range(entries):
            await store.put(f"{number:05}", b"")
        return len([entry async for entry in store.list("")])

    assert await run() == entries
    assert store.usage().list_count == pages


async def test_failures_and_time_are_counted() -> None:
    """Failures and waits count; the caller's own time between two entries does not."""
    clock = SwiftClock()
    slow = DelayedStore(MemoryStore(), clock=clock, delay_us=lambda op, key: 50_000_000)

    def toss(request: Request) -> Fault:
        return Fault(happened=request.index != 1)

    store = MeteringStore(FaultyStore(slow, toss=toss), clock=clock)

    await store.put("a", b"")
    with pytest.raises(LocationError):
        await store.put("b", b"")
    async for _ in store.list(""):
        await clock.sleep(1_000_000_000)
    usage = store.usage()
    assert usage.errors_count == 1
    assert 50_000_000 <= usage.put_us < 60_000_000
    assert 50_000_000 <= usage.list_us < 60_000_000
    assert usage.get_us == 0


def test_the_price_list() -> None:
    """Prices follow persist, "Cost": 100 dollars buy 20 million puts or 250 million gets."""
    assert Usage(put_count=20_000_000).dollars == pytest.approx(100)
    assert Usage(list_count=20_000_000).dollars == pytest.approx(100)
    assert Usage(delete_count=20_000_000).dollars == pytest.approx(100)
    assert Usage(get_count=250_000_000).dollars == pytest.approx(100)


def test_usage_is_a_sum() -> None:
    """Usages can be added, subtracted and stored."""
    one = Usage(get_count=3, read_bytes=10, get_us=7)
    two = Usage(get_count=1, put_count=2, written_bytes=5)
    assert one + two - two == one
    assert (one + two).requests_count == 6
    assert pickle.loads(pickle.dumps(one)) == one
    told = (one + two).to_dict()
    assert told["requests_count"] == 6
    assert told["dollars"] == pytest.approx((one + two).dollars)


async def test_a_snapshot_stays() -> None:
    """The difference of two snapshots is the usage between them."""
    store = MeteringStore(MemoryStore(), clock=SwiftClock())
    before = store.usage()
    await store.put("a", b"")
    assert before == Usage()
    assert (store.usage() - before).put_count == 1


async def test_a_task_can_count_its_requests_apart() -> None:
    """The count includes the tasks that it creates. The store's own count includes all requests."""
    store = MeteringStore(MemoryStore(), clock=SwiftClock())
    both_wait = asyncio.Barrier(2)

    async def work(gets: int) -> Usage:
        meter_apart()
        await both_wait.wait()
        await asyncio.gather(*(asyncio.create_task(store.get("a")) for _ in range(gets)))
        with pytest.raises(ObjectExists):
            await store.put("a", b"", if_absent=True)
        await both_wait.wait()
        return usage_of(store)

    await store.put("a", b"123")
    first, second = await asyncio.gather(work(2), work(3))
    assert (first.get_count, first.read_bytes, first.put_count) == (2, 6, 1)
    assert (second.get_count, second.read_bytes, second.refused_count) == (3, 9, 1)
    assert (store.usage().get_count, store.usage().put_count) == (5, 3)
