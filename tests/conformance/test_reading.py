"""Reads and scrubs of logs.

| scenario of wal3's | shown by |
| --- | --- |
| the range overlap table | test_ranges_at_the_edges_of_fragments |
| cases of record limits: fragments of 50, of 100 | test_ranges_at_the_edges_of_fragments |
| gaps are rejected | test_a_gap_in_the_manifest_is_an_error |
| overlaps are accepted | not ours: no writer makes an overlap, and scrub reports it |
| answers from a manifest that may be stale | not ours: each read begins with the manifest |
| 273 fragments in production, 142 records from 20776 | not yet: the golden logs lack that file |
| a manifest is verified | contract/test_store.py: test_refresh_gives_only_what_changed |
| no manifest | conformance/test_init_open.py: test_what_is_not_there_is_not_opened |
| 100 x 10 records with thresholds 2/2, then scrub | test_many_small_batches_are_found_whole |
| (not there) a reader races the deletion | test_a_scan_during_a_collection_has_no_gap |
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from kit.protocols import CLOCK, WAL3, Kind, Reader, collect_to
from tidelog.errors import CorruptionError, PositionCollected, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest import MANIFEST, decode_manifest, encode_manifest
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.log import Log
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.opening import open_log
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.shape import Shape


async def log_of(store: Store, *, fragments: int = 3) -> Log:
    shape = Shape(alpha=4, rollup_slots=4, rollover=Rollover(fragments=fragments, snapshots=2))
    return await open_log(
        store, name="x", clock=CLOCK, writer="w", shape=shape, batching=Batching(interval_us=0)
    )


async def positions(log: Log, start: int, limit: int | None) -> list[int]:
    return [
        row["position"] async for table in log.scan(start, limit=limit) for row in table.to_pylist()
    ]


@pytest.mark.parametrize(("size", "count"), [(100, 2), (50, 5)])
async def test_ranges_at_the_edges_of_fragments(
    kind: Kind, store: Store, size: int, count: int
) -> None:
    """A scan returns exactly the records of its range; one from beyond the end raises."""
    await kind.make(store)
    log = await log_of(store, fragments=2)
    for _ in range(count):
        await log.append([b"x"] * size)
    next_ = 1 + size * count
    edges = {1, 2, size, size + 1, 2 * size, 2 * size + 1, next_ - 1, next_}
    for start in sorted(edges):
        for length in (1, size - 1, size, size + 1, 10**9):
            wanted = list(range(start, min(start + length, next_)))
            assert await positions(log, start, start + length) == wanted
    assert await positions(log, 0, None) == list(range(1, next_))
    for beyond in (next_ + 1, next_ + 7, 2**63):
        with pytest.raises(UsageError, match="has not reached"):
            await positions(log, beyond, None)
    await log.close()


async def test_a_gap_in_the_manifest_is_an_error(kind: Kind, store: Store) -> None:
    """A manifest with a gap raises CorruptionError for each range, and a scrub reports it."""
    await kind.make(store)
    log = await log_of(store)
    for number in range(3):
        await log.append([b"%d" % number, b"x"])
    await log.close()
    manifest = decode_manifest((await store.get(MANIFEST)).data)
    one, _, three = manifest.fragments
    gap = replace(manifest, fragments=(one, three))
    await store.put(MANIFEST, encode_manifest(gap))
    log = await log_of(store)
    for start, limit in ((0, None), (1, None), (3, None), (1, 3), (5, None)):
        with pytest.raises(CorruptionError, match="are missing or occur twice"):
            await positions(log, start, limit)
    assert (await log.scrub()).problems


async def test_many_small_batches_are_found_whole(kind: Kind, store: Store) -> None:
    """A scrub finds all records of many small batches through all levels of snapshots."""
    batches = 100 if isinstance(store, MemoryStore) else 25
    await kind.make(store)
    log = await log_of(store, fragments=2)
    for number in range(batches):
        await log.append([b"%d-%d" % (number, n) for n in range(10)])
    await log.close()
    found = await (await log_of(store)).scrub()
    assert found.problems == []
    assert (found.records, found.fragments) == (10 * batches, batches)
    assert found.snapshots > batches / 3


async def rest_of(scan: AsyncIterator[pa.Table]) -> list[int]:
    """Read on until PositionCollected; return the positions read."""
    seen: list[Any] = []
    try:
        async for table in scan:
            seen += table.column("position").to_pylist()
    except PositionCollected:
        return seen
    raise AssertionError("the scan raised no PositionCollected")


async def test_a_scan_during_a_collection_has_no_gap(kind: Kind, store: Store) -> None:
    """A scan during a collection raises PositionCollected, or returns all its records; no gap."""
    await kind.make(store)
    async with kind.writer(store, batch_bytes=1) as writer:
        for number in range(24):
            await writer.append([b"%d" % number])
    reader = reader_of(kind, store)
    scan = reader.scan()
    seen = [row["position"] for row in (await anext(scan)).to_pylist()]
    await collect_to(store, 20)
    seen += await rest_of(scan)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) < 19
    found = [row async for table in reader.scan() for row in table.to_pylist()]
    assert [row["position"] for row in found] == list(range(20, 25))
    late = reader.scan(20)
    seen = [row["position"] for row in (await anext(late)).to_pylist()]
    await collect_to(store, 21)
    seen += [row["position"] async for table in late for row in table.to_pylist()]
    assert seen == list(range(20, 25))


def reader_of(kind: Kind, store: Store) -> Reader:
    """Return a reader that reads two objects ahead."""
    make = Wal3Reader if kind is WAL3 else SlotReader
    return make(store=store, clock=CLOCK, reads=2)
