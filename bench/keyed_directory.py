"""The size of the key directories of runs, and the time to open one and to find a key in it.

Each part has numbered keys or random keys, and is in a folder on this machine's disk. Cold: the
reader is new and has read no part of it. Warm: the reader has cached all that it caches.
Milliseconds are medians.

    python bench/keyed_directory.py [--keys N,N...] [--records-a-key N]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from figures import print_table
from tidelog.core.clock import SystemClock
from tidelog.keyed.format.part import EncodedPart, RunPart
from tidelog.keyed.format.part_file import RunPartWriter
from tidelog.keyed.format.records import KEYED_RECORDS, int64_array, repeated
from tidelog.keyed.read.part_reader import RunPartReader
from tidelog.keyed.read.run_objects import DirectoryCache
from tidelog.store.local.store import LocalStore
from tidelog.testing import RecordedStore

EVER = 2**63 - 1
PIECE = 65_536
COLD, WARM = 5, 200


def numbered(keys: int) -> Iterator[bytes]:
    yield from (b"user-%012d" % number for number in range(keys))


def drawn(keys: int) -> Iterator[bytes]:
    """Yield random keys of 16 bytes, in order: first a rising number, then random bytes."""
    rng = np.random.default_rng(1)
    for first in range(0, keys, PIECE):
        most = min(PIECE, keys - first)
        heads = np.sort(rng.integers(0, 2**31, most)).astype(">u4")
        tails = rng.integers(0, 2**63, (most, 2)).astype(">u8").tobytes()
        for number in range(most):
            head = (first // PIECE).to_bytes(2, "big") + heads[number : number + 1].tobytes()
            # Two heads may be equal. Then the number keeps the order.
            yield head + number.to_bytes(2, "big") + tails[16 * number : 16 * number + 8]


def made(names: Iterator[bytes], keys: int, each: int) -> EncodedPart:
    writer = RunPartWriter("bench/part.parquet")
    order = np.random.default_rng(2)
    for first in range(0, keys, PIECE):
        count = min(PIECE, keys - first)
        chunk = pa.array([next(names) for _ in range(count)], pa.binary())
        rows = count * each
        sequences = np.sort(order.integers(0, 2**40, (count, each)), axis=1)
        sequences += np.arange(each)
        writer.write(
            pa.Table.from_arrays(
                [
                    chunk.take(int64_array(np.repeat(np.arange(count), each))),
                    int64_array(sequences.reshape(-1)),
                    int64_array(np.arange(rows) + first),
                    repeated(b"value", rows),
                ],
                schema=KEYED_RECORDS,
            )
        )
    return writer.finish()


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await work()
    return 1e3 * (time.perf_counter() - begun)


async def measured(store: RecordedStore, part: RunPart, some: list[bytes]) -> list[str]:
    colds, requests, read = [], 0, 0
    for number in range(COLD):
        reader = RunPartReader(store, SystemClock(), DirectoryCache())
        store.records.clear()
        key = some[number]
        colds.append(await timed(lambda reader=reader, key=key: reader.find(part, key)))  # type: ignore[misc]
        requests = len(store.records)
        read = sum(record.size for record in store.records)
    cache = DirectoryCache()
    reader = RunPartReader(store, SystemClock(), cache)
    for key in some:
        await reader.find(part, key)
    kept = cache.used_bytes
    store.records.clear()
    warm = [await timed(lambda key=key: reader.find(part, key)) for key in some]  # type: ignore[misc]
    asked = len(store.records)
    absent = [await timed(lambda key=key: reader.find(part, key + b"-")) for key in some]  # type: ignore[misc]
    rows = [await timed(lambda key=key: reader.read_key(part, key, 0, EVER)) for key in some]  # type: ignore[misc]
    return [
        f"{part.directory_bytes / part.keys:.1f}",
        f"{part.directory_bytes / 1e6:.1f}",
        f"{part.tail_bytes / 1e3:.0f}",
        f"{statistics.median(colds):.1f}",
        f"{requests} / {read / 1e3:.0f}",
        f"{statistics.median(warm):.3f}",
        f"{statistics.median(absent):.3f}",
        f"{asked}",
        f"{statistics.median(rows):.2f}",
        f"{kept / 1e6:.1f}",
    ]


async def run(counts: list[int], each: int) -> list[list[str]]:
    table = []
    for keys in counts:
        for kind, names in (("numbered", numbered), ("random", drawn)):
            with tempfile.TemporaryDirectory() as folder:
                store = RecordedStore(LocalStore(Path(folder), clock=SystemClock()))
                begun = time.perf_counter()
                part = await stored(store, made(names(keys), keys, each))
                took = time.perf_counter() - begun
                step = max(keys // WARM, 1)
                some = [key for number, key in enumerate(names(keys)) if number % step == step // 2]
                np.random.default_rng(3).shuffle(some)
                table.append([f"{keys:,}", kind, f"{took:.1f}", *await measured(store, part, some)])
    return table


async def stored(store: RecordedStore, made: EncodedPart) -> RunPart:
    await store.put(made.part.path, made.data)
    await store.put(made.part.directory, made.directory)
    return made.part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", default="10000,1000000")
    parser.add_argument("--records-a-key", type=int, default=1)
    given = parser.parse_args()
    counts = [int(count) for count in given.keys.split(",")]
    heads = [
        "keys",
        "of kind",
        "written s",
        "bytes a key",
        "MB",
        "footer KB",
        "find cold ms",
        "GETs / KB",
        "warm ms",
        "absent ms",
        "GETs",
        "read key ms",
        "kept MB",
    ]
    print_table(heads, asyncio.run(run(counts, given.records_a_key)))


if __name__ == "__main__":
    main()
