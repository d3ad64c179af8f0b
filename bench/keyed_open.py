"""The cost of opening a keyed log of many keys, and of reading one key, from a cold start.

The log has one record per key, and is compacted. Then the location is opened again. Memory is the
growth of the process from before the open to after the reads.

    python bench/keyed_open.py [--keys N N N]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from figures import print_table
from tidelog.location import open_location
from tidelog.store.wrappers.metered import usage_of

BATCH = 1_000_000
READS = 100


async def made(folder: Path, keys: int) -> None:
    """Make a log with ``keys`` keys of 16 bytes, in a random order."""
    lake = await open_location(folder, create=True)
    await (await lake.keyed.create("log")).close()
    log = await lake.keyed.open("log", maintenance=False)
    dice = np.random.default_rng(7)
    numbers = dice.permutation(keys)
    for at in range(0, keys, BATCH):
        some = numbers[at : at + BATCH]
        names = pa.array([b"key-%012d" % n for n in some.tolist()], pa.binary())
        values = pa.array([b"value of 16 byte"] * len(some), pa.binary())
        await log.append_arrow(pa.table([names, values], ["key", "value"]))
    await log.compact(full=True)
    await log.close()


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def opened(folder: Path, keys: int) -> list[str]:
    """Open the log and read; return a row of the table. Modules are loaded first, untimed."""
    with tempfile.TemporaryDirectory() as other:
        await made(Path(other), 1)
        warm = await (await open_location(other)).keyed.reader("log")
        await warm.scan(b"key-%012d" % 0).to_arrow()
    lake = await open_location(folder)
    before, begun_mb, begun = usage_of(lake.store), rss_mb(), time.perf_counter()
    reader = await lake.keyed.reader("log", refresh_us=3_600_000_000)
    info = await reader.describe()
    open_ms, asked = (time.perf_counter() - begun) * 1e3, usage_of(lake.store) - before
    assert info.records_in_runs == keys
    before, begun = usage_of(lake.store), time.perf_counter()
    assert (await reader.scan(b"key-%012d" % (keys // 3)).to_arrow()).num_rows == 1
    cold_ms, cold = (time.perf_counter() - begun) * 1e3, usage_of(lake.store) - before
    begun = time.perf_counter()
    for number in range(READS):
        name = b"key-%012d" % (number * keys // READS)
        assert (await reader.scan(name).to_arrow()).num_rows == 1
    each_ms = (time.perf_counter() - begun) * 1e3 / READS
    return [
        f"{keys:,}",
        f"{asked.requests_count}",
        f"{asked.read_bytes / 1e3:.1f}",
        f"{open_ms:.1f}",
        f"{cold.get_count}",
        f"{cold.read_bytes / 1e3:.1f}",
        f"{cold_ms:.1f}",
        f"{each_ms:.1f}",
        f"{rss_mb() - begun_mb:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.open is not None:
        print("\t".join(asyncio.run(opened(given.open, given.keys[0]))))
        return
    lines = []
    for keys in given.keys:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(made(Path(folder), keys))
            words = [sys.executable, __file__, "--open", folder, "--keys", str(keys)]
            told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            lines.append(told.strip().split("\t"))
    head = ["keys", "requests to open", "KB", "ms", "GETs of the first read", "KB", "ms"]
    print_table([*head, "ms, each of 100 more", "MB of memory"], lines)


if __name__ == "__main__":
    main()
