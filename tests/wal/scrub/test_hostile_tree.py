"""Hostile trees: a scrub visits each object once, and every other operation refuses the tree.

An attacker with access to the store can build forty small snapshots that each name the next one
twice. Such a tree has 2^40 paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pyarrow as pa
import pytest

from kit.clocks import OneThread
from kit.stores import InterposedStore
from tidelog.errors import CorruptionError
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.format.manifest import MANIFEST, Manifest, encode_manifest
from tidelog.wal.format.manifest_update import pointer_to, snapshot_over
from tidelog.wal.format.snapshot import DEPTH_MAX, Pointer, Snapshot, encode_snapshot
from tidelog.wal.format.wal3_records import encode_fragment, place_records, setsum_of_records
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log
from tidelog.wal.opening import open_log

ENOUGH = 1_000  # Requests. The trees here have fewer than forty objects, or slightly more than 500.


class TooMany(Exception):
    """The log made more requests than its objects can explain."""


async def opened(store: MemoryStore) -> Log:
    """Open a log on a store that raises after ``ENOUGH`` requests."""
    asked = 0

    async def before(_op: str, _key: str) -> None:
        nonlocal asked
        asked += 1
        if asked > ENOUGH:
            raise TooMany

    bounded = InterposedStore(store, before=before)
    return await open_log(bounded, name="log", clock=OneThread(), writer="looker")


async def read_all(log: Log) -> int:
    return sum([records.num_rows async for records in log.scan()])


async def put_snapshot(store: MemoryStore, snapshot: Snapshot) -> Pointer:
    await store.put(snapshot.path, encode_snapshot(snapshot))
    return pointer_to(snapshot)


async def put_fragment(store: MemoryStore, number: int) -> Fragment:
    """Store a fragment of one record, whose position is the number of the fragment."""
    bodies: pa.BinaryArray = pa.array([b"body"], pa.binary())
    records = place_records(bodies, start=number, timestamp_us=1)
    data = encode_fragment(records, write_id="test")
    path = fragment_path(number)
    await store.put(path, data)
    return Fragment(
        path=path,
        seq_no=number,
        start=number,
        limit=number + 1,
        num_bytes=len(data),
        setsum=setsum_of_records(records),
    )


async def put_manifest(store: MemoryStore, root: Pointer, last: Fragment) -> None:
    manifest = Manifest(
        writer="test",
        setsum=root.setsum + last.setsum,
        acc_bytes=root.num_bytes + last.num_bytes,
        snapshots=(root,),
        fragments=(last,),
    )
    await store.put(MANIFEST, encode_manifest(manifest))


async def doubled(levels: int) -> MemoryStore:
    """Return a log in which each snapshot names the one below it twice."""
    store = MemoryStore()
    leaf = snapshot_over([await put_fragment(store, 1)], writer="test")
    below = await put_snapshot(store, leaf)
    for _ in range(levels):
        below = await put_snapshot(store, snapshot_over([below, below], writer="test"))
    await put_manifest(store, below, await put_fragment(store, 2))
    return store


async def deep(levels: int) -> MemoryStore:
    """Return a valid log whose tree has this depth."""
    store = MemoryStore()
    leaf = snapshot_over([await put_fragment(store, 1)], writer="test")
    below = await put_snapshot(store, leaf)
    for number in range(2, levels + 1):
        leaf = snapshot_over([await put_fragment(store, number)], writer="test")
        children = [below, await put_snapshot(store, leaf)]
        below = await put_snapshot(store, snapshot_over(children, writer="test"))
    await put_manifest(store, below, await put_fragment(store, levels + 1))
    return store


async def test_a_scrub_visits_what_is_named_twice_once() -> None:
    """A scrub requests each object once, although the tree has 2^40 paths."""
    log = await opened(await doubled(40))

    found = await log.scrub()

    assert any("twice" in problem.why for problem in found.problems)
    assert found.snapshots == 41
    assert found.fragments == 2


ASKS: dict[str, Callable[[Log], Awaitable[object]]] = {
    "scan": read_all,
    "collect": lambda log: log.collect(keep=Keep(share_max=1), grace_us=0),
    "sweep": lambda log: log.sweep(grace_us=0),
    "position_at": lambda log: log.position_at(5),
}


@pytest.mark.parametrize("ask", ASKS)
async def test_who_relies_on_the_tree_refuses_it(ask: str) -> None:
    """Scans, collections, sweeps and searches by time refuse a tree that names a snapshot twice."""
    log = await opened(await doubled(40))
    cursor = await log.create_cursor("all", 2)
    assert cursor is not None

    with pytest.raises(CorruptionError, match="twice"):
        await ASKS[ask](log)


@pytest.mark.parametrize("ask", ["scan", "scrub", "sweep"])
async def test_a_tree_as_deep_as_can_be_is_walked(ask: str) -> None:
    """A valid tree of the maximal depth, 255 levels, causes no recursion error."""
    log = await opened(await deep(DEPTH_MAX))

    if ask == "scan":
        assert await read_all(log) == DEPTH_MAX + 1
    elif ask == "scrub":
        assert (await log.scrub()).is_clean
    else:
        assert not (await log.sweep(grace_us=0)).deleted
