"""Forks whose pin was let go of while they were made: nobody is left with half a log."""

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
    """Take the maker of the fork ``b`` of ``a`` for dead: its pin goes, and what it held."""
    source = await shelf_on(store).open("a")
    await source.release_pin("b", force=True)
    await source.create_cursor("x", 9)
    await source.collect(keep=Keep(share_max=1), grace_us=0)


def meddled(store: MemoryStore, when: str, act: Callable[[], Awaitable[None]]) -> Interposed:
    """Return the store; once, before or after the fork's manifest is stored, something happens."""
    done: list[str] = []

    async def once(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}") and not done:
            done.append(key)
            await act()

    return Interposed(store, **{when: once})


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fork_whose_pin_was_let_go_of_is_undone(when: str) -> None:
    """What it shares may be gone, whichever came first: its manifest, or the release."""
    store = MemoryStore()
    await log_of(store, "a", 12)

    with pytest.raises(ContentionError, match="released the fork's pin during the fork"):
        await shelf_on(meddled(store, when, lambda: let_go(store))).fork("a", "b")
    with pytest.raises(NoSuchLog, match="was destroyed"):
        await shelf_on(store).open("b")
    assert [key for key in await keys_in(store, "log/b/") if "snapshot" in key] == []
    fork = await shelf_on(store).fork("a", "c")
    assert list(await contents(store, fork.name)) == [9, 10, 11, 12]
    assert (await fork.scrub()).is_clean


async def test_a_fork_that_others_have_written_to_already_is_sealed_and_told() -> None:
    """Their records are its own, and stay readable: nobody deletes what was acknowledged."""
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
    await shelf_on(store).destroy("b", grace_us=0)


async def test_a_fork_that_was_collected_at_once_is_no_loss() -> None:
    """It let go of what it does not need itself: that is no reason to undo it."""
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
    """It lets go of its pin; snapshots that it stored are named by nothing, nor found by others.

    A manifest of the name that is stored just before keeps whoever would destroy them away.
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
        await shelf_on(Interposed(store, before=made)).destroy("b", grace_us=0)
    assert await keys_in(store, "log/b/") == sorted([*left, f"log/b/{MANIFEST}"])
    await store.delete([f"log/b/{MANIFEST}"])
    await shelf_on(store).destroy("b", grace_us=0)
    assert await keys_in(store, "log/b/") == [f"log/b/{GARBAGE}", f"log/b/{MANIFEST}"]


async def test_a_fork_that_fails_lets_go_of_its_pin() -> None:
    """Else its source could not be destroyed, for the sake of a log that there is not."""
    store = MemoryStore()
    await log_of(store, "a", 12)

    async def act() -> None:
        assert await make_log(shelf_on(store).within("b"), clock=CLOCK, writer="another")

    with pytest.raises(NameTaken):
        await shelf_on(meddled(store, "before", act)).fork("a", "b")
    assert await (await shelf_on(store).open("a")).pins() == {}
    await shelf_on(store).destroy("a", grace_us=0)


async def kill_a_fork(store: MemoryStore) -> None:
    """Leave a sure pin for the fork ``b`` of ``a``, and no fork."""
    await log_of(store, "a", 12)
    death = DiesWriting(number=2, landed=False)
    with pytest.raises(TidelogError):
        await shelf_on(Faulty(store, toss=death.toss)).fork("a", "b")
    pins = await (await shelf_on(store).open("a")).pins()
    assert pins["b"].is_sure
    assert f"log/b/{MANIFEST}" not in store.objects


async def test_a_second_call_makes_the_fork_that_was_killed() -> None:
    """It pins the records of now, for the log went on, and releases the pin of the first call."""
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
    await shelf_on(store).destroy("b", grace_us=0)
    assert await source.pins() == {}


@pytest.mark.parametrize("is_first", [True, False])
async def test_one_of_two_forks_of_a_name_is_made(is_first: bool) -> None:
    """The first one may live yet: its manifest decides, and the other releases only its own pin."""
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
    await shelf_on(store).destroy("b", grace_us=0)
    assert await source.pins() == {}


async def test_a_pin_of_a_user_keeps_its_name() -> None:
    """It holds for no fork, so no fork may take it for one that was killed."""
    store = MemoryStore()
    await log_of(store, "a", 12)
    source = await shelf_on(store).open("a")
    await source.create_pin("b")

    with pytest.raises(NameTaken, match="already has a pin of that name"):
        await shelf_on(store).fork("a", "b")
    assert [*await source.pins()] == ["b"]


async def test_a_release_of_a_killed_fork_releases_all_its_pins() -> None:
    """Each killed call may leave one."""
    store = MemoryStore()
    await kill_a_fork(store)
    death = DiesWriting(number=2, landed=False)
    with pytest.raises(TidelogError):
        await shelf_on(Faulty(store, toss=death.toss)).fork("a", "b")
    source = await shelf_on(store).open("a")
    assert len(await held_pins(shelf_on(store).within("a"))) == 2

    await source.release_pin("b")
    assert await source.pins() == {}


@pytest.mark.parametrize("is_destroyed", [False, True])
async def test_a_log_that_shares_nothing_keeps_no_pin(is_destroyed: bool) -> None:
    """The name of a killed fork may belong to another log by now."""
    store = MemoryStore()
    await kill_a_fork(store)
    await shelf_on(store).create("b")
    if is_destroyed:
        await shelf_on(store).destroy("b", grace_us=0)

    source = await shelf_on(store).open("a")
    await source.release_pin("b")
    assert await source.pins() == {}


async def test_a_log_is_destroyed_whole_though_its_fork_was_killed() -> None:
    """No log reads what that pin holds, so it neither stops the destruction nor keeps a record."""
    store = MemoryStore()
    await kill_a_fork(store)

    await shelf_on(store).destroy("a", grace_us=0)
    assert not [key for key in store.objects if "/pin/" in key]
    assert not [key for key in store.objects if "/snapshot/" in key]


async def test_a_release_that_looked_before_the_fork_was_a_log_is_refused() -> None:
    """The fork was acknowledged, so no record of it may be lost."""
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
    with pytest.raises(UsageError, match="destroy the fork first"):
        await source.release_pin("b")
    assert go_on.is_set()
    assert len(await contents(store, "b")) == 12


async def test_a_fork_of_a_log_that_lost_its_manifest_keeps_its_pin() -> None:
    """It was written to, so it is a log, and its manifest can be made again."""
    store = MemoryStore()
    await log_of(store, "a", 12)
    await shelf_on(store).fork("a", "b")
    await append(store, "b", 1)
    await store.delete([f"log/b/{MANIFEST}"])

    source = await shelf_on(store).open("a")
    with pytest.raises(UsageError, match="destroy the fork first"):
        await source.release_pin("b")
    with pytest.raises(NameTaken, match="no manifest"):
        await shelf_on(store).fork("a", "b")
    assert [*await source.pins()] == ["b"]
