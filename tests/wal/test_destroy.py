"""Destruction of logs: the remains, the errors of other processes, and the forks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from kit.clocks import SwiftClock
from kit.named_logs import SHAPE, contents, log_of, shelf_on
from kit.stores import Interposed, dying, keys_in
from tidelog.errors import (
    ContentionError,
    LocationError,
    NameTaken,
    NoSuchLog,
    UsageError,
)
from tidelog.store.memory import MemoryStore
from tidelog.testing import Recorded
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST, encode_manifest
from tidelog.wal.gc.collector import GRACE_US
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.read.head import load_head


async def test_a_destroyed_log_leaves_its_fences() -> None:
    """A destroyed log keeps its fences, its tombstone and its plan.

    The fences stop a suspended writer from taking an empty slot for its own.
    """
    store = MemoryStore()
    await log_of(store, "a", 6)
    shelf = shelf_on(store)
    sleeper = await shelf.open("a", shape=SHAPE, batching=Batching(interval_us=0))
    await sleeper.append([b"before"])
    await sleeper.create_cursor("x", 1)
    await shelf.fork("a", "b")
    with pytest.raises(UsageError, match="drop these first: b"):
        await shelf.drop("a", grace_us=0)
    await shelf.drop("b", grace_us=0)
    assert await sleeper.pins() == {}
    found = await shelf.drop("a", grace_us=0)
    assert found.deleted > 8
    left = await keys_in(store, "log/a/")
    assert all(key.endswith((MANIFEST, GARBAGE, ".parquet")) for key in left)
    assert len(left) == 2 + found.kept
    with pytest.raises(NoSuchLog, match="was dropped"):
        await sleeper.append([b"after"])
    await sleeper.close()
    with pytest.raises(NoSuchLog, match="was dropped"):
        await shelf.open("a")
    with pytest.raises(NameTaken, match="names are not reused"):
        await shelf.create("a")
    await shelf.drop("a", grace_us=0)
    # This deletes objects that the suspended writer left, such as snapshots of a roll-up.
    assert await keys_in(store, "log/a/") == left


async def test_a_destroyed_log_lets_go_of_its_pins() -> None:
    """A destroyed log releases its pins, and those of a fork in its source.

    No other process could release them later.
    """
    store = MemoryStore()
    await log_of(store, "a", 9)
    shelf = shelf_on(store)
    fork = await shelf.fork("a", "b")
    await fork.create_pin("p", start=2, limit=5)
    await (await shelf.open("a")).create_pin("q", start=1, limit=4)
    await shelf.drop("b", grace_us=0)
    assert list(await (await shelf.open("a")).pins()) == ["q"]
    await shelf.drop("a", grace_us=0)
    left = set(store.objects)
    assert {key for key in left if not key.endswith((MANIFEST, GARBAGE))} == {
        key for key in left if "/epoch/" in key
    }
    assert (await shelf.drop("a", grace_us=0)).deleted == 0


async def test_a_fork_that_another_log_forestalls_lets_go_of_its_source() -> None:
    """A fork that loses its name to another log raises NameTaken and releases its pin.

    Its source can then be destroyed.
    """
    store = MemoryStore()
    await log_of(store, "a", 9)
    made: list[Log] = []

    async def before(op: str, key: str) -> None:
        if op == "put" and key.startswith("log/b/") and not made:
            made.append(await shelf_on(store).create("b"))

    with pytest.raises(NameTaken, match="concurrently"):
        await shelf_on(Interposed(store, before=before)).fork("a", "b")
    assert made
    assert await (await shelf_on(store).open("a")).pins() == {}
    await shelf_on(store).drop("a", grace_us=0)
    assert await contents(store, "b") == {}


async def test_a_fork_that_is_quicker_than_the_tombstone_keeps_what_it_shares() -> None:
    """A fork that is made just before the tombstone of its source keeps the shared objects.

    The destroyer looked for forks before that.
    """
    store, forked = MemoryStore(), list[Log]()
    await log_of(store, "a", 14)
    before_it = await contents(store, "a")

    async def before(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/a/{MANIFEST}") and not forked:
            forked.append(await shelf_on(store).fork("a", "b"))

    found = await shelf_on(Interposed(store, before=before)).drop("a", grace_us=0)
    assert forked
    assert found.kept > 14
    assert await contents(store, "b") == before_it
    await shelf_on(store).drop("b", grace_us=0)
    await shelf_on(store).drop("a", grace_us=0)
    assert not [key for key in store.objects if "/pin/" in key or "/snapshot/" in key]


async def test_a_fork_whose_source_is_destroyed_before_its_pin_is_sure_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fork fails if its source is destroyed before its pin is sure.

    Its manifest would name deleted objects.
    """

    async def none(*_: object) -> None:
        """Find no forks, as if the pin did not exist yet."""

    monkeypatch.setattr("tidelog.wal.admin.destroy._refuse_forks", none)

    store, puts = MemoryStore(), list[str]()
    await log_of(store, "a", 14)

    async def before(op: str, key: str) -> None:
        if op == "put" and key.startswith("log/a/pin/"):
            puts.append(key)
            if len(puts) == 2:
                await shelf_on(store).drop("a", grace_us=0)

    with pytest.raises(ContentionError):
        await shelf_on(Interposed(store, before=before)).fork("a", "b")
    assert not [key for key in store.objects if key.startswith("log/b/")]
    assert not [key for key in store.objects if "/pin/" in key]


async def test_a_pin_that_becomes_sure_while_its_log_is_destroyed_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pin that becomes sure during the destruction of its log is kept.

    The destroyer read it before, and the fork was made since.
    """

    async def none(*_: object) -> None:
        """Find no forks, as if the pin did not exist yet."""

    monkeypatch.setattr("tidelog.wal.admin.destroy._refuse_forks", none)

    store = MemoryStore()
    await log_of(store, "a", 14)
    before_it = await contents(store, "a")
    unsure, go_on = asyncio.Event(), asyncio.Event()

    async def fork() -> Log:
        put = 0

        async def before(op: str, key: str) -> None:
            nonlocal put
            if op == "put" and key.startswith("log/a/pin/b."):
                put += 1
                if put == 2:
                    unsure.set()
                    await go_on.wait()

        return await shelf_on(Interposed(store, before=before)).fork("a", "b")

    forking = asyncio.create_task(fork())
    await unsure.wait()

    async def after(op: str, key: str) -> None:
        if op == "get" and key.startswith("log/a/pin/b.") and not go_on.is_set():
            go_on.set()
            await forking

    await shelf_on(Interposed(store, after=after)).drop("a", grace_us=0)
    assert go_on.is_set()
    assert await contents(store, "b") == before_it


async def test_a_log_in_wal3s_form_goes_whole() -> None:
    """A log in wal3's form is deleted whole.

    A foreign object in its folder stops the destruction before any deletion.
    """
    store = MemoryStore()
    await log_of(store, "a", 6, protocol="manifest")
    await store.put("log/a/notes.txt", b"?")
    keys = set(store.objects)
    with pytest.raises(UsageError, match="not part of a log"):
        await shelf_on(store).drop("a", grace_us=0)
    assert set(store.objects) == keys
    await store.delete(["log/a/notes.txt"])
    await shelf_on(store).drop("a", grace_us=0)
    assert await keys_in(store, "log/a/") == [f"log/a/{GARBAGE}", f"log/a/{MANIFEST}"]
    assert (await shelf_on(store).drop("a", grace_us=0)).deleted == 0
    with pytest.raises(NameTaken, match="names are not reused"):
        await log_of(store, "a", 1, protocol="manifest")


@pytest.mark.parametrize("happened", [True, False])
async def test_whoever_destroys_a_wal3_log_may_die_at_any_request(happened: bool) -> None:
    """The destroyer of a wal3 log may die at any request, and a second destruction completes it.

    The tombstone comes first, so no reader sees half a log.
    """
    start = MemoryStore()
    await log_of(start, "a", 5, protocol="manifest")
    before = await contents(start, "a")
    counted = Recorded(MemoryStore(objects=dict(start.objects), puts_count=start.puts_count))
    await shelf_on(counted).drop("a", grace_us=0)
    for number in range(len(counted.records)):
        store = MemoryStore(objects=dict(start.objects), puts_count=start.puts_count)

        with pytest.raises(LocationError):
            await shelf_on(dying(store, number, happened=happened)).drop("a", grace_us=0)
        with suppress(NoSuchLog):
            assert await contents(store, "a") == before
        await shelf_on(store).drop("a", grace_us=0)
        assert set(store.objects) == {f"log/a/{GARBAGE}", f"log/a/{MANIFEST}"}


async def test_slots_without_a_manifest_are_not_destroyed() -> None:
    """A log of slots without a manifest is not destroyed, because it can be rebuilt."""
    store = MemoryStore()
    await log_of(store, "a", 3)
    await store.delete([f"log/a/{MANIFEST}"])
    keys = set(store.objects)
    with pytest.raises(NoSuchLog):
        await shelf_on(store).drop("a", grace_us=0)
    assert set(store.objects) == keys


@pytest.mark.parametrize("happened", [True, False])
async def test_whoever_destroys_may_die_at_any_request(happened: bool) -> None:
    """The destroyer may die at any request, and a second destruction completes it.

    Until then a reader sees the whole log or NoSuchLog.
    """
    start = MemoryStore()
    await log_of(start, "a", 9)
    before = await contents(start, "a")
    smooth = MemoryStore(objects=dict(start.objects), puts_count=start.puts_count)
    counted = Recorded(smooth)
    await shelf_on(counted).drop("a", grace_us=0)
    for number in range(len(counted.records)):
        store = MemoryStore(objects=dict(start.objects), puts_count=start.puts_count)

        with pytest.raises(LocationError):
            await shelf_on(dying(store, number, happened=happened)).drop("a", grace_us=0)
        with suppress(NoSuchLog):
            assert await contents(store, "a") == before
        await shelf_on(store).drop("a", grace_us=0)
        left = {key.rpartition("/")[2] for key in store.objects}
        assert left == {key.rpartition("/")[2] for key in smooth.objects}


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_no_log_comes_to_lie_where_another_is_being_destroyed(protocol: str) -> None:
    """A log under destruction keeps its name taken.

    Otherwise the destroyer would delete a new log of that name after its grace.
    """
    store = MemoryStore()
    await log_of(store, "a", 3, protocol="manifest")
    tried: list[str] = []

    class Waiting(SwiftClock):
        async def sleep(self, duration_us: int) -> None:
            if duration_us == GRACE_US:
                with pytest.raises(NameTaken, match="names are not reused"):
                    await shelf_on(store).create("a", protocol=protocol)
                with pytest.raises(NameTaken):
                    await shelf_on(store).copy("other", "a", protocol=protocol)
                tried.append(protocol)
            await super().sleep(duration_us)

    await log_of(store, "other", 2)
    for _ in range(2):  # The second run finds a destroyed log.
        await Logs(store=store, clock=Waiting(), writer="me").drop("a")
    assert len(tried) == 2
    assert set(await keys_in(store, "log/a/")) == {f"log/a/{GARBAGE}", f"log/a/{MANIFEST}"}


@pytest.mark.parametrize("how", ["fork", "copy to slots", "copy to wal3's form"])
async def test_what_is_being_made_is_destroyed_and_its_maker_is_told(how: str) -> None:
    """A fork or copy whose target is destroyed before its manifest raises NameTaken.

    Otherwise its manifest would name deleted objects.
    """
    store = MemoryStore()
    await log_of(store, "a", 12)
    destroyed: list[str] = []

    async def before(op: str, key: str) -> None:
        if (op, key) == ("put", f"log/b/{MANIFEST}") and not destroyed:
            destroyed.append(key)
            await shelf_on(store).drop("b", grace_us=0)

    logs = shelf_on(Interposed(store, before=before))
    if how == "fork":
        making = logs.fork("a", "b")
    else:
        making = logs.copy("a", "b", protocol="slot" if "slots" in how else "manifest")
    with pytest.raises(NameTaken):
        await making
    assert destroyed
    assert set(await keys_in(store, "log/b/")) == {f"log/b/{GARBAGE}", f"log/b/{MANIFEST}"}
    with pytest.raises(NoSuchLog, match="was dropped"):
        await shelf_on(store).open("b")


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("kind", ["cursor", "fragment", "snapshot", "slot"])
async def test_no_log_is_made_over_what_is_left_of_another(kind: str, protocol: str) -> None:
    """A new log is not created over objects of an old one.

    An old cursor would hold records, a fragment would be included, and slots could be rebuilt.
    """
    store = MemoryStore()
    await log_of(store, "a", 12, protocol="manifest" if kind == "fragment" else "slot")
    await (await shelf_on(store).open("a")).create_cursor("c", 2)
    folder = {"cursor": "cursor/", "fragment": "log/", "snapshot": "snapshot/", "slot": "epoch/"}
    for key in await keys_in(store, "log/a/"):
        if not key.startswith(f"log/a/{folder[kind]}"):
            await store.delete([key])
    left = await keys_in(store)
    assert left
    with pytest.raises(UsageError, match="objects of another log"):
        await shelf_on(store).create("a", protocol=protocol)
    assert await keys_in(store) == left


async def test_what_chromas_writer_goes_on_with_is_not_deleted() -> None:
    """A destruction stops if Chroma's writer has continued the log during the grace.

    Chroma's code ignores the tombstone and finds an empty log.
    """
    store = MemoryStore()
    await log_of(store, "a", 3, protocol="manifest")
    left: list[str] = []

    class Waiting(SwiftClock):
        async def sleep(self, duration_us: int) -> None:
            if duration_us == GRACE_US:
                stone = (await load_head(shelf_on(store).within("a"))).manifest
                taken = encode_manifest(replace(stone, chain=None, writer="chroma"))
                await store.put(f"log/a/{MANIFEST}", taken)
                left.extend(await keys_in(store))
            await super().sleep(duration_us)

    with pytest.raises(ContentionError, match="during its destruction"):
        await Logs(store=store, clock=Waiting(), writer="me").drop("a")
    assert await keys_in(store) == left
