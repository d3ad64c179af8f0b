"""The cost of scanning a log, next to plain Parquet reads of the same files in the same run.

    python bench/log_scan.py [--megabytes N] [--rounds N]

A scan checks every record; ``pyarrow.parquet.read_table`` of the same files checks nothing. Each
line is measured in a process of its own, bound to its cores before any thread starts. Both sides
take turns in each round. Figures, and ratios of a round's two sides, are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from figures import percentile, print_table, ratio, seconds_of, side_by_side
from made_logs import noise, write_deep_log
from tidelog.core.clock import SystemClock
from tidelog.store.memory import MemoryStore
from tidelog.store.urls import open_store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.opening import create_log, open_log
from tidelog.wal.slot_protocol.shape import Shape

CLOCK: Final = SystemClock()
APPEND_BYTES: Final = 1_024_000
DEEP: Final = 100_000


async def write_log(folder: Path, protocol: str, size: int, megabytes: int) -> None:
    """Write a log with records of one size; a slot log has four lanes."""
    log = await create_log(
        open_store(folder.as_uri(), clock=CLOCK),
        name="bench",
        clock=CLOCK,
        writer="bench",
        protocol=protocol,
        batching=Batching(interval_us=0),
        shape=Shape(alpha=8, lanes=4) if protocol == "slot" else None,
    )
    bodies = noise(APPEND_BYTES // size, size)
    count = megabytes * 1_000_000 // APPEND_BYTES
    await asyncio.gather(*(log.append_arrow(bodies) for _ in range(count)))
    await log.close()


async def scan(folder: Path) -> int:
    """Read a whole log and keep nothing; return the number of bytes of its bodies."""
    store = open_store(folder.as_uri(), clock=CLOCK)
    log = await open_log(store, name="bench", clock=CLOCK, writer="bench")
    read = 0
    async for records in log.scan():
        read += records.column("body").nbytes
    return read


def plain(paths: list[Path]) -> int:
    """Read the log's files as Parquet, and keep nothing."""
    return sum(pq.read_table(path).column("body").nbytes for path in paths)


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the seconds of scans and of plain reads in each round, and the bytes read."""
    paths = sorted(path for path in folder.rglob("*.parquet") if path.stat().st_size > 10_000)
    read = [asyncio.run(scan(folder)), plain(paths)]
    works: dict[str, Callable[[], float]] = {
        "scan": lambda: seconds_of(lambda: asyncio.run(scan(folder))),
        "plain": lambda: seconds_of(lambda: plain(paths)),
    }
    return {**side_by_side(works, rounds), "bytes": read, "files": len(paths)}


def memory(folder: Path) -> dict[str, Any]:
    """Return the greatest growth of the process during a scan, in bytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asyncio.run(scan(folder))
    return {"grown": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1_024}


def in_process(what: str, folder: Path, *, cores: int, rounds: int = 1) -> dict[str, Any]:
    """Measure in a process of its own, bound to ``cores`` cores."""
    own = sorted(os.sched_getaffinity(0))[:cores]
    found = subprocess.run(
        [sys.executable, __file__, "--child", what, str(folder), "--rounds", str(rounds)],
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, own),
    )
    told: dict[str, Any] = json.loads(found.stdout)
    return told


def print_speed(folder: Path, megabytes: int, rounds: int) -> None:
    """Print the speed of reading logs."""
    rows = []
    for protocol, size in (("slot", 1_024), ("slot", 100), ("slot", 65_536), ("manifest", 1_024)):
        place = folder / f"{protocol}-{size}"
        asyncio.run(write_log(place, protocol, size, megabytes))
        for cores in sorted({1, min(2, os.cpu_count() or 1)}):
            found = in_process("speed", place, cores=cores, rounds=rounds)
            shown = [
                f"{read / percentile(found[name], 0.5) / 1e6:,.0f}"
                for name, read in zip(("scan", "plain"), found["bytes"], strict=True)
            ]
            rows.append(
                [protocol, f"{size:,}", str(found["files"]), str(cores), *shown,
                 f"{ratio(found['scan'], found['plain']):.2f}"]
            )  # fmt: skip
    print(f"## Scanning {megabytes} MB from a directory, all of it checked\n")
    head = ["protocol", "bytes", "files", "cores", "scan MB/s", "plain Parquet MB/s", "ratio"]
    print_table(head, rows)


def print_memory(folder: Path, megabytes: int) -> None:
    """Print the memory of scans of longer and longer logs."""
    rows = []
    for times in (1, 2, 4):
        place = folder / f"memory-{times}"
        asyncio.run(write_log(place, "slot", 1_024, megabytes * times))
        grown = in_process("memory", place, cores=2)["grown"]
        rows.append([f"{megabytes * times:,}", f"{grown / 1e6:,.0f}"])
    print("## What a process grows by while it scans\n")
    print_table(["log, MB", "memory, MB"], rows)


async def print_first() -> None:
    """Print the cost of reading the first record of a log of many fragments."""
    inner = MemoryStore()
    await write_deep_log(inner, DEEP)
    store = MeteringStore(inner, clock=CLOCK)
    log = await open_log(store, name="bench", clock=CLOCK, writer="bench")
    before, begun = store.usage(), time.perf_counter()
    await anext(log.scan())
    took, used = time.perf_counter() - begun, store.usage() - before
    print(
        f"The first record of a log of {DEEP:,} fragments takes {used.requests_count} requests "
        f"(and one to open it), {used.read_bytes:,} bytes and {took * 1_000:.0f} ms of "
        "computing.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=2, help="what, and where: for itself")
    given = parser.parse_args()
    if given.child:
        what, folder = given.child
        found = measure(Path(folder), given.rounds) if what == "speed" else memory(Path(folder))
        print(json.dumps(found))
        return
    asyncio.run(print_first())
    with tempfile.TemporaryDirectory() as folder:
        print_speed(Path(folder), given.megabytes, given.rounds)
        print_memory(Path(folder), given.megabytes)


if __name__ == "__main__":
    main()
