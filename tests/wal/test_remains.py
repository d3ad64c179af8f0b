"""Remains of interrupted forks and copies: no other log uses them, and they can be deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from kit.named_logs import contents, log_of, shelf_on, store_with
from kit.protocols import CLOCK
from kit.stores import InterposedStore, Once, copy_of, dying, keys_in
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, LocationError, NameTaken, NoSuchLog
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing.recorded import RecordedStore
from tidelog.wal.admin.transcribe import Transcriber
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST, chain_of
from tidelog.wal.format.manifest_update import Rollover, pointer_to, snapshot_over
from tidelog.wal.format.new_object import NewObject
from tidelog.wal.format.snapshot import Pointer, Snapshot, decode_snapshot, encode_snapshot
from tidelog.wal.read.head import TreeReader
from tidelog.wal.read.named_objects import store_named

ROLLOVER = Rollover(fragments=3, snapshots=2)


async def copy(store: Store, source: str, name: str) -> None:
    """Copy a log to a deep tree. All copies of a log have the same shape."""
    log = await shelf_on(store).open(source)
    target = shelf_on(store).within(name)
    scribe = Transcriber(target=target, clock=CLOCK, writer="me", rollover=ROLLOVER)
    await scribe.to_slots(log.scan(1, control=True), start=1)


async def dies_at_the_manifest(store: MemoryStore, name: str, act: Callable[..., object]) -> None:
    async def refuse(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/{name}/{MANIFEST}"):
            raise LocationError("refused")

    made = act(InterposedStore(store, before=refuse))
    assert isinstance(made, Awaitable)
    with pytest.raises(LocationError):
        await made


async def snapshots_in(store: Store, name: str) -> list[str]:
    return await keys_in(store, f"log/{name}/snapshot/")


async def test_a_fork_does_not_take_anothers_remains_for_its_own() -> None:
    """Another fork's remains have the same records, but no pin holds their objects."""
    store = await store_with(a=12)
    await copy(store, "a", "b")
    await copy(store, "a", "c")
    await dies_at_the_manifest(store, "f", lambda dying: shelf_on(dying).fork("b", "f"))
    remains = await snapshots_in(store, "f")
    assert remains

    fork = await shelf_on(store).fork("c", "f")
    await shelf_on(store).drop("b", grace_us=0)

    assert list((await contents(store, "f")).values()) == [b"a %d" % n for n in range(12)]
    assert set(remains) < set(await snapshots_in(store, "f"))
    await fork.sweep(grace_us=0)
    assert not set(remains) & set(await snapshots_in(store, "f"))
    assert (await fork.scrub()).unnamed == []


async def test_a_scrub_reports_objects_of_a_third_log_in_a_fork() -> None:
    """A scrub reports objects in a fork that a third log may delete."""
    store = await store_with(a=12)
    await copy(store, "a", "b")
    await copy(store, "a", "c")
    fork = await shelf_on(store).fork("c", "f")
    assert (await fork.scrub()).is_clean
    reader = TreeReader(store=shelf_on(store).within("b"), clock=CLOCK)
    name = chain_of(await reader.manifest()).last.name
    for key in await snapshots_in(store, "f"):
        found = decode_snapshot(store.objects[key].data, where=key)
        swapped = [
            replace(one, path=f"../b/epoch/{name}/000/{one.seq_no:016x}.parquet")
            for one in found.fragments
        ]
        await store.put(key, encode_snapshot(replace(found, fragments=tuple(swapped))))

    told = (await (await shelf_on(store).open("f")).scrub()).problems
    assert told
    assert all("belongs to another log" in one.why and one.path.startswith("../b/") for one in told)


def fragment_at(slot: int, epoch: int = 1) -> Fragment:
    path = f"epoch/{epoch:016x}-{1:016x}/000/{slot:016x}.parquet"
    setsum = Setsum.of(b"%d" % slot)
    return Fragment(
        path=path, seq_no=slot, start=slot, limit=slot + 1, num_bytes=9, setsum=setsum, last_us=1
    )


def made(children: list[Fragment] | list[Pointer], writer: str = "me") -> Snapshot:
    return snapshot_over(children, writer=writer, names_depth=True)


def object_of(snapshot: Snapshot) -> NewObject:
    return NewObject(snapshot.path, encode_snapshot(snapshot))


async def test_what_lies_there_is_believed_only_if_it_names_the_same() -> None:
    """An existing snapshot is accepted only if it names the same fragments."""
    store = MemoryStore()
    leaves = [fragment_at(slot) for slot in range(1, 7)]
    ones = [made(leaves[:3]), made(leaves[3:])]
    others = [made(leaves[:2]), made(leaves[2:])]
    for snapshot in (*ones, *others):
        await store_named(store, object_of(snapshot), clock=CLOCK)
        await store_named(store, object_of(replace(snapshot, writer="you")), clock=CLOCK)
    one, other = [made([pointer_to(half) for half in halves]) for halves in (ones, others)]
    assert one.path == other.path
    await store_named(store, object_of(one), clock=CLOCK)
    await store_named(store, object_of(other), clock=CLOCK)
    assert store.objects[one.path].data == encode_snapshot(one)

    strange = made([fragment_at(slot, epoch=2) for slot in range(1, 4)])
    assert strange.path == ones[0].path
    del store.objects[others[0].path]  # The other shape now leads to a missing object.
    store.objects[one.path] = replace(store.objects[one.path], data=encode_snapshot(other))
    await store.put("epoch-list", b"?")
    for wrong in (object_of(strange), object_of(one), NewObject("epoch-list", b"!")):
        with pytest.raises(CorruptionError, match="with other contents"):
            await store_named(store, wrong, clock=CLOCK)


@pytest.mark.parametrize("happened", [True, False])
async def test_a_copy_to_slots_that_was_broken_off_is_made_again(happened: bool) -> None:
    """A copy to slots that died at any request is made again, and its remains are deleted."""
    start = await store_with(a=4)
    smooth = copy_of(start)
    counted = RecordedStore(smooth)
    await copy(counted, "a", "b")
    wanted = await contents(smooth, "b")
    assert list(wanted.values()) == [b"a %d" % n for n in range(4)]
    for number in range(len(counted.records)):
        store = copy_of(start)

        with suppress(LocationError):
            await copy(dying(store, number, happened=happened), "a", "b")
        if f"log/b/{MANIFEST}" not in store.objects:
            await copy(store, "a", "b")
            assert (await (await shelf_on(store).open("b")).scrub()).unnamed == []
        assert await contents(store, "b") == wanted


async def test_one_of_two_concurrent_copies_makes_the_log() -> None:
    """If two copies run concurrently, one makes the log and the other raises NameTaken."""
    store = await store_with(a=12)
    first = Once("put", f"log/b/{MANIFEST}", lambda: copy(store, "a", "b"))

    with pytest.raises(NameTaken):
        await copy(InterposedStore(store, before=first), "a", "b")
    assert list((await contents(store, "b")).values()) == [b"a %d" % n for n in range(12)]


async def test_what_a_copy_left_is_destroyed_and_a_copier_at_work_is_told() -> None:
    """A drop of a copy's remains ends a running copy, which raises NameTaken."""
    store = await store_with(a=12)
    await dies_at_the_manifest(store, "b", lambda dying: copy(dying, "a", "b"))
    assert len(await keys_in(store, "log/b/")) > 12

    drop = Once("put", f"log/b/{MANIFEST}", lambda: shelf_on(store).drop("b", grace_us=0))
    with pytest.raises(NameTaken):
        await copy(InterposedStore(store, before=drop), "a", "b")
    assert await keys_in(store, "log/b/") == [f"log/b/{GARBAGE}", f"log/b/{MANIFEST}"]
    with pytest.raises(NoSuchLog, match="dropped"):
        await shelf_on(store).open("b")


async def test_a_copy_keeps_away_from_a_log_that_lost_its_manifest() -> None:
    """A copy keeps away from a log without its manifest, which can be rebuilt."""
    store = await store_with(a=3)
    await log_of(store, "b", 3)
    before = await contents(store, "b")
    await store.delete([f"log/b/{MANIFEST}"])
    with pytest.raises(NameTaken):
        await copy(store, "a", "b")
    with pytest.raises(NoSuchLog):
        await shelf_on(store).drop("b", grace_us=0)
    await shelf_on(store).rebuild("b")
    assert await contents(store, "b") == before


async def test_a_copier_that_came_second_leaves_nothing() -> None:
    """A copy that loses the race deletes its objects, or a rebuild would find two logs."""
    store, done = MemoryStore(), list[str]()
    await log_of(store, "a", 12)

    async def copy_first() -> None:
        await copy(store, "a", "b")
        done.extend(await keys_in(store, "log/b/"))

    first = Once("put", "log/b/epoch/", copy_first)
    with pytest.raises(NameTaken):
        await copy(InterposedStore(store, before=first), "a", "b")
    assert await keys_in(store, "log/b/") == done
    assert (await (await shelf_on(store).open("b")).sweep(grace_us=0)).deleted == []
