"""Batches that are written once, with kills at any request and late writes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from unittest.mock import patch

import pyarrow as pa
import pytest
import xxhash

from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.errors import Fenced, ReadOvertaken, TidelogError, UsageError
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.maintenance import plan
from tidelog.keyed.values import Keys
from tidelog.spark.keyed import commit
from tidelog.spark.keyed.commit import commit_batch, last_batch
from tidelog.spark.keyed.staging import SENT, StagedBatch, StagedBlock, packed_records
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object, Store

BEFORE, AFTER, LATE = "before", "after", "late"
QUERY = "query:q"


@dataclass
class MortalStore:
    """A store of a process that is killed at its n-th write, counted from 0.

    The write lands (``after``), does not land (``before``), or is delayed until `arrive`
    (``late``). Every later request cancels its task. Before the request ``at_request``, the delayed
    writes of ``then`` arrive.
    """

    store: Store
    number: int = 10**9
    lands: str = BEFORE
    writes: int = 0
    requests: int = 0
    at_request: int = 10**9
    then: MortalStore | None = None
    halted: asyncio.Event = field(default_factory=asyncio.Event)
    late: list[tuple[str, bytes, bool, str | None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.store.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        await self._living()
        return await self.store.get(key, start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        await self._living()
        return await self.store.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        await self._living()
        if not self._is_last():
            return await self.store.put(key, data, if_absent=if_absent, if_match=if_match)
        if self.lands == AFTER:
            await self.store.put(key, data, if_absent=if_absent, if_match=if_match)
        elif self.lands == LATE:
            self.late.append((key, data, if_absent, if_match))
        return await self._halt()

    async def delete(self, keys: Sequence[str]) -> None:
        await self._living()
        if self._is_last():
            if self.lands != BEFORE:
                await self.store.delete(keys)
            await self._halt()
        await self.store.delete(keys)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        await self._living()
        async for entry in self.store.list(prefix, after=after):
            yield entry

    async def arrive(self) -> None:
        """Apply the delayed writes; their conditions may refuse them."""
        for key, data, if_absent, if_match in self.late:
            with suppress(TidelogError):
                await self.store.put(key, data, if_absent=if_absent, if_match=if_match)

    def _is_last(self) -> bool:
        self.writes += 1
        return self.writes == self.number + 1

    async def _living(self) -> None:
        if self.halted.is_set():
            await self._halt()
        self.requests += 1
        if self.requests == self.at_request + 1 and self.then is not None:
            await self.then.arrive()

    async def _halt(self) -> str:
        self.halted.set()
        raise asyncio.CancelledError  # This ends a task anywhere.


def logs_on(store: Store) -> KeyedLogs:
    clock = SystemClock()
    consensus = StoreConsensus(store=store, clock=clock)
    return KeyedLogs(store=store, consensus=consensus, clock=clock, writer="test")


def rows(number: int) -> list[tuple[bytes, bytes]]:
    return [(f"k{n % 3}".encode(), f"{number}.{n}".encode()) for n in range(5)]


def block(records: Sequence[tuple[bytes, bytes]]) -> StagedBlock:
    keys, values = zip(*records, strict=True)
    table = pa.table([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=SENT)
    return StagedBlock(rows=table.num_rows, num_bytes=table.nbytes, data=packed_records(table))


async def staged(store: Store, number: int) -> StagedBatch:
    """Stage a batch as a task does: one block in the answer, one in an object."""
    there = block(rows(number)[2:])
    path = f"keyed/log/run/00000000/{SystemClock().unique()}-staged.arrow"
    await store.put(path, there.data or b"")
    digest = xxhash.xxh3_128_digest(there.data or b"")
    lies = StagedBlock(rows=there.rows, num_bytes=there.num_bytes, path=path, digest=digest)
    return StagedBatch((block(rows(number)[:2]), lies))


async def values_of(store: Store) -> list[bytes]:
    reader = await logs_on(store).reader("log")
    found = await reader.scan(Keys.all()).to_arrow()
    await reader.close()
    return [row["value"] for row in found.sort_by("sequence").to_pylist()]


async def killed(store: Store, number: int, lands: str) -> MortalStore:
    """Begin to commit batch 1 in a process that is killed at a write."""
    process, before = MortalStore(store, number, lands), asyncio.all_tasks()
    work = asyncio.create_task(
        commit_batch(logs_on(process), "log", await staged(store, 1), (QUERY, 1))
    )
    halted = asyncio.create_task(process.halted.wait())
    await asyncio.wait({work, halted}, return_when=asyncio.FIRST_COMPLETED)
    while left := [task for task in asyncio.all_tasks() - before if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.01)
    return process


async def begun() -> MemoryStore:
    """Return a store with a log that has batch 0."""
    store = MemoryStore()
    await (await logs_on(store).create("log")).close()
    assert await commit_batch(logs_on(store), "log", await staged(store, 0), (QUERY, 0))
    return store


@pytest.mark.parametrize("lands", [BEFORE, AFTER])
@pytest.mark.parametrize("between", ["nothing", "compacted", "collected"])
async def test_a_batch_is_there_once_whenever_its_committer_was_killed(
    lands: str, between: str
) -> None:
    """After a kill at any write, a retried batch is in the log once, even after a collection."""
    expected = Counter(value for number in (0, 1) for _, value in rows(number))
    number = 0
    with patch.object(plan, "LOOSE_MAX", 3):  # Makes the commit compact as well.
        while True:
            store = await begun()
            process = await killed(store, number, lands)
            if between != "nothing":
                log = await logs_on(store).open("log")
                await log.compact(full=True)
                if between == "collected":
                    await log.collect(after_us=0)
                await log.close()
            await commit_batch(logs_on(store), "log", await staged(store, 1), (QUERY, 1))
            assert Counter(await values_of(store)) == expected, number
            assert not await commit_batch(logs_on(store), "log", await staged(store, 1), (QUERY, 1))
            assert Counter(await values_of(store)) == expected, number
            if not process.halted.is_set():
                break
            number += 1
    assert number > 3


async def test_what_lands_late_is_not_there_a_second_time() -> None:
    """A late put of the first try arrives before each request of the second, one by one."""
    expected = Counter(value for number in (0, 1) for _, value in rows(number))
    for number in (0, 1):  # The append that takes over the log, and the append of the batch.
        at = 0
        while True:
            store = await begun()
            first = await killed(store, number, LATE)
            assert first.late
            second = MortalStore(store, at_request=at, then=first)
            await commit_batch(logs_on(second), "log", await staged(store, 1), (QUERY, 1))
            assert Counter(await values_of(store)) == expected, (number, at)
            if second.requests <= at:
                break
            at += 1
        assert at > 5


async def test_batches_come_in_order_and_older_ones_never_again() -> None:
    """Batches stay in the order of commits, and a number that is not greater is refused."""
    store = await begun()
    for number in (1, 3):
        assert await commit_batch(
            logs_on(store), "log", await staged(store, number), (QUERY, number)
        )
    for number in (0, 1, 2, 3):
        assert not await commit_batch(
            logs_on(store), "log", await staged(store, number), (QUERY, number)
        )

    assert await commit_batch(logs_on(store), "log", await staged(store, 2), ("txn:other", 0))
    values = [value for number in (0, 1, 3, 2) for _, value in rows(number)]
    assert await values_of(store) == values
    listed = [entry.key async for entry in store.list("keyed/log/run/")]
    assert not [key for key in listed if key.endswith("-staged.arrow")]


async def test_concurrent_commits_of_one_batch_append_it_once() -> None:
    """If several committers commit one batch, one appends it; the others see it or are fenced."""
    expected = Counter(value for number in (0, 1) for _, value in rows(number))
    for _ in range(10):
        store = await begun()
        given = [await staged(store, 1) for _ in range(4)]
        told = await asyncio.gather(
            *(commit_batch(logs_on(store), "log", one, (QUERY, 1)) for one in given),
            return_exceptions=True,
        )
        assert all(isinstance(one, bool | Fenced) for one in told), told
        assert told.count(True) == 1
        assert Counter(await values_of(store)) == expected


async def test_without_a_name_each_commit_appends() -> None:
    """A commit without a batch name appends each time, like any append of Spark's."""
    store = await begun()
    for _ in range(2):
        assert await commit_batch(logs_on(store), "log", await staged(store, 1), None)

    assert len(await values_of(store)) == 15
    assert not await commit_batch(logs_on(store), "log", StagedBatch(()), (QUERY, 9))


async def test_what_was_swept_is_told_and_nothing_is_appended() -> None:
    """If a collection swept staged objects, the commit raises and appends nothing."""
    store = await begun()
    given = await staged(store, 1)
    log = await logs_on(store).open("log")
    for _ in range(3):
        await log.collect(after_us=0)
    await log.close()
    with pytest.raises(ReadOvertaken, match="nothing was appended, so write it again"):
        await commit_batch(logs_on(store), "log", given, (QUERY, 1))

    assert len(await values_of(store)) == 5
    assert await last_batch(await logs_on(store).state_handle("log"), QUERY) == 0


async def test_a_batch_that_is_too_large_is_refused_before_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch is one append, so that it is atomic; a larger one is refused."""
    store = await begun()
    monkeypatch.setattr(commit, "BATCH_BYTES_MAX", 10)
    with pytest.raises(UsageError, match="written once must fit into one append of 10 bytes"):
        await commit_batch(logs_on(store), "log", await staged(store, 1), (QUERY, 1))

    assert len(await values_of(store)) == 5
