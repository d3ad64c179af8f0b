"""Reads, appends, compactions, forks and drops with concurrent changes.

The simulator (`sim.workloads.keyed`) found each of these cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kit.clocks import SwiftClock
from kit.keyed_engine import FAST, keyed_logs, opened_log, until
from tidelog.errors import (
    CorruptionError,
    LocationError,
    ObjectNotFound,
    PositionCollected,
)
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.read.feed import FollowingScan, KeyedFeed
from tidelog.keyed.read.scanning import ViewScan
from tidelog.keyed.read.sources import LoosePiece, PieceSource
from tidelog.keyed.read.state_handle import KeyedStateHandle, KeyedView, LooseTail
from tidelog.keyed.states.state import KeyedState
from tidelog.keyed.values import KEYED_RECORDS, KeyedQuery, Keys
from tidelog.store.memory import MemoryStore
from tidelog.wal.admin.fork import Fork
from tidelog.wal.slot_protocol.chain_reader import ChainReader

KEY = b"k"


def _piece(start: int, limit: int) -> LoosePiece:
    columns = [
        pa.array([KEY] * (limit - start), pa.binary()),
        pa.array(range(start, limit), pa.int64()),
        pa.array([0] * (limit - start), pa.int64()),
        pa.array([b"v"] * (limit - start), pa.binary()),
    ]
    records = pa.table(columns, schema=KEYED_RECORDS)
    return LoosePiece(start=start, limit=limit, records=records)


def _state_handle(store: MemoryStore) -> KeyedStateHandle:
    logs = keyed_logs(store)
    return KeyedStateHandle(name="log", store=store, consensus=logs.consensus, clock=logs.clock)


class _PastScan:
    """A scan of past records up to a sequence."""

    def __init__(self, start: int, limit: int) -> None:
        self.next_sequence = self.seen = limit
        self._records = _piece(start, limit).records

    async def __aiter__(self) -> AsyncGenerator[pa.Table, None]:
        assert self._records is not None
        yield self._records

    async def aclose(self) -> None:
        """Do nothing, because the scan has ended."""


def _feed(*, window_bytes: int = 1) -> KeyedFeed:
    reader: Any = SimpleNamespace()
    feed = KeyedFeed(reader=reader, clock=SwiftClock(), window_bytes=window_bytes)
    feed._task = asyncio.current_task()
    feed.end = 1
    return feed


def _following(feed: KeyedFeed, scan: Any, start: int) -> FollowingScan:
    """Return a follower of the key that begins at ``start``; ``scan`` reads past records."""

    async def begin() -> int:
        return start

    return FollowingScan(feed=feed, keys=Keys.one(KEY), scan=scan, begin=begin)


async def test_a_follower_reads_on_where_the_window_has_moved_past_what_it_read() -> None:
    """A follower whose window moved during its scan of past records scans again."""
    feed = _feed()
    for start in (1, 3, 5, 7):
        feed.push(_piece(start, start + 2))
    ends = {1: 5, 5: 9}

    following = _following(feed, lambda reached: _PastScan(reached, ends[reached]), 1)
    seen: list[int] = []
    async for table in following:
        seen += [row["sequence"] for row in table.to_pylist()]
        if seen[-1] >= 8:
            break

    assert seen == list(range(1, 9))


async def test_a_follower_has_not_passed_what_woke_it() -> None:
    """The cursor moves only after the follower has returned the records."""
    feed = _feed(window_bytes=1_000)

    following = _following(feed, _never, 1)
    waiting = asyncio.ensure_future(anext(aiter(following)))
    await until(lambda: bool(feed._by_key))
    feed.push(_piece(1, 3))

    assert following.next_sequence == 1
    assert (await waiting).num_rows == 2
    assert following.next_sequence == 3


def _never(reached: int) -> ViewScan:
    raise AssertionError(f"nothing is to be read from {reached}")


async def test_followers_may_come_again_once_the_poll_has_failed() -> None:
    """After a failed poll, the next follower starts a new poll."""
    feed = _feed()
    feed._fail(LocationError("the store is away"))
    polls: list[int] = []

    async def follow(start: int) -> AsyncGenerator[pa.Table, None]:
        polls.append(start)
        await asyncio.Event().wait()
        yield KEYED_RECORDS.empty_table()

    feed.reader = SimpleNamespace(follow=follow)  # type: ignore[assignment]
    feed.start(3)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await feed.stop()

    assert polls == [3]


async def test_followers_read_on_by_runs_where_the_wal_was_collected() -> None:
    """A follower whose wal was collected reads later records by a scan of runs."""
    feed = _feed()
    feed.end = 5

    async def follow(start: int) -> AsyncGenerator[pa.Table, None]:
        raise PositionCollected("it was collected", oldest=start + 1)
        yield KEYED_RECORDS.empty_table()  # type: ignore[unreachable]

    feed.reader = SimpleNamespace(follow=follow)  # type: ignore[assignment]

    following = _following(feed, lambda reached: _PastScan(reached, 9), 5)
    waiting = asyncio.ensure_future(anext(aiter(following)))
    await until(lambda: bool(feed._by_key))
    await feed._run()

    assert (await waiting).column("sequence").to_pylist() == [5, 6, 7, 8]
    feed._task = None
    await following.aclose()


def test_records_released_from_memory_leave_no_gap() -> None:
    """The tail ends before released records, so no view or run treats them as absent."""
    tail = LooseTail(store=MemoryStore(), clock=SwiftClock(), memory_bytes=100)
    tail.is_behind = False
    for start in range(1, 9, 2):
        tail.add(_piece(start, start + 2))
        reached = tail.pieces[-1].limit if tail.pieces else 1
        if tail.is_behind:
            break

    assert tail.is_behind
    assert tail.next == reached


async def test_what_is_added_while_the_tail_is_refreshed_is_known_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refresh that read less must not hide records added concurrently."""
    tail = LooseTail(store=MemoryStore(), clock=SwiftClock())

    async def late(*_: object) -> None:
        tail.add(_piece(3, 5))  # Earlier records of other writers are still unknown.
        tail.pieces.append(_piece(1, 3))
        tail.next = 3

    monkeypatch.setattr(LooseTail, "_refresh", late)
    await tail.refresh(1)

    assert not tail.is_behind
    assert tail.next == 5


def test_what_is_ordered_is_shown_though_a_refresh_knows_more() -> None:
    """The view shows all pending records, also those the store has unacknowledged."""
    state_handle = _state_handle(MemoryStore())
    state_handle.tail.pieces, state_handle.tail.next = [_piece(1, 5)], 5

    view = state_handle.view([_piece(3, 5), _piece(5, 7)])

    assert view.next == 7


async def test_compaction_goes_on_where_others_were_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compactor looks again for collected objects; those still missing are damage."""
    log = await opened_log(keyed_logs(MemoryStore()))
    await log.append([(KEY, b"1"), (KEY, b"2")])
    records, missing = LooseTail.records, [1]

    async def gone(self: LooseTail, piece: LoosePiece) -> pa.Table:
        if missing:
            missing.pop()
            raise ObjectNotFound("it was collected")
        return await records(self, piece)

    monkeypatch.setattr(LooseTail, "records", gone)
    assert await log.compact(full=True) == 1

    await log.append([(KEY, b"3")])
    missing += [1] * 100
    with pytest.raises(CorruptionError):
        await log.compact(full=True)
    await log.close()


async def test_who_died_dropping_is_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next drop completes that of a dead process, and releases the holds in the source."""
    store = MemoryStore()
    logs = keyed_logs(store)
    log = await opened_log(logs)
    await log.append([(KEY, b"1")])
    fork = await logs.fork("log", "fork")
    await fork.compact(full=True)
    await fork.close()
    clear = KeyedLogs._clear

    async def die(self: KeyedLogs, state_handle: KeyedStateHandle) -> None:
        raise LocationError("it died here")

    monkeypatch.setattr(KeyedLogs, "_clear", die)
    with pytest.raises(LocationError):
        await logs.drop("fork")
    monkeypatch.setattr(KeyedLogs, "_clear", clear)
    assert await log.checkpoints()

    await logs.drop("fork")
    await log.refresh()
    assert not await log.checkpoints()
    assert not [key for key in store.objects if key.startswith("keyed/fork/run/")]
    await log.close()
    await logs.drop("log")


async def test_who_died_forking_is_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next fork makes the target, and leaves only its own checkpoint in the source."""
    logs = replace(keyed_logs(MemoryStore()), clock=SwiftClock())
    log = await opened_log(logs)
    await log.append([(KEY, b"1")])
    prepared = Fork._prepared

    async def die(*_: object) -> None:
        raise RuntimeError("it died here")

    monkeypatch.setattr(Fork, "_prepared", die)
    with pytest.raises(RuntimeError):
        await logs.fork("log", "fork")
    monkeypatch.setattr(Fork, "_prepared", prepared)

    fork = await logs.fork("log", "fork")
    assert await fork.count(KEY) == 1
    assert len(await log.checkpoints()) == 1
    await fork.close()
    await log.close()


async def test_what_is_appended_while_it_looks_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan looks again, because its first look began before the append."""
    logs = keyed_logs(MemoryStore())
    await (await logs.create("log")).close()
    log = await logs.open("log", batching=FAST, maintenance=False)
    await log.next_sequence()
    walker, end = log.state_handle.tail.reader.walker, ChainReader.end
    looks = 0

    async def then_append(self: ChainReader, **given: Any) -> Any:
        nonlocal looks
        found = await end(self, **given)
        if self is walker:
            looks += 1
            if looks == 1:
                await log.append([(KEY, b"meanwhile")])
        return found

    monkeypatch.setattr(ChainReader, "end", then_append)
    assert (await log.scan(KEY).to_arrow()).column("value").to_pylist() == [b"meanwhile"]
    assert looks == 2
    await log.close()


async def test_a_collection_does_not_move_the_resume_position_of_a_scan() -> None:
    """With `newest_first`, a second look does not move the resume position of a scan."""
    missing = [1]

    async def fetch(piece: LoosePiece) -> pa.Table:
        if piece.start == 1 and missing:
            missing.pop()
            raise ObjectNotFound("it was collected")
        assert piece.records is not None
        return piece.records

    async def look(fresh: bool) -> KeyedView:
        del fresh
        sources = tuple(PieceSource(_piece(start, start + 2), fetch, 1) for start in (1, 3))
        return KeyedView(state=KeyedState(is_made=True), sources=sources, next=5)

    query = KeyedQuery(keys=Keys.one(KEY), newest_first=True)
    scan = ViewScan(look=look, query=query, clock=SwiftClock())
    found = await scan.to_arrow()

    assert found.column("sequence").to_pylist() == [4, 3, 2, 1]
    assert scan.next_sequence == 5
