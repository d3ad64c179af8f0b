"""Snapshot names in wal3's form: a writer meets its planned name on a tree of another depth."""

from __future__ import annotations

from kit.protocols import CLOCK, WAL3, contents, wal3_reader
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest_update import Rollover, pointer_to, snapshot_over
from tidelog.wal.format.snapshot import encode_snapshot
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.manifest_protocol.writer import Wal3Writer
from tidelog.wal.read.head import load_head
from tidelog.wal.scrub.tree_scrub import scrub


async def test_a_deeper_snapshot_of_a_lost_race_stops_no_writer() -> None:
    """A lost race's deeper snapshot has the same name, and stops no writer."""
    store = MemoryStore()
    await WAL3.make(store)
    committer = Committer(
        store=store, clock=CLOCK, writer="a", rollover=Rollover(fragments=4, snapshots=4)
    )
    async with Wal3Writer(committer=committer, batching=Batching(interval_us=0)) as writer:
        for number in range(4):
            await writer.append([b"%d" % number])
        # Another writer rolled the same four up in pairs, twice, and lost the race for the
        # manifest.
        fragments = (await load_head(store)).manifest.fragments
        assert len(fragments) == 4
        halves = [snapshot_over(part, writer="b") for part in (fragments[:2], fragments[2:])]
        deeper = snapshot_over([pointer_to(half) for half in halves], writer="b")
        for made in (*halves, deeper):
            await store.put(made.path, encode_snapshot(made))
        for number in range(4, 12):
            assert await writer.append([b"%d" % number]) == number + 1

    assert list(await contents(WAL3, store)) == list(range(1, 13))
    assert (await load_head(store)).manifest.snapshots
    assert (await scrub(wal3_reader(store))).is_clean
