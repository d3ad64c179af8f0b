"""The throughput of appends, next to plain puts of the same number of bytes in the same run.

    PYTHONPATH=tests:. python bench/log_throughput.py [--seconds N] [--rounds N] [--local]

64 callers append records that cannot be compressed, in batches of 100 (of 4 for 64 KiB). The store
is a SeaweedFS that this program starts, with its data in memory (``--local``: a directory). Then
obstore puts the same number of bytes in objects of 4 MiB, eight at once, without encoding, sums,
order or protection against a second writer. Both sides take turns; the ratio is the median of the
rounds. Each line is measured in a process bound to its cores; the server may use all cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import obstore
from obstore.store import LocalStore, ObjectStore, S3Store

from figures import percentile, print_table
from made_logs import noise
from tidelog.core.clock import SystemClock
from tidelog.store.urls import open_store
from tidelog.wal.append.batching import Batching
from tidelog.wal.opening import create_log
from tidelog.wal.slot_protocol.shape import Shape

CLOCK: Final = SystemClock()
CALLERS: Final = 64
PLAIN_BYTES: Final = 4 * 2**20
AT_ONCE: Final = 8
SIZES: Final = ((100, 100), (1_024, 100), (65_536, 4))
AIMS: Final = {100: 0.25, 1_024: 0.7, 65_536: 0.85}


def plain_store(url: str) -> ObjectStore:
    """Return obstore's own store for one of tidelog's URLs."""
    path, _, query = url.partition("?")
    if path.startswith("file://"):
        return LocalStore(path.removeprefix("file://"), mkdir=True)
    bucket, _, prefix = path.removeprefix("s3://").partition("/")
    config: Any = {name: values[0] for name, values in parse_qs(query).items()}
    return S3Store(bucket, prefix=prefix, config=config, client_options={"allow_http": True})


def within(url: str, name: str) -> str:
    """Return the URL of a place below another."""
    path, mark, query = url.partition("?")
    return f"{path}/{name}{mark}{query}"


async def appended(url: str, protocol: str, size: int, seconds: float) -> tuple[int, float, float]:
    """Append for ``seconds``; return records, seconds and seconds of CPU."""
    count_in_batch = dict(SIZES)[size]
    bodies = [noise(count_in_batch, size) for _ in range(8)]
    log = await create_log(
        open_store(url, clock=CLOCK),
        name="bench",
        clock=CLOCK,
        writer="bench",
        protocol=protocol,
        batching=Batching(interval_us=0),
        shape=Shape(alpha=AT_ONCE) if protocol == "slot" else None,
    )
    await log.append([b"open"])
    count, begun, cpu = 0, time.perf_counter(), time.process_time()

    async def call(number: int) -> None:
        nonlocal count
        while time.perf_counter() - begun < seconds:
            await log.append_arrow(bodies[number % len(bodies)])
            count += count_in_batch

    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    took, used = time.perf_counter() - begun, time.process_time() - cpu
    await log.close()
    return count, took, used


async def put(url: str, size: int) -> float:
    """Put ``size`` bytes; return seconds."""
    store, blocks = plain_store(url), [os.urandom(PLAIN_BYTES) for _ in range(AT_ONCE)]
    left = iter(range(0, size, PLAIN_BYTES))

    async def go(block: bytes) -> None:
        for at in left:
            data = block[: min(PLAIN_BYTES, size - at)]
            await obstore.put_async(store, str(at), data, use_multipart=False)

    begun = time.perf_counter()
    await asyncio.gather(*(go(block) for block in blocks))
    return time.perf_counter() - begun


async def measure(url: str, protocol: str, size: int, seconds: float, rounds: int) -> Any:
    """Return records a second, CPU seconds per 100,000, MB/s of plain puts, and the ratios."""
    rates, cpus, plains, ratios = [], [], [], []
    for number in range(rounds):
        place = within(url, str(number))
        count, took, used = await appended(within(place, "log"), protocol, size, seconds)
        plain_took = await put(within(place, "plain"), count * size)
        rates.append(count / took)
        cpus.append(used / count * 100_000)
        plains.append(count * size / plain_took / 1e6)
        ratios.append(plain_took / took)
    return [percentile(values, 0.5) for values in (rates, cpus, plains, ratios)]


def in_process(url: str, given: argparse.Namespace, what: list[str], cores: int) -> list[float]:
    """Measure in a process of its own, bound to ``cores`` cores."""
    own = sorted(os.sched_getaffinity(0))[:cores]
    options = ["--seconds", str(given.seconds), "--rounds", str(given.rounds)]
    found = subprocess.run(
        [sys.executable, __file__, "--child", url, *what, *options],
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, own),
    )
    told: list[float] = json.loads(found.stdout)
    return told


@contextmanager
def a_place(*, is_local: bool) -> Iterator[str]:
    """Yield the URL of an empty place, and delete its objects at the end, as they fill memory."""
    folder = Path(tempfile.mkdtemp(dir=None if is_local else "/dev/shm"))
    try:
        if is_local:
            yield folder.as_uri()
            return
        from kit.s3_servers import SeaweedServer

        with SeaweedServer(folder) as server:
            yield server.url("bench")
    finally:
        shutil.rmtree(folder)


def print_throughput(given: argparse.Namespace) -> None:
    """Print the throughput of appends to one kind of place."""
    rows = []
    for protocol in ("slot", "manifest"):
        for size, _ in SIZES:
            for cores in sorted({1, min(2, os.cpu_count() or 1)}):
                with a_place(is_local=given.local) as url:
                    rate, cpu, plain, share = in_process(url, given, [protocol, str(size)], cores)
                rows.append(
                    [protocol, f"{size:,}", str(cores), f"{rate:,.0f}", f"{rate * size / 1e6:,.0f}",
                     f"{plain:,.0f}", f"{share:.2f}", f"{AIMS[size]}", f"{cpu:.3f}"]
                )  # fmt: skip
    where = "a directory" if given.local else "SeaweedFS"
    print(f"## Appends to {where}, beside plain puts of as many bytes\n")
    head = ["protocol", "bytes", "cores", "records/s", "MB/s", "plain MB/s", "ratio", "aim"]
    print_table([*head, "CPU s / 100,000"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round of appends")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--local", action="store_true", help="to a directory")
    parser.add_argument("--child", nargs=3, help="where, protocol, bytes: for itself")
    given = parser.parse_args()
    if given.child:
        url, protocol, size = given.child
        found = measure(url, protocol, int(size), given.seconds, given.rounds)
        print(json.dumps(asyncio.run(found)))
        return
    print_throughput(given)


if __name__ == "__main__":
    main()
