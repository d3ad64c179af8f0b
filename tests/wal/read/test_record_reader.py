"""Scans load the tree as they need it, fetch some objects ahead, and check them in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from kit.protocols import CLOCK
from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.core.clock import SystemClock
from tidelog.core.setsum import Setsum
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import DelayedStore
from tidelog.testing.recorded import RecordedStore
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import Epoch, Tail, fragment_of
from tidelog.wal.format.manifest import MANIFEST, Manifest, encode_manifest, tail_of
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.slot_object import encode_data, place_slot_records
from tidelog.wal.format.snapshot import encode_snapshot
from tidelog.wal.read.head import TreeReader
from tidelog.wal.read.record_reader import RecordReader
from tidelog.wal.slot_protocol.checkpoint import roll_all
from tidelog.wal.slot_protocol.reader import SlotReader

GENESIS = Epoch(number=0, id="0" * 16, first_slot=1, opener="test")


async def log_of(
    count: int, *, objects: int, lanes: int = 1, rollover: Rollover | None = None
) -> MemoryStore:
    """Return a log of one-record fragments; only the first ``objects`` of them are stored."""
    store, epoch = MemoryStore(), replace(GENESIS, lanes=lanes)
    manifest = Manifest(writer="test", chain=Chain(epochs=(epoch,)))
    tail = tail_of(manifest)
    step = 128
    for first in range(1, count + 1, step):
        added = list[Fragment]()
        for slot in range(first, min(first + step, count + 1)):
            fragment, tail = await _next(store, tail, stored=slot <= objects)
            added.append(fragment)
        manifest = replace(
            manifest,
            setsum=tail.setsum,
            acc_bytes=tail.log_bytes,
            fragments=(*manifest.fragments, *added),
        )
        manifest, snapshots = roll_all(manifest, rollover or Rollover(), writer="test")
        for snapshot in snapshots:
            await store.put(snapshot.path, encode_snapshot(snapshot))
    await store.put(MANIFEST, encode_manifest(manifest))
    return store


async def _next(store: MemoryStore, tail: Tail, *, stored: bool) -> tuple[Fragment, Tail]:
    if stored:
        bodies: pa.BinaryArray = pa.array([b"body"], pa.binary())
        times = np.full(1, 1, dtype=np.int64)
        records = place_slot_records(bodies, start=tail.position, times=times)
        link, data = encode_data(records, tail, writer="test")
        await store.put(tail.path, data)
        fragment = fragment_of(link, tail.path, len(data))
    else:
        fragment = Fragment(
            path=tail.path,
            seq_no=tail.slot,
            start=tail.position,
            limit=tail.position + 1,
            num_bytes=1_000,
            setsum=Setsum.of(b"%d" % tail.slot),
            last_us=1,
            streams=(),
        )
    after = replace(
        tail,
        slot=tail.slot + 1,
        position=fragment.limit,
        setsum=tail.setsum + fragment.setsum,
        log_bytes=tail.log_bytes + fragment.num_bytes,
    )
    return fragment, after


async def test_the_first_record_of_a_deep_log_takes_four_requests() -> None:
    """The first record costs at most four gets: manifest, one snapshot per level, fragment."""
    store = RecordedStore(await log_of(128 * 128 + 300, objects=2))

    async for records in SlotReader(store=store, clock=CLOCK).scan():
        assert records.column("position").to_pylist() == [1]
        break

    assert len(store.records) <= 4
    assert [record.op for record in store.records] == ["get"] * len(store.records)


async def test_a_scan_does_not_run_ahead_of_its_reader() -> None:
    """A scan of a long log fetches at most eight objects, and one snapshot of each level, ahead."""
    store = RecordedStore(
        await log_of(200, objects=200, rollover=Rollover(fragments=4, snapshots=4))
    )
    read = 0

    async for records in SlotReader(store=store, clock=CLOCK).scan():
        read += records.num_rows
        for _ in range(20):
            await asyncio.sleep(0)
        paths = [record.key for record in store.records]
        assert sum(path.startswith("epoch/") for path in paths) <= read + 8 + 1
        assert sum(path.startswith("snapshot/") for path in paths) <= (read + 8) / 3 + 8
    assert read == 200


@pytest.mark.parametrize("lanes", [1, 16])
def test_objects_are_fetched_side_by_side(lanes: int) -> None:
    """Forty objects, from one lane or many, take the time of at most fifteen requests."""

    async def main() -> float:
        inner = await log_of(40, objects=40, lanes=lanes)
        clock = SimClock(1)
        store = DelayedStore(inner, clock=clock, delay_us=lambda *_: 100_000)
        begun = asyncio.get_running_loop().time()
        found = [t async for t in SlotReader(store=store, clock=clock).scan()]
        assert len(found) == 40
        return asyncio.get_running_loop().time() - begun

    assert run(main, 1) <= 1.5


async def test_objects_are_checked_side_by_side() -> None:
    """A scan decodes and hashes in several threads, because one core is not enough."""
    pair = threading.Barrier(2, timeout=120)

    def codec(_: bytes, fragment: Fragment) -> pa.Table:
        if fragment.seq_no in (2, 3):
            pair.wait()  # The wait fails unless two threads arrive.
        return place_slot_records(
            pa.array([b"x"], pa.binary()), start=fragment.start, times=np.zeros(1, dtype=np.int64)
        )

    store = await log_of(21, objects=21)
    tree = TreeReader(store=store, clock=SystemClock())
    reader = RecordReader(tree=tree, codec=codec)
    found = [reached async for reached, _ in reader.scan(await tree.manifest())]

    assert found == list(range(2, 23))


@pytest.mark.parametrize("read", [1, 5])
async def test_a_loop_that_ends_closes_a_scan_that_was_left(read: int) -> None:
    """A caller that leaves a scan unfinished and ends its loop sees no error of a generator."""
    told = list[str]()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: told.append(str(said)))
        store = await log_of(40, objects=40, rollover=Rollover(fragments=4, snapshots=4))
        left.append(SlotReader(store=store, clock=CLOCK).scan())
        for _ in range(read):
            await anext(left[0])

    left = list[AsyncGenerator[pa.Table, None]]()
    await main()

    assert told == []
