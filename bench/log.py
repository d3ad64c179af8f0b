"""The cost of appends to a log: latency under load, round trips, requests, objects left by opens.

    python bench/log.py [--only latency|trips|cost|tail] [--seconds N]

Latency is open-loop: appends are due at fixed times, and the wait before the send counts. The store
is in memory, and each of its puts takes 100 ms. A round trip is the time of one put.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from figures import percentile, print_table
from latency_picture import draw_latencies
from made_logs import noise, write_deep_log
from tidelog.core.clock import SystemClock
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.testing.faulty import DelayedStore
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log, open_log
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.fencing import Fencer
from tidelog.wal.slot_protocol.shape import Shape

CLOCK: Final = SystemClock()
PUT_US: Final = 100_000
TICK_S: Final = 0.01
BUSY: Final = Shape(alpha=32)


@asynccontextmanager
async def log_on(store: Store, protocol: str, **options: Any) -> AsyncIterator[Log]:
    """Make a log, open it for writing, and close it at the end."""
    log = await create_log(
        store, name="bench", clock=CLOCK, writer="bench", protocol=protocol, **options
    )
    await log.append([b"open"])
    try:
        yield log
    finally:
        await log.close()


def slow(inner: Store) -> Store:
    return DelayedStore(inner, clock=CLOCK, delay_us=lambda op, _: PUT_US if op == "put" else 0)


@dataclass(slots=True)
class Load:
    """The result of appends that were due at fixed times: the seconds from due to answered."""

    waited: list[float]
    records: int
    seconds: float
    cpu: float

    def row(self, name: str) -> list[str]:
        shown = [percentile(self.waited, share) * 1_000 for share in (0.5, 0.9, 0.99, 1.0)]
        return [
            name,
            f"{self.records / self.seconds:,.0f}",
            *(f"{ms:.0f}" for ms in shown),
            f"{self.cpu / self.seconds:.2f}",
        ]


async def load(log: Log, *, rate: int, seconds: float, batch: int) -> Load:
    """Append ``rate`` records of 1 KiB a second, ``batch`` records per call."""
    calls_a_tick = max(1, round(rate * TICK_S / batch))
    pool = [noise(batch, 1_024) for _ in range(8)]
    waited: list[float] = []
    running: set[asyncio.Task[None]] = set()

    async def one(due: float, bodies: pa.BinaryArray) -> None:
        await log.append_arrow(bodies)
        waited.append(time.perf_counter() - due)

    begun, cpu = time.perf_counter(), time.process_time()
    ticks = round(seconds / TICK_S)
    for tick in range(ticks):
        due = begun + tick * TICK_S
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        for number in range(calls_a_tick):
            task = asyncio.create_task(one(due, pool[(tick + number) % len(pool)]))
            running.add(task)
            task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    took = time.perf_counter() - begun
    return Load(waited, ticks * calls_a_tick * batch, took, time.process_time() - cpu)


async def latency(seconds: float, picture: Path | None) -> None:
    """Print latencies at two rates, in batches and with one call per record, as a histogram too."""
    rows, drawn = [], []
    for protocol, rate, batch in (
        ("slot", 10_000, 100),
        ("slot", 50_000, 500),
        ("slot", 10_000, 1),
        ("manifest", 10_000, 100),
    ):
        async with log_on(slow(MemoryStore()), protocol, shape=BUSY) as log:
            found = await load(log, rate=rate, seconds=seconds, batch=batch)
        name = f"{protocol}, {rate:,}/s, {batch} a call"
        rows.append(found.row(name))
        drawn.append((name, found))
    rows.append(["wal3's draft, as it says of itself", "10,000", "270", "", "330", "360", ""])
    print("## Latency of appends of 1 KiB, puts of 100 ms\n")
    print_table(["load", "records/s", "p50 ms", "p90", "p99", "max", "cores"], rows)
    for name, found in drawn:
        print(name)
        print(histogram([wait * 1_000 for wait in found.waited]), flush=True)
    if picture is not None:
        draw_latencies([(name, found.waited) for name, found in drawn], picture)


def histogram(values: list[float], *, width: int = 60) -> str:
    """Draw the frequency of each value; units: milliseconds."""
    edges = [0, 100, 105, 110, 115, 120, 130, 140, 150, 175, 200, 250, 300, 400, 600, 1_000, 10**9]
    counts, _ = np.histogram(values, edges)
    lines = []
    for low, high, count in zip(edges, edges[1:], counts.tolist(), strict=False):
        if count:
            share = count / len(values)
            name = f"{low:>5} to {high:<5}" if high < 10**9 else f"{low:>5} up     "
            lines.append(f"  {name} {share:7.2%} {'#' * max(1, round(share * width))}")
    return "\n".join(lines) + "\n"


async def trips(times: int) -> None:
    """Print the round trips of an append, idle and loaded, and its requests."""
    rows = []
    for protocol in ("slot", "manifest"):
        store = MeteringStore(slow(MemoryStore()), clock=CLOCK)
        quiet = Shape(alpha=32, rollup_interval_us=10**12)
        async with log_on(store, protocol, shape=quiet) as log:
            before, waited = store.usage(), []
            for _ in range(times):
                begun = time.perf_counter()
                await log.append([b"x" * 1_000])
                waited.append(time.perf_counter() - begun)
            asked = (store.usage() - before).requests_count
            loaded = await load(log, rate=1_000, seconds=times / 10, batch=10)
        rows.append(
            [
                protocol,
                *(f"{percentile(w, 0.5) * 1e6 / PUT_US:.2f}" for w in (waited, loaded.waited)),
                *(f"{percentile(w, 0.95) * 1e6 / PUT_US:.2f}" for w in (waited, loaded.waited)),
                f"{asked / times:.2f}",
            ]
        )
    print("## Round trips of an append\n")
    head = ["protocol", "p50 idle", "p50 loaded", "p95 idle", "p95 loaded", "requests idle"]
    print_table(head, rows)


async def cost(opens: int) -> None:
    """Print the requests of appends, their price, and the objects that opens leave."""
    rows = []
    for protocol in ("slot", "manifest"):
        store = MeteringStore(MemoryStore(), clock=CLOCK)
        async with log_on(store, protocol) as log:
            before = store.usage()
            found = await load(log, rate=10_000, seconds=5, batch=100)
        used = store.usage() - before
        rows.append(
            [
                protocol,
                f"{used.requests_count / found.records:.4f}",
                f"{used.written_bytes / found.records:,.0f}",
                f"{used.dollars / found.records * 1e6:.3f}",
                f"{used.dollars / found.seconds * 3_600:.2f}",
            ]
        )
    print("## What 10,000 appends of 1 KiB a second ask for\n")
    head = ["protocol", "requests/record", "bytes/record", "$ a million records", "$ an hour"]
    print_table(head, rows)
    inner = MemoryStore()
    await create_log(inner, name="bench", clock=CLOCK, writer="bench")
    for number in range(opens):
        opener = Fencer(store=inner, clock=CLOCK, writer=f"opener {number}")
        ended = await opener.open(lanes=1, alpha=8)
        await Checkpointer(store=inner, clock=CLOCK, writer="bench").roll_up(
            ended.head, ended.steps
        )
    sizes = [len(found.data) for found in inner.objects.values()]
    manifest = len((await inner.get(MANIFEST)).data)
    print(
        f"{opens:,} opens that write nothing leave {len(sizes):,} objects, {sum(sizes):,} bytes "
        f"({sum(sizes) / opens:,.0f} an open, alpha 8, void fences included); "
        f"the manifest has {manifest:,} bytes\n",
        flush=True,
    )


async def tail(fragments: int) -> None:
    """Print the cost of finding the end of a log of many fragments, and of opening it."""
    inner = MemoryStore()
    await write_deep_log(inner, fragments)
    store = MeteringStore(inner, clock=CLOCK)
    rows = []

    async def measure(name: str, work: Callable[[], Awaitable[object]]) -> None:
        before, begun = store.usage(), time.perf_counter()
        await work()
        took, used = time.perf_counter() - begun, store.usage() - before
        rows.append([name, str(used.requests_count), f"{used.read_bytes:,}", f"{took * 1_000:.1f}"])

    log = await open_log(store, name="bench", clock=CLOCK, writer="bench")
    await measure("its end", log.bounds)
    await measure("its end, again", log.bounds)
    opener = Fencer(store=store, clock=CLOCK, writer="bench")
    for name in ("open for writing", "open for writing, again"):
        await measure(name, lambda: opener.open(lanes=1, alpha=1))
    print(f"## The end of a log of {fragments:,} fragments\n")
    print_table(["what", "requests", "bytes read", "ms"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ("latency", "trips", "cost", "tail")
    parser.add_argument("--only", choices=names)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each latency run")
    parser.add_argument("--picture", type=Path, help="draw the latencies there, as PNG or SVG")
    given = parser.parse_args()
    works: dict[str, Callable[[], object]] = {
        "latency": lambda: asyncio.run(latency(given.seconds, given.picture)),
        "trips": lambda: asyncio.run(trips(50)),
        "cost": lambda: asyncio.run(cost(1_000)),
        "tail": lambda: asyncio.run(tail(100_000)),
    }
    for name, work in works.items():
        if given.only in (None, name):
            work()


if __name__ == "__main__":
    main()
