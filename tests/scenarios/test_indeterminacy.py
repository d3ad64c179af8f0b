"""Scenarios T17 to T22: the answers to a caller after a write with an unknown outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from kit.clocks import SwiftClock
from kit.shards import ALREADY, COMMITTED, MISMATCH, Place, contents, on_store, rows
from kit.stores import LingeringStore
from tidelog.consensus.port import Consensus, KeyRecord, VersionedRecord
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import SeqNo
from tidelog.errors import LocationError, Outcome, OutcomeUnknown
from tidelog.persist.handle.shard import Shard
from tidelog.store.memory import MemoryStore
from tidelog.testing import Fault

SentBatch = Callable[[], Awaitable[bool]]


class DoubtfulConsensus:
    """A consensus of any kind that loses one answer for good.

    ``next`` is the fault of the next compare-and-set. If that does not happen, it stays in ``late``
    and happens when the test calls it, like a request delayed by the network.
    """

    def __init__(self, inner: Consensus) -> None:
        self._inner = inner
        self.next: Fault | None = None
        self.late: list[SentBatch] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.head, self.scan, self.sweep = inner.head, inner.scan, inner.sweep
        self.truncate, self.list_keys = inner.truncate, inner.list_keys

    async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
        (one,) = records
        return await self.compare_and_set(one.key, one.seqno, one.data)

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        fault, self.next = self.next, None
        await self.gate.wait()
        if fault is None:
            return await self._inner.compare_and_set(key, seqno, data)
        if fault.happened:
            assert await self._inner.compare_and_set(key, seqno, data)
        else:
            self.late.append(lambda: self._inner.compare_and_set(key, seqno, data))
        raise LocationError("the answer was lost", outcome=Outcome.UNKNOWN)


def doubtful(place: Place) -> tuple[Shard, DoubtfulConsensus]:
    consensus = DoubtfulConsensus(place.consensus())
    return place.shard(consensus=consensus), consensus


async def lose(shard: Shard, consensus: DoubtfulConsensus, *, happened: bool, named: bool) -> None:
    """Append, and lose the answer."""
    consensus.next = Fault(happened=happened, told=False)
    with pytest.raises(LocationError) as caught:
        await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2, token=("w", 0), named=named)
    assert caught.value.outcome is Outcome.UNKNOWN


async def retried(place: Place, *, happened: bool, others: bool, named: bool) -> object:
    """Return the verdict of a retry after a lost answer, and check the contents."""
    shard, consensus = doubtful(place)
    await lose(shard, consensus, happened=happened, named=named)
    if others:
        other = place.shard()
        upper = await other.upper()
        await other.compare_and_append(rows(("b", 1, 5, 1)), upper, 9)
    table = rows(("a", 1, 0, 1))
    told = await shard.try_compare_and_append(table, 0, 2, token=("w", 0), named=named)
    reader = place.shard()
    upper = await reader.upper()
    found = await contents(reader, upper.time - 1)
    assert found[("a", 1)] == (0 if told.verdict is MISMATCH else 1)
    assert found[("b", 1)] == others
    assert sum(len(batch.parts) for batch in reader.state.batches) == len(found)
    return told.verdict


@pytest.mark.parametrize("named", [False, True])
async def test_t17_unknown_and_not_there_a_retry_commits_once(place: Place, named: bool) -> None:
    """If the request was lost, a retry commits the write once."""
    assert await retried(place, happened=False, others=False, named=named) is COMMITTED


@pytest.mark.parametrize("named", [False, True])
async def test_t18_unknown_and_there_a_retry_is_told_so(place: Place, named: bool) -> None:
    """The retry succeeds with ALREADY, and adds no second batch."""
    assert await retried(place, happened=True, others=False, named=named) is ALREADY


@pytest.mark.parametrize("named", [False, True])
async def test_t19_unknown_and_not_there_a_retry_after_others_mismatches(
    place: Place, named: bool
) -> None:
    """If the request was lost and another writer was first, a retry gets MISMATCH."""
    assert await retried(place, happened=False, others=True, named=named) is MISMATCH


@pytest.mark.parametrize("named", [False, True])
async def test_t20_unknown_and_there_a_retry_after_others_is_told_so(
    place: Place, named: bool
) -> None:
    """If the write landed, a retry after later writes gets ALREADY, and not MISMATCH."""
    assert await retried(place, happened=True, others=True, named=named) is ALREADY


@pytest.mark.parametrize("named", [False, True])
async def test_t21_a_request_that_arrives_after_its_retry_does_nothing(
    place: Place, named: bool
) -> None:
    """The request is delayed until after its retry and a later write of the same writer."""
    shard, consensus = doubtful(place)
    await lose(shard, consensus, happened=False, named=named)
    table = rows(("a", 1, 0, 1))
    done = await shard.compare_and_append(table, 0, 2, token=("w", 0), named=named)
    assert done.verdict is COMMITTED
    await shard.compare_and_append(rows(("b", 2, 3, 1)), 2, 4, token=("w", 1), named=named)
    for arrive in consensus.late:
        assert not await arrive()
    again = shard.compare_and_append(table, 0, 2, token=("w", 0), named=named)
    if named:
        # A named writer's older tokens are forgotten, so the outcome is unknown.
        with pytest.raises(OutcomeUnknown):
            await again
    else:
        assert (await again).verdict is ALREADY
    assert await contents(place.shard(), 3) == {("a", 1): 1, ("b", 2): 1}


async def test_t21_a_request_that_arrives_before_its_retry_counts_once(place: Place) -> None:
    """The request lands while its sender waits to retry."""
    shard, consensus = doubtful(place)
    await lose(shard, consensus, happened=False, named=True)
    for arrive in consensus.late:
        assert await arrive()
    told = await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2, token=("w", 0), named=True)
    assert told.verdict is ALREADY
    assert await contents(place.shard(), 1) == {("a", 1): 1}


@pytest.mark.parametrize("delay_us", [0, 3_000, 30_000])
async def test_t21_puts_of_a_store_that_come_late_count_once(delay_us: int) -> None:
    """Late puts of a store count once. A put that the caller gave up may still land at any time."""
    inner, clock = MemoryStore(), SystemClock()
    waits = iter([delay_us, 0, delay_us, 0, delay_us])
    slow = LingeringStore(
        inner, clock=clock, delays_us=lambda op: (next(waits, 0) if op == "put" else 0, 0)
    )
    consensus = StoreConsensus(store=slow, clock=SwiftClock())
    shard = on_store(inner).shard(store=slow, consensus=consensus)
    for time in range(4):
        task = asyncio.create_task(
            shard.compare_and_append(rows(("a", time, time, 1)), time, time + 1, token=("w", time))
        )
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait({task})
        heir = on_store(inner).shard()
        told = await heir.compare_and_append(
            rows(("a", time, time, 1)), time, time + 1, token=("w", time)
        )
        assert told.verdict in (COMMITTED, ALREADY)
    await slow.settled()
    reader = on_store(inner).shard()
    assert await contents(reader, 3) == {("a", n): 1 for n in range(4)}
    assert (await reader.refresh()).totals.rows == 4


@pytest.mark.parametrize("happened", [False, True])
async def test_t22_commands_that_share_a_record_share_the_doubt(
    place: Place, happened: bool
) -> None:
    """A lost answer leaves each command unknown, and each retry gets the right verdict."""
    shard, consensus = doubtful(place)
    writes = [
        (rows(("a", time, time, 1)), time, time + 1, ("w" if time % 2 else "v", time))
        for time in range(6)
    ]
    consensus.gate.clear()
    first = asyncio.create_task(shard.hold("h", 0))
    tasks = []
    for number, (table, lower, upper, token) in enumerate(writes, start=1):
        append = shard.compare_and_append(table, lower, upper, token=token)
        tasks.append(asyncio.create_task(append))
        while len(shard.machine._waiting) < number:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)
    consensus.next = Fault(happened=happened, told=False)
    consensus.gate.set()
    await first
    for told in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(told, LocationError)
        assert told.outcome is Outcome.UNKNOWN
    for table, lower, upper, token in writes:
        again = await shard.compare_and_append(table, lower, upper, token=token)
        assert again.verdict is (ALREADY if happened else COMMITTED)
    for arrive in consensus.late:
        assert not await arrive()
    reader = place.shard()
    assert await contents(reader, 5) == {("a", n): 1 for n in range(6)}
    assert reader.state.totals.rows == 6


async def test_t22_records_are_versioned_so_that_nothing_is_applied_twice(place: Place) -> None:
    """Each seqno has one record, however often a writer sent it."""
    shard, consensus = doubtful(place)
    await lose(shard, consensus, happened=True, named=False)
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2, token=("w", 0))
    found: list[VersionedRecord] = await place.consensus().scan("s", SeqNo(1))
    assert [one.seqno for one in found] == [1]
