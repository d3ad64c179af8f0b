"""Scenarios T23 to T30: snapshots, listeners, splits."""

from __future__ import annotations

import asyncio
import pickle
import random
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import pytest

from kit.clocks import HandClock
from kit.places import Addresses
from kit.shards import Place, contents, heard, history, in_memory, merge_away, rows, shard_in_parts
from tidelog.core.clock import SystemClock
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    DeadlineExceeded,
    OutcomeUnknown,
    PartMissing,
)
from tidelog.persist.format.schema import TIME
from tidelog.persist.maintenance.compactor import compact
from tidelog.persist.read.splits import read_split
from tidelog.testing.models import Row, ShardModel, Update, consolidate, contents_of, updates_of

LEASE_US = 60_000_000


async def test_t23_a_snapshot_and_a_listener_make_the_whole(place: Place) -> None:
    """A snapshot and the listener after it give each update once, from every time."""
    model = await history(place.shard())
    listeners = {as_of: place.shard().listen(as_of) for as_of in range(10)}
    before = {as_of: await contents(place.shard(), as_of) for as_of in range(10)}
    await place.shard().compare_and_append(rows(("late", 1, 10, 1)), 10, 12)
    after = {as_of: await heard(listener, 12) for as_of, listener in listeners.items()}
    model.compare_and_append([Update(("late", 1), 10, 1)], 10, 12)
    for as_of in range(10):
        assert before[as_of] == model.contents(as_of)
        assert consolidate(after[as_of]) == model.changes(as_of)
        assert [u.time for u in after[as_of]] == sorted(u.time for u in after[as_of])


async def test_t23_they_make_the_whole_while_others_merge_and_collect(place: Place) -> None:
    """Each listener starts at another time, while merges and collections delete parts at once."""
    model, steps = ShardModel(), 12
    writer = place.shard()
    await writer.hold("history", 0)

    async def write() -> None:
        for time in range(steps):
            table = rows(*[(f"k{n % 400}", n % 3, time, 1 - 2 * (n % 5 == 0)) for n in range(700)])
            await writer.compare_and_append(table, time, time + 1)
            model.compare_and_append(updates_of(table), time, time + 1)
        await writer.compare_and_append(None, steps, None)

    async def maintenance() -> None:
        other = place.shard()
        while not (await other.upper()).is_empty:
            # The writers may truncate a record before this process learns whether it is its own.
            with suppress(OutcomeUnknown):
                await compact(other, full=True)
                await other.collect(after_us=0)
            await asyncio.sleep(0.001)

    async def read(as_of: int) -> tuple[Counter[Row], list[Update]]:
        reader = place.shard()
        async with await reader.lease(0) as leased:
            snapshot = await leased.snapshot(as_of, wait=True)
            found = contents_of(await snapshot.to_arrow(consolidated=True))
            return found, await heard(leased.listen(as_of), None)

    splits = (0, 3, 7, steps - 1)
    *found, _, _ = await asyncio.gather(*(read(as_of) for as_of in splits), write(), maintenance())
    for as_of, told in zip(splits, found, strict=True):
        assert told is not None
        assert told[0] == model.contents(as_of)
        assert consolidate(told[1]) == model.changes(as_of)


async def test_t24_a_time_below_since_is_refused_with_the_least_that_is_kept(place: Place) -> None:
    """The error names the earliest readable time. A reader never gets partial data."""
    shard = place.shard()
    await history(shard)
    await shard.hold("h", 0)
    await shard.move_hold("h", 4)
    reader = place.shard()
    for as_of in (0, 3):
        with pytest.raises(AsOfBeforeSince, match="the earliest readable time is 4"):
            await reader.snapshot(as_of)
        with pytest.raises(AsOfBeforeSince, match="the earliest readable time is 4"):
            await heard(reader.listen(as_of), 10)
    assert (await contents(reader, 4))[("a", 2)] == 1


async def test_t24_a_time_that_is_not_complete_is_waited_for(place: Place) -> None:
    """A snapshot waits until its time is complete, or until its timeout."""
    reader = place.shard(clock=SystemClock())
    with pytest.raises(DeadlineExceeded):
        await reader.snapshot(0, timeout_us=20_000)
    with pytest.raises(AsOfNotComplete):
        reader.snapshot_of(reader.state, 0)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(contents(reader, 3, wait=True))
        await asyncio.sleep(0.03)
        assert not waiting.done()
        await place.shard().compare_and_append(rows(("a", 1, 3, 1)), 0, 4)
    assert waiting.result() == {("a", 1): 1}


async def test_t24_a_wait_that_is_cancelled_leaves_nothing() -> None:
    """A cancelled wait leaves neither a hold nor a lock, so the handle stays usable."""
    place = in_memory()
    shard = place.shard(clock=SystemClock())
    waiting = asyncio.create_task(contents(shard, 3, wait=True))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 4)
    assert shard.state.holds == {}
    assert await contents(shard, 3) == {("a", 1): 1}


async def test_t25_a_listener_is_told_nothing_again_when_batches_merge(place: Place) -> None:
    """A merge may join returned updates with later ones. The listener returns the later ones."""
    shard = place.shard()
    await shard.hold("history", 0)
    model = ShardModel()

    async def write(lower: int, upper: int) -> None:
        table = rows(*[(f"k{time}", time, time, 1) for time in range(lower, upper)])
        await shard.compare_and_append(table, lower, upper)
        model.compare_and_append(updates_of(table), lower, upper)

    await write(0, 3)
    listener = place.shard().listen(0)
    told = await heard(listener, 3)
    await write(3, 5)
    await write(5, 6)
    await merge_away(place.shard(clock=HandClock()))
    assert len((await shard.refresh()).batches) == 1
    rest = await heard(listener, 6)
    assert {u.time for u in told} == {1, 2}
    assert {u.time for u in rest} == {3, 4, 5}
    assert consolidate([*told, *rest]) == model.changes(0)


READ_SPLITS = """
import asyncio, pickle, sys
from tidelog.core.clock import SystemClock
from tidelog.persist.read.splits import read_split
from tidelog.store.urls import open_store

async def main():
    store = open_store(sys.argv[1], clock=SystemClock(), create=True)
    splits = pickle.load(sys.stdin.buffer)
    tables = [await read_split(s, store=store, clock=SystemClock()) for s in splits]
    sys.stdout.buffer.write(pickle.dumps(tables))

asyncio.run(main())
"""


async def test_t27_splits_are_read_by_another_process_after_other_commits(
    shared: tuple[Place, Addresses],
) -> None:
    """Splits are plain values, in any number. Two reads give equal rows."""
    place, where = shared
    shard = await shard_in_parts(place, count=4)
    snapshot = await place.shard().snapshot(2)
    before = await contents(place.shard(), 2)
    counts = (1, 2, 3, 7, 20)
    splits = [split for count in counts for split in snapshot.splits(count)]
    assert len(splits) == sum(counts)
    await shard.compare_and_append(rows(("late", 1, 4, 1)), 4, 5)
    reading = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", READ_SPLITS, where.store_url],
        input=pickle.dumps(splits),
        stdout=subprocess.PIPE,
        check=True,
    )
    tables = iter(pickle.loads(reading.stdout))
    again = [await read_split(s, store=place.store, clock=SystemClock()) for s in splits[:3]]
    for count in counts:
        found = [next(tables) for _ in range(count)]
        if count < 3:
            assert all(one.equals(again.pop(0)) for one in found)
        contents_found: Counter[Row] = Counter()
        for table in found:
            for update in updates_of(table):
                contents_found[update.row] += update.diff
        assert contents_found == before


async def test_t28_the_splits_of_a_leased_reader_stay_until_its_end(place: Place) -> None:
    """Merges and collections keep the parts until the reader closes."""
    shard = await shard_in_parts(place)
    reader = await place.shard(clock=HandClock()).lease(lease_us=LEASE_US)
    splits = (await reader.snapshot(5)).splits(3)
    before = await contents(shard, 5)
    await merge_away(place.shard(clock=HandClock()))
    copies = [pickle.loads(pickle.dumps(split)) for split in splits]
    found = [await read_split(s, store=place.store, clock=HandClock()) for s in copies]
    rows_of = [contents_of(table.drop_columns(TIME)) for table in found]
    assert sum(rows_of, start=type(before)()) == before
    await reader.close()
    assert (await shard.refresh()).holds.keys() == {"history"}
    await shard.collect(after_us=0)
    with pytest.raises(PartMissing):
        await read_split(splits[0], store=place.store, clock=HandClock())


@pytest.mark.parametrize("seed", range(4))
async def test_t29_no_row_comes_twice_or_with_no_diff(place: Place, seed: int) -> None:
    """Any updates may cancel. `contents_of` refuses such rows, and the model agrees."""
    dice, model, shard = random.Random(seed), ShardModel(), place.shard()
    await shard.hold("history", 0)
    for time in range(8):
        drawn = [
            (dice.choice("ab"), dice.choice([None, 1]), time, dice.choice([1, -1]))
            for _ in range(dice.randrange(6))
        ]
        await shard.compare_and_append(rows(*drawn), time, time + 1)
        model.compare_and_append(updates_of(rows(*drawn)), time, time + 1)
        if time == 5:
            await shard.move_hold("history", 3)
            await shard.compact(full=True)
    for as_of in range(3, 8):
        table = await (await place.shard().snapshot(as_of)).to_arrow(consolidated=True)
        assert contents_of(table) == model.contents(as_of)
