"""Remains of interrupted forks and copies: no other log uses them, and they can be deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from kit.named_logs import contents, log_of, shelf_on
from kit.protocols import CLOCK
from kit.stores import Interposed, dying, keys_in
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, LocationError, NameTaken, NoSuchLog
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing.recorded import Recorded
from tidelog.wal.admin.transcribe import Transcriber
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.format.manifest_update import Rollover, pointer_to, snapshot_over
from tidelog.wal.format.new_object import NewObject
from tidelog.wal.format.snapshot import Pointer, Snapshot, decode_snapshot, encode_snapshot
from tidelog.wal.read.named_objects import store_named
from tidelog.wal.read.tree_reader import TreeReader
from tidelog.wal.slot_protocol.chain import chain_of

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

    made = act(Interposed(store, before=refuse))
    assert isinstance(made, Awaitable)
    with pytest.raises(LocationError):
        await made


async def snapshots_in(store: Store, name: str) -> list[str]:
    return await keys_in(store, f"log/{name}/snapshot/")


async def test_a_fork_does_not_take_anothers_remains_for_its_own() -> None:
    """A fork does not use the remains of another fork of its name.

    They have the same records and sums, but name objects that no pin holds for this fork. A sweep
    of the fork deletes them.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)
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


async def test_a_scrub_tells_of_objects_that_are_none_of_a_forks_sources() -> None:
    """A scrub reports objects in a fork that belong to a third log.

    They have the right records, but the other log may delete them.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)
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
    """An existing snapshot is accepted only if it names the same fragments.

    Its writer and its inner shape may differ. Otherwise no manifest may name it.
    """
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
    """A copy to slots that dies at any request can be made again.

    The second copy ignores the remains and deletes them.
    """
    start = MemoryStore()
    await log_of(start, "a", 4)
    smooth = MemoryStore(objects=dict(start.objects), puts_count=start.puts_count)
    counted = Recorded(smooth)
    await copy(counted, "a", "b")
    wanted = await contents(smooth, "b")
    assert list(wanted.values()) == [b"a %d" % n for n in range(4)]
    for number in range(len(counted.records)):
        store = MemoryStore(objects=dict(start.objects), puts_count=start.puts_count)

        with suppress(LocationError):
            await copy(dying(store, number, happened=happened), "a", "b")
        if f"log/b/{MANIFEST}" not in store.objects:
            await copy(store, "a", "b")
            assert (await (await shelf_on(store).open("b")).scrub()).unnamed == []
        assert await contents(store, "b") == wanted


async def test_of_two_copiers_one_makes_the_log() -> None:
    """If two copies run concurrently, one makes the log and the other raises NameTaken."""
    store = MemoryStore()
    await log_of(store, "a", 12)
    done: list[str] = []

    async def forestall(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}") and not done:
            done.append(key)
            await copy(store, "a", "b")

    with pytest.raises(NameTaken):
        await copy(Interposed(store, before=forestall), "a", "b")
    assert list((await contents(store, "b")).values()) == [b"a %d" % n for n in range(12)]


async def test_what_a_copy_left_is_destroyed_and_a_copier_at_work_is_told() -> None:
    """The remains of a copy are destroyed, and a running copy raises NameTaken.

    Otherwise its manifest could name deleted objects.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)
    await dies_at_the_manifest(store, "b", lambda dying: copy(dying, "a", "b"))
    assert len(await keys_in(store, "log/b/")) > 12

    async def destroy(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}"):
            await shelf_on(store).drop("b", grace_us=0)

    with pytest.raises(NameTaken):
        await copy(Interposed(store, before=destroy), "a", "b")
    assert await keys_in(store, "log/b/") == [f"log/b/{GARBAGE}", f"log/b/{MANIFEST}"]
    with pytest.raises(NoSuchLog, match="dropped"):
        await shelf_on(store).open("b")


async def test_a_copy_keeps_away_from_a_log_that_lost_its_manifest() -> None:
    """A copy keeps away from a log that lost its manifest.

    That log can be rebuilt with all its records.
    """
    store = MemoryStore()
    await log_of(store, "a", 3)
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
    """A copy that loses the race deletes its objects.

    Otherwise a rebuild would find two logs, or choose the wrong one.
    """
    store, done = MemoryStore(), list[str]()
    await log_of(store, "a", 12)

    async def forestall(op: str, key: str) -> None:
        if op == "put" and key.startswith("log/b/epoch/") and not done:
            done.append(key)
            await copy(store, "a", "b")
            done.extend(await keys_in(store, "log/b/"))

    with pytest.raises(NameTaken):
        await copy(Interposed(store, before=forestall), "a", "b")
    assert await keys_in(store, "log/b/") == done[1:]
    assert (await (await shelf_on(store).open("b")).sweep(grace_us=0)).deleted == []
