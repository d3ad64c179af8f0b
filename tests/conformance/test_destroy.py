"""Destruction of logs.

| scenario of wal3's | shown by |
| --- | --- |
| with a dangling canonical fragment: gone | test_a_destroyed_log_is_gone |
| with an unknown object: an error | test_a_destruction_keeps_foreign_objects |
| without a manifest: nothing is done | test_what_is_not_there_is_not_destroyed |
| a neighbour whose name begins alike counts as left | not ours: it is another log, and stays |
| (not there) a crash at any request | wal/test_destroy.py: test_a_drop_may_die_at_any_request |
| (not there) a writer that was suspended | test_a_suspended_writer_of_a_destroyed_log_gets_an_error |
| (not there) a log with forks | test_a_log_with_forks_is_not_destroyed |
"""  # noqa: E501

from __future__ import annotations

from contextlib import suppress

import pytest

from kit.protocols import CLOCK, SLOTS, WAL3, Kind, contents
from tidelog.errors import NameTaken, NoSuchLog, TidelogError, UsageError
from tidelog.store.keys import Within
from tidelog.store.port import Store
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.logs import Logs
from tidelog.wal.read.head import load_head


def shelf_on(store: Store) -> Logs:
    return Logs(store=store, clock=CLOCK, writer="me")


async def written(kind: Kind, store: Store, name: str, count: int) -> Within:
    """Write a log of fragments of one record each, by two writers in turn."""
    within = Within(store, f"log/{name}")
    await kind.make(within)
    for half in range(2):
        async with kind.writer(within, name=f"w{half}") as writer:
            for number in range(count // 2):
                await writer.append([b"%d-%d" % (half, number)])
    return within


async def keys(store: Store, prefix: str = "") -> set[str]:
    return {entry.key async for entry in store.list(prefix)}


async def fences_of(within: Within) -> set[str]:
    chain = (await load_head(within)).manifest.chain
    return set() if chain is None else {epoch.path(slot) for epoch, slot in chain.ends()}


async def test_a_destroyed_log_is_gone(kind: Kind, store: Store) -> None:
    """Destruction leaves only a tombstone, a plan and a slot log's fences; the name stays taken."""
    within, neighbour = await written(kind, store, "a", 20), await written(kind, store, "ab", 4)
    log = await shelf_on(store).open("a")
    await log.create_cursor("x", 2)
    data = next(k for k in await keys(within) if k.endswith(".parquet"))
    dangling = fragment_path(99) if kind is WAL3 else f"{data[:-24]}{99:016x}.parquet"
    await within.put(dangling, (await within.get(data)).data)
    beside = await contents(kind, neighbour)
    found = await shelf_on(store).drop("a", grace_us=0)
    assert (await shelf_on(store).drop("a", grace_us=0)).deleted == 0
    fences = await fences_of(within) if kind is SLOTS else set()
    assert await keys(within) == {MANIFEST, GARBAGE} | fences
    assert found.deleted > 20
    assert found.foreign == []
    with pytest.raises(NoSuchLog):
        await shelf_on(store).open("a")
    assert await contents(kind, neighbour) == beside
    # The name stays taken, because a suspended process may still use it.
    for protocol in ("slot", "manifest"):
        with pytest.raises(NameTaken, match="names are not reused"):
            await shelf_on(store).create("a", protocol=protocol)


async def test_a_destruction_keeps_foreign_objects(kind: Kind, store: Store) -> None:
    """Foreign objects stay: they prevent a destruction in wal3's form; a slot log reports them."""
    within = await written(kind, store, "a", 6)
    for key in ("notes.txt", "log/notes.parquet", "snapshot/SNAPSHOT.x"):
        await within.put(key, b"?")
    before = await keys(store)
    if kind is WAL3:
        with pytest.raises(UsageError, match="not part of a log"):
            await shelf_on(store).drop("a", grace_us=0)
        assert await keys(store) == before
        return
    found = await shelf_on(store).drop("a", grace_us=0)
    strange = {"notes.txt", "log/notes.parquet", "snapshot/SNAPSHOT.x"}
    assert set(found.foreign) == strange
    assert await keys(within) == {MANIFEST, GARBAGE, *strange, *await fences_of(within)}


async def test_what_is_not_there_is_not_destroyed(store: Store) -> None:
    """The destruction of a missing log raises NoSuchLog (wal3 returns without an error)."""
    await store.put("log/a/log/x.parquet", b"?")
    with pytest.raises(NoSuchLog):
        await shelf_on(store).drop("a", grace_us=0)
    assert await keys(store) == {"log/a/log/x.parquet"}


async def test_a_suspended_writer_of_a_destroyed_log_gets_an_error(
    kind: Kind, store: Store
) -> None:
    """A suspended writer of a destroyed log gets an error for each append."""
    within = await written(kind, store, "a", 6)
    sleeper = kind.writer(within, name="sleeper")
    await sleeper.append([b"before"])
    await shelf_on(store).drop("a", grace_us=0)
    for _ in range(3):
        with pytest.raises(TidelogError):
            await sleeper.append([b"after"])
    with suppress(TidelogError):
        await sleeper.close()
    with pytest.raises(NoSuchLog):
        await shelf_on(store).open("a")


async def test_a_log_with_forks_is_not_destroyed(store: Store) -> None:
    """A log with forks raises UsageError that names them, until the forks are destroyed."""
    within = await written(SLOTS, store, "a", 6)
    whole = await contents(SLOTS, within)
    for source, name in ("ab", "bc"):
        await shelf_on(store).fork(source, name)
    for name, fork in (("a", "b"), ("b", "c")):
        with pytest.raises(UsageError, match=f"drop these first: {fork}"):
            await shelf_on(store).drop(name, grace_us=0)
    assert await contents(SLOTS, Within(store, "log/c")) == whole
    for name in "cba":
        await shelf_on(store).drop(name, grace_us=0)
    left = {key for key in await keys(store) if not key.endswith((MANIFEST, GARBAGE))}
    assert left == {f"log/a/{path}" for path in await fences_of(within)} | {
        f"log/{name}/{path}"
        for name in "bc"
        for path in await fences_of(Within(store, f"log/{name}"))
        if not path.startswith("../")
    }
