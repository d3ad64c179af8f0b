"""Sweeps: they find remains by listing, and delete only objects that the manifest proves dead."""

from __future__ import annotations

import pytest

from kit.goldens import golden
from kit.protocols import CLOCK, WAL3, collector_on, contents, cursors_on
from kit.stores import keys_in
from kit.wal3_logs import append, log_of
from tidelog.errors import CorruptionError, NoSuchLog
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.gc_plan import GARBAGE, Garbage, encode_garbage
from tidelog.wal.format.manifest import MANIFEST, decode_manifest
from tidelog.wal.gc.orphans import sweep


async def test_what_chromas_collector_leaks_is_found() -> None:
    """A sweep finds the objects of a Chroma collector that died after the manifest."""
    store = await golden("c2_gc_phase2")
    await store.put(GARBAGE, encode_garbage(Garbage()))
    before = await contents(WAL3, store)
    slept = CLOCK.slept_us
    swept = await sweep(store, clock=CLOCK, grace_us=5_000_000)
    assert CLOCK.slept_us - slept == 5_000_000
    assert await contents(WAL3, store) == before
    assert (swept.unproven, swept.foreign) == ([], [])
    assert set(await keys_in(store)) == set(await keys_in(await golden("c_gc")))
    assert (await sweep(store, clock=CLOCK)).deleted == []


async def test_what_may_still_become_part_of_the_log_stays() -> None:
    """A sweep keeps foreign objects and those of a running append or rollover."""
    store = await log_of([2] * 14)
    await cursors_on(store).create("x", 9)
    ahead = MemoryStore(objects=dict(store.objects))
    await append(ahead, [2] * 12)
    await collector_on(store).collect()
    coming = {key: found.data for key, found in ahead.objects.items() if "SNAPSHOT" in key}
    for key, data in coming.items():
        await store.put(key, data)
    orphan = "log/Bucket=0000000000000000/FragmentSeqNo=000000000000000f.parquet"
    strange = [
        "log/Bucket=0000000000001000/FragmentSeqNo=0000000000000001.parquet",
        "log/notes.txt",
        "snapshot/SNAPSHOT." + "0" * 64,
        "snapshot/x",
    ]
    for key in (orphan, *strange):
        await store.put(key, b"?")
    before = await contents(WAL3, store)
    swept = await sweep(store, clock=CLOCK)
    assert swept.foreign == strange
    assert orphan in swept.unproven
    assert len(swept.unproven) > 1, "a snapshot of a rollover is among them"
    assert swept.deleted, "and old ones are there again"
    assert {key for key in swept.deleted if key not in coming} == set()
    assert set(swept.foreign + swept.unproven) <= set(await keys_in(store))
    await store.delete([orphan])
    assert await contents(WAL3, store) == before


async def test_a_log_that_was_never_collected_loses_nothing() -> None:
    """A sweep of a log that was never collected deletes nothing, because nothing is proven."""
    store = await log_of([2] * 14)
    before = await keys_in(store)
    assert (await sweep(store, clock=CLOCK)).deleted == []
    assert await keys_in(store) == before
    manifest = decode_manifest((await store.get(MANIFEST)).data)
    await store.delete([manifest.snapshots[0].path])
    with pytest.raises(CorruptionError, match="missing"):
        await sweep(store, clock=CLOCK)
    with pytest.raises(NoSuchLog):
        await sweep(MemoryStore(), clock=CLOCK)
