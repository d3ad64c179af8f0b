"""Handovers while other tasks and processes use the same handles, holds and renditions."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kit.renditions import counted, holds, lake_on, put, reader, rows_at, shelf_lake
from kit.shelf_kind import empty_shelves, shelf_row
from kit.sources import compact, ingest
from kit.stores import InterposedStore
from tidelog.collection.handover import Handovers
from tidelog.collection.hold_all import place_hold
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.core.frontier import Frontier
from tidelog.errors import AsOfBeforeSince, DeadlineExceeded, HandoverRefused, UsageError
from tidelog.location import Location
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.store.port import Store


@pytest.fixture(autouse=True)
def _empty_shelves() -> Iterator[None]:
    with empty_shelves():
        yield


def jittered(store: Store, seed: int) -> InterposedStore:
    """Return the store with a random number of steps of other tasks around each request."""
    dice = random.Random(seed)

    async def pause(op: str, key: str) -> None:
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)

    return InterposedStore(store, before=pause, after=pause)


async def tick(lake: Location, name: str, *keys: int) -> None:
    put(*(shelf_row(key, 9_000) for key in keys))
    await ingest(lake, name)


async def hand_over_late(lake: Location) -> int:
    """Hand over to a rendition that is ahead, so that times are left to the first one."""
    ahead = await lake.sources.ingester("c2")
    for _ in range(2):
        await asyncio.sleep(0.002)
        await ahead.tick(await ahead.source.head())
    return await lake.renditions.handover("c", to="c2", at=ahead.upper.time)


async def complete(lake: Location, at: int) -> None:
    """Ingest the first rendition up to the handover at a time."""
    first = await lake.sources.ingester("c")
    while first.upper.time < at:
        await first.tick(await first.source.head())


@pytest.mark.parametrize("seed", range(12))
async def test_tasks_that_share_a_handle_change_over_together(seed: int) -> None:
    """Each of them meets the mark. None may see the successor before its states are read."""
    store = await shelf_lake()
    lake = await lake_on(store)
    handle = await (await lake_on(jittered(store, seed))).collection("c")
    await handle.refresh()
    await lake.renditions.handover("c", to="c2")
    await tick(lake, "c2", 9)
    expected = await rows_at(lake)

    found = await asyncio.gather(*(handle.consolidated() for _ in range(4)))

    assert all(counted(table) == expected for table in found)
    assert [era.rendition.called for era in handle.eras] == ["c", "c2"]


@pytest.mark.parametrize("is_refreshed", [False, True])
async def test_a_crossing_whose_times_are_given_up_loses_no_row(is_refreshed: bool) -> None:
    """A merge may move the times of rows that the crossing has yet to read. It then fails."""
    store = await shelf_lake(retain="0s")
    lake = await lake_on(store)
    put(shelf_row(1, 77))  # The handover then takes back the first row of this key.
    for name in ("c", "c2"):
        await ingest(lake, name)
    handle = await reader(lake)
    start = handle.upper.time - 1
    await handle.hold("mine", start)
    await lake.renditions.handover("c", to="c2")
    for key in (7, 8, 9):
        await tick(lake, "c2", key)
    await handle.refresh()
    newest, found = handle.upper.time - 1, Counter(await rows_at(lake, start))
    expected = await rows_at(lake, newest)

    async def give_up() -> None:
        other = await reader(await lake_on(store))
        for name in holds(other):
            await other.drop_hold(name)
        for key in (10, 11):
            await tick(lake, "c2", key)
        await compact(lake)
        if is_refreshed:
            await handle.refresh()

    try:
        pieces = handle.changes_of(handle.reading(ALL_ROWS), start, newest)
        async for piece in pieces:
            for row in piece.to_pylist():
                found[row["k"], row["at"]] += row["_diff"]
            await give_up()
    except AsOfBeforeSince:
        return
    assert +found == expected


@pytest.mark.parametrize("seed", range(8))
async def test_of_a_handover_and_a_drop_one_wins(seed: int) -> None:
    """Neither waits for the other, and the loser can be repeated."""
    store = await shelf_lake()
    first, second = [await lake_on(jittered(store, seed + n)) for n in (0, 50)]

    handed, dropped = await asyncio.wait_for(
        asyncio.gather(
            first.renditions.handover("c", to="c2"),
            second.renditions.drop("c2"),
            return_exceptions=True,
        ),
        60,
    )

    lake = await lake_on(store)
    is_handed = isinstance(handed, int)
    assert is_handed != (dropped is None), (handed, dropped)
    assert [era.rendition.called for era in (await reader(lake)).eras][-1] == (
        "c2" if is_handed else "c"
    )
    if not is_handed:
        await lake.renditions.create(RenditionSpec(name="c2"), of="c")
        await ingest(lake, "c2")
        await lake.renditions.handover("c", to="c2")
    await tick(lake, "c", 9)
    assert (9, 9_000) in await rows_at(lake)


async def test_the_hold_of_a_dead_handover_does_not_stop_a_drop() -> None:
    """No mark can follow it once the rendition is barred."""
    lake = await lake_on(await shelf_lake())
    catalog = await lake.controller.catalog()
    latter = lake.collections.of_rendition(catalog, catalog.rendition("c2"))
    await latter.refresh()
    at = latter.upper.time
    await place_hold(latter.all_shards, f"handover-{at}", Frontier.at(at))

    await lake.renditions.drop("c2")

    assert [one.name for one in await lake.renditions.list("c")] == ["c"]


@pytest.mark.parametrize("seed", range(6))
async def test_one_of_two_handovers_at_once_is_refused(seed: int) -> None:
    """The other one is decided, and no rendition is read at no time."""
    store = await shelf_lake()
    lake = await lake_on(store)
    await lake.renditions.create(RenditionSpec(name="c3", shards=2), of="c")
    await ingest(lake, "c3")

    async def hand_over(number: int, name: str) -> int:
        other = await lake_on(jittered(store, seed + 30 * number))
        return await other.renditions.handover("c", to=name)

    ends = await asyncio.gather(hand_over(0, "c2"), hand_over(1, "c3"), return_exceptions=True)

    won = [name for name, end in zip(("c2", "c3"), ends, strict=True) if isinstance(end, int)]
    assert len(won) == 1, ends
    assert sum(isinstance(end, HandoverRefused) for end in ends) == 1
    assert [era.rendition.called for era in (await reader(lake)).eras] == ["c", *won]


async def test_a_second_handover_waits_until_the_first_one_is_complete() -> None:
    """Otherwise no ingester would complete the times before the first one."""
    store = await shelf_lake()
    lake = await lake_on(store)
    await lake.renditions.create(RenditionSpec(name="c3"), of="c")
    await hand_over_late(lake)
    await ingest(lake, "c3")

    with pytest.raises(HandoverRefused, match="waits for the times before it: complete them"):
        await lake.renditions.handover("c", to="c3")

    first = await lake.sources.ingester("c")
    await first.tick(await first.source.head())
    for name in ("c2", "c3"):
        await tick(lake, name, 9)
    await lake.renditions.handover("c", to="c3", wait=True)
    assert [era.rendition.called for era in (await reader(lake)).eras] == ["c", "c2", "c3"]


async def test_a_hold_at_a_time_that_was_given_up_is_refused() -> None:
    """A later hold would look like the asked one."""
    lake = await lake_on(await shelf_lake())
    await (await lake.collection("c")).drop_hold("mine")
    time = await lake.renditions.handover("c", to="c2")
    await lake.renditions.drop("c")

    with pytest.raises(AsOfBeforeSince, match="is readable since"):
        await (await lake.collection("c")).hold("late", time - 1)


async def test_a_rendition_between_others_is_not_dropped() -> None:
    """The times before it would become unreadable, although the user named another rendition."""
    lake = await lake_on(await shelf_lake())
    await (await lake.collection("c")).drop_hold("mine")
    await lake.renditions.handover("c", to="c2")
    await tick(lake, "c2", 8)
    await lake.renditions.create(RenditionSpec(name="c3"), of="c")
    await ingest(lake, "c3")
    await lake.renditions.handover("c", to="c3")

    with pytest.raises(UsageError, match="drop 'c' first"):
        await lake.renditions.drop("c2")
    for name in ("c", "c2"):
        await lake.renditions.drop(name)
    assert [one.name for one in await lake.renditions.list("c")] == ["c3"]


async def test_a_rendition_can_be_read_by_its_name() -> None:
    """Before the handover, a user looks at its rows, and at its bad rows."""
    lake = await lake_on(await shelf_lake())
    await tick(lake, "c2", 9)

    assert (9, 9_000) not in await rows_at(lake)
    assert (9, 9_000) in await rows_at(lake, name="c2")
    assert await rows_at(lake, name="c2_errors") == Counter()
    await ingest(lake, "c")
    await lake.renditions.handover("c", to="c2")
    await tick(lake, "c", 10)
    assert (10, 9_000) in await rows_at(lake)
    assert (10, 9_000) in await rows_at(lake, name="c2")


async def test_a_run_commits_all_bindings_of_another_rendition() -> None:
    """The last of them have no new bytes. Without them, a handover would be refused."""
    lake = await lake_on(await shelf_lake())
    first = await lake.sources.ingester("c")
    for _ in range(3):
        await asyncio.sleep(0.002)
        await first.tick(await first.source.head())
    await lake.renditions.create(RenditionSpec(name="c3"), of="c")

    await lake.sources.ingest("c3")

    assert await lake.renditions.handover("c", to="c3") == first.upper.time


async def test_a_wait_that_is_over_says_what_it_waited_for() -> None:
    """The message names the rendition that is behind, and what to do."""
    lake = await lake_on(await shelf_lake())
    await tick(lake, "c", 9)

    with pytest.raises(DeadlineExceeded, match=r"'c2' .*run 'tidelog ingest c2'"):
        await lake.renditions.handover("c", to="c2", timeout_us=1_000)


async def test_no_retention_separates_the_renditions_before_readers_can_cross() -> None:
    """The second one is far ahead, keeps no history, and begins after the end of the first."""
    lake = await lake_on(await shelf_lake(retain="0s"))
    await (await lake.collection("c")).drop_hold("mine")
    at = await hand_over_late(lake)
    for key in (8, 9):
        await tick(lake, "c2", key)
    await compact(lake)

    handle = await reader(lake)
    newest = handle.upper.time - 1
    assert newest < at
    assert handle.since.time <= newest
    assert await handle.hold("late", newest) == Frontier.at(newest)
    assert [one.remedy for one in await lake.maintenance.unfinished()] == ["tidelog ingest c"]

    await complete(lake, at)
    before, crossed = await rows_at(lake, at - 1), handle.changes(newest, at)
    before.update(counted(await crossed))
    assert before == await rows_at(lake, at)


async def test_an_ingester_ends_a_handover_that_waited_for_it() -> None:
    """Otherwise its hold would always keep all history of the rendition."""
    store = await shelf_lake()
    lake = await lake_on(store)
    await complete(lake, await hand_over_late(lake))
    handle = await reader(lake)
    assert any(name.startswith("handover-") for name in holds(handle))
    await lake.sources.status("c")  # It only reads.
    assert any(name.startswith("handover-") for name in holds(await reader(lake)))

    await ingest(lake, "c")

    assert holds(await reader(lake)) == {"mine": handle.begins}
    assert await lake.maintenance.unfinished() == []
    assert len((await lake.controller.catalog()).collection("c").eras) == 2


@pytest.mark.parametrize("to", ["c2", "c3"])
async def test_a_handover_that_another_one_overtakes_marks_no_other_rendition(
    to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handle then shows the successor, which must not get a mark to itself or to another."""
    store = await shelf_lake()
    lake, other = await lake_on(store), await lake_on(store)
    await lake.renditions.create(RenditionSpec(name="c3", shards=2), of="c")
    await ingest(lake, "c3")
    time_of, others = Handovers._time_of, [other]

    async def overtaken(self: Handovers, *given: Any) -> int | None:
        if others:
            await others.pop().renditions.handover("c", to="c2")
        return await time_of(self, *given)

    monkeypatch.setattr(Handovers, "_time_of", overtaken)
    if to == "c2":
        time = await lake.renditions.handover("c", to=to)
        assert time == (await reader(lake)).begins
    else:
        with pytest.raises(HandoverRefused, match="no reader has read its rendition yet"):
            await lake.renditions.handover("c", to=to)

    assert (await reader(lake)).mark is None
    assert [era.rendition.called for era in (await reader(lake)).eras] == ["c", "c2"]


async def test_two_equal_handovers_are_one_and_their_hold_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers cannot cross yet, so the hold must stay."""
    store = await shelf_lake()
    lake, other = await lake_on(store), await lake_on(store)
    ahead = await lake.sources.ingester("c2")
    for _ in range(2):
        await asyncio.sleep(0.002)
        await ahead.tick(await ahead.source.head())
    at, time_of, others = ahead.upper.time, Handovers._time_of, [other]

    async def overtaken(self: Handovers, *given: Any) -> int | None:
        time = await time_of(self, *given)
        if others:
            await others.pop().renditions.handover("c", to="c2", at=at)
        return time

    monkeypatch.setattr(Handovers, "_time_of", overtaken)
    assert await lake.renditions.handover("c", to="c2", at=at) == at

    assert f"handover-{at}" in holds(await reader(lake))
