"""The cost of a shard's operations in round trips, over a store whose requests take 30 ms each.

A round trip is 30 ms. An operation of one request takes a little more than 1: the rest is the work
of tidelog and of the event loop. Requests are means, and include the rollups of some commits. The
last line is the number of rows that one core hashes per second.

    python bench/shard.py [--times N] [--delay-ms N]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from figures import percentile, print_table
from rowhash import distinct_strings, flights_like
from tidelog.core.clock import SystemClock
from tidelog.location import Location, open_location
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import Verdict
from tidelog.rowhash import hash_rows
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.metered import usage_of
from tidelog.testing.faulty import DelayedStore

Work = Callable[[int], Awaitable[object]]
FIELDS: list[pa.Field[Any]] = [pa.field("k", pa.int64()), pa.field("text", pa.string())]
SCHEMA = pa.schema(FIELDS)
AIM_ROUND_TRIPS, AIM_HASH = 1.2, 3e6


@dataclass(slots=True)
class Op:
    """One kind of operation: the seconds of each call, and the requests of all calls."""

    name: str
    seconds: list[float] = field(default_factory=list)
    requests: int = 0


def updates(rows: int, letters: int, moment: int) -> pa.Table:
    """Return rows of random text, all at one time."""
    text = distinct_strings(np.random.default_rng(moment), rows, letters, letters)
    columns = [
        pa.array(np.arange(rows)),
        text,
        pa.array(np.full(rows, moment)),
        pa.array(np.ones(rows, np.int64)),
    ]
    return pa.table(columns, ["k", "text", "_time", "_diff"])


@dataclass(slots=True)
class Bench:
    """A location on a slow store, and the measured operations."""

    location: Location
    times: int
    ops: list[Op] = field(default_factory=list)

    async def measure(
        self, name: str, work: Work, *, before: Work | None = None, times: int | None = None
    ) -> None:
        """Time ``work`` repeatedly, each time after ``before``."""
        op = Op(name)
        for number in range(times or self.times):
            if before is not None:
                await before(number)
            asked = usage_of(self.location.store)
            begun = time.perf_counter()
            await work(number)
            op.seconds.append(time.perf_counter() - begun)
            op.requests += (usage_of(self.location.store) - asked).requests_count
        self.ops.append(op)

    def shard(self, name: str) -> Shard:
        return self.location.shard(name, schema=SCHEMA, key=["k"])

    async def append(self, shard: Shard, number: int, table: pa.Table) -> None:
        done = await shard.compare_and_append(table, number, number + 1)
        if done.verdict is not Verdict.COMMITTED:
            raise SystemExit(f"an uncontended commit ended {done.verdict}")

    async def run(self) -> None:
        """Measure all operations."""
        few = updates(4, 100, 0)
        many = [updates(4_000, 200, n) for n in range(20)]
        await self.measure(
            "first write of a new shard",
            lambda n: self.append(self.shard(f"new-{n}"), 0, few),
            times=20,
        )
        small = self.shard("small")
        await self.append(small, 0, few)
        await self.measure(
            "compare_and_append, under 1 KiB",
            lambda n: self.append(small, n + 1, updates(4, 100, n + 1)),
        )
        large = self.shard("large")
        await self.measure(
            "compare_and_append, 800 kB", lambda n: self.append(large, n, many[n]), times=20
        )
        await self.measure("upper", lambda _: small.upper())
        await self.measure("snapshot, known state", lambda _: self.read(small, self.times))
        await self.measure(
            "open and snapshot", lambda _: self.read(self.shard("small"), 1), times=20
        )
        await small.hold("bench", 0)
        await self.measure("move_hold", lambda n: small.move_hold("bench", n), times=20)
        heard, first = self.shard("small").listen(self.times), self.times + 1
        await self.measure(
            "listen, to a commit just made",
            lambda _: anext(heard),
            before=lambda n: self.append(small, first + n, updates(4, 100, first + n)),
            times=20,
        )

    async def read(self, shard: Shard, as_of: int) -> None:
        await (await shard.snapshot(as_of)).to_arrow()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--delay-ms", type=int, default=30)
    given = parser.parse_args()
    asyncio.run(measure(given.times, given.delay_ms))
    rows, rng = 1 << 20, np.random.default_rng(1)
    columns = list(flights_like(rng, rows).values())
    best = min(hash_seconds(columns, rows) for _ in range(5))
    print(f"row hash: {rows / best / 1e6:.1f} M rows/s on one core (aim {AIM_HASH / 1e6:.0f} M)")


async def measure(times: int, delay_ms: int) -> None:
    """Print the cost of each operation."""
    clock = SystemClock()
    slow = DelayedStore(MemoryStore(), clock=clock, delay_us=lambda _op, _key: delay_ms * 1_000)
    location = await open_location("memory://", create=True, clock=clock, store=slow)
    bench = Bench(location, times)
    await bench.run()
    print(f"round trips of {delay_ms} ms\n")
    table = []
    for op in bench.ops:
        trips = [s / (delay_ms / 1e3) for s in op.seconds]
        middle, most = percentile(trips, 0.5), percentile(trips, 0.95)
        aim = f"{AIM_ROUND_TRIPS}" if "under 1 KiB" in op.name else ""
        asked = op.requests / len(trips)
        table.append(
            [op.name, f"{len(trips)}", f"{middle:.2f}", f"{most:.2f}", aim, f"{asked:.2f}"]
        )
    print_table(["operation", "times", "p50", "p95", "aim p50", "requests"], table)


def hash_seconds(columns: list[Any], rows: int) -> float:
    begun = time.perf_counter()
    hash_rows(columns, rows=rows)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
