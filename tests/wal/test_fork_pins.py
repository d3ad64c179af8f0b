"""Forks whose pin is released while they are made: no process keeps half a log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kit.dying import DiesWriting
from kit.named_logs import append, contents, log_of, shelf_on, store_with
from kit.protocols import ALL, CLOCK
from kit.stores import Hold, InterposedStore, Once, keys_in
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    LogSealed,
    NameTaken,
    NoSuchLog,
    OutcomeUnknown,
    TidelogError,
    UsageError,
)
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import FaultyStore
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.gc.pin_objects import held_pins
from tidelog.wal.slot_protocol.fencing import make_log


async def let_go(store: MemoryStore) -> None:
    """Release the pin of the fork ``b`` of ``a``, as if its maker had died. Collect its records."""
    source = await shelf_on(store).open("a")
    await source.drop_pin("b", force=True)
    await source.create_cursor("x", 9)
    await source.collect(keep=ALL, grace_us=0)


def meddled(store: MemoryStore, when: str, act: Callable[[], Awaitable[None]]) -> InterposedStore:
    """Return a store with a hook. It runs once, before or after the put of the fork's manifest."""
    return InterposedStore(store, **{when: Once("put", f"log/b/{MANIFEST}", act)})


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fork_whose_pin_was_released_is_undone(when: str) -> None:
    """A fork whose pin is released before or after its manifest is undone."""
    store = await store_with(a=12)

    with pytest.raises(ContentionError, match="dropped the fork's pin during the fork"):
        await shelf_on(meddled(store, when, lambda: let_go(store))).fork("a", "b")
    with pytest.raises(NoSuchLog, match="was dropped"):
        await shelf_on(store).open("b")
    assert [key for key in await keys_in(store, "log/b/") if "snapshot" in key] == []
    fork = await shelf_on(store).fork("a", "c")
    assert list(await contents(store, fork.name)) == [9, 10, 11, 12]
    assert (await fork.scrub()).is_clean


async def test_a_fork_that_others_have_written_to_already_is_sealed_and_told() -> None:
    """A fork that others appended to is sealed, stays readable, and reports OutcomeUnknown."""
    store = await store_with(a=12)

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
    """A collection of a new fork shrinks its pin, which is no reason to undo the fork."""
    store = await store_with(a=12)

    async def act() -> None:
        other = await shelf_on(store).open("b")
        await other.create_cursor("x", 7)
        await other.collect(keep=ALL, grace_us=0)

    fork = await shelf_on(meddled(store, "after", act)).fork("a", "b")
    assert list(await contents(store, "b")) == [7, 8, 9, 10, 11, 12]
    assert (await fork.scrub()).is_clean


async def test_what_a_fork_left_that_failed_is_deleted_with_its_name() -> None:
    """A drop deletes a failed fork's remains, unless a manifest appears before the tombstone."""
    store = await store_with(a=12)
    await store.put(f"log/b/snapshot/SNAPSHOT.01.{'0' * 64}", b"of a fork that died")

    async def refuse(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}"):
            raise LocationError("refused")

    with pytest.raises(LocationError):
        await shelf_on(InterposedStore(store, before=refuse)).fork("a", "b")

    left = await keys_in(store, "log/b/")

    async def made(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}"):
            await store.put(key, store.objects[f"log/a/{MANIFEST}"].data)

    with pytest.raises(ContentionError, match="created a log of that name concurrently"):
        await shelf_on(InterposedStore(store, before=made)).drop("b", grace_us=0)
    assert await keys_in(store, "log/b/") == sorted([*left, f"log/b/{MANIFEST}"])
    await store.delete([f"log/b/{MANIFEST}"])
    await shelf_on(store).drop("b", grace_us=0)
    assert await keys_in(store, "log/b/") == [f"log/b/{GARBAGE}", f"log/b/{MANIFEST}"]


async def test_a_failed_fork_releases_its_pin() -> None:
    """A fork that fails releases its pin. Otherwise its source could not be destroyed."""
    store = await store_with(a=12)

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
        await shelf_on(FaultyStore(store, toss=death.toss)).fork("a", "b")
    pins = await (await shelf_on(store).open("a")).pins()
    assert pins["b"].is_sure
    assert f"log/b/{MANIFEST}" not in store.objects


async def test_a_second_call_makes_the_fork_that_was_killed() -> None:
    """A second call pins the current records and releases the pin of the killed call."""
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
    """The first manifest of two forks wins; the loser releases only its own pin."""
    store = await store_with(a=12)

    async def act() -> None:
        if is_first:
            with pytest.raises(NameTaken):
                await shelf_on(meddled(store, "before", finish)).fork("a", "b")
        else:
            await shelf_on(store).fork("a", "b")

    async def finish() -> None:
        hold.go_on.set()
        await first

    hold = Hold("put", f"log/b/{MANIFEST}")
    first = asyncio.create_task(shelf_on(InterposedStore(store, before=hold)).fork("a", "b"))
    await hold.met.wait()
    await act()
    if not is_first:
        hold.go_on.set()
        with pytest.raises(NameTaken):
            await first

    assert len(await contents(store, "b")) == 12
    source = await shelf_on(store).open("a")
    await source.create_cursor("x", 9)
    await source.collect(keep=ALL, grace_us=0)
    assert (await (await shelf_on(store).open("b")).scrub()).is_clean
    await shelf_on(store).drop("b", grace_us=0)
    assert await source.pins() == {}


async def test_a_pin_of_a_user_keeps_its_name() -> None:
    """A user's pin of a fork's name belongs to no killed fork and is never taken over."""
    store = await store_with(a=12)
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
        await shelf_on(FaultyStore(store, toss=death.toss)).fork("a", "b")
    source = await shelf_on(store).open("a")
    assert len(await held_pins(shelf_on(store).within("a"))) == 2

    await source.drop_pin("b")
    assert await source.pins() == {}


@pytest.mark.parametrize("is_destroyed", [False, True])
async def test_a_log_that_shares_nothing_keeps_no_pin(is_destroyed: bool) -> None:
    """A pin of a killed fork's name is released if the log of that name shares nothing."""
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
    """A pin's release is refused if its fork becomes a log during it."""
    store = await store_with(a=12)
    hold = Hold("put", f"log/b/{MANIFEST}")
    forking = asyncio.create_task(shelf_on(InterposedStore(store, before=hold)).fork("a", "b"))
    await hold.met.wait()

    async def finish() -> None:
        hold.go_on.set()
        await forking

    hook = Once("put", "/pin/b.", finish)
    source = await shelf_on(InterposedStore(store, before=hook)).open("a")
    with pytest.raises(UsageError, match="drop the fork first"):
        await source.drop_pin("b")
    assert hook.met
    assert len(await contents(store, "b")) == 12


async def test_a_fork_of_a_log_that_lost_its_manifest_keeps_its_pin() -> None:
    """A fork that lost its manifest keeps its pin, although no rebuild can restore it."""
    store = await store_with(a=12)
    await shelf_on(store).fork("a", "b")
    await append(store, "b", 1)
    await store.delete([f"log/b/{MANIFEST}"])

    source = await shelf_on(store).open("a")
    with pytest.raises(UsageError, match="drop the fork first"):
        await source.drop_pin("b")
    with pytest.raises(NameTaken, match="no manifest"):
        await shelf_on(store).fork("a", "b")
    assert [*await source.pins()] == ["b"]
    with pytest.raises(CorruptionError, match="fork or copy its source again"):
        await shelf_on(store).rebuild("b")
