"""Shards: one durable, definite collection, whoever writes it and wherever it lies.

The numbers T7 to T32 are those of the anchor notes' conformance scenarios.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocks import SwiftClock
from tables import schema_of, table_of
from tidelog.clock import SystemClock
from tidelog.consensus.memory import MemoryConsensus
from tidelog.consensus.port import Consensus
from tidelog.consensus.store import StoreConsensus
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    DataDiffers,
    DeadlineExceeded,
    LocationError,
    Outcome,
    UpperMismatch,
    UsageError,
)
from tidelog.frontier import TIME_MAX, Frontier
from tidelog.ids import ShardId
from tidelog.persist.schema import ShardSchema
from tidelog.persist.shard import Progress, Shard
from tidelog.persist.transition import Verdict
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.urls import open_store
from tidelog.testing import Fault, Faulty, Recorded, Request
from tidelog.testing.models import (
    Row,
    ShardModel,
    Update,
    consolidate,
    contents_of,
    updates_of,
)

SCHEMA = schema_of(["string", "int64"], keys=1)
COMMITTED, ALREADY, MISMATCH = Verdict.COMMITTED, Verdict.ALREADY, Verdict.MISMATCH


class Place:
    """Where shards lie; each handle is as a process of its own would have it."""

    def __init__(self, store: Store, consensus: Callable[[Store], Consensus]) -> None:
        self.store = store
        self._consensus = consensus

    def shard(
        self,
        *,
        schema: ShardSchema | None = SCHEMA,
        store: Store | None = None,
        name: str = "s",
        clock: SystemClock | None = None,
    ) -> Shard:
        within = store or self.store
        return Shard(
            id=ShardId(name),
            store=within,
            consensus=self._consensus(within),
            clock=clock or SwiftClock(),
            schema=schema,
        )


def in_memory() -> Place:
    shared = MemoryConsensus()
    return Place(MemoryStore(), lambda _: shared)


def on_store(store: Store) -> Place:
    return Place(store, lambda within: StoreConsensus(store=within, clock=SwiftClock()))


@pytest.fixture(params=["memory", "on memory", "on local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "memory":
        return in_memory()
    if request.param == "on memory":
        return on_store(MemoryStore())
    return on_store(open_store(str(tmp_path / "store"), clock=SystemClock()))


def rows(*updates: tuple[str, int | None, int, int]) -> pa.Table:
    return table_of(SCHEMA, list(updates))


async def contents(shard: Shard, as_of: int) -> Counter[Row]:
    return contents_of(await (await shard.snapshot(as_of)).to_arrow())


async def heard(listener: AsyncIterator[Progress], upper: int | None) -> list[Update]:
    """Give what a listener tells until it has reached ``upper``."""
    found: list[Update] = []
    async for progress in listener:
        found.extend(updates_of(progress.updates))
        if progress.upper == Frontier.of(upper):
            break
        assert progress.upper < Frontier.of(upper)
    return found


def test_a_shard_that_nobody_wrote_begins_at_zero(place: Place) -> None:
    """T7: since = upper = {0}, and looking makes nothing."""

    async def run() -> None:
        shard = place.shard()
        assert await shard.upper() == await shard.since() == Frontier.at(0)
        assert [entry async for entry in place.store.list("")] == []
        with pytest.raises(UsageError, match="with its schema"):
            await place.shard(schema=None).compare_and_append(None, 0, 1)

    asyncio.run(run())


def test_what_is_appended_is_read_at_every_time(place: Place) -> None:
    """The first promise: contents at each time, also by who knows nothing but the name."""

    async def run() -> None:
        shard = place.shard()
        first = await shard.compare_and_append(rows(("a", 1, 0, 1), ("b", 2, 1, 1)), 0, 2)
        assert (first.verdict, first.upper) == (COMMITTED, Frontier.at(2))
        await shard.compare_and_append(rows(("a", 1, 3, -1), ("a", 2, 3, 1)), 2, 5)

        reader = place.shard(schema=None)
        assert await contents(reader, 0) == {("a", 1): 1}
        assert await contents(reader, 2) == {("a", 1): 1, ("b", 2): 1}
        assert await contents(reader, 4) == {("a", 2): 1, ("b", 2): 1}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("updates", "lower", "upper"),
    [
        ([], 5, 3),
        ([("a", 1, 3, 1)], 3, 3),
        ([("a", 1, 2, 1)], 3, 5),
        ([("a", 1, 5, 1)], 3, 5),
        ([("a", 1, 3, 1)], 5, 3),
    ],
    ids=["backwards", "in no time", "below lower", "at upper", "both"],
)
def test_an_interval_that_is_wrong_is_refused_without_a_request(
    updates: list[tuple[str, int, int, int]], lower: int, upper: int
) -> None:
    """T8 and T9: a mistake of the caller costs nothing and leaves nothing."""
    store = Recorded(MemoryStore())

    async def run() -> None:
        with pytest.raises(UsageError) as caught:
            await on_store(store).shard().compare_and_append(rows(*updates), lower, upper)
        assert caught.value.outcome is Outcome.NOT_APPLIED

    asyncio.run(run())

    assert store.records == []


def test_of_two_that_race_one_wins_and_the_other_is_told(place: Place) -> None:
    """T10: the loser learns the upper, and nothing of it is there."""

    async def run() -> None:
        first, second = place.shard(), place.shard()
        won, lost = await asyncio.gather(
            first.compare_and_append(rows(("a", 1, 0, 1)), 0, 2),
            second.compare_and_append(rows(("b", 1, 0, 1)), 0, 3),
        )
        assert {won.verdict, lost.verdict} == {COMMITTED, MISMATCH}
        assert won.upper == lost.upper
        assert sum((await contents(place.shard(), 0)).values()) == 1

    asyncio.run(run())


def test_two_writers_of_one_thing_make_it_once(place: Place) -> None:
    """T11: the same data, cut at other times; both are told that it is there."""
    data = [("k", n, n, 1) for n in range(7)]

    def between(lower: int, upper: int) -> pa.Table:
        return rows(*[u for u in data if lower <= u[2] < upper])

    async def run() -> None:
        first, second = place.shard(), place.shard()
        await first.append(between(0, 5), 0, 5)
        await second.append(between(0, 3), 0, 3)
        await second.append(between(3, 7), 3, 7)
        await first.append(between(5, 7), 5, 7)

        assert await contents(place.shard(), 6) == {("k", n): 1 for n in range(7)}

    asyncio.run(run())


def test_equal_boundaries_are_checked_and_others_are_told_to_be_unchecked() -> None:
    """Data that cannot be compared is not said to be equal."""

    async def run() -> None:
        place = in_memory()
        first, second = place.shard(), place.shard()
        assert await first.append(rows(("a", 1, 0, 1)), 0, 3)
        assert await first.append(rows(("a", 2, 3, 1)), 3, 5)
        assert await second.append(rows(("a", 1, 0, 1), ("a", 2, 3, 1)), 0, 5)
        assert await second.append(rows(("a", 1, 0, 1)), 0, 3)
        assert not await second.append(rows(("a", 1, 0, 1)), 0, 2)

    asyncio.run(run())


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
def test_other_data_for_the_same_times_is_found_and_refused(
    other: list[tuple[str, int | None, int, int]],
) -> None:
    """Two writers that disagree must not both go on: one of them is wrong."""

    async def run() -> None:
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

    asyncio.run(run())


def test_an_append_with_a_hole_is_refused_and_one_in_the_past_is_not(place: Place) -> None:
    """T12 and T13: nothing is skipped, and nothing is done twice."""

    async def run() -> None:
        shard = place.shard()
        with pytest.raises(UpperMismatch) as caught:
            await shard.append(rows(("a", 1, 5, 1)), 5, 9)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert await shard.append(rows(("a", 1, 0, 1)), 0, 9)
        assert await shard.append(rows(("a", 1, 0, 1)), 0, 9)
        assert await place.shard().append(rows(), 9, 9)
        assert await contents(shard, 8) == {("a", 1): 1}

    asyncio.run(run())


def test_a_finished_shard_is_readable_at_any_time_and_takes_no_more(place: Place) -> None:
    """T14: the empty frontier is past every time there is."""

    async def run() -> None:
        shard = place.shard()
        await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, None)

        told = await place.shard().compare_and_append(rows(("b", 1, 5, 1)), 5, 9)
        assert (told.verdict, told.upper) == (MISMATCH, Frontier.empty())
        for as_of in (0, 5, TIME_MAX):
            assert await contents(place.shard(), as_of) == {("a", 1): 1}
        assert await shard.append(rows(("a", 1, 0, 1)), 0, None)
        with pytest.raises(DataDiffers):
            await shard.append(rows(("a", 2, 0, 1)), 0, None)

    asyncio.run(run())


def test_empty_appends_write_no_part() -> None:
    """T15: a thousand moves of upper cost no object, but for a rollup now and then."""

    async def run() -> None:
        store = Recorded(MemoryStore())
        shard = on_store(store).shard()
        await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
        for number in range(1, 1_001):
            await shard.compare_and_append(None, number, number + 1)

        puts = Counter(r.key.split("/")[-2] for r in store.records if r.op == "put")
        assert set(puts) == {"consensus", "rollup"}
        assert puts["consensus"] == 1_001 + puts["rollup"]
        assert puts["rollup"] <= 1_001 // 64 + 1
        sizes = [r.size for r in store.records if r.key.startswith("consensus/") and r.op == "put"]
        assert max(sizes) < 64 * 1024

    asyncio.run(run())


def test_a_small_append_costs_one_request() -> None:
    """One round trip: data below 4 KiB rides in the change itself."""

    async def run() -> None:
        store = Recorded(MemoryStore())
        shard = on_store(store).shard()
        await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
        store.records.clear()
        for number in range(1, 20):
            await shard.compare_and_append(rows(("a", 1, number, 1)), number, number + 1)

        assert [r.op for r in store.records] == ["put"] * 19

    asyncio.run(run())


def test_a_state_takes_only_so_much_data_inline() -> None:
    """Past 256 KiB, small appends become objects: a state must stay small."""

    async def run() -> None:
        store = Recorded(MemoryStore())
        shard = on_store(store).shard()
        for number in range(150):
            table = rows(*[(f"{n:030}", n, number, 1) for n in range(40)])
            await shard.compare_and_append(table, number, number + 1)

        assert shard.state.inline_bytes < 256 * 1024 + 4 * 1024
        assert any("/part/" in r.key for r in store.records)
        found = await contents(shard, 149)
        assert found == {(f"{n:030}", n): 150 for n in range(40)}

    asyncio.run(run())


# What a caller is told when an answer is lost: T17 to T21.


class Torn:
    """A store whose next put of consensus ends as it is told to."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.next: Fault | None = None

    def toss(self, request: Request) -> Fault:
        if request.op != "put" or not request.key.startswith("consensus/"):
            return Fault()
        fault, self.next = self.next or Fault(), None
        return fault

    def shard(self) -> Shard:
        """Give a shard whose consensus gives up at once, so that its callers meet the doubt."""
        store = Faulty(self.inner, toss=self.toss)
        consensus = StoreConsensus(store=store, clock=SwiftClock(), attempts=1)
        return Shard(
            id=ShardId("s"), store=store, consensus=consensus, clock=SwiftClock(), schema=SCHEMA
        )


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("others_went_on", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_retry_with_the_same_token_is_told_the_truth(
    happened: bool, others_went_on: bool, named: bool
) -> None:
    """T17 to T20: once, never twice; and never a no for what is there."""
    torn = Torn()

    async def run() -> None:
        shard, table = torn.shard(), rows(("a", 1, 0, 1))
        torn.next = Fault(happened=happened, told=False)
        with pytest.raises(LocationError) as caught:
            await shard.compare_and_append(table, 0, 2, token=("w", 0), named=named)
        assert caught.value.outcome is Outcome.UNKNOWN
        if others_went_on:
            other = on_store(torn.inner).shard()
            upper = await other.upper()
            await other.compare_and_append(rows(("b", 1, 5, 1)), upper, 9)

        told = await shard.compare_and_append(table, 0, 2, token=("w", 0), named=named)
        wanted = ALREADY if happened else MISMATCH if others_went_on else COMMITTED
        assert told.verdict is wanted
        reader = on_store(torn.inner).shard()
        upper = await reader.upper()
        found = await contents(reader, upper.time - 1)
        assert found[("a", 1)] == (0 if wanted is MISMATCH else 1)

    asyncio.run(run())


def test_an_error_that_says_not_applied_is_to_be_believed() -> None:
    """The caller of such an error tries again with another token, and must not double."""
    torn = Torn()

    async def run() -> None:
        torn.next = Fault(happened=False, told=True)
        shard = torn.shard()
        with pytest.raises(LocationError) as caught:
            await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2)
        assert await contents(shard, 1) == {("a", 1): 1}

    asyncio.run(run())


# Reading: T23 to T31.


async def history(shard: Shard) -> ShardModel:
    """Write something with batches of all kinds, and give the model of it."""
    model = ShardModel()
    steps: list[tuple[list[tuple[str, int | None, int, int]], int, int]] = [
        ([("a", 1, 0, 1), ("b", None, 1, 2)], 0, 2),
        ([], 2, 3),
        ([("a", 1, 4, -1), ("a", 2, 4, 1), ("c", 3, 3, 1)], 3, 6),
        ([("c", 3, 6, -1)], 6, 7),
        ([("b", None, 9, -1), ("b", None, 9, 1)], 7, 10),
    ]
    for updates, lower, upper in steps:
        await shard.compare_and_append(rows(*updates), lower, upper)
        model.compare_and_append(updates_of(rows(*updates)), lower, upper)
    return model


@pytest.mark.parametrize("as_of", range(10))
def test_a_snapshot_and_a_listener_make_the_whole(place: Place, as_of: int) -> None:
    """T23: from every time at which they can part, nothing twice and nothing missing."""

    async def run() -> None:
        model = await history(place.shard())
        reader = place.shard()
        before = await contents(reader, as_of)
        await place.shard().compare_and_append(rows(("late", 1, 10, 1)), 10, 12)
        after = await heard(reader.listen(as_of), 12)

        model.compare_and_append([Update(("late", 1), 10, 1)], 10, 12)
        assert before == model.contents(as_of)
        assert consolidate(after) == model.changes(as_of)
        assert [u.time for u in after] == sorted(u.time for u in after)

    asyncio.run(run())


def test_a_listener_follows_until_the_end(place: Place) -> None:
    """Each interval once, in order, whether or not anything happened in it."""

    async def run() -> None:
        shard = place.shard()
        told: list[tuple[Frontier, Frontier, int]] = []

        async def listen() -> None:
            told.extend(
                [(p.lower, p.upper, p.updates.num_rows) async for p in place.shard().listen(0)]
            )

        async def write() -> None:
            await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
            for number in range(1, 6):
                table = rows(("a", 1, number, 1)) if number % 2 else None
                await shard.compare_and_append(table, number, number + 1)
                await asyncio.sleep(0.002)
            await shard.compare_and_append(None, 6, None)

        async with asyncio.TaskGroup() as group:
            group.create_task(listen())
            group.create_task(write())
        assert told[0][0] == Frontier.at(1)
        assert told[-1][1] == Frontier.empty()
        assert all(before[1] == after[0] for before, after in pairwise(told))
        assert sum(count for _, _, count in told) == 3

    asyncio.run(run())


def test_a_time_below_since_is_refused_with_the_least_that_is_kept(place: Place) -> None:
    """T24: never partial data; and what can be read is said."""

    async def run() -> None:
        shard = place.shard()
        await history(shard)
        await shard.hold("h", 0)
        await shard.downgrade_since("h", 4)
        reader = place.shard()
        for as_of in (0, 3):
            with pytest.raises(AsOfBeforeSince, match="the earliest is 4"):
                await reader.snapshot(as_of)
            with pytest.raises(AsOfBeforeSince, match="the earliest is 4"):
                await heard(reader.listen(as_of), 10)
        assert (await contents(reader, 4))[("a", 2)] == 1

    asyncio.run(run())


def test_a_time_that_is_not_complete_is_waited_for(place: Place) -> None:
    """T24: a snapshot blocks until its time is known, or until it was told to give up."""

    async def run() -> None:
        reader = place.shard(clock=SystemClock())
        with pytest.raises(DeadlineExceeded):
            await reader.snapshot(0, timeout_us=20_000)
        with pytest.raises(AsOfNotComplete):
            reader.snapshot_of(reader.state, 0)

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(contents(reader, 3))
            await asyncio.sleep(0.03)
            assert not waiting.done()
            await place.shard().compare_and_append(rows(("a", 1, 3, 1)), 0, 4)
        assert waiting.result() == {("a", 1): 1}

    asyncio.run(run())


def test_a_wait_that_is_cancelled_leaves_nothing() -> None:
    """T24: neither a hold nor a lock: the handle goes on."""

    async def run() -> None:
        place = in_memory()
        shard = place.shard(clock=SystemClock())
        waiting = asyncio.create_task(contents(shard, 3))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 4)
        assert shard.state.holds == {}
        assert await contents(shard, 3) == {("a", 1): 1}

    asyncio.run(run())


def test_since_follows_the_slowest_hold_and_stays_when_holds_go(place: Place) -> None:
    """T31 and T32: a reader that is slow is protected by its own hold, and by nothing else."""

    async def run() -> None:
        shard, other = place.shard(), place.shard()
        await history(shard)
        assert await shard.hold("slow") == Frontier.at(0)
        assert await other.hold("quick", 2) == Frontier.at(2)
        assert await other.downgrade_since("quick", 9) == Frontier.at(0)
        assert (await contents(place.shard(), 0))[("a", 1)] == 1
        assert await shard.downgrade_since("slow", 3) == Frontier.at(3)
        assert await shard.downgrade_since("slow", 1) == Frontier.at(3)
        assert await shard.release("slow")
        assert await shard.release("quick")
        assert not await shard.release("quick")
        assert await place.shard().since() == Frontier.at(3)
        assert await other.hold("new") == Frontier.at(3)
        with pytest.raises(UsageError):
            await other.hold("old", 2)

    asyncio.run(run())


def test_first_holds_stand_before_anybody_could_let_go() -> None:
    """The history of a source is held by its first write, not by a second one."""

    async def run() -> None:
        place = in_memory()
        shard = Shard(
            id=ShardId("s"),
            store=place.store,
            consensus=place.shard().consensus,
            clock=SystemClock(),
            schema=SCHEMA,
            first_holds={"history": Frontier.at(0)},
        )
        await shard.compare_and_append(None, 0, 5)
        other = place.shard()
        await other.hold("mine", 0)
        await other.downgrade_since("mine", 4)
        assert await place.shard().since() == Frontier.at(0)

    asyncio.run(run())


def test_another_schema_is_refused(place: Place) -> None:
    """A shard has one: whoever comes with another has another shard in mind."""
    other = schema_of(["string", "string"], keys=1)

    async def run() -> None:
        await place.shard().compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
        with pytest.raises(UsageError, match="another schema"):
            await place.shard(schema=other).compare_and_append(None, 1, 2)

    asyncio.run(run())


@settings(max_examples=30)
@given(data=st.data())
def test_a_shard_does_what_its_model_does(data: st.DataObject) -> None:
    """Commands at random, right and wrong, beside a sorted list of updates."""
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
                done = await shard.compare_and_append(rows(*drawn), lower, until)
                landed = model.compare_and_append(updates_of(rows(*drawn)), lower, until)
                assert (done.verdict is COMMITTED) == landed
                assert done.upper == Frontier.at(model.upper or 0)
            case "read" if upper:
                as_of = data.draw(st.integers(0, upper - 1))
                assert await contents(shard, as_of) == model.contents(as_of)
            case "listen" if upper > 1:
                as_of = data.draw(st.integers(0, upper - 2))
                assert consolidate(await heard(shard.listen(as_of), upper)) == model.changes(as_of)

    async def run() -> None:
        for _ in range(data.draw(st.integers(1, 14))):
            await step()

    asyncio.run(run())
