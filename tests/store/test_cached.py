"""The cached store: it requests an immutable object once, and any other object each time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kit.clocks import LateClock, simulated
from kit.stores import LingeringStore
from sim.kernel.clock import SimClock
from tidelog.core.lookahead import SharedCalls
from tidelog.errors import LocationError, ObjectExists, ObjectNotFound, Outcome
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.cached import CachedStore, CacheReads, CacheSize
from tidelog.testing import (
    DelayedStore,
    Fault,
    FaultyStore,
    RecordedRequest,
    RecordedStore,
    Request,
)

SEEDS = range(10)
BODY = b"0123456789"


def is_immutable(key: str) -> bool:
    return key.startswith("i/")


def cached(
    store: Store, *, directory: Path | None = None, memory_bytes: int = 1 << 20
) -> CachedStore:
    return CachedStore(
        store,
        clock=SimClock(1),
        is_immutable=is_immutable,
        bounds=CacheSize(memory_bytes=memory_bytes),
        directory=directory,
    )


def gets(recorded: RecordedStore) -> list[RecordedRequest]:
    return [record for record in recorded.records if record.op == "get"]


def files_in(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()]


@pytest.mark.parametrize("on_disk", [False, True])
@simulated
async def test_a_whole_object_is_asked_for_once(on_disk: bool, tmp_path: Path) -> None:
    """After one request, an object's ranges, e-tag and time come from memory or disk."""
    inner = MemoryStore()
    await inner.put("i/a", BODY)
    recorded = RecordedStore(inner)
    store = cached(
        recorded,
        directory=tmp_path if on_disk else None,
        memory_bytes=0 if on_disk else 1 << 20,
    )
    whole = await store.get("i/a")
    assert whole == inner.objects["i/a"]
    for start, limit in ((0, None), (2, 5), (7, None), (7, 99), (50, None), (3, 3), (0, 0)):
        found = await store.get("i/a", start=start, limit=limit)
        assert found == await inner.get("i/a", start=start, limit=limit)
    assert len(recorded.records) == 1
    assert store.reads() == CacheReads(
        store_count=1, memory_count=0 if on_disk else 7, disk_count=7 if on_disk else 0
    )


@simulated
async def test_a_range_is_kept_only_if_it_was_the_whole() -> None:
    """A range that a short answer shows to be whole is kept, and a part never is."""
    inner = MemoryStore()
    await inner.put("i/a", BODY)
    recorded = RecordedStore(inner)
    store = cached(recorded)
    for start, limit in ((1, 99), (0, 10), (0, 3), (1, None), (0, 0)):
        await store.get("i/a", start=start, limit=limit)
    assert len(recorded.records) == 5
    assert (await store.get("i/a", start=0, limit=11)).data == BODY
    assert (await store.get("i/a", start=4)).data == b"456789"
    assert len(recorded.records) == 6


@simulated
async def test_what_can_change_is_asked_for_each_time() -> None:
    """Mutable keys are requested each time. Refreshes and listings of immutable keys are too."""
    inner = MemoryStore()
    recorded = RecordedStore(inner)
    store = cached(recorded)
    for body in (b"1", b"2"):
        await inner.put("m", body)
        assert (await store.get("m")).data == body
    e_tag = await store.put("i/a", BODY, if_absent=True)
    assert await store.refresh("i/a", e_tag) is None
    assert [entry.key async for entry in store.list("i/")] == ["i/a"]
    await inner.delete(["i/a"])
    with pytest.raises(ObjectNotFound):
        await store.refresh("i/a", e_tag)
    assert [entry.key async for entry in store.list("i/")] == []


@pytest.mark.parametrize("seed", SEEDS)
@simulated
async def test_concurrent_reads_of_an_object_share_one_request(seed: int) -> None:
    """Concurrent reads share one request; a range waits for a running read of the whole."""
    clock, inner = SimClock(seed), MemoryStore()
    await inner.put("i/a", BODY)
    recorded = RecordedStore(DelayedStore(inner, clock=clock, delay_us=lambda op, key: 1_000))
    store = cached(recorded)
    whole = [asyncio.create_task(store.get("i/a")) for _ in range(20)]
    await clock.sleep(10)
    part = [asyncio.create_task(store.get("i/a", start=2, limit=4)) for _ in range(20)]
    await clock.sleep(10)
    whole[0].cancel()
    assert {found.data for found in await asyncio.gather(*whole[1:])} == {BODY}
    assert {found.data for found in await asyncio.gather(*part)} == {b"23"}
    assert len(recorded.records) == 1
    assert store.reads().joined_count == 39
    assert len(asyncio.all_tasks()) == 1


@simulated
async def test_what_is_missing_is_asked_for_again() -> None:
    """A missing object is requested again, because another process may have created it."""
    inner = MemoryStore()
    store = cached(inner)
    with pytest.raises(ObjectNotFound):
        await store.get("i/a")
    await inner.put("i/a", BODY)
    assert (await store.get("i/a")).data == BODY


@pytest.mark.parametrize("careless", [False, True])
@simulated
async def test_who_joins_does_not_get_an_older_miss(
    careless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that joins a running request does not get an older miss.

    The object is created while the store slowly answers that it is missing.

    The canary case: without the numbers of `SharedCalls`, the second reader gets the miss.
    """
    if careless:
        monkeypatch.setattr(SharedCalls, "next_number", 0)
    clock, inner = SimClock(1), MemoryStore()
    slow = LingeringStore(inner, clock=clock, delays_us=lambda op: (0, 1_000))
    store = cached(slow)
    first = asyncio.create_task(store.get("i/a"))
    await clock.sleep(500)
    await inner.put("i/a", BODY)
    second = asyncio.create_task(store.get("i/a"))
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(results[0], ObjectNotFound)
    assert isinstance(results[1], ObjectNotFound) == careless


@pytest.mark.parametrize("fault", [Fault(told=False), Fault(happened=False)])
@simulated
async def test_a_put_that_failed_fills_nothing(fault: Fault, tmp_path: Path) -> None:
    """A put that failed or was refused leaves no copy. The object may be another writer's."""
    inner = MemoryStore()
    faults = {"put": [fault, Fault()]}

    def toss(request: Request) -> Fault:
        return faults[request.op].pop(0) if faults.get(request.op) else Fault()

    store = cached(FaultyStore(inner, toss=toss), directory=tmp_path)
    with pytest.raises(LocationError):
        await store.put("i/a", b"ours", if_absent=True)
    await inner.put("i/a", b"theirs")
    with pytest.raises(ObjectExists):
        await store.put("i/a", b"ours", if_absent=True)
    assert files_in(tmp_path) == []
    assert (await store.get("i/a")).data == b"theirs"


@pytest.mark.parametrize("if_absent", [False, True])
@simulated
async def test_a_put_fills_once_it_is_done(if_absent: bool, tmp_path: Path) -> None:
    """A put leaves a copy for its process in memory, for others on disk."""
    inner = MemoryStore()
    recorded = RecordedStore(inner)
    store = cached(recorded, directory=tmp_path)
    e_tag = await store.put("i/a", BODY, if_absent=if_absent)
    other = cached(recorded, directory=tmp_path)
    for reader in (store, other):
        found = await reader.get("i/a")
        assert (found.data, found.e_tag) == (BODY, e_tag)
    assert gets(recorded) == []
    assert (store.reads().memory_count, other.reads().disk_count) == (1, 1)


async def deleted(store: CachedStore) -> None:
    await store.delete(["i/b", "i/a"])


async def replaced(store: CachedStore) -> None:
    # The handle breaks its own promise here. The probe of a store does that.
    await store.put("i/a", b"new")


@pytest.mark.parametrize("change", [deleted, replaced])
@pytest.mark.parametrize("asked_us", [-1_000, 0, 1_500])
@simulated
async def test_what_is_changed_leaves_and_does_not_come_back(
    change: Callable[[CachedStore], Coroutine[Any, Any, None]], asked_us: int, tmp_path: Path
) -> None:
    """A changed object leaves the cache, even if a slow read ran during the change."""
    clock, inner = SimClock(1), MemoryStore()
    await inner.put("i/a", BODY)
    # A read arrives at once, and its answer comes after the change.
    delays_us = {"get": (0, 9_000), "delete": (2_000, 2_000), "put": (2_000, 2_000)}
    slow = LingeringStore(inner, clock=clock, delays_us=lambda op: delays_us[op])
    store = cached(slow, directory=tmp_path)
    await store.get("i/a")

    async def read_later() -> bytes:
        await clock.sleep(max(0, asked_us))
        return (await store.get("i/a")).data

    await store.forget(["i/a"])
    reading = asyncio.create_task(read_later())
    await clock.sleep(max(0, -asked_us))
    changing = asyncio.create_task(change(store))
    await changing
    after = [asyncio.create_task(store.get("i/a")) for _ in range(2)]
    assert await reading == BODY
    results = await asyncio.gather(*after, return_exceptions=True)
    if change is replaced:
        assert {getattr(found, "data", found) for found in results} == {b"new"}
    else:
        assert {type(found) for found in results} == {ObjectNotFound}
        assert files_in(tmp_path) == []


@simulated
async def test_who_asks_after_a_deletion_landed_shares_no_older_answer() -> None:
    """A read after a landed but unanswered deletion shares no older answer."""
    clock, inner = SimClock(1), MemoryStore()
    await inner.put("i/a", BODY)
    delays_us = {"get": (0, 9_000), "delete": (2_000, 5_000)}
    store = cached(LingeringStore(inner, clock=clock, delays_us=lambda op: delays_us[op]))
    deleting = asyncio.create_task(store.delete(["i/a"]))
    await clock.sleep(1_000)
    before = asyncio.create_task(store.get("i/a"))
    await clock.sleep(2_000)
    with pytest.raises(ObjectNotFound):
        await store.get("i/a")
    assert (await before).data == BODY
    await deleting


@simulated
async def test_a_thread_whose_caller_is_gone_keeps_nothing(tmp_path: Path) -> None:
    """The thread of a cancelled caller, which runs on, leaves no copy."""
    waits_us = [500, 500, 900]
    clock = LateClock(1, delay_us=lambda: waits_us.pop(0) if waits_us else 0)
    inner = MemoryStore()
    await inner.put("i/a", BODY)
    store = CachedStore(inner, clock=clock, is_immutable=is_immutable, directory=tmp_path)
    reading = asyncio.create_task(store.get("i/a"))
    await clock.sleep(1_200)
    reading.cancel()
    await asyncio.wait([reading])
    await store.delete(["i/a"])
    assert (waits_us, clock.monotonic_us()) == ([], 1_200)
    await clock.settled()
    assert files_in(tmp_path) == []
    with pytest.raises(ObjectNotFound):
        await store.get("i/a")


@simulated
async def test_a_damaged_copy_is_read_again(tmp_path: Path) -> None:
    """A damaged copy is replaced from the store, and the next process finds a good copy."""
    inner = MemoryStore()
    await inner.put("i/a", BODY)
    await cached(inner, directory=tmp_path).get("i/a")
    (file,) = files_in(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"456", b"654"))
    for damaged_count in (1, 0):
        store = cached(inner, directory=tmp_path)
        assert (await store.get("i/a")).data == BODY
        assert store.reads().damaged_count == damaged_count


@simulated
async def test_a_directory_that_fails_fails_no_read(tmp_path: Path) -> None:
    """A cache directory that fails does not fail any read or put."""
    (tmp_path / "file").write_bytes(b"")
    inner = MemoryStore()
    await inner.put("i/a", BODY)
    store = cached(inner, directory=tmp_path / "file", memory_bytes=0)
    assert (await store.get("i/a")).data == BODY
    await store.put("i/b", BODY, if_absent=True)
    assert store.reads().failures_count == 3


@simulated
async def test_a_copy_that_cannot_be_removed_is_no_secret(tmp_path: Path) -> None:
    """An object whose copy cannot be removed is not deleted."""
    inner = MemoryStore()
    store = cached(inner, directory=tmp_path)
    await store.put("i/a", BODY, if_absent=True)
    (file,) = files_in(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(LocationError) as failed:
        await store.delete(["i/a"])
    assert failed.value.outcome is Outcome.NOT_APPLIED
    assert "i/a" in inner.objects


@simulated
async def test_what_is_forgotten_is_asked_for_again(tmp_path: Path) -> None:
    """A reader that finds wrong bytes can read a forgotten object from the store."""
    recorded = RecordedStore(MemoryStore())
    store = cached(recorded, directory=tmp_path)
    await store.put("i/a", BODY, if_absent=True)
    await store.forget(["i/a", "i/b"])
    assert (await store.get("i/a")).data == BODY
    assert len(gets(recorded)) == 1
