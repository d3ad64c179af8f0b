"""Commands on renditions that die at any request, and many handovers in a row."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from kit.renditions import holds, lake_on, put, reader, rows_at, rows_of, shelf_lake
from kit.shelf_kind import empty_shelves, shelf_row
from kit.sources import compact, ingest
from kit.stores import copy_of, deaths
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.spec_types import SourceSpec
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store


@pytest.fixture(name="_shelves")
def _empty_shelves() -> Any:
    with empty_shelves():
        yield


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.usefixtures("_shelves")
async def test_a_handover_that_dies_at_any_request_is_made_or_not(happened: bool) -> None:
    """Afterwards the contents are of one of two histories. The same command, repeated, ends it."""
    start = await shelf_lake()
    before = await rows_at(await lake_on(copy_of(start)))

    async def hand_over(store: Store) -> None:
        await (await lake_on(store)).renditions.handover("c", to="c2")

    ends = Counter[bool]()
    async for store in deaths(start, hand_over, happened=happened):
        lake = await lake_on(copy_of(store))
        assert await rows_at(lake) == before
        ends[(await reader(lake)).begins > 0] += 1
        await hand_over(store)
        lake = await lake_on(store)
        handle = await reader(lake)
        assert [one.rendition.called for one in handle.eras] == ["c", "c2"]
        assert holds(handle)["mine"] == handle.begins
        assert set(holds(handle)) == {"mine"}
        info = (await lake.controller.catalog()).collection("c")
        assert info.active == handle.rendition.id
    assert min(ends[False], ends[True]) > 1


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("former", [False, True])
@pytest.mark.usefixtures("_shelves")
async def test_a_drop_that_dies_at_any_request_is_ended_by_the_same_command(
    happened: bool, former: bool
) -> None:
    """Readers of the active rendition never notice."""
    start = await shelf_lake()
    lake, name = await lake_on(start), "c2"
    await (await lake.collection("c")).drop_hold("mine")
    if former:
        await lake.renditions.handover("c", to="c2")
        name = "c"
        put(shelf_row(9, 9_000))
        await ingest(lake, "c2")
    before = await rows_at(lake)

    async def drop(store: Store) -> None:
        await (await lake_on(store)).renditions.drop(name)

    count = 0
    async for store in deaths(start, drop, happened=happened):
        count += 1
        lake = await lake_on(store)
        assert await rows_at(lake) == before
        if any(one.name == name for one in await lake.renditions.list("c")):
            await lake.renditions.drop(name)
        assert await rows_at(await lake_on(store)) == before
        assert len(await lake.renditions.list("c")) == 1
    assert count > 8


@pytest.mark.usefixtures("_shelves")
@pytest.mark.parametrize("seed", range(4))
async def test_many_handovers_at_random_times(seed: int) -> None:
    """Contents are those of the rendition that is read at each time; changes add up to them."""
    dice = random.Random(seed)
    store = MemoryStore(name="memory://")
    lake = await lake_on(store, create=True)
    spec = SourceSpec(
        name="c", kind="shelf", schema="k bigint, at bigint", shards=2, keep_bindings=True
    )
    await lake.sources.create(spec)
    names, handed, stale = ["c"], [0], await lake.collection("c")
    forms: list[dict[str, Any]] = [
        {"shards": 3},
        {"envelope": "upsert", "key": ("k",), "shards": 1},
        {"envelope": "upsert", "key": ("k",), "delete_when": '"at" % 5 = 0'},
        {"envelope": "none", "shards": 2},
        {"shards": 5},
    ]
    for round_number, form in enumerate(forms):
        made = f"c{round_number + 2}"
        await lake.renditions.create(RenditionSpec(name=made, **form), of="c")
        for _ in range(3):
            put(*(shelf_row(dice.randrange(12), dice.randrange(100)) for _ in range(5)))
            for name in dice.sample([names[-1], made], 2):
                await ingest(lake, name)
        if dice.random() < 0.5:
            await compact(lake)
        handed.append(await lake.renditions.handover("c", to=made))
        names.append(made)
        put(shelf_row(dice.randrange(12), dice.randrange(100)))
        await ingest(lake, made)
    await stale.refresh()
    newest = stale.upper.time - 1
    asked = [t + d for t in handed[1:] for d in (-1, 0, 1)] + [newest]
    asked += [dice.randint(handed[1], newest) for _ in range(20)]
    asked = sorted({time for time in asked if time <= newest})
    found = await rows_at(lake, asked[0])
    for before, time in pairwise(asked):
        for row in (await stale.changes(before, time)).to_pylist():
            found[row["k"], row["at"]] += row["_diff"]
        active = names[max(n for n, begins in enumerate(handed) if begins <= time)]
        assert +found == await rows_of(lake, active, time) == await rows_at(lake, time)
    history, upper = await lake.renditions.history("c")
    assert [(one.rendition, one.time) for one in history if one.diff > 0] == list(
        zip(names, handed, strict=True)
    )
    assert upper == newest + 1
