"""Small logs for tests: written in memory by the writer itself, or taken from Chroma's."""

from __future__ import annotations

import random
from collections.abc import Sequence

from clocks import SwiftClock
from goldens import objects
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.append.queue import Batching
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.manifest_protocol.writer import Wal3Writer
from tidelog.wal.read.tree_reader import Wal3Reader
from tidelog.wal.scrub.tree_scrub import scrub

CLOCK = SwiftClock()


async def append(
    store: Store, sizes: Sequence[int], *, fragments: int = 3, snapshots: int = 2
) -> None:
    """Append batches of so many records, each of which becomes a fragment; make the log if need be.

    The bodies differ in length, and from each other.
    """
    rollover = Rollover(fragments=fragments, snapshots=snapshots)
    committer = Committer(store=store, clock=CLOCK, writer="w", rollover=rollover)
    await committer.open(make=True)
    async with Wal3Writer(committer=committer, batching=Batching(interval_us=0)) as writer:
        for number, size in enumerate(sizes):
            await writer.append([b"%d-%d" % (number, n) * (n + 1) for n in range(size)])


async def log_of(sizes: Sequence[int], *, fragments: int = 3, snapshots: int = 2) -> MemoryStore:
    """Return a new log; see `append`."""
    store = MemoryStore()
    await append(store, sizes, fragments=fragments, snapshots=snapshots)
    return store


async def golden(name: str) -> MemoryStore:
    """Return a log that Chroma wrote."""
    store = MemoryStore()
    for key, data in objects(name).items():
        await store.put(key, data)
    return store


def reader_of(store: Store) -> Wal3Reader:
    return Wal3Reader(store=store, clock=CLOCK)


async def contents(store: Store) -> dict[int, bytes]:
    """Return all records by position; a log that scrub complains of has none."""
    reader = reader_of(store)
    assert (await scrub(reader)).problems == []
    return {
        row["position"]: row["body"] async for table in reader.scan() for row in table.to_pylist()
    }


async def keys(store: Store, prefix: str = "") -> list[str]:
    return [entry.key async for entry in store.list(prefix)]


def dice_of(seed: int) -> random.Random:
    return random.Random(f"tests {seed}")
