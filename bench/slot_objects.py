"""The cost of a slot's object on one core (write, read and check), next to plain Parquet.

    python bench/slot_objects.py [--rounds N]

Each round runs all works in turn; figures are medians over the rounds, in CPU time. An object has
one megabyte of data that cannot be compressed. Both sides read it from a directory.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from figures import print_table, ratio, side_by_side
from made_logs import noise
from tidelog.core.clock import SystemClock
from tidelog.core.setsum import Setsum
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.arrays import column_sum
from tidelog.wal.format.link import Epoch, Tail, fragment_of
from tidelog.wal.format.slot_object import (
    checked_data,
    encode_data,
    place_slot_records,
    setsum_of_slot_records,
)
from tidelog.wal.opening import create_log

OBJECT_BYTES: Final = 1_000_000
SIZES: Final = (100, 1_024, 65_536)
CALLERS: Final = 64
A_CALL: Final = 100


def cpu_of(work: Callable[[], object]) -> float:
    """Run the work once; return the CPU seconds of all threads."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def works_of(records: pa.Table, folder: Path) -> tuple[dict[str, Callable[[], object]], int]:
    """Return the works to measure on an object of these records, and its size in bytes."""
    epoch = Epoch(number=0, id="0" * 16, first_slot=1, opener="bench")
    tail = Tail(epoch=epoch, slot=1, position=1, setsum=Setsum.zero(), log_bytes=0)
    link, data = encode_data(records, tail, writer="bench")
    path = folder / f"{records.num_rows}.parquet"
    path.write_bytes(data)
    fragment = fragment_of(link, tail.path, len(data))
    works: dict[str, Callable[[], object]] = {
        "write": partial(encode_data, records, tail, writer="bench"),
        "setsum": partial(setsum_of_slot_records, records),
        "columns": partial(column_sum, records),
        "checked": lambda: checked_data(path.read_bytes(), fragment),
        "plain": partial(pq.read_table, path, use_threads=False),
    }
    return works, len(data)


def objects(rounds: int, folder: Path) -> None:
    """Print the cost of writing and reading objects, by the size of their records."""
    written, read = [], []
    for size in SIZES:
        count = max(1, OBJECT_BYTES // size)
        times = np.full(count, 1_700_000_000_000_000)
        records = place_slot_records(noise(count, size), start=1, times=times)
        works, stored = works_of(records, folder)
        found = side_by_side({name: partial(cpu_of, work) for name, work in works.items()}, rounds)
        took = {name: statistics.median(values) for name, values in found.items()}
        rate = {name: f"{count * size / value / 1e6:,.0f}" for name, value in took.items()}
        each = {name: f"{value / count * 1e6:.2f}" for name, value in took.items()}
        seconds = f"{took['write'] / count * 1e5:.3f}"
        kept = f"{stored / count / size:.3f}"
        parts = [each[name] for name in ("write", "setsum", "columns")]
        written.append([f"{size:,}", seconds, *parts, rate["write"], kept])
        beside = f"{ratio(found['checked'], found['plain']):.2f}"
        read.append([f"{size:,}", rate["checked"], rate["plain"], beside])
    print("## Writing objects of 1 MB: CPU time\n")
    head = ["bytes", "s for 100,000", "us a record", "its setsum", "its columns", "MB/s", "stored"]
    print_table(head, written)
    print("## Reading them, decoded and checked, beside `pyarrow.parquet.read_table`: CPU time\n")
    print_table(["bytes", "checked MB/s", "plain MB/s", "ratio"], read)


async def _append(total: int, size: int) -> float:
    """Append 100 records per call to a store in memory; return CPU seconds for 100,000."""
    pool = [noise(A_CALL, size) for _ in range(8)]
    log = await create_log(
        MemoryStore(),
        name="bench",
        clock=SystemClock(),
        writer="bench",
        batching=Batching(interval_us=0),
    )
    await log.append([b"open"])
    left = total

    async def call(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= A_CALL
            await log.append_arrow(pool[number % len(pool)])

    begun = time.process_time()
    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    took = time.process_time() - begun
    await log.close()
    return took / total * 1e5


def appends(rounds: int) -> None:
    """Print the cost of appends, from the call to the stored bytes."""
    rows = []
    for size, total in ((100, 200_000), (1_024, 50_000)):
        took = [asyncio.run(_append(total, size)) for _ in range(rounds)]
        rows.append([f"{size:,}", f"{statistics.median(took):.3f}", f"{min(took):.3f}"])
    print(f"## Appending {A_CALL} records a call, {CALLERS} callers, in memory: CPU time\n")
    print_table(["bytes", "s for 100,000", "least"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    rounds: int = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        objects(rounds, Path(folder))
    appends(max(3, rounds // 5))


if __name__ == "__main__":
    main()
