"""Appends that do not wait for the store: a bounded queue accepts them."""

from __future__ import annotations

import asyncio

import pytest

from kit.keyed_engine import keyed_logs, rows_of
from kit.stores import InterposedStore
from tidelog.errors import LocationError, LogFull, Outcome, StoreRefused
from tidelog.keyed.log import KeyedLog
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching

ROOM = 1_000


class BlockedStore:
    """A store that blocks puts of records, or raises the error that the test sets."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.error: LocationError | None = None

    async def __call__(self, op: str, key: str) -> None:
        if op == "put" and "/epoch/" in key:
            await self.open.wait()
            if self.error is not None:
                raise self.error


async def opened(stopped: BlockedStore) -> KeyedLog:
    logs = keyed_logs(InterposedStore(MemoryStore(), before=stopped))
    await (await logs.create("log")).close()
    batching = Batching(interval_us=0, pending_bytes=ROOM)
    log = await logs.open("log", batching=batching, maintenance=False)
    await log.append([(b"k", b"0")])
    return log


async def test_an_append_returns_once_it_is_accepted() -> None:
    """The append returns before the store answers."""
    stopped = BlockedStore()
    log = await opened(stopped)
    stopped.open.clear()
    async with asyncio.timeout(20):
        given = [await log.append([(b"k", b"%d" % n)], durable=False) for n in range(1, 20)]
        assert given == list(range(2, 21))
        assert await log.try_append([(b"k", b"20")], durable=False) == 21

    assert [row[1] for row in await rows_of(log.scan(b"k"))] == list(range(1, 22))
    stopped.open.set()
    assert await log.flush() == 22
    await log.close()


async def test_the_bound_of_the_queue_raises() -> None:
    """``LogFull`` carries the refused records. All earlier records are accepted, in order."""
    stopped = BlockedStore()
    log = await opened(stopped)
    stopped.open.clear()
    accepted = 0

    async def fill() -> None:
        nonlocal accepted
        while accepted < ROOM:
            await log.try_append([(b"k", b"x" * 50)], durable=False)
            accepted += 1

    with pytest.raises(LogFull) as full:
        await fill()
    assert full.value.records == [(b"k", b"x" * 50)]
    assert 5 < accepted <= ROOM // 50
    with pytest.raises(LogFull):
        await log.append([(b"k", b"x" * 50)], durable=False, timeout_us=0)

    waiting = asyncio.ensure_future(log.append([(b"k", b"y" * 50)], durable=False))
    await asyncio.sleep(0)
    assert not waiting.done()
    stopped.open.set()
    assert await waiting == accepted + 2
    await log.flush()
    assert len(await rows_of(log.scan(b"k"))) == accepted + 2
    await log.close()


async def test_positions_move_up_when_the_store_refuses_records() -> None:
    """After a refusal, later records take its sequences, and readers see each record once."""
    stopped = BlockedStore()
    log = await opened(stopped)
    stopped.open.clear()
    for number in range(1, 4):
        await log.append([(b"k", b"%d" % number)], durable=False)
    stopped.error = StoreRefused("no", outcome=Outcome.NOT_APPLIED)
    stopped.open.set()
    with pytest.raises(LocationError):
        await log.flush()
    stopped.error = None

    assert await log.append([(b"k", b"last")]) == 2
    assert [row[3] for row in await rows_of(log.scan(b"k"))] == [b"0", b"last"]
    await log.close()
