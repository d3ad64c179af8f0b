"""A log's source that is dropped during ingestion: it leaves no cursor in the log."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest

from kit.clocks import SwiftClock
from kit.dying import DiesWriting
from kit.named_logs import log_of
from kit.sources import collect as collect_groups
from kit.sources import run_once
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import LocationError, NoSuchCollection, SourceDropped, TidelogError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore, Request


async def test_a_source_that_is_dropped_as_it_begins_leaves_no_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leftover cursor would hold the log's records forever."""
    store = MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=SwiftClock(), store=store)
    await log_of(store, "l", 3)
    await location.sources.create(SourceSpec(name="s", kind="log", settings={"log": "l"}))
    ingester, hold = await location.sources.ingester("s"), Ingester._hold

    async def late(one: Ingester, *, make: bool) -> None:
        if make:
            await location.sources.drop("s")
        await hold(one, make=make)

    monkeypatch.setattr(Ingester, "_hold", late)
    with suppress(SourceDropped):
        await run_once(ingester)
    assert (await (await location.log("l")).cursors()).cursors == {}


async def dropped_halfway(store: MemoryStore, number: int, *, landed: bool) -> bool:
    """Drop a log's source in a process that dies at a write. Return False if it did not die."""
    location = await open_location("memory://", create=True, clock=SwiftClock(), store=store)
    await log_of(store, "l", 3)
    await location.sources.create(SourceSpec(name="s", kind="log", settings={"log": "l"}))
    death = DiesWriting(number=number, landed=landed)
    with suppress(TidelogError):
        await (await lake(FaultyStore(store, toss=death.toss))).sources.drop("s")
    return death.died


async def lake(store: Store) -> Location:
    return await open_location("memory://", clock=SwiftClock(), store=store)


async def collect(location: Location) -> None:
    """Collect as ``tidelog collect`` does without names."""
    await collect_groups(location)
    maintenance = location.maintenance
    async for _ in maintenance.release(await maintenance.unreleased()):
        pass


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("again", ["drop", "collect"])
async def test_a_drop_that_was_killed_is_finished_by_the_next_command(
    again: str, landed: bool
) -> None:
    """A leftover cursor would hold the log's records forever."""
    for number in count():
        store = MemoryStore(name="memory://")
        died = await dropped_halfway(store, number, landed=landed)
        location = await lake(store)
        is_dropped = "s" not in (await location.controller.catalog()).sources
        if again == "collect" and is_dropped:
            await collect(location)
        elif died:
            with suppress(NoSuchCollection):  # The drop may be complete, with only its answer lost.
                await location.sources.drop("s")
        assert (await (await location.log("l")).cursors()).cursors == {}, number
        with pytest.raises(NoSuchCollection):
            await location.sources.drop("s")
        await collect(location)
        await collect(location)
        catalog = await location.controller.catalog()
        assert (catalog.releasing, catalog.dropped) == ({}, frozenset())
        if not died:
            break
    assert number > 1


async def test_a_cursor_that_a_killed_ingester_made_late_goes_with_the_shards() -> None:
    """A collection deletes a cursor that an ingester created after the drop."""
    store = MemoryStore(name="memory://")
    assert not await dropped_halfway(store, 99, landed=False)
    location = await lake(store)
    [dropped] = (await location.controller.catalog()).releasing.values()
    log = await location.log("l")
    await log.create_cursor(f"source_s_{dropped.source.id}", 1)
    await collect(location)
    assert (await log.cursors()).cursors == {}


async def test_a_log_that_cannot_be_reached_is_released_later() -> None:
    """The source is dropped at once. The cursor is deleted once the log's store answers."""
    store = MemoryStore(name="memory://")
    assert await dropped_halfway(store, 1, landed=False)

    def refuse(request: Request) -> Fault:
        return Fault(happened="/cursor/" not in request.key)

    location = await lake(FaultyStore(store, toss=refuse))
    with pytest.raises(LocationError):
        await collect(location)
    await collect(await lake(store))
    assert (await (await (await lake(store)).log("l")).cursors()).cursors == {}
