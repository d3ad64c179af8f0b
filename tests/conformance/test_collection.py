"""Collections of logs.

| scenario of wal3's | shown by |
| --- | --- |
| no cursor; one at half; one near the end | test_cursors_say_what_goes |
| the intrinsic cursor suffices; the lowest counts | test_the_lowest_cursor_counts |
| the intrinsic cursor: forward, no rollback, forced | conformance/test_cursors.py: test_back_only_by_force |
| writer and collector take 20 turns, scrub after each | test_writer_and_collector_take_turns |
| full collection; bounds and numbers go on | test_a_log_that_is_collected_whole_goes_on |
| (not there) a stale writer continues after a collection | test_a_writer_that_slept_through_a_collection |
| (not there) a crash between any two steps | wal/test_collector.py: test_a_collector_may_die_at_any_request |
| (not there) void slots and fences | test_what_is_void_goes_and_fences_stay |
| numbers that are contiguous, with gaps, out of order | wal/test_collection.py: test_a_log_that_does_not_add_up_is_not_collected |
| snapshots split at one to three levels; names collide | wal/test_collection.py: test_any_tree_is_cut_at_any_place, wal/test_collection.py: test_a_pointer_may_say_more_depth_than_its_snapshot_has |
| drop nested, flat, children before the cutoff, keep the right-most | wal/test_collection.py: test_any_tree_is_cut_at_any_place |
| apply: already applied, start at or past limit | wal/test_collection.py: test_a_plan_of_another_manifest_is_not_applied |
| every cutoff of a random manifest balances and scrubs | wal/test_collection.py: test_any_tree_is_cut_at_any_place |
| a snapshot covered in part: exact GARBAGE and manifest | wal/test_collection.py: test_a_collection_is_chromas_to_the_byte |
| two files from production, and their table of passes | not yet: the golden logs lack them |
| GARBAGE is read from the preferred replica | not ours: replication |
| ranges of UUIDs, and their grace period | not ours: fragments of the replicated kind |
"""  # noqa: E501

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.protocols import ALL, CLOCK, SLOTS, WAL3, Kind, Writer, contents, cursors_on
from tidelog.errors import Fenced, OutcomeUnknown
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.format.cursor import INTRINSIC
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.manifest import MANIFEST, decode_manifest
from tidelog.wal.gc.collector import CollectReport
from tidelog.wal.gc.cursors import Cursors
from tidelog.wal.gc.orphans import sweep
from tidelog.wal.opening import open_log
from tidelog.wal.read.head import load_head


async def written(kind: Kind, store: Store, count: int) -> Cursors:
    """Write fragments of one record each; return the log's cursors."""
    await kind.make(store)
    async with kind.writer(store) as writer:
        for number in range(count):
            await writer.append([b"%d" % number])
    return cursors_on(store)


async def collect(store: Store) -> CollectReport:
    log = await open_log(store, name="x", clock=CLOCK, writer="gc")
    return await log.collect(keep=ALL, grace_us=1)


async def data_of(store: Store) -> list[str]:
    """Return the keys of all objects with records, also those that no manifest names."""
    found = []
    for prefix in ("log/", "epoch/"):
        for key in [entry.key async for entry in store.list(prefix)]:
            rows = pq.read_metadata(pa.BufferReader((await store.get(key)).data)).num_rows
            found += [key] if rows else []
    return found


@pytest.mark.parametrize("back", [None, 24, 12, 2, 1, 0])
async def test_cursors_say_what_goes(kind: Kind, store: Store, back: int | None) -> None:
    """A collection deletes exactly the records before the cursor; without a cursor, none."""
    count = 24 if isinstance(store, MemoryStore) else 7
    cursors = await written(kind, store, count)
    position = 1 if back is None else max(1, count + 1 - back)
    if back is not None:
        await cursors.create("reader", position)
    report = await collect(store)
    # The newest object of a slot log stays, so that its link can rebuild the manifest.
    oldest = min(position, count + (kind is WAL3))
    found = await contents(kind, store)
    assert found == {n: b"%d" % (n - 1) for n in range(oldest, count + 1)}
    assert report.fragments == oldest - 1
    assert len(await data_of(store)) == len(found)
    assert (await kind.scrub(store)).unnamed == []
    assert (await collect(store)).fragments == 0


async def test_the_lowest_cursor_counts(kind: Kind, store: Store) -> None:
    """The lowest cursor limits a collection, whether or not it is Chroma's intrinsic cursor."""
    cursors = await written(kind, store, 12)
    intrinsic = await cursors.create(INTRINSIC, 4)
    assert (await collect(store)).oldest == 4
    reader = await cursors.create("reader", 6)
    intrinsic = await cursors.save(intrinsic, 9)
    report = await collect(store)
    assert (report.oldest, report.held_by) == (6, "reader")
    await cursors.save(reader, 11)
    report = await collect(store)
    assert (report.oldest, report.held_by) == (9, INTRINSIC)
    assert list(await contents(kind, store)) == [9, 10, 11, 12]


async def test_writer_and_collector_take_turns(kind: Kind, store: Store) -> None:
    """After each turn the log is complete from the cursor on, and positions only rise."""
    cursors = await written(kind, store, 1)
    witness = await cursors.create("reader", 1)
    next_ = 2
    for _ in range(20 if isinstance(store, MemoryStore) else 6):
        async with kind.writer(store) as writer:
            for _ in range(4):
                assert await writer.append([b"x", b"y"]) == next_
                next_ += 2
        witness = await cursors.save(witness, next_ - 3)
        report = await collect(store)
        assert report.oldest == next_ - 4
        assert list(await contents(kind, store)) == list(range(next_ - 4, next_))
        assert len(await data_of(store)) == 2, "no objects pile up"


async def test_a_log_that_is_collected_whole_goes_on(kind: Kind, store: Store) -> None:
    """A log without records continues at its next position and its next number."""
    cursors = await written(kind, store, 7)
    await cursors.create("reader", 8)
    oldest, left = (8, {}) if kind is WAL3 else (7, {7: b"6"})
    assert (await collect(store)).oldest == oldest
    manifest = decode_manifest((await store.get(MANIFEST)).data)
    assert (len(manifest.fragments), manifest.snapshots) == (len(left), ())
    assert (manifest.oldest, manifest.next, manifest.next_seq_no) == (oldest, 8, 8)
    assert await contents(kind, store) == left
    async with kind.writer(store) as writer:
        assert await writer.append([b"new"]) == 8
    assert await contents(kind, store) == {**left, 8: b"new"}


async def test_a_writer_that_slept_through_a_collection(kind: Kind, store: Store) -> None:
    """A suspended writer whose next number was collected must not get a position (as in wal3).

    In wal3's form its append raises OutcomeUnknown, and later appends find the log's end. In a slot
    log another writer has ended its epoch, so the append raises Fenced, and it opens the log again.
    """
    cursors = await written(kind, store, 2)
    slept: Writer = kind.writer(store, name="slept")
    assert await slept.append([b"before"]) == 3
    async with kind.writer(store, name="other") as other:
        for number in range(9):
            await other.append([b"%d" % number])
    await cursors.create("reader", 13)
    oldest, left = (13, {}) if kind is WAL3 else (12, {12: b"8"})
    assert (await collect(store)).oldest == oldest
    if kind is WAL3:
        with pytest.raises(OutcomeUnknown, match="a collector deleted that part"):
            await slept.append([b"in doubt"])
    else:
        with pytest.raises(Fenced):
            await slept.append([b"refused"])
        await slept.close()
        slept = kind.writer(store, name="slept")
    said = {await slept.append([body]): body for body in (b"one", b"two", b"three")}
    await slept.close()
    assert list(said) == [13, 14, 15]
    assert await contents(kind, store) == {**left, **said}
    if kind is WAL3:
        # No manifest names the fragment that it stored first, and a scrub reports it.
        assert fragment_path(4) in (await kind.scrub(store)).unnamed
    await sweep(store, clock=CLOCK, grace_us=1)
    assert (await kind.scrub(store)).unnamed == []
    assert await contents(kind, store) == {**left, **said}


@pytest.mark.parametrize("kind", [SLOTS], ids=str)
async def test_what_is_void_goes_and_fences_stay(kind: Kind, store: Store) -> None:
    """After the epochs of several writers, a collection deletes void slots and keeps fences."""
    await kind.make(store)
    for number in range(4):
        async with kind.writer(store, name=f"w{number}") as writer:
            for _ in range(3):
                await writer.append([b"%d" % number])
    await cursors_on(store).create("reader", 11)
    before = await data_of(store)
    assert (await collect(store)).fragments == 10
    chain = (await load_head(store)).manifest.chain
    assert chain is not None
    fences = [epoch.path(slot) for epoch, slot in chain.ends()]
    left = [entry.key async for entry in store.list("epoch/")]
    assert sorted([*fences, *before[-2:]]) == sorted(left)
    assert list(await contents(kind, store)) == [11, 12]
