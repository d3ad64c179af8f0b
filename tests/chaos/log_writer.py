"""One writer of a log as a separate process. It prints the position of each acknowledged record."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from tidelog.core.clock import SystemClock
from tidelog.errors import ContentionError, Fenced, LocationError
from tidelog.store.port import Store
from tidelog.store.urls import open_store
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.manifest_protocol.writer import Wal3Writer
from tidelog.wal.slot_protocol.fencing import make_log
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter

CLOCK = SystemClock()
SMALL = Rollover(fragments=8, snapshots=4)


async def wal3(store: Store, name: str) -> Wal3Writer:
    committer = Committer(store=store, clock=CLOCK, writer=name, rollover=SMALL)
    await committer.open(make=True)
    return Wal3Writer(committer=committer)


async def slot(store: Store, name: str) -> SlotWriter:
    await make_log(store, clock=CLOCK, writer=name)
    shape = Shape(lanes=2, alpha=4, rollup_slots=8, rollup_interval_us=100_000, rollover=SMALL)
    return SlotWriter(store=store, clock=CLOCK, writer=name, shape=shape)


OPEN: dict[str, Callable[[Store, str], Awaitable[Wal3Writer | SlotWriter]]] = {
    "manifest": wal3,
    "slot": slot,
}


async def write_on(protocol: str, url: str, name: str) -> None:
    """Append records, a few at a time, until killed."""
    store = open_store(url, clock=CLOCK, create=True)
    writer = await OPEN[protocol](store, name)

    async def one(body: str) -> bool:
        """Append one record. Return True if the writer continues."""
        try:
            position = await writer.append([body.encode()])
        except Fenced:
            return False
        except (LocationError, ContentionError):
            return True
        print(position, body, flush=True)
        return True

    number = 0
    while True:
        went = await asyncio.gather(*(one(f"{name}-{number + n}") for n in range(3)))
        number += 3
        if not all(went):
            # Another writer took over: let it write for a while, then take over from it.
            await writer.close()
            await asyncio.sleep(0.2 * CLOCK.uniform())
            writer = await OPEN[protocol](store, name)


if __name__ == "__main__":
    asyncio.run(write_on(*sys.argv[1:4]))
