"""Destruction of logs: the remains, the errors of other processes, and the forks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from kit.clocks import SwiftClock
from kit.named_logs import SHAPE, contents, log_of, shelf_on, store_with
from kit.stores import InterposedStore, Once, copy_of, deaths, keys_in
from tidelog.errors import (
    ContentionError,
    NameTaken,
    NoSuchLog,
    UsageError,
)
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST, encode_manifest
from tidelog.wal.gc.collector import GRACE_US
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.read.head import load_head


async def test_a_destroyed_log_leaves_its_fences() -> None:
    """The fences of a destroyed log stop a suspended writer from taking an empty slot."""
    store = await store_with(a=6)
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


async def test_a_destroyed_log_releases_its_pins() -> None:
    """A destroyed log releases its pins and its fork's pin; no other process could later."""
    store = await store_with(a=9)
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


async def test_a_fork_that_loses_its_name_releases_its_pin() -> None:
    """A fork that loses its name releases its pin, so that its source can be destroyed."""
    store = await store_with(a=9)
    create = Once("put", "log/b/", lambda: shelf_on(store).create("b"))
    with pytest.raises(NameTaken, match="concurrently"):
        await shelf_on(InterposedStore(store, before=create)).fork("a", "b")
    assert create.met
    assert await (await shelf_on(store).open("a")).pins() == {}
    await shelf_on(store).drop("a", grace_us=0)
    assert await contents(store, "b") == {}


async def test_a_fork_that_is_quicker_than_the_tombstone_keeps_what_it_shares() -> None:
    """A fork made just before its source's tombstone keeps the shared objects."""
    store = await store_with(a=14)
    before_it = await contents(store, "a")

    fork = Once("put", f"log/a/{MANIFEST}", lambda: shelf_on(store).fork("a", "b"))
    found = await shelf_on(InterposedStore(store, before=fork)).drop("a", grace_us=0)
    assert fork.met
    assert found.kept > 14
    assert await contents(store, "b") == before_it
    await shelf_on(store).drop("b", grace_us=0)
    await shelf_on(store).drop("a", grace_us=0)
    assert not [key for key in store.objects if "/pin/" in key or "/snapshot/" in key]


@pytest.fixture
def finds_no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a drop find no forks, as if the fork's pin did not exist yet."""

    async def none(*_: object) -> None:
        return

    monkeypatch.setattr("tidelog.wal.admin.destroy._refuse_forks", none)


@pytest.mark.usefixtures("finds_no_forks")
async def test_a_fork_whose_source_is_destroyed_before_its_pin_is_sure_is_none() -> None:
    """A fork whose source is destroyed before its pin is sure fails: its objects are gone."""
    store, puts = await store_with(a=14), list[str]()

    async def before(op: str, key: str) -> None:
        if op == "put" and key.startswith("log/a/pin/"):
            puts.append(key)
            if len(puts) == 2:
                await shelf_on(store).drop("a", grace_us=0)

    with pytest.raises(ContentionError):
        await shelf_on(InterposedStore(store, before=before)).fork("a", "b")
    assert not [key for key in store.objects if key.startswith("log/b/")]
    assert not [key for key in store.objects if "/pin/" in key]


@pytest.mark.usefixtures("finds_no_forks")
async def test_a_pin_that_becomes_sure_while_its_log_is_destroyed_is_kept() -> None:
    """A pin that becomes sure after the destroyer read it is kept, because a fork needs it."""
    store = await store_with(a=14)
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

        return await shelf_on(InterposedStore(store, before=before)).fork("a", "b")

    forking = asyncio.create_task(fork())
    await unsure.wait()

    async def finish() -> None:
        go_on.set()
        await forking

    hook = Once("get", "log/a/pin/b.", finish)
    await shelf_on(InterposedStore(store, after=hook)).drop("a", grace_us=0)
    assert go_on.is_set()
    assert await contents(store, "b") == before_it


async def test_slots_without_a_manifest_are_not_destroyed() -> None:
    """A log of slots without a manifest is not destroyed, because it can be rebuilt."""
    store = await store_with(a=3)
    await store.delete([f"log/a/{MANIFEST}"])
    keys = set(store.objects)
    with pytest.raises(NoSuchLog):
        await shelf_on(store).drop("a", grace_us=0)
    assert set(store.objects) == keys
    await shelf_on(store).rebuild("a")
    assert list(await contents(store, "a")) == [1, 2, 3]


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_a_drop_may_die_at_any_request(protocol: str, happened: bool) -> None:
    """A second drop completes a killed one; readers see the whole log or NoSuchLog."""
    start = await store_with(a=9, protocol=protocol)
    before = await contents(start, "a")
    smooth = copy_of(start)
    await shelf_on(smooth).drop("a", grace_us=0)
    wanted = {key.rpartition("/")[2] for key in smooth.objects}

    async for store in deaths(
        start, lambda s: shelf_on(s).drop("a", grace_us=0), happened=happened
    ):
        with suppress(NoSuchLog):
            assert await contents(store, "a") == before
        await shelf_on(store).drop("a", grace_us=0)
        assert {key.rpartition("/")[2] for key in store.objects} == wanted


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_no_log_comes_to_lie_where_another_is_being_destroyed(protocol: str) -> None:
    """A dropped name stays taken: the destroyer would delete a new log after its grace."""
    store = await store_with(a=3, protocol="manifest")
    tried: list[str] = []

    class WaitingClock(SwiftClock):
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
        await Logs(store=store, clock=WaitingClock(), writer="me").drop("a")
    assert len(tried) == 2
    assert set(await keys_in(store, "log/a/")) == {f"log/a/{GARBAGE}", f"log/a/{MANIFEST}"}


@pytest.mark.parametrize("how", ["fork", "copy to slots", "copy to wal3's form"])
async def test_what_is_being_made_is_destroyed_and_its_maker_is_told(how: str) -> None:
    """The maker of a log that is dropped before its manifest exists gets NameTaken."""
    store = await store_with(a=12)
    drop = Once("put", f"log/b/{MANIFEST}", lambda: shelf_on(store).drop("b", grace_us=0))
    logs = shelf_on(InterposedStore(store, before=drop))
    if how == "fork":
        making = logs.fork("a", "b")
    else:
        making = logs.copy("a", "b", protocol="slot" if "slots" in how else "manifest")
    with pytest.raises(NameTaken):
        await making
    assert drop.met
    assert set(await keys_in(store, "log/b/")) == {f"log/b/{GARBAGE}", f"log/b/{MANIFEST}"}
    with pytest.raises(NoSuchLog, match="was dropped"):
        await shelf_on(store).open("b")


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("kind", ["cursor", "fragment", "snapshot", "slot"])
async def test_no_log_is_made_over_what_is_left_of_another(kind: str, protocol: str) -> None:
    """A new log over an old one's cursors, fragments or slots would mix both."""
    store = await store_with(a=12, protocol="manifest" if kind == "fragment" else "slot")
    await (await shelf_on(store).open("a")).create_cursor("c", 2)
    folder = {"cursor": "cursor/", "fragment": "log/", "snapshot": "snapshot/", "slot": "epoch/"}
    for key in await keys_in(store, "log/a/"):
        if not key.startswith(f"log/a/{folder[kind]}"):
            await store.delete([key])
    left = await keys_in(store)
    assert left
    with pytest.raises(UsageError, match="objects of a log without a manifest"):
        await shelf_on(store).create("a", protocol=protocol)
    assert await keys_in(store) == left


async def test_what_chromas_writer_goes_on_with_is_not_deleted() -> None:
    """A drop stops if Chroma's writer, which ignores tombstones, continues the log."""
    store = await store_with(a=3, protocol="manifest")
    left: list[str] = []

    class WaitingClock(SwiftClock):
        async def sleep(self, duration_us: int) -> None:
            if duration_us == GRACE_US:
                stone = (await load_head(shelf_on(store).within("a"))).manifest
                taken = encode_manifest(replace(stone, chain=None, writer="chroma"))
                await store.put(f"log/a/{MANIFEST}", taken)
                left.extend(await keys_in(store))
            await super().sleep(duration_us)

    with pytest.raises(ContentionError, match="during its drop"):
        await Logs(store=store, clock=WaitingClock(), writer="me").drop("a")
    assert await keys_in(store) == left
