"""One writer of a log, as a process of its own: says of each record where it was acknowledged."""

from __future__ import annotations

import asyncio
import sys

from tidelog.clock import SystemClock
from tidelog.errors import ContentionError, LocationError
from tidelog.store.urls import open_store
from tidelog.wal.committer import Committer
from tidelog.wal.transitions import Rollover
from tidelog.wal.writer import Wal3Writer


async def write_on(url: str, name: str) -> None:
    """Append record after record, a few at a time, until killed."""
    clock = SystemClock()
    store = open_store(url, clock=clock)
    small = Rollover(fragments=8, snapshots=4)
    committer = Committer(store=store, clock=clock, writer=name, rollover=small)
    writer = Wal3Writer(committer=committer)
    await committer.open(make=True)

    async def one(body: str) -> None:
        try:
            position = await writer.append([body.encode()])
        except (LocationError, ContentionError):
            return
        print(position, body, flush=True)

    number = 0
    while True:
        await asyncio.gather(*(one(f"{name}-{number + n}") for n in range(3)))
        number += 3


if __name__ == "__main__":
    asyncio.run(write_on(sys.argv[1], sys.argv[2]))
