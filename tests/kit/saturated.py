"""A writer that is never idle, on a store with slow requests, in virtual time.

Computation takes no time on the simulator's loop. So a test's numbers of requests and seconds hold
on any machine, however busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sim.kernel.clock import SimClock
from tidelog.errors import TidelogError
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import DelayedStore
from tidelog.testing.recorded import RecordedStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.slot_protocol.fencing import make_log
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter


@dataclass(slots=True)
class BusyLog:
    """A log in ``store`` with a writer that never pauses; ``acknowledged`` counts its records."""

    store: MemoryStore
    put_ms: int
    get_ms: int
    acknowledged: int = 0
    clients: int = 0

    def client(self) -> tuple[RecordedStore, SimClock]:
        """Return a connection to the store for another process, and that process's clock."""
        self.clients += 1
        clock = SimClock(f"client {self.clients}")
        return RecordedStore(
            DelayedStore(self.store, clock=clock, delay_us=self._delays(clock))
        ), clock

    def _delays(self, clock: SimClock) -> Callable[[str, str], int]:
        def delay_us(op: str, _: str) -> int:
            middle_us = 1_000 * (self.put_ms if op == "put" else self.get_ms)
            return int(middle_us * (0.8 + 0.4 * clock.uniform()))

        return delay_us


@asynccontextmanager
async def saturated(
    *, put_ms: int, get_ms: int, alpha: int, lanes: int = 1, warm_puts: int = 12
) -> AsyncIterator[BusyLog]:
    """Run a writer that always has ``alpha`` puts in flight.

    At most twice as many records wait for their acknowledgement.
    """
    busy = BusyLog(MemoryStore(), put_ms, get_ms)
    store, clock = busy.client()
    await make_log(busy.store, clock=clock, writer="maker")
    writer = SlotWriter(
        store=store,
        clock=clock,
        writer="busy",
        shape=Shape(alpha=alpha, lanes=lanes),
        batching=Batching(interval_us=put_ms * 1_000 // (2 * alpha)),
    )
    appends = set[asyncio.Task[None]]()

    async def append() -> None:
        try:
            await writer.append([b"x"])
        except TidelogError:
            return
        busy.acknowledged += 1

    async def pump() -> None:
        while True:
            while len(appends) >= 2 * alpha:
                await asyncio.wait(appends, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(append())
            appends.add(task)
            task.add_done_callback(appends.discard)
            await asyncio.sleep(put_ms / (2_000 * alpha))

    await append()
    pumping = asyncio.create_task(pump())
    await asyncio.sleep(warm_puts * put_ms / 1_000)
    try:
        yield busy
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, *appends, return_exceptions=True)
        await writer.close()
