"""Stores that break a promise are refused when a location is created, by name of the promise."""

from __future__ import annotations

import pytest

from kit.clocks import SwiftClock
from kit.lying import IgnoresIfAbsent, IgnoresIfMatch, ListsNothing, LyingServer, ReadsStale
from tidelog.clock import SystemClock
from tidelog.errors import LocationError, StoreRefused
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.probe import probe_store
from tidelog.store.urls import open_store
from tidelog.testing import Fault, Faulty
from tidelog.testing.faulty import NO_FAULT, Request

CLOCK = SystemClock()


@pytest.mark.parametrize(
    ("store", "promise"),
    [
        (IgnoresIfAbsent(), "ignores If-None-Match"),
        (IgnoresIfMatch(), "ignores If-Match"),
        (ReadsStale(), "does not see what was just written"),
        (ListsNothing(), "listing does not show"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, MemoryStore) else "",
)
async def test_a_broken_promise_is_named(store: Store, promise: str) -> None:
    """Who is refused must learn why, and what would do instead."""
    with pytest.raises(StoreRefused, match=promise) as refused:
        await probe_store(store, clock=CLOCK)
    assert "use a store with conditional writes" in str(refused.value)


async def test_a_real_server_without_conditions_is_refused() -> None:
    """Through HTTP and obstore too: some S3 servers answer 200 to every put."""
    with LyingServer() as server:
        store = open_store(server.url("lake"), clock=CLOCK)
        with pytest.raises(StoreRefused, match="ignores If-None-Match"):
            await probe_store(store, clock=CLOCK)
        assert server.objects == {}


async def test_a_store_that_fails_is_not_called_a_liar() -> None:
    """A failure says nothing about promises: it is passed on, and the caller tries again."""
    store = Faulty(MemoryStore(), toss=lambda request: Fault(happened=True, told=False))

    with pytest.raises(LocationError) as failed:
        await probe_store(store, clock=SwiftClock())
    assert not isinstance(failed.value, StoreRefused)


@pytest.mark.parametrize("told", [True, False], ids=["refused", "no answer"])
@pytest.mark.parametrize("happened", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("number", range(4))
async def test_one_failed_put_does_not_fail_the_probe(
    number: int, happened: bool, told: bool
) -> None:
    """A store answers one put by 503 or 429: the probe sends it again, as every other put."""
    puts: list[str] = []

    def toss(request: Request) -> Fault:
        if request.op != "put":
            return NO_FAULT
        puts.append(request.key)
        return Fault(happened=happened, told=told) if len(puts) == number + 1 else NO_FAULT

    inner = MemoryStore()
    await probe_store(Faulty(inner, toss=toss), clock=SwiftClock())

    assert len(puts) >= 4
    assert [entry async for entry in inner.list("")] == []
