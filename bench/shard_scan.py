"""The speed of writing and reading a shard's rows, next to Parquet itself, on this machine's disk.

A shard with a key is written in one append, and so is one without a key. The raw side writes files
with as many rows by the same encoder, and scans the same parts. Both sides take turns in each
round. A ratio is the median over the rounds: at 1, tidelog is as fast as Parquet.

The last line is measured in a process of its own: the peak memory of Arrow and DuckDB during a read
of a snapshot that is twenty times as large as the memory bound.

    python bench/shard_scan.py [--rows N] [--rounds N] [--no-spark]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

from figures import print_table, ratio, side_by_side
from tidelog.core.clock import SystemClock
from tidelog.location import Location, open_location
from tidelog.persist.format.parquet import encode_parquet
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read import contents
from tidelog.store.local.store import LocalStore

FIELDS: list[pa.Field[Any]] = [
    pa.field("k", pa.int64()),
    pa.field("text", pa.string()),
    pa.field("v", pa.float64()),
]
SCHEMA = pa.schema(FIELDS)
AIM_SCAN, AIM_WRITE = 0.9, 0.6
PART_BYTES = 64 * 1024 * 1024
BOUND = 64 * 1024 * 1024
Works = dict[str, Callable[[], float]]
READERS = (1, 2, 4, 8)
SHARDS: dict[str, list[str]] = {"keyed": ["k"], "keyless": []}


def updates(rows: int, time_: int = 0) -> pa.Table:
    """Return rows with a rising key, text and a number, all at one time."""
    rng = np.random.default_rng(1)
    numbers = np.arange(rows)
    words = pa.array([f"{n} is here" for n in range(9_973)])
    text = words.take(numbers % 9_973)
    ones = pa.array(np.ones(rows, np.int64))
    columns = [pa.array(numbers), text, pa.array(rng.random(rows)), pa.array(np.full(rows, time_))]
    return pa.table([*columns, ones], [*SCHEMA.names, "_time", "_diff"])


def seconds(work: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    asyncio.run(_awaited(work))
    return time.perf_counter() - begun


async def _awaited(work: Callable[[], Awaitable[object]]) -> None:
    await work()


class Bench:
    """A location on disk with two shards of the same rows."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self.table = updates(rows)
        self.store = LocalStore(folder / "raw", clock=SystemClock(), create=True)
        self.count = 0
        asyncio.run(self._make())

    async def _make(self) -> None:
        location = await self._open()
        for name, key in SHARDS.items():
            await location.shard(name, schema=SCHEMA, key=key).compare_and_append(self.table, 0, 1)

    async def _open(self) -> Location:
        return await open_location(str(self.folder / "lake"), create=True)

    def write_ours(self, key: list[str]) -> float:
        self.count += 1
        name = f"new-{self.count}"

        async def work() -> None:
            shard = (await self._open()).shard(name, schema=SCHEMA, key=key)
            await shard.compare_and_append(self.table, 0, 1)

        return seconds(work)

    def write_raw(self) -> float:
        """Write files with as many rows as parts, two at once, as the writer does."""
        pieces = -(-self.table.nbytes // PART_BYTES)
        step = -(-self.table.num_rows // pieces)

        async def one(number: int) -> None:
            data = await asyncio.to_thread(encode_parquet, self.table.slice(number * step, step))
            await self.store.put(f"{self.count}/{number}", data)

        async def work() -> None:
            self.count += 1
            under_way = asyncio.Semaphore(2)

            async def limited(number: int) -> None:
                async with under_way:
                    await one(number)

            await asyncio.gather(*(limited(n) for n in range(pieces)))

        return seconds(work)

    def paths(self, name: str) -> list[str]:
        return [
            str(p) for p in (self.folder / "lake" / "shard" / f"user.{name}").rglob("*.parquet")
        ]

    def read_ours(self, name: str) -> float:
        async def work() -> None:
            snapshot = await (await self._open()).shard(name).snapshot(0)
            rows = 0
            async for batch in snapshot.to_batches():
                rows += batch.num_rows
            check(rows, self.table.num_rows)

        return seconds(work)

    def read_raw(self, name: str) -> float:
        begun = time.perf_counter()
        dataset = pads.dataset(self.paths(name), format="parquet")
        rows = sum(b.num_rows for b in dataset.to_batches(use_threads=False))
        check(rows, self.table.num_rows)
        return time.perf_counter() - begun

    def many(self, name: str, readers: int) -> float:
        """Return million rows a second of ``readers`` processes that read one shard."""
        code = (
            "import sys; sys.path[:0] = ['bench']; import shard_scan as s; "
            f"s.read_all({str(self.folder / 'lake')!r}, {name!r})"
        )
        begun = time.perf_counter()
        running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(readers)]
        if any(process.wait() for process in running):
            raise SystemExit("a reader failed")
        return readers * 3 * self.table.num_rows / (time.perf_counter() - begun) / 1e6


def read_all(location: str, name: str) -> None:
    """Read a shard three times: the work of a reader of `Bench.many`."""

    async def work() -> None:
        for _ in range(3):
            shard: Shard = (await open_location(location)).shard(name)
            async for _ in (await shard.snapshot(0)).to_batches():
                pass

    asyncio.run(work())


def check(found: int, wanted: int) -> None:
    if found != wanted:
        raise SystemExit(f"{found} rows were read of {wanted}")


def on_spark(bench: Bench, rounds: int) -> list[list[str]]:
    """Scan both shards on Spark, and the same parts as plain Parquet."""
    from tidelog.spark.session import session, stop

    spark = session()
    rows: list[list[str]] = []

    def ours(name: str) -> float:
        async def work() -> None:
            snapshot = await (await bench._open()).shard(name).snapshot(0)
            frame = await snapshot.to_spark(spark)
            frame.selectExpr("sum(k)", "max(text)", "sum(v)", "sum(_diff)").collect()

        return seconds(work)

    def raw(name: str) -> float:
        begun = time.perf_counter()
        frame = spark.read.parquet(*bench.paths(name))
        frame.selectExpr("sum(k)", "max(text)", "sum(v)", "sum(_diff)").collect()
        return time.perf_counter() - begun

    try:
        for name in ("keyed", "keyless"):
            works: Works = {"ours": partial(ours, name), "raw": partial(raw, name)}
            side_by_side(works, 3)  # Warm-up: Spark compiles its plans.
            rows.append(line(f"snapshot on Spark, {name}", side_by_side(works, rounds), bench))
    finally:
        stop(spark)
    return rows


def line(
    what: str, found: dict[str, list[float]], bench: Bench, aim: float = AIM_SCAN
) -> list[str]:
    ours, raw = statistics.median(found["ours"]), statistics.median(found["raw"])
    rate, mb = bench.table.num_rows / 1e6, bench.table.nbytes / 1e6
    made = [
        what,
        f"{rate / ours:.2f}",
        f"{mb / ours:.0f}",
        f"{rate / raw:.2f}",
        f"{ratio(found['ours'], found['raw']):.2f}",
        f"{aim}",
    ]
    print(*made, flush=True)  # Progress; the table comes at the end.
    return made


def peak() -> None:
    """Print the peak memory of reading a snapshot of twenty times the bound."""
    from unittest.mock import patch

    async def work(folder: str, way: contents.Way) -> None:
        location = await open_location(folder, create=True)
        shard = location.shard(way.value.replace(" ", "-"), schema=SCHEMA, key=["k"])
        each = 3_000_000
        for n in range(8):
            await shard.compare_and_append(updates(each, n), n, n + 1)
        size = most = 0
        pool = pa.default_memory_pool()
        pool.release_unused()
        before = resident()
        snapshot = await shard.snapshot(7)
        with patch.object(contents, "choose_way", return_value=way):
            async for batch in snapshot.to_batches(memory_bytes=BOUND):
                size += batch.nbytes
                most = max(most, resident() - before)
        read = 8 * updates(each).nbytes
        print(
            f"{way.value}: {read >> 20} MiB of updates, {size >> 20} MiB of rows, bound "
            f"{BOUND >> 20} MiB: at most {most >> 20} MiB more than before, of the process's own"
        )

    for way in (contents.Way.BY_KEY, contents.Way.SPILLED):
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
            asyncio.run(work(folder, way))


def resident() -> int:
    """Return the bytes of this process in memory, without mapped files."""
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith("RssAnon"):
            return int(text.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--peak", action="store_true")
    given = parser.parse_args()
    if given.peak:
        peak()
        return
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        bench = Bench(Path(folder), given.rows)
        print(f"{given.rows} rows, {bench.table.nbytes / 1e6:.0f} MB of Arrow data; medians\n")
        rows = []
        for name, key in SHARDS.items():
            works: Works = {"ours": partial(bench.write_ours, key), "raw": bench.write_raw}
            rows.append(line(f"write, {name}", side_by_side(works, given.rounds), bench, AIM_WRITE))
        for name in ("keyed", "keyless"):
            works = {"ours": partial(bench.read_ours, name), "raw": partial(bench.read_raw, name)}
            rows.append(line(f"snapshot, {name}", side_by_side(works, given.rounds), bench))
        if not given.no_spark:
            rows += on_spark(bench, given.rounds)
        print_table(["", "M rows/s", "MB/s", "raw: M rows/s", "ratio", "aim"], rows)
        rates = [bench.many("keyed", readers) for readers in READERS]
        print_table(
            ["readers (processes)", *map(str, READERS)],
            [["M rows/s of all, start-up included", *(f"{rate:.1f}" for rate in rates)]],
        )
    subprocess.run([sys.executable, os.path.abspath(__file__), "--peak"], check=True)


if __name__ == "__main__":
    main()
