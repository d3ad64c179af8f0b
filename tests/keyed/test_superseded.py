"""Superseded writers: their handles read the log without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from kit.clocks import SwiftClock
from kit.keyed_engine import rows_of, until, waiters_of
from kit.stores import InterposedStore
from tidelog.consensus.memory import MemoryConsensus
from tidelog.errors import LocationError, NoSuchLog, Outcome, SequenceRetired
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.port import KeyedReads, KeyedScan
from tidelog.keyed.read.sources import LoosePiece
from tidelog.keyed.reader import REFRESH_US
from tidelog.keyed.values import Retention
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching

KEY = b"k"


class Disk:
    """A store with several processes. ``before`` runs before each request of the first process."""

    def __init__(self) -> None:
        self.store, self.consensus, self.clock = MemoryStore(), MemoryConsensus(), SwiftClock()
        self.before: Callable[[str, str], Awaitable[None]] | None = None
        self.asked = 0

    def logs(self, *, first: bool = False) -> KeyedLogs:
        store = InterposedStore(self.store, before=self._before) if first else self.store
        consensus = _ReportingConsensus(self.consensus, self) if first else self.consensus
        return KeyedLogs(store=store, consensus=consensus, clock=self.clock, writer="test")  # type: ignore[arg-type]

    async def _before(self, op: str, key: str) -> None:
        self.asked += 1
        if self.before is not None:
            await self.before(op, key)


@dataclass
class _ReportingConsensus:
    """A consensus that reports its reads to the disk."""

    consensus: MemoryConsensus
    disk: Disk

    def __getattr__(self, name: str) -> object:
        return getattr(self.consensus, name)

    async def scan(self, *given: object) -> object:
        await self.disk._before("consensus", "")
        return await self.consensus.scan(*given)  # type: ignore[arg-type]


async def _appended(log: KeyedLog, *values: bytes) -> None:
    for value in values:
        await log.append([(KEY, value)])


async def _values(scan: KeyedScan) -> list[bytes]:
    return [row[3] for row in await rows_of(scan)]


async def _taken_over(disk: Disk) -> tuple[KeyedLog, KeyedLog]:
    """Return a handle that has written and read, and another one that has appended afterwards."""
    old = await disk.logs(first=True).create("log")
    await _appended(old, b"1", b"2")
    assert len(await _values(old.scan(KEY))) == 2
    new = await disk.logs().open("log", maintenance=False)
    await _appended(new, b"3", b"4", b"5")
    return old, new


async def test_a_handle_that_was_taken_over_comes_to_show_what_others_wrote() -> None:
    """A superseded handle shows later records after the refresh interval, like a reader."""
    disk = Disk()
    old, new = await _taken_over(disk)
    disk.clock.slept_us += REFRESH_US

    assert await _values(old.scan(KEY)) == [b"1", b"2", b"3", b"4", b"5"]
    assert (await old.count(KEY), await old.next_sequence()) == (5, 6)
    await new.close()


async def test_a_handle_that_goes_on_writing_asks_for_nothing_to_read_its_own() -> None:
    """An acknowledged append proves that no other process wrote, so reads need no request."""
    disk = Disk()
    log = await disk.logs(first=True).create("log")
    await _appended(log, b"0")
    assert len(await _values(log.scan(KEY))) == 1
    for number in range(5):
        disk.clock.slept_us += 2 * REFRESH_US
        await _appended(log, b"v")
        before = disk.asked
        assert len(await _values(log.scan(KEY))) == number + 2
        assert disk.asked == before


async def test_a_follower_of_a_handle_that_was_taken_over_goes_on() -> None:
    """A follower of a superseded handle finds the other writer's runs by a new look."""
    disk = Disk()
    old, new = await _taken_over(disk)
    await new.compact(full=True)
    await new.collect(after_us=0)
    found: list[bytes | None] = []
    async with asyncio.timeout(10), old.follow(KEY, start=0) as following:
        async for table in following:
            found += table.column("value").to_pylist()
            if len(found) == 5:
                break

    assert found == [b"1", b"2", b"3", b"4", b"5"]
    assert disk.asked < 100


async def test_a_failed_look_leaves_no_gap_in_the_view() -> None:
    """The view has no gap if its look fails between the state and the wal.

    Another process compacts and collects at that moment. The memory of the handle then ends before
    the records in the wal.
    """
    disk = Disk()
    old, new = await _taken_over(disk)
    looks, is_done = 0, False

    async def before(op: str, key: str) -> None:
        nonlocal looks, is_done
        if op == "consensus":
            looks += 1
            if looks > 1:
                raise LocationError("it is away", outcome=Outcome.NOT_APPLIED)
        elif looks and not is_done:
            is_done = True
            await new.compact(full=True)
            await new.collect(after_us=0)
            await _appended(new, b"6")

    disk.before = before
    with pytest.raises(LocationError):
        await old.refresh()
    disk.before = None
    view = old.state_handle.view()
    found = [
        row
        for one in view.sources
        for row in (await one.of_key(KEY, 0, None, rows=None, newest_first=False)).to_pylist()
    ]

    assert [row["sequence"] for row in found] == [*range(1, view.next)]
    assert await _values(old.scan(KEY)) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_the_rest_of_a_partly_known_fragment_is_read_once(newest_first: bool) -> None:
    """Each record of a fragment is read once, also by a look between two acknowledgements."""
    disk = Disk()
    await (await disk.logs().create("log")).close()
    batching = Batching(interval_us=100_000)
    writer = await disk.logs().open("log", batching=batching, maintenance=False)
    reader = await disk.logs().reader("log", refresh_us=10**12)
    await reader.refresh()
    await writer.append([(KEY, b"1")])
    await asyncio.gather(*(writer.append([(KEY, b"%d" % n)]) for n in (2, 3)))
    records = await writer.scan(KEY, 0, 3).to_arrow()
    reader.state_handle.tail.add(LoosePiece(start=1, limit=3, records=records))

    await reader.refresh()
    found = await _values(reader.scan(KEY, newest_first=newest_first))
    assert sorted(found) == [b"1", b"2", b"3"]
    assert await reader.count(KEY) == 3
    assert [len(piece.records) for piece in reader.state_handle.tail.pieces if piece.records] == [
        2,
        1,
    ]
    await writer.close()


@pytest.mark.parametrize("start", [0, 1])
async def test_a_scan_says_what_was_retired_before_it_came_there(start: int) -> None:
    """The scan raises SequenceRetired, instead of skipping retired records silently."""
    disk = Disk()
    writer = await disk.logs().create("log")
    for number in range(4):
        await writer.append([(KEY, b"%d" % number), (KEY, b"v" * 100)])
        await writer.seal()
        await writer.compact()
    reader: KeyedReads = await disk.logs(first=True).reader("log")
    scan = reader.scan(KEY, start)
    tables = aiter(scan)
    assert (await anext(tables)).column("sequence").to_pylist() == [1, 2]
    before = scan.next_sequence
    await writer.retire(Retention(segments=2))
    await writer.collect(after_us=0)

    with pytest.raises(SequenceRetired):
        [table async for table in tables]
    assert scan.next_sequence == before
    await writer.close()


@pytest.mark.parametrize("durable", [True, False])
async def test_whoever_writes_or_follows_a_log_that_is_dropped_hears_that(durable: bool) -> None:
    """Both calls raise NoSuchLog, not an error about the wal below."""
    disk = Disk()
    log = await disk.logs(first=True).create("log")
    await _appended(log, b"1")
    following = log.follow(KEY)
    waiting = asyncio.ensure_future(anext(aiter(following)))
    await until(lambda: len(waiters_of(log)) == 1)
    await disk.logs().drop("log")

    async def append() -> None:
        await log.append([(KEY, b"2")], durable=durable)
        await log.flush()

    with pytest.raises(NoSuchLog):
        await append()
    with pytest.raises(NoSuchLog):
        await waiting


@pytest.mark.parametrize("is_first", [True, False])
async def test_concurrent_collections_succeed(is_first: bool) -> None:
    """A collection succeeds although another process creates or moves the cursor first."""
    disk = Disk()
    log = await disk.logs(first=True).create("log")
    await _appended(log, b"1", b"2")
    await log.compact(full=True)
    if not is_first:
        await log.collect(after_us=0)
    await _appended(log, b"3")
    await log.compact(full=True)
    other = await disk.logs().open("log")
    looked = 0

    async def before(op: str, key: str) -> None:
        nonlocal looked
        looked += key.endswith("/cursor/compacted.json") or bool(looked)
        if looked == 2:
            await _appended(other, b"4")
            await other.compact(full=True)
            await other.collect(after_us=0)

    disk.before = before
    await log.collect(after_us=0)

    assert looked > 2
    assert await _values(log.scan(KEY)) == [b"1", b"2", b"3", b"4"]
