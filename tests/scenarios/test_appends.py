"""Scenarios T7 to T16: appends and frontiers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pyarrow as pa
import pytest

from kit.shards import ALREADY, COMMITTED, MISMATCH, Place, contents, on_store, rows
from kit.stores import keys_in
from tidelog.core.frontier import TIME_MAX, Frontier
from tidelog.errors import DataDiffers, Outcome, UpperMismatch, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.testing import RecordedStore


def many(key: str, time: int, count: int = 700) -> pa.Table:
    """Return enough updates for a part of their own, outside the state."""
    return rows(*[(f"{key}{n}", n, time, 1) for n in range(count)])


async def test_t07_an_unwritten_shard_begins_at_zero(place: Place) -> None:
    """An unwritten shard has since and upper {0}, and a read creates no object."""
    shard = place.shard()
    assert await shard.upper() == await shard.since() == Frontier.at(0)
    assert [entry async for entry in place.store.list("")] == []
    with pytest.raises(UsageError, match="with its schema"):
        await place.shard(schema=None).compare_and_append(None, 0, 1)


WRONG = {
    "backwards": ([], 5, 3),
    "in no time": ([("a", 1, 3, 1)], 3, 3),
    "below lower": ([("a", 1, 2, 1)], 3, 5),
    "at upper": ([("a", 1, 5, 1)], 3, 5),
    "both": ([("a", 1, 3, 1)], 5, 3),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_t08_an_interval_that_is_wrong_is_refused_without_a_request(wrong: str) -> None:
    """A wrong interval is refused without a request (T8, T9)."""
    updates, lower, upper = WRONG[wrong]
    store = RecordedStore(MemoryStore())
    with pytest.raises(UsageError) as caught:
        await on_store(store).shard().compare_and_append(rows(*updates), lower, upper)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert store.records == []


async def test_t08_an_empty_interval_without_updates_is_a_heartbeat(place: Place) -> None:
    """An empty interval gets an answer like any write, but adds neither a batch nor a record."""
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 3)
    seqno = shard.machine.seqno
    done = await shard.compare_and_append(None, 3, 3)
    assert (done.verdict, done.upper) == (COMMITTED, Frontier.at(3))
    assert (await place.shard().try_compare_and_append(None, 2, 2)).verdict is MISMATCH
    await shard.refresh()
    assert (shard.machine.seqno, len(shard.state.batches)) == (seqno, 1)


async def test_t09_parts_of_an_append_that_fails_late_are_swept(place: Place) -> None:
    """The sweeper deletes parts uploaded before a row outside the interval arrived."""
    shard = place.shard()
    await shard.compare_and_append(many("a", 0), 0, 1)
    there = await keys_in(place.store, "shard/s/part/")

    async def late() -> AsyncGenerator[pa.Table, None]:
        yield many("b", 1)
        yield many("c", 9)

    with pytest.raises(UsageError):
        await shard.compare_and_append(late(), 1, 2)
    for _ in range(3):
        await place.shard().sweep()
    assert await keys_in(place.store, "shard/s/part/") == there
    assert await contents(place.shard(), 0) == {(f"a{n}", n): 1 for n in range(700)}
    assert await shard.upper() == Frontier.at(1)


async def test_t10_of_two_that_race_one_wins_and_the_other_is_told(place: Place) -> None:
    """The loser learns the upper, and the state names none of its parts."""
    first, second = place.shard(), place.shard()
    won, lost = await asyncio.gather(
        first.try_compare_and_append(many("a", 0), 0, 2),
        second.try_compare_and_append(many("b", 0), 0, 3),
    )
    assert {won.verdict, lost.verdict} == {COMMITTED, MISMATCH}
    assert won.upper == lost.upper
    winner = "a" if won.verdict is COMMITTED else "b"
    reader = place.shard()
    assert await contents(reader, 0) == {(f"{winner}{n}", n): 1 for n in range(700)}
    assert sum(len(batch.parts) for batch in reader.state.batches) == 1


async def test_t11_two_writers_of_one_thing_make_it_once(place: Place) -> None:
    """Two writers append the same data with other boundaries, and it is stored once."""
    data = [("k", n, n, 1) for n in range(7)]

    def between(lower: int, upper: int) -> pa.Table:
        return rows(*[u for u in data if lower <= u[2] < upper])

    first, second = place.shard(), place.shard()
    await first.append(between(0, 5), 0, 5)
    await second.append(between(0, 3), 0, 3)
    await second.append(between(3, 7), 3, 7)
    await first.append(between(5, 7), 5, 7)
    assert await contents(place.shard(), 6) == {("k", n): 1 for n in range(7)}


async def test_t12_an_append_with_a_hole_is_refused(place: Place) -> None:
    """The append raises UpperMismatch, and no object is written."""
    shard = place.shard()
    with pytest.raises(UpperMismatch) as caught:
        await shard.append(rows(("a", 1, 5, 1)), 5, 9)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    told = await shard.try_compare_and_append(rows(("a", 1, 5, 1)), 5, 9)
    assert (told.verdict, told.upper) == (MISMATCH, Frontier.at(0))
    assert await keys_in(place.store) == []


async def test_t13_an_append_in_the_past_is_done_already(place: Place) -> None:
    """The repetition succeeds, and nothing is written twice."""
    shard = place.shard()
    assert (await shard.append(rows(("a", 1, 0, 1)), 0, 9)).verdict is COMMITTED
    seqno = shard.machine.seqno
    assert (await shard.append(rows(("a", 1, 0, 1)), 0, 9)).verdict is ALREADY
    assert (await place.shard().append(rows(), 9, 9)).verdict is ALREADY
    await shard.refresh()
    assert shard.machine.seqno == seqno
    assert await contents(shard, 8) == {("a", 1): 1}


async def test_t14_a_finished_shard_is_readable_at_any_time_and_takes_no_more(
    place: Place,
) -> None:
    """A finished shard is readable at any time and takes no more updates."""
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, None)
    told = await place.shard().try_compare_and_append(rows(("b", 1, 5, 1)), 5, 9)
    assert (told.verdict, told.upper) == (MISMATCH, Frontier.empty())
    for as_of in (0, 5, TIME_MAX):
        assert await contents(place.shard(), as_of) == {("a", 1): 1}
    assert (await shard.append(rows(("a", 1, 0, 1)), 0, None)).verdict is ALREADY
    with pytest.raises(DataDiffers):
        await shard.append(rows(("a", 2, 0, 1)), 0, None)


async def test_t15_empty_appends_write_no_part() -> None:
    """A thousand advances of the upper write no object except a rollup now and then."""
    store = RecordedStore(MemoryStore())
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


LARGE = """
import asyncio, resource, sys
import numpy as np, pyarrow as pa
from tidelog.core.clock import SystemClock
from tidelog.consensus.memory import MemoryConsensus
from tidelog.core.ids import ShardId
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.store.urls import open_store

COUNT, EACH, CLOCK = int(sys.argv[2]), 100_000, SystemClock()
SCHEMA = shard_schema(pa.schema([("k", pa.int64()), ("v", pa.int64())]), key=["k"])

def tables():
    for start in range(0, COUNT, EACH):
        keys = np.arange(start, start + EACH)
        names, ones = ["k", "v", "_time", "_diff"], np.ones(EACH, np.int64)
        yield pa.table([keys, keys * 7, ones * 0, ones], names=names)

async def main():
    store = open_store(sys.argv[1], clock=CLOCK, create=True)
    shard = Shard(id=ShardId("s"), store=store, consensus=MemoryConsensus(), clock=CLOCK,
                  schema=SCHEMA)
    await shard.refresh()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await shard.compare_and_append(tables(), 0, 1)
    batches = list(shard.state.batches)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(len(batches), len(batches[0].parts), batches[0].rows, shard.machine.seqno, grown)

asyncio.run(main())
"""


@pytest.mark.slow
def test_t16_ten_million_updates_are_one_commit_in_bounded_memory(
    tmp_path: Path,
) -> None:
    """The append makes several parts and one batch, in memory that does not grow."""
    grown = []
    # The second count is twice that of T16. Smaller counts do not yet fill the pipeline.
    for count in (10_000_000, 20_000_000):
        url = f"file://{tmp_path}/store-{count}"
        done = subprocess.run(
            [sys.executable, "-c", LARGE, url, str(count)],
            check=True,
            capture_output=True,
            text=True,
        )
        batches, parts, held, seqno, kilobytes = map(int, done.stdout.split())
        assert (batches, held, seqno) == (1, count, 1)
        assert parts >= 2
        grown.append(kilobytes)
    print(f"resident kilobytes grown by 10 and 20 million updates: {grown}")
    assert grown[1] < grown[0] * 1.25 + 64 * 1024, grown
