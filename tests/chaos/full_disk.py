"""A writer of a shard on a disk that becomes full, as a separate process.

Its arguments are the addresses and a method. ``fill FOLDER`` fills the disk of a folder with a
file. ``limit`` stops the growth of files past some bytes, like a quota. It prints the result of
each write.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from pathlib import Path

import pyarrow as pa

from tidelog.consensus.kinds import open_consensus, parse_consensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import ShardId
from tidelog.errors import LocationError, Outcome
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.store.urls import open_store

COLUMNS: list[tuple[str, pa.DataType]] = [("c0", pa.string()), ("c1", pa.int64())]
SCHEMA = shard_schema(pa.schema(COLUMNS), key=["c0"])
BLOCK = 4096


def fill(folder: Path) -> None:
    """Fill the disk to the last byte."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, BLOCK, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


def limit(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def main(store_url: str, consensus_url: str, location: str, how: str) -> None:
    clock = SystemClock()
    store = open_store(store_url, clock=clock, create=True)
    place = parse_consensus(consensus_url)
    consensus = open_consensus(place, location=location, store=store, clock=clock)
    shard = Shard(id=ShardId("s"), store=store, consensus=consensus, clock=clock, schema=SCHEMA)
    folder = Path(store_url.removeprefix("file://")).parent
    await shard.hold("history", 0)
    for time in range(9):
        if time % 3 == 1:
            fill(folder) if how == "fill" else limit(16)
        if time % 3 == 2:
            (folder / "filler").unlink(missing_ok=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        row = {"c0": f"{time}" + "x" * (100_000 if time % 2 else 10), "c1": time}
        table = pa.Table.from_pylist([{**row, "_time": time, "_diff": 1}], schema=SCHEMA.updates)
        for attempt in range(2):
            try:
                token = ("w", time)
                done = await shard.compare_and_append(table, time, time + 1, token=token)
                print(time, done.verdict.value, flush=True)
                break
            except LocationError as error:
                told = "never" if error.outcome is Outcome.NOT_APPLIED else "unsure"
                print(time, told, flush=True)
                if attempt == 0:
                    (folder / "filler").unlink(missing_ok=True)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
