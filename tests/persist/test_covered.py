"""Appends over covered times: equal updates are accepted and others refused, at any boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.shards import ALREADY, COMMITTED, Place, contents, in_memory, on_store, rows
from tidelog.core.frontier import Frontier
from tidelog.errors import AsOfBeforeSince, DataDiffers, Outcome
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.reader import PartReader
from tidelog.store.memory import MemoryStore

Fact = tuple[str, int | None, int, int]
WRITTEN: list[Fact] = [("a", 1, 2, 1), ("b", 2, 8, 1), ("a", 1, 12, -1)]
LATER: Fact = ("c", 3, 22, 1)


async def written(place: Place, *, merged: bool = False) -> Shard:
    """Return a shard with updates in [0, 5), [5, 10) and [10, 20), and a hold at 0."""
    shard = place.shard()
    for update, (lower, upper) in zip(WRITTEN, [(0, 5), (5, 10), (10, 20)], strict=True):
        await shard.compare_and_append(rows(update), lower, upper)
    await shard.hold("history")
    if merged:
        await shard.compact(full=True)
    return shard


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        [("a", 1, 12, -1)],
        [("b", 3, 8, 1), ("a", 1, 12, -1)],
        [("b", 2, 9, 1), ("a", 1, 12, -1)],
        [("b", 2, 8, 2), ("a", 1, 12, -1)],
        [("b", 2, 8, 1), ("a", 1, 12, -1), ("z", None, 19, 1)],
    ],
    ids=["less", "value", "time", "diff", "more"],
)
async def test_other_data_at_other_boundaries_is_refused(
    place: Place, other: list[Fact], merged: bool
) -> None:
    """An append of other data over covered times raises DataDiffers, whatever its boundaries."""
    await written(place, merged=merged)
    late = place.shard()

    with pytest.raises(DataDiffers) as caught:
        await late.append(rows(*other, LATER), 7, 25)

    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert await late.upper() == Frontier.at(20)
    assert "rendition" not in str(caught.value)


@pytest.mark.parametrize("merged", [False, True])
async def test_the_same_data_at_other_boundaries_is_accepted(place: Place, merged: bool) -> None:
    """The shard writes only the new updates, and the verdict states whether it wrote any."""
    await written(place, merged=merged)
    late = place.shard()

    same = [("b", 2, 8, 1), ("a", 1, 12, -1)]
    assert (await late.append(rows(*same), 7, 18)).verdict is ALREADY
    done = await late.append(rows(*same, LATER), 7, 25)
    assert (done.verdict, done.upper) == (COMMITTED, Frontier.at(25))
    assert (await late.append(rows(*same, LATER), 7, 25)).verdict is ALREADY
    assert await contents(place.shard(), 24) == {("b", 2): 1, ("c", 3): 1}


async def test_times_that_the_shard_no_longer_keeps_apart_are_refused() -> None:
    """An append that needs times before `since` raises. Sums decide at remembered uppers."""
    place = in_memory()
    shard = await written(place)
    await shard.move_hold("history", 7)
    await shard.compact(full=True)

    for lower in (1, 6, 7):
        with pytest.raises(AsOfBeforeSince, match=r"since=7") as caught:
            await shard.append(rows(("b", 2, 8, 1), ("a", 1, 12, -1), LATER), lower, 25)
        assert caught.value.outcome is Outcome.NOT_APPLIED
    assert await shard.upper() == Frontier.at(20)
    assert (await shard.append(rows(*WRITTEN[1:]), 5, 20)).verdict is ALREADY
    assert (await shard.append(rows(*WRITTEN[1:]), 8, 20)).verdict is ALREADY
    with pytest.raises(DataDiffers):
        await shard.append(rows(("a", 1, 12, -1)), 8, 20)


async def test_a_finished_shard_is_compared_to_its_last_time() -> None:
    """Appends to a finished shard compare with its last time, although its upper is empty."""
    place = in_memory()
    shard = await written(place)
    await shard.compare_and_append(rows(LATER), 20, None)

    assert (await shard.append(rows(LATER), 15, None)).verdict is ALREADY
    with pytest.raises(DataDiffers):
        await shard.append(rows(), 15, None)
    with pytest.raises(DataDiffers):
        await shard.append(rows(("c", 4, 22, 1)), 21, None)


async def test_a_comparison_goes_on_in_the_parts_that_a_merge_made() -> None:
    """A collector may delete a part after the plan. The append reads the merged part."""
    place = on_store(MemoryStore())
    many: list[Fact] = [(f"k{n}", n, n % 20, 1) for n in range(3_000)]
    shard = place.shard()
    await shard.compare_and_append(rows(*[u for u in many if u[2] < 10]), 0, 10)
    await shard.compare_and_append(rows(*[u for u in many if u[2] >= 10]), 10, 20)
    await shard.hold("history")
    late = place.shard()
    late.reader = MergingFirst(store=place.store, clock=late.clock, shard=shard)

    assert (await late.append(rows(*[u for u in many if u[2] >= 3]), 3, 20)).verdict is ALREADY
    assert late.state.batches.count == 1


@dataclass(slots=True, kw_only=True)
class MergingFirst(PartReader):
    """A reader whose first parts are merged and collected just before it reads."""

    shard: Shard | None

    async def read(self, parts: Sequence[Part], schema: ShardSchema) -> list[pa.Table]:
        if self.shard is not None:
            shard, self.shard = self.shard, None
            await shard.compact(full=True)
            assert await shard.collect(after_us=0) == 2
        # super() fails here: a dataclass with slots is a new class.
        return await PartReader.read(self, parts, schema)


CUTS = st.sets(st.integers(1, 11), max_size=4)
FACTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([None, 1]), st.integers(0, 11), st.just(1)),
    max_size=8,
)


@given(
    facts=FACTS, cuts=CUTS, span=st.tuples(st.integers(0, 11), st.integers(1, 12)), data=st.data()
)
@settings(max_examples=40)
async def test_any_span_is_accepted_if_and_only_if_its_updates_are_the_shards(
    facts: list[Fact], cuts: set[int], span: tuple[int, int], data: st.DataObject
) -> None:
    """Equal updates get ALREADY, others DataDiffers. A plain list is the model."""
    place = in_memory()
    shard = place.shard()
    ends = [0, *sorted(cuts), 12]
    for lower, upper in pairwise(ends):
        some = [u for u in facts if lower <= u[2] < upper]
        await shard.compare_and_append(rows(*some), lower, upper)
    await shard.hold("history")
    if data.draw(st.booleans(), label="merged"):
        await shard.compact(full=True)
    lower, upper = min(span[0], span[1] - 1), span[1]
    mine = [u for u in facts if lower <= u[2] < upper]
    other = data.draw(st.none() | FACTS, label="other")
    brought = mine if other is None else [u for u in other if lower <= u[2] < upper]

    if sorted(map(str, brought)) == sorted(map(str, mine)):
        assert (await place.shard().append(rows(*brought), lower, upper)).verdict is ALREADY
    else:
        with pytest.raises(DataDiffers):
            await place.shard().append(rows(*brought), lower, upper)
