"""The commands that were begun and not ended: a location lists them with the remedies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from kit.renditions import lake_on, put, reader, shelf_lake
from kit.shelf_kind import empty_shelves, shelf_row
from kit.sources import ingest
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
    "source drop": (log_lake, drop_source, COLLECT),
    "table create": (
        log_lake,
        create_table,
        "tidelog table create t, with the same options as before",
    ),
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


async def remedies(store: Store) -> set[str]:
    return {one.remedy for one in await (await lake_on(store)).maintenance.unfinished()}


async def test_no_remedy_drops_what_readers_read() -> None:
    """The first rendition has the name of the collection, and so has a source that is new again."""
    start = await shelf_lake()
    lake = await lake_on(start)
    await (await lake.collection("c")).drop_hold("mine")
    await hand_over(lake)
    put(shelf_row(9, 9_000))
    await ingest(lake, "c2")

    async def drop_first(store: Store) -> None:
        await (await lake_on(store)).renditions.drop("c")

    seen = set[str]()
    async for store in deaths(start, drop_first, happened=True):
        seen |= await remedies(store)
    assert seen == {"tidelog rendition drop c", COLLECT}
    start = await log_lake()

    async def drop_log(store: Store) -> None:
        await drop_source(await lake_on(store))

    async for store in deaths(start, drop_log, happened=True):
        assert await remedies(store) <= {COLLECT}


async def test_a_handover_that_another_one_overtook_is_not_advised() -> None:
    """It would change readers back."""
    start = await shelf_lake()
    await (await lake_on(start)).renditions.create(RenditionSpec(name="c3"), of="c")
    await ingest(await lake_on(start), "c3")

    async def begin(store: Store) -> None:
        await hand_over(await lake_on(store))

    overtaken = 0
    async for store in deaths(start, begin, happened=True):
        lake = await lake_on(store)
        marked = "tidelog collection handover c --to c2" in await remedies(store)
        if (await reader(lake)).rendition.called == "c2":
            break
        await lake.renditions.handover("c", to="c3")
        found = await remedies(store)
        assert not any(one.startswith("tidelog collection handover c --to c2") for one in found)
        if marked:
            overtaken += 1
            assert found >= {"tidelog rendition drop c2"}
            await lake.renditions.drop("c2")
            assert await remedies(store) <= {COLLECT}
    assert overtaken
