"""Copies of renditions that die at any request, or are made by two ingesters at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from kit.renditions import Rows, counted, lake_on, put, rows_of
from kit.shelf_kind import Row, Shelf, empty_shelves, shelf_row
from kit.sources import compact, ingest, run_once
from kit.stores import deaths
from tidelog.collection.ingest.copying import COPY_HOLD
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import LocationError, NoSuchCollection
from tidelog.location import Location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store


@pytest.fixture(name="_shelves")
def _empty_shelves() -> Any:
    with empty_shelves():
        yield


FAR = 10**15  # Further ahead of the clock than ``max_ahead`` allows: a bad row.


async def start_of(*, keeps: bool = True, ticks: int = 3, retain: str = "forever") -> MemoryStore:
    """Return a store with the source ``c``, whose rows were ingested in some ticks.

    Each tick has a bad row.
    """
    store = MemoryStore(name="memory://")
    lake = await lake_on(store, create=True)
    spec = SourceSpec(
        name="c",
        kind="shelf",
        schema="k bigint, at bigint, gone boolean",
        envelope="upsert",
        key=("k",),
        time_column="at",
        delete_when="gone",
        lateness="0s",
        keep_bindings=keeps,
        retain=retain,
    )
    await lake.sources.create(spec)
    for n in range(ticks):
        put(shelf_row(n, 1_000 * n + 1), shelf_row(n - 1, 1_000 * n + 500, gone=n % 2 == 0))
        put(shelf_row(n, FAR))
        await ingest(lake, "c")
    return store


async def holds_left(lake: Location) -> set[str]:
    catalog = await lake.controller.catalog()
    shards = {one for rendition in catalog.renditions.values() for one in rendition.roles}
    states = [await lake.renditions._shard(one).refresh() for one in sorted(shards)]
    return {name for state in states for name in state.holds if name.startswith(COPY_HOLD)}


async def bad_rows(lake: Location, name: str, time: int, *, retained: bool) -> Rows:
    """Return the bad rows; with a retention, those that no full merge may have dropped."""
    if not retained:
        return await rows_of(lake, name, time, is_errors=True)
    since = max(one.since or 0 for one in await lake.renditions.list("c"))
    return counted(await (await lake.collection(f"{name}_errors")).changes(since, time))


async def check_equal(lake: Location, *, retained: bool = False) -> None:
    """Check that both renditions have the same rows at all times, and that no hold is left."""
    assert (await lake.renditions.diff("c", "c2")).num_rows == 0
    facts = {one.name: one for one in await lake.renditions.list("c")}
    upper = facts["c"].upper
    assert facts["c2"].upper == upper
    assert upper
    bad = [await bad_rows(lake, name, upper - 1, retained=retained) for name in ("c", "c2")]
    assert bad[0] == bad[1]
    assert retained or bad[1]
    assert not await holds_left(lake)


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize(("keeps", "retain"), [(True, "forever"), (False, "0s")])
@pytest.mark.usefixtures("_shelves")
async def test_a_copy_that_dies_at_any_request_is_ended_by_the_next_one(
    happened: bool, keeps: bool, retain: str
) -> None:
    """No row is lost or doubled, and the input of the copied rows is not read again."""
    start = await start_of(keeps=keeps, ticks=2, retain=retain)
    lake = await lake_on(start)
    await lake.renditions.create(RenditionSpec(name="c2", shards=2, copy=True), of="c")
    for n in (5, 6):
        put(shelf_row(n, 1_000 * n), shelf_row(1, 1_000 * n, gone=n == 5), shelf_row(n, FAR))
        await ingest(lake, "c")

    async def copy(store: Store) -> None:
        lake = await lake_on(store)
        ingester = await lake.sources.ingester("c2", bytes_max=1)
        while await ingester.copy() is not None:
            pass

    count, rows = 0, Shelf.rows["a"]
    gone: list[Row | None] = [None] * len(rows)
    Shelf.rows["a"] = gone
    async for store in deaths(start, copy, happened=happened):
        count += 1
        Shelf.rows["a"] = gone
        lake = await lake_on(store)
        if count % 2:
            await compact(lake)
        await copy(store)
        Shelf.rows["a"] = rows
        await run_once(await lake.sources.ingester("c2"))
        await check_equal(lake, retained=retain == "0s")
    assert count > 25


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.usefixtures("_shelves")
async def test_a_creation_that_dies_is_ended_by_the_first_ingester(happened: bool) -> None:
    """If the catalog has the rendition, the ingester places the holds that are missing."""
    start = await start_of()

    async def create(store: Store) -> None:
        lake = await lake_on(store)
        await lake.renditions.create(RenditionSpec(name="c2", shards=2, copy=True), of="c")

    made = Counter[bool]()
    async for store in deaths(start, create, happened=happened):
        lake = await lake_on(store)
        there = len(await lake.renditions.list("c")) == 2
        made[there] += 1
        if not there:
            assert not await holds_left(lake)
            await create(store)
        await run_once(await lake.sources.ingester("c2"))
        await check_equal(await lake_on(store))
    assert min(made[False], made[True]) > 1


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.usefixtures("_shelves")
async def test_a_drop_of_a_copy_that_dies_leaves_no_hold(happened: bool) -> None:
    """The same command ends it, and the other rendition can be merged again."""
    start = await start_of()
    lake = await lake_on(start)
    await lake.renditions.create(RenditionSpec(name="c2", shards=2, copy=True), of="c")
    await (await lake.sources.ingester("c2", bytes_max=1)).copy()

    async def drop(store: Store) -> None:
        await (await lake_on(store)).renditions.drop("c2")

    count = 0
    async for store in deaths(start, drop, happened=happened):
        count += 1
        lake = await lake_on(store)
        try:
            await lake.renditions.drop("c2")
        except NoSuchCollection:
            assert len(await lake.renditions.list("c")) == 1
        assert not await holds_left(lake)
        await ingest(lake, "c")
    assert count > 15


@pytest.mark.usefixtures("_shelves")
@pytest.mark.parametrize("seed", range(6))
async def test_ingesters_of_both_renditions_and_merges_at_once(seed: int) -> None:
    """Two ingesters copy in steps of other sizes, while the first rendition goes on."""
    dice = random.Random(seed)
    store = await start_of(keeps=bool(seed % 2), ticks=8)
    lake = await lake_on(store)
    await lake.renditions.create(RenditionSpec(name="c2", shards=3, copy=True), of="c")
    copiers = [
        await (await lake_on(store)).sources.ingester("c2", bytes_max=size) for size in (1, 2_000)
    ]
    ingested = await (await lake_on(store)).sources.ingester("c")

    async def copy(number: int) -> None:
        await copiers[number].copy()

    async def go_on(_: int) -> None:
        n = dice.randrange(20)
        put(shelf_row(n, 8_000 + 10 * len(Shelf.rows["a"]), gone=dice.random() < 0.3))
        await ingested.tick(await ingested.source.head())

    async def merge(_: int) -> None:
        await compact(await lake_on(store))

    for _ in range(12):
        work = dice.choices([copy, go_on, merge], [6, 2, 1], k=3)
        await asyncio.gather(*(one(dice.randrange(2)) for one in work))
    for one in copiers:
        await run_once(one)
    await run_once(ingested)
    await run_once(copiers[0])

    await check_equal(await lake_on(store))
    lake = await lake_on(store)
    newest = (await lake.renditions.describe("c2")).upper or 0
    for time in range(0, newest, 97):
        assert await rows_of(lake, "c2", time) == await rows_of(lake, "c", time)


@pytest.mark.usefixtures("_shelves")
async def test_a_copy_needs_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is complete before the run reads the head of a source that is out of reach."""
    store = await start_of()
    lake = await lake_on(store)
    await lake.renditions.create(RenditionSpec(name="c2", copy=True), of="c")

    async def fail(_: Shelf) -> dict[str, int]:
        raise LocationError("the shelf is out of reach")

    monkeypatch.setattr(Shelf, "head", fail)
    with pytest.raises(LocationError, match="out of reach"):
        await run_once(await lake.sources.ingester("c2"))

    await check_equal(lake)
