"""Collections on a store: crashes, concurrent writers, and no deletion of live objects."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.goldens import NAMES, golden, objects
from kit.protocols import CLOCK, WAL3, collector_on, contents, cursors_on, wal3_reader
from kit.stores import InterposedStore, Once, copy_of, deaths, keys_in
from kit.wal3_logs import append, log_of
from tidelog.core.setsum import Setsum
from tidelog.errors import (
    CorruptionError,
    LocationError,
    NoSuchLog,
    PositionCollected,
    VerificationError,
)
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore, RecordedStore
from tidelog.testing.faulty import Request
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.gc_plan import GARBAGE, Garbage, decode_garbage, encode_garbage
from tidelog.wal.format.manifest import MANIFEST, Manifest, decode_manifest, encode_manifest
from tidelog.wal.format.snapshot import Snapshot, encode_snapshot
from tidelog.wal.format.wal3_records import encode_fragment, place_records
from tidelog.wal.gc.plan import Keep, plan_collection
from tidelog.wal.read.tree_paths import paths_named
from tidelog.wal.scrub.tree_scrub import scrub

EMPTY = encode_garbage(Garbage())


async def manifest_of(store: Store) -> Manifest:
    return decode_manifest((await store.get(MANIFEST)).data)


async def plan_for(store: Store, cutoff: int) -> Garbage:
    """Return the plan that the collector would make."""
    reader, known = wal3_reader(store), dict[str, Snapshot]()
    manifest = await reader.manifest()
    level = list(manifest.snapshots)
    while level:
        for pointer in level:
            known[pointer.path] = await reader.tree.snapshot(pointer)
        level = [below for p in level for below in known[p.path].snapshots]
    return plan_collection(manifest, known, cutoff=cutoff)


def bytes_of(store: MemoryStore) -> dict[str, bytes]:
    return {key: found.data for key, found in store.objects.items()}


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=24),
    fragments=st.integers(2, 4),
    snapshots=st.integers(2, 3),
    position=st.integers(1, 97),
)
async def test_what_a_cursor_holds_is_read_as_before(
    sizes: list[int], fragments: int, snapshots: int, position: int
) -> None:
    """Records from the cursor on keep their bodies, older objects go, and appends continue."""
    store = await log_of(sizes, fragments=fragments, snapshots=snapshots)
    before = await contents(WAL3, store)
    held = min(position, 1 + sum(sizes))
    await cursors_on(store).create("x", held)
    report = await collector_on(store).collect()
    after = await contents(WAL3, store)
    assert after == {n: body for n, body in before.items() if n >= (report.oldest or 0)}
    assert report.oldest is not None
    assert report.oldest <= held
    assert held - report.oldest < 4, "less than a fragment that could have gone is left"
    manifest, named = await paths_named(wal3_reader(store).tree)
    assert set(await keys_in(store, "log/")) | set(await keys_in(store, "snapshot/")) == named
    assert report.fragments == len(sizes) - len(await keys_in(store, "log/"))
    await append(store, [2] * 7, fragments=fragments, snapshots=snapshots)
    again = await contents(WAL3, store)
    assert list(again) == list(range(report.oldest, manifest.next + 14))
    assert {n: again[n] for n in after} == after


@pytest.mark.parametrize("name", NAMES)
async def test_chromas_logs_are_collected_and_go_on(name: str) -> None:
    """Logs in any state that Chroma's collector leaves can be collected and appended to."""
    store = await golden(name)
    before = await contents(WAL3, store)
    middle = sorted(before)[len(before) // 2] if before else 1
    if before:
        await cursors_on(store).create("ours", middle)
    report = await collector_on(store).collect()
    after = await contents(WAL3, store)
    assert after == {n: body for n, body in before.items() if n in after}
    cursors = (await cursors_on(store).list()).cursors
    held = [cursor.position for cursor in cursors.values()]
    assert all(n in after for n in before if n >= min(held, default=1))
    if GARBAGE in objects(name) or report.fragments:
        assert (await store.get(GARBAGE)).data == EMPTY
    orphans = 3 if name == "g_orphan" else 0
    await append(store, [1] * 5)
    assert len(await contents(WAL3, store)) == len(after) + orphans + 5
    _, named = await paths_named(wal3_reader(store).tree)
    assert set(await keys_in(store, "log/")) == {path for path in named if path[:4] == "log/"}


async def test_what_a_collection_leaves_is_chromas_to_the_byte() -> None:
    """A collection to 40 leaves exactly the objects and bytes of Chroma's collector."""
    store = await golden("c0_before_gc")
    await collector_on(store, keep=Keep(start=40)).collect()
    assert bytes_of(store) == objects("c_gc")


@pytest.mark.parametrize("name", ["c1_gc_phase1", "c2_gc_phase2"])
async def test_what_chromas_collector_left_unfinished_is_finished(name: str) -> None:
    """A collection finishes a plan of Chroma's collector, with or without its manifest."""
    store = await golden(name)
    report = await collector_on(store, keep=Keep(start=40)).collect()
    assert (report.fragments, report.snapshots, report.discarded) == (9, 4, 0)
    assert bytes_of(store) == objects("c_gc")


async def test_the_order_of_requests() -> None:
    """A collection makes its requests in this order. Each of its three phases depends on it."""
    inner = await log_of([2] * 14)
    await cursors_on(inner).create("x", 12)
    store, before = RecordedStore(inner), CLOCK.slept_us
    report = await collector_on(store, grace_us=7_000_000).collect()
    changes = [
        (record.op, record.key.split("/")[0].split(" ")[0])
        for record in store.records
        if record.op in ("put", "delete", "list")
    ]
    assert changes == [
        ("list", "cursor"),
        ("put", "gc"),
        ("list", "cursor"),
        *[("put", "snapshot")] * report.made,
        ("put", "manifest"),
        ("delete", "snapshot"),
        ("put", "gc"),
    ]
    assert report.made > 0
    assert CLOCK.slept_us - before >= 7_000_000
    asked = [(record.op, record.key.split("/")[0]) for record in store.records]
    after = asked[asked.index(("put", "manifest")) :]
    assert after[1] == ("get", "manifest"), "it is read once more, after the grace"
    assert ("get", "snapshot") in after, "and so is all that it names"


async def test_without_a_cursor_nothing_is_collected() -> None:
    """A log without a cursor is not collected, because no reader has confirmed any record."""
    store = await log_of([2] * 14)
    before = bytes_of(store)
    report = await collector_on(store).collect()
    assert (report.held_by, report.fragments) == (None, 0)
    assert bytes_of(store) == before
    with pytest.raises(NoSuchLog):
        await collector_on(MemoryStore()).collect()


async def test_the_lowest_cursor_counts_and_is_named() -> None:
    """The lowest cursor decides, also one past the end; foreign objects are reported."""
    store = await log_of([2] * 14)
    cursors = cursors_on(store)
    await cursors.create("slow", 6)
    await cursors.create("fast", 29)
    await store.put("cursor/a-b.json", b"?")
    report = await collector_on(store).collect()
    assert (report.held_by, report.oldest) == ("slow", 5)
    assert report.foreign == ["cursor/a-b.json"]
    await cursors.delete("slow")
    await cursors.delete("fast")
    beyond = b'{"position":{"offset":500},"epoch_us":1,"writer":"theirs"}'
    await store.put("cursor/fast.json", beyond)
    assert (await collector_on(store).collect()).oldest == 29
    assert await contents(WAL3, store) == {}


async def test_the_share_is_kept_unless_forced() -> None:
    """A collection over the allowed share raises and changes nothing; force lifts the limit."""
    store = await log_of([2] * 14)
    await cursors_on(store).create("x", 29)
    before = bytes_of(store)
    with pytest.raises(VerificationError, match="force=True"):
        await collector_on(store, keep=Keep()).collect()
    assert bytes_of(store) == before
    report = await collector_on(store, keep=Keep()).collect(force=True)
    assert (report.fragments, report.oldest) == (14, 29)


async def test_a_cursor_that_comes_before_the_plan_is_written_stops_it() -> None:
    """The collector reads the cursors again after its plan, so a new cursor stops the plan."""
    store = await log_of([2] * 14)
    before = await contents(WAL3, store)
    await cursors_on(store).create("x", 21)

    late = Once("put", GARBAGE, lambda: cursors_on(store).create("late", 4))
    report = await collector_on(InterposedStore(store, before=late)).collect()
    assert (report.discarded, report.held_by, report.oldest) == (1, "late", 3)
    assert await contents(WAL3, store) == {n: body for n, body in before.items() if n >= 3}
    assert (await cursors_on(store).load("late")).position == 4


async def test_a_cursor_that_comes_after_the_plan_gives_up_or_stops_it() -> None:
    """A cursor created after the plan raises, and moves to the first kept record."""
    store = await log_of([2] * 14)
    await cursors_on(store).create("x", 21)

    async def create() -> None:
        with pytest.raises(PositionCollected):
            await cursors_on(store).create("late", 4)

    late = Once("put", GARBAGE, create)
    report = await collector_on(InterposedStore(store, after=late)).collect()
    assert late.met
    assert report.oldest == 21
    assert (await cursors_on(store).load("late")).position == 21


@pytest.mark.parametrize("count", [1, 9])
async def test_appends_in_between_do_not_hold_it_up(count: int) -> None:
    """The collector applies its plan to a newer manifest, or plans again after a rollover."""
    store = await log_of([2] * 14)
    before = await contents(WAL3, store)
    await cursors_on(store).create("x", 21)

    write = Once("put", MANIFEST, lambda: append(store, [2] * count))
    report = await collector_on(InterposedStore(store, before=write)).collect()
    assert report.oldest == 21
    after = await contents(WAL3, store)
    assert list(after) == list(range(21, 29 + 2 * count))
    assert all(before[n] == after[n] for n in range(21, 29))


async def test_two_collectors_do_not_hinder_each_other() -> None:
    """Three concurrent collections erase only records before the cursor and leave no plan."""
    store = await log_of([2] * 14)
    before = await contents(WAL3, store)
    await cursors_on(store).create("x", 21)
    await asyncio.gather(*(collector_on(store).collect() for _ in range(3)))
    assert await contents(WAL3, store) == {n: body for n, body in before.items() if n >= 21}
    assert decode_garbage((await store.get(GARBAGE)).data).is_empty


@pytest.mark.parametrize("happened", [True, False])
async def test_a_collector_may_die_at_any_request(happened: bool) -> None:
    """After a collector dies at any request, the next leaves the bytes of an undisturbed one."""
    start = await log_of([2] * 17)
    await cursors_on(start).create("x", 16)
    smooth = copy_of(start)
    await collector_on(smooth).collect()
    visited = 0

    async for store in deaths(start, lambda s: collector_on(s).collect(), happened=happened):
        await collector_on(store).collect()
        assert bytes_of(store) == bytes_of(smooth)
        visited += 1
    assert visited > 15


async def test_a_plan_that_must_not_be_carried_out_is_fenced_off() -> None:
    """A discarded plan also replaces the manifest, so that its slow owner's put fails."""
    store = await log_of([2] * 14)
    before = await contents(WAL3, store)
    plan = await plan_for(store, 21)
    await cursors_on(store).create("x", 4)
    await store.put(GARBAGE, encode_garbage(plan, write_id="sleeper"))
    sleepers = await store.get(MANIFEST)
    report = await collector_on(store).collect()
    now = await store.get(MANIFEST)
    assert report.discarded == 1
    assert now.e_tag != sleepers.e_tag
    assert now.data != sleepers.data, "an e-tag may be a hash of the bytes"
    assert await contents(WAL3, store) == {n: body for n, body in before.items() if n >= 3}


async def test_a_plan_that_is_taken_over_or_away_is_other_bytes() -> None:
    """Each owner of a plan stores other bytes, so that it recognises another owner's."""
    store = await log_of([2] * 14)
    await cursors_on(store).create("x", 21)
    seen = set[bytes]()
    for _ in range(5):
        count = len(seen)

        def toss(request: Request) -> Fault:
            dies = request.op == "put" and request.key != GARBAGE
            return Fault(happened=not dies, told=not dies)

        with pytest.raises(LocationError):
            await collector_on(FaultyStore(store, toss=toss)).collect()
        seen.add((await store.get(GARBAGE)).data)
        assert len(seen) == count + 1
    assert len({decode_garbage(data).discarded for data in seen}) == 1
    await collector_on(store).collect()
    assert (await store.get(GARBAGE)).data == EMPTY


async def test_a_plan_that_does_not_fit_is_taken_away() -> None:
    """A plan that does not match the manifest, old or wrong, is discarded."""
    store = await log_of([2] * 14)
    await cursors_on(store).create("x", 9)
    wrong = Garbage(
        fragments_start=1, fragments_limit=3, first_to_keep=5, discarded=Setsum.of(b"x")
    )
    await store.put(GARBAGE, encode_garbage(wrong))
    report = await collector_on(store).collect()
    assert (report.discarded, report.oldest) == (1, 9)
    assert decode_garbage((await store.get(GARBAGE)).data).is_empty
    assert list(await contents(WAL3, store)) == list(range(9, 29))


async def test_nothing_that_the_log_names_is_deleted() -> None:
    """A collector never deletes an object that the manifest names, whatever a plan lists."""
    store = await log_of([2] * 14)
    await cursors_on(store).create("x", 9)
    await collector_on(store).collect()
    manifest = await manifest_of(store)
    live = manifest.snapshots[-1]
    lie = Garbage(
        # Its start claims to be below the start of the log, which is false.
        snapshots_to_drop=(replace(live, start=1),),
        fragments_start=1,
        fragments_limit=5,
        first_to_keep=9,
    )
    before = await contents(WAL3, store)
    await store.put(GARBAGE, encode_garbage(lie))
    report = await collector_on(store).collect()
    assert report.spared == [live.path]
    assert await contents(WAL3, store) == before


async def test_a_log_with_a_hole_is_not_collected_further() -> None:
    """A missing snapshot among those that stay raises before anything is deleted."""
    store = await log_of([2] * 14)
    await cursors_on(store).create("x", 5)
    manifest = await manifest_of(store)
    await store.delete([manifest.snapshots[-1].path])
    kept = len(await keys_in(store, "log/"))
    with pytest.raises(CorruptionError, match="missing object"):
        await collector_on(store).collect()
    assert len(await keys_in(store, "log/")) == kept


async def test_orphans_and_strange_objects_stay() -> None:
    """Foreign objects stay, and so does a writer's fragment under the next number."""
    store = await log_of([2] * 4)
    await cursors_on(store).create("x", 9)
    records = place_records(pa.array([b"half"], pa.binary()), start=9, timestamp_us=7)
    await store.put(fragment_path(5), encode_fragment(records, write_id="other"))
    strange = ["log/notes.txt", "elsewhere", "snapshot/x"]
    for key in strange:
        await store.put(key, b"?")
    report = await collector_on(store).collect()
    assert (report.fragments, report.oldest) == (4, 9)
    assert set(strange) <= set(await keys_in(store))
    await append(store, [1])
    assert list((await contents(WAL3, store)).values()) == [b"half", b"0-0"]


async def test_a_snapshot_that_another_made_is_taken_if_it_is_whole() -> None:
    """A collection uses a whole snapshot that a dead one left; a broken one raises."""
    store = await log_of([2] * 14)
    await cursors_on(store).create("x", 12)
    (made, *_) = (await plan_for(store, 12)).snapshots_to_make
    await store.put(made.path, encode_snapshot(made))
    broken = copy_of(store)
    await broken.put(made.path, encode_snapshot(made)[:-9])
    assert (await collector_on(store).collect()).oldest == 11
    assert (await scrub(wal3_reader(store))).is_clean
    with pytest.raises(CorruptionError):
        await collector_on(broken).collect()
    assert (await manifest_of(broken)).oldest == 1


async def test_a_manifest_that_went_back_is_not_taken_for_proof() -> None:
    """A manifest restored during the grace is replaced, and the objects it names stay."""
    store = await log_of([2] * 14)
    await cursors_on(store).create("x", 9)
    old = (await store.get(MANIFEST)).data
    before = await contents(WAL3, store)

    restore = Once("put", MANIFEST, lambda: store.put(MANIFEST, old))
    await collector_on(InterposedStore(store, after=restore)).collect()
    assert decode_manifest(old).oldest == 1
    assert await contents(WAL3, store) == {n: body for n, body in before.items() if n >= 9}
    assert encode_manifest(await manifest_of(store)) != old
