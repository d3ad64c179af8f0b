"""The gain of a Spark worker that caches parts, and of one that hedges slow reads.

A shard is read by ranges of its key, as for a DataFrame of a collection. The store's answers take
30 ms, and one in twenty takes 600 ms. One worker reads all ranges in order, as each worker of a
cluster reads its share. The store is as fast as memory: over a network, bytes cost more.
"""

from __future__ import annotations

import asyncio
import random
import time

import numpy as np
import pyarrow as pa

from figures import print_table
from tidelog.core.clock import SystemClock
from tidelog.location import open_location
from tidelog.spark.scan import Scan, contents
from tidelog.spark.scan_plan import load_tables, share
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.metered import usage_of
from tidelog.store.wrapping import Wrapping, wrap
from tidelog.testing import DelayedStore

CLOCK = SystemClock()
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS, BATCHES = 1_000_000, 5
QUICK_US, SLOW_US = 30_000, 600_000
WRAPPINGS = {
    "neither": Wrapping(),
    "hedged": Wrapping(hedge=True),
    "kept": Wrapping(cache="256MiB"),
    "both": Wrapping(cache="256MiB", hedge=True),
}


async def made(memory: MemoryStore) -> list[Scan]:
    """Write a shard, and divide a scan of it into ranges."""
    location = await open_location("memory://", create=True, store=memory)
    shard = location.shard("s", schema=SCHEMA, key=["k"])
    dice = np.random.default_rng(7)
    for time_ in range(BATCHES):
        keys = np.sort(dice.integers(0, 1 << 40, ROWS))
        columns = {"k": keys, "v": dice.integers(0, 1 << 40, ROWS)}
        stamps = {"_time": np.full(ROWS, time_), "_diff": np.ones(ROWS, np.int64)}
        await shard.compare_and_append(pa.table(columns | stamps), time_, time_ + 1)
    snapshot = await shard.snapshot(BATCHES - 1)
    scan = Scan(
        schema=snapshot.schema.encoded,
        columns=("k", "v"),
        as_of=snapshot.as_of,
        parts=snapshot.parts,
    )
    return await share(scan, memory)


async def read(memory: MemoryStore, scans: list[Scan], wrapping: Wrapping) -> list[str]:
    """Do all scans; return their cost."""
    dice = random.Random(7)

    def delay_us(_op: str, _key: str) -> int:
        return SLOW_US if dice.random() < 0.05 else QUICK_US

    slow = DelayedStore(memory, clock=CLOCK, delay_us=delay_us)
    wrapped = wrap(slow, wrapping, clock=CLOCK)
    begun, rows = time.perf_counter(), 0
    waited = 0.0
    for scan in scans:
        start = time.perf_counter()
        tables = await load_tables(scan, wrapped.whole)
        waited += time.perf_counter() - start
        rows += sum(table.num_rows for table in contents(tables, scan))
    took = time.perf_counter() - begun
    assert rows == ROWS * BATCHES, "rows are missing"
    used = usage_of(wrapped.whole)
    megabytes = f"{used.read_bytes / 2**20:,.0f}"
    return [f"{took:.2f}", f"{waited:.2f}", f"{used.get_count:,}", megabytes]


async def main() -> None:
    memory = MemoryStore()
    scans = await made(memory)
    parts = sum(scan.size_bytes for scan in scans[:1]) / 2**20
    print(f"{len(scans)} ranges of {parts:,.0f} MiB of parts")
    rows = [[name, *await read(memory, scans, one)] for name, one in WRAPPINGS.items()]
    print_table(("worker", "seconds", "of them loading", "gets", "MiB read"), rows)


if __name__ == "__main__":
    asyncio.run(main())
