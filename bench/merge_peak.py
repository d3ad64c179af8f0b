"""The memory of an in-process merge of data twenty times as large as its memory bound.

Unsorted batches are merged into one. Each takes back a tenth of the batch before it. A thread
samples the growth of the process's memory 200 times a second. The result is compared with the
promise of docs/internals/merges.md.

    python bench/merge_peak.py [--bound-mib N] [--times N]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from figures import print_table
from shard_scan import FIELDS, SCHEMA, resident
from tidelog.location import open_location

BATCH_MIB = 320


class Watch:
    """A thread that samples the memory of the process until `stop`."""

    def __init__(self) -> None:
        pa.default_memory_pool().release_unused()
        self.before = self.most = resident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, resident())

    def stop(self) -> int:
        """Return the greatest growth since the start, in bytes."""
        self._over.set()
        self._thread.join()
        return self.most - self.before


def rows_of(rows: int, number: int, *, time: int, diff: int) -> pa.Table:
    """Return the rows that batch ``number`` adds, unsorted, with one time and one diff."""
    numbers = np.random.default_rng(number).permutation(rows) + number * rows
    texts = pa.array([f"{n} is here" for n in range(9_973)]).take(numbers % 9_973)
    values = (numbers % 1_000_003).astype(float)
    columns = [numbers, texts, values, np.full(rows, time), np.full(rows, diff)]
    return pa.table(dict(zip([*SCHEMA.names, "_time", "_diff"], columns, strict=True)))


def batch(rows: int, number: int) -> pa.Table:
    """Return updates: new rows, and the removal of a tenth of the previous batch."""
    made = rows_of(rows, number, time=number, diff=1)
    if not number:
        return made
    gone = rows_of(rows, number - 1, time=number, diff=-1).slice(0, rows // 10)
    return pa.concat_tables([made, gone])


async def merge(folder: str, bound_mib: int, times: int) -> list[str]:
    batches = max(2, bound_mib * times // BATCH_MIB)
    rows = bound_mib * times * 2**20 // batches // batch(10_000, 1).nbytes * 10_000
    location = await open_location(folder, create=True)
    shard = location.shard("merged", schema=pa.schema(FIELDS), key=["k"])
    size = 0
    for number in range(batches):
        table = batch(rows, number)
        size += table.nbytes
        await shard.compare_and_append(table, number, number + 1)
        del table
    await shard.hold("bench")
    await shard.move_hold("bench", batches - 1)
    parts_before = sum(len(b.parts) for b in shard.state.batches)
    watch = Watch()
    begun = time.perf_counter()
    await shard.compact(full=True)
    seconds = time.perf_counter() - begun
    peak = watch.stop()
    await shard.refresh()
    parts = sum(len(b.parts) for b in shard.state.batches)
    if len(shard.state.batches) != 1:
        raise SystemExit(f"{len(shard.state.batches)} batches are left: nothing was measured")
    return [
        f"{bound_mib} MiB",
        f"{size >> 20} MiB",
        f"{size / (bound_mib << 20):.1f}",
        f"{peak >> 20} MiB",
        f"{peak / (bound_mib << 20):.2f}",
        f"{seconds:.1f}",
        f"{parts_before} to {parts}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bound-mib", type=int, default=512)
    parser.add_argument("--times", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        found = asyncio.run(merge(str(Path(folder)), given.bound_mib, given.times))
    head = ["bound", "updates", "times the bound", "peak", "of the bound", "seconds", "parts"]
    print_table(head, [found])


if __name__ == "__main__":
    main()
