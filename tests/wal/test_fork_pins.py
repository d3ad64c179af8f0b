"""Forks whose pin is released while they are made: no process keeps half a log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kit.dying import DiesWriting
from kit.named_logs import append, contents, log_of, shelf_on
from kit.protocols import CLOCK
from kit.stores import Interposed, keys_in
from tidelog.errors import (
    ContentionError,
    LocationError,
    LogSealed,
    NameTaken,
    NoSuchLog,
    OutcomeUnknown,
    TidelogError,
    UsageError,
)
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import Faulty
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.gc.pin_objects import held_pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.slot_protocol.fencing import make_log


async def let_go(store: MemoryStore) -> None:
    """Release the pin of the fork ``b`` of ``a``, as if its maker had died. Collect its records."""
    source = await shelf_on(store).open("a")
    await source.drop_pin("b", force=True)
    await source.create_cursor("x", 9)
    await source.collect(keep=Keep(share_max=1), grace_us=0)


def meddled(store: MemoryStore, when: str, act: Callable[[], Awaitable[None]]) -> Interposed:
    """Return a store with a hook. It runs once, before or after the put of the fork's manifest."""
    done: list[str] = []

    async def once(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}") and not done:
            done.append(key)
            await act()

    return Interposed(store, **{when: once})


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fork_whose_pin_was_let_go_of_is_undone(when: str) -> None:
    """A fork whose pin is released before or after its manifest is undone.

    Its shared objects may be deleted.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)

    with pytest.raises(ContentionError, match="released the fork's pin during the fork"):
        await shelf_on(meddled(store, when, lambda: let_go(store))).fork("a", "b")
    with pytest.raises(NoSuchLog, match="was dropped"):
        await shelf_on(store).open("b")
    assert [key for key in await keys_in(store, "log/b/") if "snapshot" in key] == []
    fork = await shelf_on(store).fork("a", "c")
    assert list(await contents(store, fork.name)) == [9, 10, 11, 12]
    assert (await fork.scrub()).is_clean


async def test_a_fork_that_others_have_written_to_already_is_sealed_and_told() -> None:
    """A fork that other writers appended to is sealed, and its maker gets OutcomeUnknown.

    Their acknowledged records stay readable.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)

    async def act() -> None:
        other = await shelf_on(store).open("b")
        await other.append([b"already"])
        await other.close()
        await let_go(store)

    with pytest.raises(OutcomeUnknown, match="other writers have appended"):
        await shelf_on(meddled(store, "after", act)).fork("a", "b")
    log = await shelf_on(store).open("b")
    assert [row["body"] async for t in log.scan(13) for row in t.to_pylist()] == [b"already"]
    with pytest.raises(LogSealed):
        await log.append([b"more"])
    await shelf_on(store).drop("b", grace_us=0)


async def test_a_fork_that_was_collected_at_once_is_no_loss() -> None:
    """A fork that is collected at once is valid.

    The collection shrinks the fork's pin, which is no reason to undo the fork.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)

    async def act() -> None:
        other = await shelf_on(store).open("b")
        await other.create_cursor("x", 7)
        await other.collect(keep=Keep(share_max=1), grace_us=0)

    fork = await shelf_on(meddled(store, "after", act)).fork("a", "b")
    assert list(await contents(store, "b")) == [7, 8, 9, 10, 11, 12]
    assert (await fork.scrub()).is_clean


async def test_what_a_fork_left_that_failed_is_deleted_with_its_name() -> None:
    """The destruction of a failed fork's name deletes its remains.

    No manifest names these snapshots.

    A manifest that is stored just before the tombstone stops the destruction.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)
    await store.put(f"log/b/snapshot/SNAPSHOT.01.{'0' * 64}", b"of a fork that died")

    async def refuse(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}"):
            raise LocationError("refused")

    with pytest.raises(LocationError):
        await shelf_on(Interposed(store, before=refuse)).fork("a", "b")

    left = await keys_in(store, "log/b/")

    async def made(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}"):
            await store.put(key, store.objects[f"log/a/{MANIFEST}"].data)

    with pytest.raises(ContentionError, match="created a log of that name concurrently"):
        await shelf_on(Interposed(store, before=made)).drop("b", grace_us=0)
    assert await keys_in(store, "log/b/") == sorted([*left, f"log/b/{MANIFEST}"])
    await store.delete([f"log/b/{MANIFEST}"])
    await shelf_on(store).drop("b", grace_us=0)
    assert await keys_in(store, "log/b/") == [f"log/b/{GARBAGE}", f"log/b/{MANIFEST}"]


async def test_a_fork_that_fails_lets_go_of_its_pin() -> None:
    """A fork that fails releases its pin. Otherwise its source could not be destroyed."""
    store = MemoryStore()
    await log_of(store, "a", 12)

    async def act() -> None:
        assert await make_log(shelf_on(store).within("b"), clock=CLOCK, writer="another")

    with pytest.raises(NameTaken):
        await shelf_on(meddled(store, "before", act)).fork("a", "b")
    assert await (await shelf_on(store).open("a")).pins() == {}
    await shelf_on(store).drop("a", grace_us=0)


async def kill_a_fork(store: MemoryStore) -> None:
    """Leave a sure pin for the fork ``b`` of ``a``, but no fork."""
    await log_of(store, "a", 12)
    death = DiesWriting(number=2, landed=False)
    with pytest.raises(TidelogError):
        await shelf_on(Faulty(store, toss=death.toss)).fork("a", "b")
    pins = await (await shelf_on(store).open("a")).pins()
    assert pins["b"].is_sure
    assert f"log/b/{MANIFEST}" not in store.objects


async def test_a_second_call_makes_the_fork_that_was_killed() -> None:
    """A second call completes a fork that was killed.

    It pins the current records and releases the pin of the first call.
    """
    store = MemoryStore()
    await kill_a_fork(store)
    await append(store, "a", 1)

    fork = await shelf_on(store).fork("a", "b")
    assert len(await contents(store, "b")) == 13
    assert (await fork.scrub()).is_clean
    source = await shelf_on(store).open("a")
    assert {name: (pin.start, pin.limit) for name, pin in (await source.pins()).items()} == {
        "b": (1, 14)
    }
    await shelf_on(store).drop("b", grace_us=0)
    assert await source.pins() == {}


@pytest.mark.parametrize("is_first", [True, False])
async def test_one_of_two_forks_of_a_name_is_made(is_first: bool) -> None:
    """If two concurrent forks have one name, the first manifest wins.

    The loser releases only its own pin.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)

    async def act() -> None:
        if is_first:
            with pytest.raises(NameTaken):
                await shelf_on(meddled(store, "before", finish)).fork("a", "b")
        else:
            await shelf_on(store).fork("a", "b")

    async def finish() -> None:
        go_on.set()
        await first

    go_on, held = asyncio.Event(), asyncio.Event()

    async def wait(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}"):
            held.set()
            await go_on.wait()

    first = asyncio.create_task(shelf_on(Interposed(store, before=wait)).fork("a", "b"))
    await held.wait()
    await act()
    if not is_first:
        go_on.set()
        with pytest.raises(NameTaken):
            await first

    assert len(await contents(store, "b")) == 12
    source = await shelf_on(store).open("a")
    await source.create_cursor("x", 9)
    await source.collect(keep=Keep(share_max=1), grace_us=0)
    assert (await (await shelf_on(store).open("b")).scrub()).is_clean
    await shelf_on(store).drop("b", grace_us=0)
    assert await source.pins() == {}


async def test_a_pin_of_a_user_keeps_its_name() -> None:
    """A fork never takes over the pin of a user that has its name.

    That pin belongs to no killed fork.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)
    source = await shelf_on(store).open("a")
    await source.create_pin("b")

    with pytest.raises(NameTaken, match="already has a pin of that name"):
        await shelf_on(store).fork("a", "b")
    assert [*await source.pins()] == ["b"]


async def test_a_release_of_a_killed_fork_releases_all_its_pins() -> None:
    """A release of a killed fork releases all its pins. Each killed call may leave one."""
    store = MemoryStore()
    await kill_a_fork(store)
    death = DiesWriting(number=2, landed=False)
    with pytest.raises(TidelogError):
        await shelf_on(Faulty(store, toss=death.toss)).fork("a", "b")
    source = await shelf_on(store).open("a")
    assert len(await held_pins(shelf_on(store).within("a"))) == 2

    await source.drop_pin("b")
    assert await source.pins() == {}


@pytest.mark.parametrize("is_destroyed", [False, True])
async def test_a_log_that_shares_nothing_keeps_no_pin(is_destroyed: bool) -> None:
    """A pin is released if the log of its name shares nothing.

    Another log may have the name of a killed fork.
    """
    store = MemoryStore()
    await kill_a_fork(store)
    await shelf_on(store).create("b")
    if is_destroyed:
        await shelf_on(store).drop("b", grace_us=0)

    source = await shelf_on(store).open("a")
    await source.drop_pin("b")
    assert await source.pins() == {}


async def test_a_log_is_destroyed_whole_though_its_fork_was_killed() -> None:
    """A pin of a killed fork neither stops the destruction of its source nor keeps records."""
    store = MemoryStore()
    await kill_a_fork(store)

    await shelf_on(store).drop("a", grace_us=0)
    assert not [key for key in store.objects if "/pin/" in key]
    assert not [key for key in store.objects if "/snapshot/" in key]


async def test_a_release_that_looked_before_the_fork_was_a_log_is_refused() -> None:
    """A release is refused if the fork becomes a log during it.

    The fork was acknowledged, so its records must stay.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)
    held, go_on = asyncio.Event(), asyncio.Event()

    async def wait(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}"):
            held.set()
            await go_on.wait()

    forking = asyncio.create_task(shelf_on(Interposed(store, before=wait)).fork("a", "b"))
    await held.wait()

    async def let_it_finish(op: str, key: str) -> None:
        if op == "put" and "/pin/b." in key and not go_on.is_set():
            go_on.set()
            await forking

    source = await shelf_on(Interposed(store, before=let_it_finish)).open("a")
    with pytest.raises(UsageError, match="drop the fork first"):
        await source.drop_pin("b")
    assert go_on.is_set()
    assert len(await contents(store, "b")) == 12


async def test_a_fork_of_a_log_that_lost_its_manifest_keeps_its_pin() -> None:
    """A fork that lost its manifest keeps its pin. It has records, so it can be rebuilt."""
    store = MemoryStore()
    await log_of(store, "a", 12)
    await shelf_on(store).fork("a", "b")
    await append(store, "b", 1)
    await store.delete([f"log/b/{MANIFEST}"])

    source = await shelf_on(store).open("a")
    with pytest.raises(UsageError, match="drop the fork first"):
        await source.drop_pin("b")
    with pytest.raises(NameTaken, match="no manifest"):
        await shelf_on(store).fork("a", "b")
    assert [*await source.pins()] == ["b"]
