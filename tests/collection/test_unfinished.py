"""The commands that were begun and not ended: a location lists them with the remedies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from kit.renditions import lake_on, shelf_lake
from kit.shelf_kind import empty_shelves
from kit.stores import deaths
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import Location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store

COLLECT = "tidelog collect"


@pytest.fixture(autouse=True)
def shelves() -> Iterator[None]:
    """Register the kind of the tests."""
    with empty_shelves():
        yield


async def log_lake() -> MemoryStore:
    """Return a store with a source of a log, which has a cursor there."""
    store = MemoryStore(name="memory://")
    lake = await lake_on(store, create=True)
    log = await lake.logs.create("l")
    await log.append([b"x"])
    await lake.sources.create(SourceSpec(name="s", kind="log", settings={"log": "l"}))
    return store


async def hand_over(lake: Location) -> None:
    await lake.renditions.handover("c", to="c2")


async def drop_rendition(lake: Location) -> None:
    await (await lake.collection("c")).drop_hold("mine")
    await lake.renditions.drop("c2")


async def drop_source(lake: Location) -> None:
    await lake.sources.drop("s")


async def create_table(lake: Location) -> None:
    await lake.tables.create("t", "n bigint", shards=2)


COMMANDS = {
    "handover": (shelf_lake, hand_over, "tidelog collection handover c --to c2"),
    "rendition drop": (shelf_lake, drop_rendition, "tidelog rendition drop c2"),
    "source drop": (log_lake, drop_source, "tidelog source drop s"),
    "table create": (log_lake, create_table, "tidelog table create t"),
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_killed_command_is_listed_until_it_is_ended(name: str) -> None:
    """At some request, a kill leaves steps behind; afterwards the same call leaves none."""
    make: Callable[[], Awaitable[MemoryStore]]
    run: Callable[[Location], Awaitable[None]]
    make, run, remedy = COMMANDS[name]
    start = await make()
    assert await (await lake_on(start)).maintenance.unfinished() == []
    shown = set()

    async def work(store: Store) -> None:
        await run(await lake_on(store))

    async for store in deaths(start, work, happened=True):
        lake = await lake_on(store)
        shown |= {one.remedy for one in await lake.maintenance.unfinished()}
        if shown:
            break
    assert shown >= {remedy}
    # Only the step that the message names is repeated: others may be done already.
    await ended(await lake_on(store), name)
    left = await (await lake_on(store)).maintenance.unfinished()
    assert [one.remedy for one in left if one.remedy != COLLECT] == []


async def ended(lake: Location, name: str) -> None:
    """Do what the listed command does."""
    if name == "rendition drop":
        await lake.renditions.drop("c2")
    else:
        await COMMANDS[name][1](lake)


async def test_a_command_that_ended_well_is_not_listed() -> None:
    """The shards of a dropped rendition wait for the collector alone."""
    start = await shelf_lake()
    lake = await lake_on(start)
    await lake.renditions.create(RenditionSpec(name="c3"), of="c")
    await hand_over(lake)
    await lake.renditions.drop("c3")

    assert {one.remedy for one in await lake.maintenance.unfinished()} <= {COLLECT}
