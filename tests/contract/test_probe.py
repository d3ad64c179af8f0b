"""A location cannot be created on a store that breaks a promise; the error names the promise."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from kit.clocks import HandClock, SwiftClock
from kit.dying import DiesWriting
from kit.lying import IgnoresIfAbsent, IgnoresIfMatch, ListsNothing, LyingServer, ReadsStale
from tidelog.core.clock import SystemClock
from tidelog.errors import LocationError, StoreRefused
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.probe import delete_old_probes, probe_store
from tidelog.store.urls import open_store
from tidelog.testing import Fault, FaultyStore
from tidelog.testing.faulty import NO_FAULT, Request

CLOCK = SystemClock()


@pytest.mark.parametrize(
    ("store", "promise"),
    [
        (IgnoresIfAbsent(), "ignores If-None-Match"),
        (IgnoresIfMatch(), "ignores If-Match"),
        (ReadsStale(), "does not return the bytes just written"),
        (ListsNothing(), "listing does not show"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, MemoryStore) else "",
)
async def test_a_broken_promise_is_named(store: Store, promise: str) -> None:
    """The error names the broken promise and the kind of store to use."""
    with pytest.raises(StoreRefused, match=promise) as refused:
        await probe_store(store, clock=CLOCK)
    assert "use a store with conditional writes" in str(refused.value)


async def test_a_real_server_without_conditions_is_refused() -> None:
    """The probe refuses a server that answers 200 to every put, as some S3 servers do."""
    with LyingServer() as server:
        store = open_store(server.url("lake"), clock=CLOCK)
        with pytest.raises(StoreRefused, match="ignores If-None-Match"):
            await probe_store(store, clock=CLOCK)
        assert server.objects == {}


async def test_a_store_that_fails_is_not_called_a_liar() -> None:
    """A failing store raises its own error, not StoreRefused, because the caller may retry."""
    store = FaultyStore(MemoryStore(), toss=lambda request: Fault(happened=True, told=False))

    with pytest.raises(LocationError) as failed:
        await probe_store(store, clock=SwiftClock())
    assert not isinstance(failed.value, StoreRefused)


@pytest.mark.parametrize("told", [True, False], ids=["refused", "no answer"])
@pytest.mark.parametrize("happened", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("number", range(4))
async def test_one_failed_put_does_not_fail_the_probe(
    number: int, happened: bool, told: bool
) -> None:
    """If a put fails once, refused or with a lost answer, the probe sends it again."""
    puts: list[str] = []

    def toss(request: Request) -> Fault:
        if request.op != "put":
            return NO_FAULT
        puts.append(request.key)
        return Fault(happened=happened, told=told) if len(puts) == number + 1 else NO_FAULT

    inner = MemoryStore()
    await probe_store(FaultyStore(inner, toss=toss), clock=SwiftClock())

    assert len(puts) >= 4
    assert [entry async for entry in inner.list("")] == []


async def test_a_sweep_deletes_what_a_killed_probe_left() -> None:
    """A sweep deletes the objects of killed probes, and keeps those of a running probe."""
    store, clock = MemoryStore(), HandClock()
    for number in range(20):
        death = DiesWriting(number=number, landed=True)
        with suppress(LocationError):
            await probe_store(FaultyStore(store, toss=death.toss), clock=SwiftClock())
    old = [key for key in store.objects if key.startswith("probe/")]
    assert len(old) > 1
    await store.put("probe/young", b"")
    young = store.objects["probe/young"]
    store.objects["probe/young"] = replace(young, modified_us=clock.now_us() - 1_000_000)
    await store.put("other", b"")

    assert await delete_old_probes(store, clock=clock) == len(old)
    assert sorted(store.objects) == ["other", "probe/young"]
