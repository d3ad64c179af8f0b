"""Shards: one durable, definite collection for every writer and on every store.

The numbers T7 to T32 are those of the anchor notes' conformance scenarios.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from kit.shards import (
    COMMITTED,
    SCHEMA,
    Place,
    contents,
    heard,
    in_memory,
    on_store,
    rows,
)
from tidelog.consensus.store import StoreConsensus
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.errors import (
    DataDiffers,
    LocationError,
    Outcome,
)
from tidelog.persist.handle.shard import Shard
from tidelog.store.memory import MemoryStore
from tidelog.testing import Fault, FaultyStore, RecordedStore, Request
from tidelog.testing.models import (
    ShardModel,
    consolidate,
    updates_of,
)


async def test_what_is_appended_is_read_at_every_time(place: Place) -> None:
    """A reader that knows only the shard's name reads the contents at each time."""
    shard = place.shard()
    first = await shard.compare_and_append(rows(("a", 1, 0, 1), ("b", 2, 1, 1)), 0, 2)
    assert (first.verdict, first.upper) == (COMMITTED, Frontier.at(2))
    await shard.compare_and_append(rows(("a", 1, 3, -1), ("a", 2, 3, 1)), 2, 5)

    reader = place.shard(schema=None)
    assert await contents(reader, 0) == {("a", 1): 1}
    assert await contents(reader, 2) == {("a", 1): 1, ("b", 2): 1}
    assert await contents(reader, 4) == {("a", 2): 1, ("b", 2): 1}


@pytest.mark.parametrize(
    "other",
    [
        [("a", 2, 0, 1)],
        [("a", 1, 1, 1)],
        [("a", 1, 0, 2)],
        [],
        [("a", 1, 0, 1), ("b", None, 0, 1)],
    ],
    ids=["value", "time", "diff", "nothing", "more"],
)
async def test_other_data_for_the_same_times_is_found_and_refused(
    other: list[tuple[str, int | None, int, int]],
) -> None:
    """Other data for written times raises DataDiffers, because one of the two writers is wrong."""
    place = in_memory()
    await place.shard().append(rows(("a", 1, 0, 1)), 0, 3)
    second = place.shard()
    with pytest.raises(DataDiffers) as caught:
        await second.append(rows(*other), 0, 3)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    with pytest.raises(DataDiffers):
        await second.append(rows(*other, ("later", 1, 4, 1)), 0, 9)
    assert await contents(place.shard(), 2) == {("a", 1): 1}
    assert await second.upper() == Frontier.at(3)


async def test_a_small_append_costs_one_request() -> None:
    """Data below 4 KiB is stored in the state change itself, so an append is one put."""
    store = RecordedStore(MemoryStore())
    shard = on_store(store).shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    store.records.clear()
    for number in range(1, 20):
        await shard.compare_and_append(rows(("a", 1, number, 1)), number, number + 1)

    assert [r.op for r in store.records] == ["put"] * 19


async def test_a_state_takes_only_so_much_data_inline() -> None:
    """After 256 KiB of inline data, small appends become objects, so that a state stays small."""
    store = RecordedStore(MemoryStore())
    shard = on_store(store).shard()
    for number in range(150):
        table = rows(*[(f"{n:030}", n, number, 1) for n in range(40)])
        await shard.compare_and_append(table, number, number + 1)

    assert shard.state.totals.inline_bytes < 256 * 1024 + 4 * 1024
    assert any("/part/" in r.key for r in store.records)
    found = await contents(shard, 149)
    assert found == {(f"{n:030}", n): 150 for n in range(40)}


# Outcomes of lost answers: T17 to T21.


class TornStore:
    """A store that applies a chosen fault to the next put of consensus."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.next: Fault | None = None

    def toss(self, request: Request) -> Fault:
        if request.op != "put" or not request.key.startswith("consensus/"):
            return Fault()
        fault, self.next = self.next or Fault(), None
        return fault

    def shard(self) -> Shard:
        """Return a shard whose consensus never retries, so that callers see unknown outcomes."""
        store = FaultyStore(self.inner, toss=self.toss)
        consensus = StoreConsensus(store=store, clock=SwiftClock(), attempts=1)
        return Shard(
            id=ShardId("s"), store=store, consensus=consensus, clock=SwiftClock(), schema=SCHEMA
        )


async def test_an_error_that_says_not_applied_is_to_be_believed() -> None:
    """After NOT_APPLIED, a caller retries with a new token, and the rows land once."""
    torn = TornStore()

    torn.next = Fault(happened=False, told=True)
    shard = torn.shard()
    with pytest.raises(LocationError) as caught:
        await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2)
    assert await contents(shard, 1) == {("a", 1): 1}


# Reads: T23 to T31.


@settings(max_examples=30)
@given(data=st.data())
async def test_a_shard_does_what_its_model_does(data: st.DataObject) -> None:
    """Two handles run random valid and invalid commands. The model is a sorted list of updates."""
    place, model = in_memory(), ShardModel()
    shards = [place.shard() for _ in range(2)]

    async def step() -> None:
        shard = data.draw(st.sampled_from(shards))
        upper = model.upper or 0
        match data.draw(st.sampled_from(["append", "append", "read", "listen"])):
            case "append":
                lower = max(0, upper + data.draw(st.sampled_from([0, 0, 0, -1, 1])))
                until = lower + data.draw(st.integers(1, 3))
                drawn = data.draw(
                    st.lists(
                        st.tuples(
                            st.sampled_from("ab"),
                            st.none() | st.integers(0, 1),
                            st.integers(lower, until - 1),
                            st.sampled_from([1, -1, 2]),
                        ),
                        max_size=4,
                    )
                )
                done = await shard.try_compare_and_append(rows(*drawn), lower, until)
                landed = model.compare_and_append(updates_of(rows(*drawn)), lower, until)
                assert (done.verdict is COMMITTED) == landed
                assert done.upper == Frontier.at(model.upper or 0)
            case "read" if upper:
                as_of = data.draw(st.integers(0, upper - 1))
                assert await contents(shard, as_of) == model.contents(as_of)
            case "listen" if upper > 1:
                as_of = data.draw(st.integers(0, upper - 2))
                assert consolidate(await heard(shard.listen(as_of), upper)) == model.changes(as_of)

    for _ in range(data.draw(st.integers(1, 14))):
        await step()
