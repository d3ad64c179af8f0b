"""The objects that thousands of opens leave, and the next open, collection and scrub after them.

    python bench/log_opens.py [--opens N ...] [--only closed|killed]

A closed open appended one record. A killed open fenced the writer before it and appended nothing.
It only rolled up, if 64 slots or more were not in the manifest yet. Each line is measured on a copy
of the log. The store is in memory, so milliseconds are computation alone.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from figures import print_table
from tidelog.core.clock import SystemClock
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.wal.format.epoch_chain import encode_chain
from tidelog.wal.format.json import render
from tidelog.wal.format.manifest import MANIFEST, chain_of, decode_manifest
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log, open_log
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.fencing import Fencer
from tidelog.wal.slot_protocol.shape import Shape

CLOCK: Final = SystemClock()
ALL: Final = Keep(share_max=1)
KINDS: Final = ["closed", "killed"]


async def opened(store: Store) -> Log:
    return await open_log(store, name="bench", clock=CLOCK, writer="bench")


async def open_and_close(store: Store) -> None:
    """Open a log for writing, append one record, close."""
    async with await opened(store) as log:
        await log.append([b"one"])


async def open_and_die(store: Store) -> None:
    """Take over a log, roll up if that is due, and stop without a close."""
    ended = await Fencer(store=store, clock=CLOCK, writer="bench").open(lanes=1, alpha=8)
    if len(ended.steps) >= Shape().rollup_slots:
        checkpointer = Checkpointer(store=store, clock=CLOCK, writer="bench")
        await checkpointer.roll_up(ended.head, ended.steps)


async def collect(store: Store) -> None:
    """Erase all records before a cursor at the end."""
    log = await opened(store)
    await log.create_cursor("c", (await log.bounds()).next)
    await log.collect(keep=ALL, grace_us=0)


async def scrub(store: Store) -> None:
    """Read and check all stored data."""
    found = await (await opened(store)).scrub()
    assert not found.problems, found.problems[:3]


async def measured(inner: MemoryStore, work: Callable[[Store], Awaitable[None]]) -> list[str]:
    """Return the requests and the milliseconds of some work on a copy of a store."""
    copied = MemoryStore(objects=dict(inner.objects), puts_count=inner.puts_count)
    store, begun = MeteringStore(copied, clock=CLOCK), time.perf_counter()
    await work(store)
    took = time.perf_counter() - begun
    return [f"{store.usage().requests_count:,}", f"{took * 1_000:,.0f}"]


async def print_opens(wanted: list[int], kinds: list[str]) -> None:
    """Print a line for each number of opens, for closed and for killed ones."""
    rows: list[list[str]] = []
    for name in kinds:
        work = open_and_close if name == "closed" else open_and_die
        store, done = MemoryStore(), 0
        await create_log(store, name="bench", clock=CLOCK, writer="bench")
        for number in sorted(wanted):
            for _ in range(number - done):
                await work(store)
            done = number
            data = (await store.get(MANIFEST)).data
            epochs = render(encode_chain(chain_of(decode_manifest(data))))
            costs = [await measured(store, one) for one in (open_and_close, collect, scrub)]
            objects = len(store.objects)
            others = objects - number if name == "closed" else objects
            rows.append(
                [
                    f"{number:,} {name}",
                    f"{len(data):,}",
                    f"{len(epochs):,}",
                    f"{objects:,}",
                    f"{others / number:.2f}",
                    *(cell for cost in costs for cell in cost),
                ]
            )
    sizes = ["manifest bytes", "of them epochs", "objects", "an open, without records"]
    costs_of = [f"{what} {unit}" for what in ("open", "collect", "scrub") for unit in ("rq", "ms")]
    print("## What opens leave\n")
    print_table(["opens", *sizes, *costs_of], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--opens", type=int, nargs="*", default=[1, 100, 1_000, 10_000])
    parser.add_argument("--only", choices=KINDS, nargs="*", default=KINDS)
    given = parser.parse_args()
    asyncio.run(print_opens(given.opens, given.only))


if __name__ == "__main__":
    main()
