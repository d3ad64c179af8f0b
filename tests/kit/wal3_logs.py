"""Small logs in wal3's form, written by the writer itself."""

from __future__ import annotations

from collections.abc import Sequence

from kit.protocols import CLOCK
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.manifest_protocol.writer import Wal3Writer


async def append(
    store: Store, sizes: Sequence[int], *, fragments: int = 3, snapshots: int = 2
) -> None:
    """Append a batch for each size as one fragment, with distinct bodies; make a missing log."""
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
