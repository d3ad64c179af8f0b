"""Lost appends: the next call of the handle reports each accepted record that is not in the log.

Another process takes over while puts are delayed, so none of this handle's appends lands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from kit.keyed_engine import keyed_logs, rows_of
from kit.stores import Hold, InterposedStore
from tidelog.errors import Fenced, LocationError, LogFull, Outcome
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching

FIRST = b"sure"


@dataclass
class Takeover:
    """A log, the handle that loses it, and the gate that delays the handle's puts."""

    gate: Hold = field(default_factory=lambda: Hold("put", "/epoch/", is_open=True))
    store: MemoryStore = field(default_factory=MemoryStore)

    async def open(self, pending_bytes: int = 64 * 1024 * 1024) -> KeyedLog:
        """Return the handle. Its later appends wait at the gate."""
        self.there = keyed_logs(self.store)
        await (await self.there.create("log")).close()
        logs = KeyedLogs(
            store=InterposedStore(self.store, before=self.gate),
            consensus=self.there.consensus,
            clock=self.there.clock,
            writer="taken over",
        )
        batching = Batching(interval_us=0, pending_bytes=pending_bytes)
        log = await logs.open("log", batching=batching, maintenance=False)
        await log.append([(b"k", FIRST)])
        self.gate.go_on.clear()
        return log

    async def take_over(self) -> None:
        """Let another process append, then open the gate."""
        other = await self.there.open("log", maintenance=False)
        await other.append([(b"k", b"another")])
        await other.close()
        self.gate.go_on.set()

    async def values(self) -> list[bytes]:
        reader = await self.there.reader("log")
        return [row[3] for row in await rows_of(reader.scan(b"k"))]


@pytest.fixture
def taken() -> Takeover:
    return Takeover()


async def test_whoever_closes_is_told_of_what_was_ordered_and_lost(taken: Takeover) -> None:
    """A close reports lost appends once, because no later call could."""
    log = await taken.open()
    await log.append([(b"k", b"lost")], durable=False)
    await taken.take_over()

    with pytest.raises(LocationError) as told:
        await log.close()
    assert told.value.outcome is Outcome.NOT_APPLIED
    assert await taken.values() == [FIRST, b"another"]
    await log.close()


@pytest.mark.parametrize("tell", [KeyedLog.flush, KeyedLog.close])
async def test_the_loss_of_a_cancelled_append_is_reported(
    taken: Takeover, tell: Callable[[KeyedLog], Awaitable[object]]
) -> None:
    """If a cancelled append does not land, the next flush or close reports the loss."""
    log = await taken.open()
    late = asyncio.create_task(log.append([(b"k", b"lost")]))
    while await log.next_sequence() < 3:  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.001)
    late.cancel()
    await asyncio.wait({late})
    await taken.take_over()

    with pytest.raises((Fenced, LocationError)):
        await tell(log)
    assert await taken.values() == [FIRST, b"another"]


@pytest.mark.parametrize("durable", [True, False])
async def test_rows_of_a_table_that_are_told_as_taken_are_durable_or_told(
    taken: Takeover, durable: bool
) -> None:
    """If accepted rows of a table are lost, the append or the next flush raises Fenced."""
    log = await taken.open(pending_bytes=9 << 20)
    large = pa.array([b"v" * (4 << 20)] * 6, pa.binary())
    table = pa.table({"key": pa.array([b"k"] * 6, pa.binary()), "value": large})
    appending = asyncio.create_task(log.append_arrow(table, durable=durable, timeout_us=50_000))
    while await log.next_sequence() < 4:  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.001)
    if not durable:
        with pytest.raises(LogFull) as full:
            await appending
        assert full.value.facts == {"rows_taken": 2}
    await asyncio.sleep(0.06)  # Longer than the append waits for room.
    await taken.take_over()

    with pytest.raises(Fenced):
        await (appending if durable else log.flush())
    assert await taken.values() == [FIRST, b"another"]


async def test_each_flush_tells_of_what_it_waited_for(taken: Takeover) -> None:
    """Concurrent flushes both report the loss; a later one reports appends made since."""
    log = await taken.open()
    await log.append([(b"k", b"lost")], durable=False)
    flushes = [asyncio.create_task(log.flush()) for _ in range(2)]
    await asyncio.sleep(0)
    await log.append([(b"k", b"lost later")], durable=False)
    await taken.take_over()

    for one in flushes:
        with pytest.raises(Fenced):
            await one
    with pytest.raises(Fenced):
        await log.flush()
    assert await log.flush() == 3  # Every loss was reported.
    await log.close()
    assert await taken.values() == [FIRST, b"another"]
