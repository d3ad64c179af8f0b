"""Holds on all shards of a collection at once, also of two renditions, while an ingester ticks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from kit.renditions import holds, lake_on, put, reader
from kit.shelf_kind import empty_shelves, shelf_row
from kit.sources import ingest
from kit.stores import InterposedStore, Once, copy_of
from tidelog.collection.collection import Collection
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import HoldFenced, UsageError
from tidelog.location import Location
from tidelog.store.memory import MemoryStore
from tidelog.testing import RecordedStore


@pytest.fixture(autouse=True)
def _empty_shelves() -> Iterator[None]:
    with empty_shelves():
        yield


async def tick(lake: Location, key: int) -> None:
    put(shelf_row(key, 1_000 * key))
    await ingest(lake, "c")


async def short_lake(*, ticks: int = 4) -> MemoryStore:
    """Return a store with the source ``c`` of three shards, whose newest time alone is readable."""
    store = MemoryStore(name="memory://")
    lake = await lake_on(store, create=True)
    spec = SourceSpec(
        name="c",
        kind="shelf",
        schema="k bigint, at bigint",
        shards=3,
        keep_bindings=True,
        retain="0s",
    )
    await lake.sources.create(spec)
    for key in range(ticks):
        await tick(lake, key)
    return store


def at_first_commit(
    store: MemoryStore, act: Callable[[], Awaitable[object]], *, is_after: bool = False
) -> tuple[InterposedStore, Once]:
    """Return the store, with ``act`` before the first put of a state, or after it."""
    once = Once("put", "consensus/", act)
    return InterposedStore(store, **{"after" if is_after else "before": once}), once


def several_ticks(lake: Location) -> Callable[[], Awaitable[None]]:
    async def ticks() -> None:
        for key in (10, 11, 12):
            await tick(lake, key)

    return ticks


async def overtaken_after_a_handover() -> tuple[Location, Collection, Once]:
    """Return a location after a handover, and a handle whose first commit comes after ticks."""
    store = await short_lake()
    lake = await lake_on(store)
    await lake.renditions.create(RenditionSpec(name="c2", shards=2), of="c")
    await ingest(lake, "c2")
    await lake.renditions.handover("c", to="c2")
    await tick(lake, 9)
    slow, once = at_first_commit(store, several_ticks(lake))
    handle = await reader(await lake_on(slow))
    assert handle.since.time < handle.begins
    return lake, handle, once


@pytest.mark.parametrize("is_after", [False, True])
async def test_a_refused_hold_is_on_no_shard(is_after: bool) -> None:
    """A tick gives up the time while the hold is placed. A part of a hold would keep history."""
    store = await short_lake()
    lake = await lake_on(store)
    since = (await reader(lake)).since.time

    slow, once = at_first_commit(store, several_ticks(lake), is_after=is_after)
    handle, is_placed = await reader(await lake_on(slow)), True
    try:
        await handle.hold("mine", since)
    except UsageError:
        is_placed = False

    assert once.met
    assert is_placed == is_after
    assert holds(await reader(lake)) == ({"mine": since} if is_placed else {})


async def test_a_refused_hold_is_on_no_rendition() -> None:
    """Its time is of the former rendition, which keeps it. The other one has given its times up."""
    lake, handle, once = await overtaken_after_a_handover()
    with pytest.raises(UsageError, match="choose a later time"):
        await handle.hold("mine", handle.begins - 1)

    assert once.met
    assert all(holds(era) == {} for era in (await reader(lake)).eras)


async def test_a_hold_of_all_times_follows_retention_past_a_handover() -> None:
    """Its caller named no time, so it takes the earliest one that is left."""
    lake, handle, once = await overtaken_after_a_handover()
    placed = await handle.hold("mine")

    assert once.met
    assert placed.time > handle.begins
    assert [holds(era) for era in (await reader(lake)).eras] == [{}, {"mine": placed.time}]


async def test_a_hold_on_a_group_is_one_put_and_is_completed_after_a_part() -> None:
    """An earlier version may have placed it on some shards; these keep their time."""
    store = await short_lake()
    recorded = RecordedStore(store)
    handle = await reader(await lake_on(recorded))
    first = handle.since.time
    await handle.all_shards[1].hold("mine", first)
    await tick(await lake_on(store), 20)
    recorded.records.clear()

    placed = await handle.hold("mine")

    assert sum(one.op == "put" for one in recorded.records) == 1
    assert placed.time >= first
    times = [
        shard.state.holds["mine"].since for shard in (await reader(await lake_on(store))).all_shards
    ]
    assert times[1] == first
    assert {*times} <= {first, placed.time}


async def test_a_hold_that_is_dropped_during_a_handover_is_on_no_rendition() -> None:
    """The reader drops it at any request of the handover, with a handle from before it."""
    start = await short_lake(ticks=2)
    lake = await lake_on(start)
    await lake.renditions.create(RenditionSpec(name="c2", shards=2), of="c")
    await ingest(lake, "c2")
    await (await reader(lake)).hold("mine")
    requests = RecordedStore(copy_of(start))
    await (await lake_on(requests)).renditions.handover("c", to="c2")
    assert len(requests.records) > 10
    for number in range(len(requests.records)):
        store = copy_of(start)
        handle = await reader(await lake_on(store))
        slow = DropsAt(handle, number)
        await (await lake_on(InterposedStore(store, before=slow))).renditions.handover("c", to="c2")

        eras = (await reader(await lake_on(store))).eras
        assert [era.rendition.called for era in eras] == ["c", "c2"]
        assert [holds(era) for era in eras] == [{}, {}], number


class DropsAt:
    """A hook of an `InterposedStore` that drops a hold before request ``number``."""

    def __init__(self, handle: Collection, number: int) -> None:
        self.handle, self.left = handle, number

    async def __call__(self, op: str, key: str) -> None:
        self.left -= 1
        if self.left == -1:
            await self.handle.drop_hold("mine")


async def test_a_handover_between_the_read_and_the_drop_of_a_hold_is_met() -> None:
    """The drop meets the mark in the state that it changes, and continues with the successor."""
    store = await short_lake()
    lake = await lake_on(store)
    await lake.renditions.create(RenditionSpec(name="c2", shards=2), of="c")
    await ingest(lake, "c2")
    await (await reader(lake)).hold("mine")

    async def handover() -> None:
        await lake.renditions.handover("c", to="c2")

    slow, once = at_first_commit(store, handover)
    handle = await reader(await lake_on(slow))
    assert await handle.drop_hold("mine")

    assert once.met
    assert [holds(era) for era in (await reader(lake)).eras] == [{}, {}]


async def test_an_owner_that_was_fenced_before_a_handover_stays_fenced() -> None:
    """The hold keeps its token on the other rendition. Its times would else be given up."""
    store = await short_lake()
    lake = await lake_on(store)
    handle = await reader(lake)
    await handle.hold("mine", token=1)
    await handle.hold("mine", token=2)
    await lake.renditions.create(RenditionSpec(name="c2", shards=2), of="c")
    await ingest(lake, "c2")
    await lake.renditions.handover("c", to="c2")
    await tick(lake, 9)
    await tick(lake, 10)
    handle = await reader(lake)
    before = [holds(era) for era in handle.eras]
    with pytest.raises(HoldFenced):
        await handle.move_hold("mine", handle.upper.time - 1, token=1)

    assert [holds(era) for era in (await reader(lake)).eras] == before
    assert before[1] == {"mine": handle.begins}
