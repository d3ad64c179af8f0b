"""Scenarios T46 to T56: states, rollups, collection and sweeps."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from kit.clocks import HandClock
from kit.places import Addresses
from kit.shards import COMMITTED, Place, contents, in_memory, on_store, rows
from kit.stores import InterposedStore, dying, keys_in
from tidelog.consensus.memory import MemoryConsensus
from tidelog.core.frontier import Frontier
from tidelog.core.ids import SeqNo
from tidelog.errors import HoldExpired, LocationError, PartMissing, PartsSwept
from tidelog.persist.format import part
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.sweeper import usage_of_shard
from tidelog.persist.maintenance.usage import ObjectUse
from tidelog.store.memory import MemoryStore
from tidelog.testing import RecordedStore


@pytest.fixture(autouse=True)
def _objects() -> Iterator[None]:
    """Store every part as an object."""
    with patch.object(part, "INLINE_BYTES", 0):
        yield


def opened(place: Place, *, every: int = 4, **made: object) -> Shard:
    """Return a handle that writes rollups often."""
    shard = place.shard(**made)  # type: ignore[arg-type]
    shard.machine.rollup_every = every
    return shard


async def lived(place: Place, count: int, *, every: int = 4) -> Shard:
    """Return a shard of ``count`` rows with some merges and no collection."""
    shard = opened(place, every=every)
    shard.machine.vanished_us = 2**60
    await shard.hold("h", 0)
    for time in range(count):
        await shard.compare_and_append(rows((f"k{time}", time, time, 1)), time, time + 1)
        if time % 3 == 2:
            await shard.compact(full=True)
    return shard


async def check_whole(place: Place, count: int) -> None:
    """Check that a new handle reads all rows, and that each object named by the state exists."""
    reader = place.shard()
    found = await contents(reader, count - 1)
    assert found == {(f"k{n}", n): 1 for n in range(count)}
    there = set(await keys_in(place.store))
    named = {one.path for batch in reader.state.batches for one in batch.parts}
    rollups = {one.path for one in reader.machine.history.rollups}
    assert named <= there
    assert rollups <= there
    floor = reader.machine.history.floor
    records = await place.consensus().scan("s", SeqNo(1))
    first = records[0].seqno
    assert not rollups or first <= min(o.seqno for o in reader.machine.history.rollups) + 1
    assert first <= floor + 1


@pytest.mark.parametrize("every", [1, 3, 8])
async def test_t46_a_state_is_its_diffs_over_any_rollup(place: Place, every: int) -> None:
    """A handle that follows each record has the same state as a new handle, at every seqno."""
    writer, follower = opened(place, every=every), place.shard()
    await writer.hold("h", 0)
    for time in range(14):
        await writer.compare_and_append(rows((f"k{time}", time, time, 1)), time, time + 1)
        if time % 5 == 4:
            await writer.move_hold("h", time - 2)
            await writer.compact(full=True)
            await writer.collect(after_us=0)
        newcomer = place.shard()
        assert await follower.refresh() == await newcomer.refresh() == writer.state
        assert follower.machine.seqno == newcomer.machine.seqno == writer.machine.seqno


async def test_t48_a_newcomer_reads_a_rollup_and_what_came_after() -> None:
    """A new handle reads one rollup and the records after it, even after five thousand records."""
    consensus = MemoryConsensus()
    place = Place(MemoryStore(), lambda _: consensus)
    shard = place.shard()
    for time in range(5_000):
        await shard.compare_and_append(None, time, time + 1)
    recorded = RecordedStore(place.store)
    newcomer = place.shard(store=recorded)
    assert (await newcomer.refresh()).upper == 5_000
    assert [record.op for record in recorded.records] == ["get"]
    assert len(await consensus.scan("s", SeqNo(1))) <= 3 * 64


async def test_t48_handles_that_make_one_change_each_leave_a_short_history(place: Place) -> None:
    """Processes started by cron make one change each. No unnamed rollup remains."""
    for time in range(60):
        shard = opened(place, every=8)
        await shard.compare_and_append(rows((f"k{time}", time, time, 1)), time, time + 1)
    await opened(place).collect(after_us=0)
    await opened(place).sweep()
    assert len([key for key in await keys_in(place.store) if "/rollup/" in key]) == 1
    assert len(await place.consensus().scan("s", SeqNo(1))) <= 8 + 16 + 2
    await check_whole(place, 60)


INITS = """
import asyncio, sys
from tidelog.core.clock import SystemClock
from tidelog.consensus.kinds import open_consensus, parse_consensus
from tidelog.core.ids import ShardId
from tidelog.persist.handle.shard import Shard
from tidelog.store.urls import open_store
import pyarrow as pa
from tidelog.persist.format.schema import shard_schema

SCHEMA = shard_schema(pa.schema([("c0", pa.string()), ("c1", pa.int64())]), key=["c0"])

async def begin(number):
    clock = SystemClock()
    store = open_store(sys.argv[1], clock=clock, create=True)
    place = parse_consensus(sys.argv[2])
    consensus = open_consensus(place, location=sys.argv[3], store=store, clock=clock)
    shard = Shard(id=ShardId("s"), store=store, consensus=consensus, clock=clock, schema=SCHEMA)
    shard.machine.rollup_every = 3
    await shard.hold(f"h{number}", 0)
    print(number, flush=True)

async def main():
    first = int(sys.argv[4])
    await asyncio.gather(*(begin(n) for n in range(first, first + 10)))

asyncio.run(main())
"""


def begin(where: Addresses, first: int) -> str:
    """Run a process that places ten holds, each with its own handle. Return its output."""
    done = subprocess.run(
        [sys.executable, "-c", INITS, *where.arguments, str(first)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


async def test_t49_of_many_that_begin_a_shard_at_once_all_begin_the_same(
    shared: tuple[Place, Addresses],
) -> None:
    """Twenty handles in two processes make one history, with every hold and every named rollup."""
    place, where = shared
    told = await asyncio.gather(
        *(asyncio.to_thread(begin, where, first) for first in (0, 10)),
    )
    assert sum(len(out.split()) for out in told) == 20
    shard = place.shard()
    assert set((await shard.refresh()).holds) == {f"h{n}" for n in range(20)}
    assert 20 <= shard.machine.seqno <= 2 * 20, "a record a hold, and some that name a rollup"
    await shard.sweep()
    live = {one.path for one in shard.machine.history.rollups}
    left = set(await keys_in(place.store, "shard/"))
    assert live <= left
    assert len(left - live) <= 1, "each is named, but for one that waits to be"


@pytest.mark.parametrize("happened", [False, True])
async def test_t50_a_collection_killed_at_any_request_is_done_by_the_next(happened: bool) -> None:
    """A collector may die after each deletion. No needed object is lost, and no garbage stays."""
    deaths, wanted = 0, None
    for last in itertools.count():
        place = on_store(MemoryStore())
        await lived(place, 12)
        victim = opened(place, store=dying(place.store, last, happened=happened))
        try:
            await victim.collect(after_us=0)
            died = False
        except LocationError:
            died = True
        deaths += died
        await check_whole(place, 12)
        for _ in range(2):
            await opened(place).collect(after_us=0)
        await opened(place).sweep()
        await check_whole(place, 12)
        left = len([key for key in await keys_in(place.store) if "/part/" in key])
        wanted = left if wanted is None else wanted
        assert left == wanted
        if not died:
            break
    assert deaths >= 4


async def test_t50_collections_side_by_side_and_again_find_nothing_wrong(place: Place) -> None:
    """Collectors may run concurrently, repeatedly, behind the state or without any work."""
    behind = opened(place)
    await behind.refresh()
    await lived(place, 10)
    handles = [opened(place) for _ in range(3)]
    await handles[0].refresh()
    await asyncio.gather(*(one.collect(after_us=0) for one in [behind, *handles]))
    await check_whole(place, 10)
    seqno = (await keys_in(place.store), handles[0].machine.seqno)
    await handles[0].refresh()
    for one in handles:
        assert await one.collect(after_us=0) == 0
    assert seqno[0] == await keys_in(place.store)
    await check_whole(place, 10)


async def test_t50_a_collection_that_others_truncated_under_goes_on() -> None:
    """A slow collector completes although another one truncates the records in between."""
    inner = MemoryStore()
    place = on_store(inner)
    await lived(place, 12)
    passed = [False]

    async def overtake(op: str, key: str) -> None:
        if op == "delete" and not passed[0]:
            passed[0] = True
            other = opened(place)
            await other.collect(after_us=0)
            await other.compare_and_append(None, 12, 13)
            await other.compare_and_append(None, 13, 14)

    slow = opened(place, store=InterposedStore(inner, before=overtake))
    await slow.collect(after_us=0)
    assert passed[0]
    await slow.collect(after_us=0)
    assert (await slow.refresh()).upper == 14
    await check_whole(place, 12)


async def test_t51_collection_goes_to_the_rollup_itself_and_no_further(place: Place) -> None:
    """A later record names the rollup of seqno X. Records before X go, and X + 1 stays."""
    shard = await lived(place, 9)
    await shard.collect(after_us=0)
    history = shard.machine.history
    assert history.newest is not None
    assert history.floor == history.newest.seqno
    kept = await place.consensus().scan("s", SeqNo(1))
    assert [one.seqno for one in kept][:2] == [history.floor, history.floor + 1]
    rollups = [key for key in await keys_in(place.store) if "/rollup/" in key]
    assert rollups == [history.newest.path]
    await check_whole(place, 9)


async def test_t52_a_rollup_that_was_taken_away_is_not_named_again(place: Place) -> None:
    """The writer stalls between a rollup and its name, while a collector deletes it."""
    sleeper = opened(place, every=3)
    await sleeper.hold("h", 0)
    for time in range(2):
        await sleeper.compare_and_append(None, time, time + 1)
    pending = sleeper.machine.maintenance._pending
    assert pending is not None
    others = opened(place, every=2)
    for time in range(2, 12):
        await others.compare_and_append(None, time, time + 1)
    await others.collect(after_us=0)
    await others.sweep()
    assert pending.path not in await keys_in(place.store)
    for time in range(12, 18):
        await sleeper.compare_and_append(None, time, time + 1)
    reader = place.shard()
    assert (await reader.refresh()).upper == 18
    named = {one.path for one in reader.machine.history.rollups}
    assert pending.path not in named
    assert named <= set(await keys_in(place.store))


@pytest.mark.parametrize("seed", range(8))
async def test_t53_no_part_goes_that_a_held_state_names(seed: int) -> None:
    """Leases of many states are mixed with merges, collections and sweeps in any order."""
    dice, place = random.Random(seed), in_memory()
    shard = opened(place, every=dice.choice([1, 2, 5]))
    await shard.hold("h", 0)
    upper, held = 0, []
    for _ in range(40):
        other = opened(place)
        match dice.choice(["write", "write", "merge", "collect", "sweep", "lease", "close"]):
            case "write":
                await shard.compare_and_append(rows((f"k{upper}", 1, upper, 1)), upper, upper + 1)
                upper += 1
            case "merge":
                await shard.move_hold("h", max(0, upper - 4))
                await other.compact(full=True)
            case "collect":
                await other.collect(after_us=0)
            case "sweep":
                await other.sweep()
            case "lease" if upper:
                leased = await place.shard().lease(lease_us=2**50)
                planned = await leased.snapshot(upper - 1)
                held.append((leased, planned, upper))
            case "close" if held:
                leased, *_ = held.pop(dice.randrange(len(held)))
                await leased.close()
        for _, planned, size in held:
            tables = await planned.reader.read(planned.parts, planned.schema)
            assert sum(table.num_rows for table in tables) == size
    for leased, *_ in held:
        await leased.close()


async def test_t54_what_writers_left_is_swept_and_what_is_under_way_is_not(place: Place) -> None:
    """A slow writer's parts stay for a full period, and are refused afterwards."""
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    dead, slow, late = place.shard(), place.shard(), place.shard()
    for one in (dead, slow, late):
        await one.refresh()
    left = await dead.writer().write(rows(("dead", 1, 1, 1)), inline=False)
    under_way = await slow.writer().write(rows(("slow", 1, 1, 1)), inline=False)
    asleep = await late.writer().write(rows(("late", 1, 2, 1)), inline=False)
    await place.shard().sweep()
    done = await slow.commit_parts(under_way, Frontier.at(1), Frontier.at(2))
    assert done.verdict is COMMITTED
    deleted = [(await place.shard().sweep()).deleted for _ in range(3)]
    assert sum(deleted) == 2
    with pytest.raises(PartsSwept):
        await late.commit_parts(asleep, Frontier.at(2), Frontier.at(3))
    there = {key for key in await keys_in(place.store) if "/part/" in key}
    assert not {one.path for one in (*left, *asleep)} & there
    assert {one.path for one in under_way} <= there
    assert await contents(place.shard(), 1) == {("a", 1): 1, ("slow", 1): 1}


async def test_t55_a_dropped_shard_keeps_one_rollup_at_most(place: Place) -> None:
    """All parts are deleted, the state stays small, and a new handle sees a finished shard."""
    shard = await lived(place, 9)
    await shard.drop()
    await shard.collect(after_us=0)
    for _ in range(3):
        await place.shard().sweep()
    left = await keys_in(place.store, "shard/")
    assert len([key for key in left if "/part/" in key]) == 0
    assert len(left) <= 1
    seqno = shard.machine.seqno
    again = place.shard()
    assert await again.upper() == await again.since() == Frontier.empty()
    await again.drop()
    await again.collect(after_us=0)
    await shard.refresh()
    assert shard.machine.seqno == seqno
    assert len(again.machine.language.encode_state(again.state)) < 4096


async def test_t56_live_gone_young_and_dead_add_up_to_the_listing(place: Place) -> None:
    """The categories add up to the listing in objects and bytes, after any operation."""
    shard = await lived(place, 8)
    await shard.writer().write(rows(("lost", 1, 8, 1)), inline=False)
    await place.store.put("shard/s/standing/1", b"checkpoint")
    seen: Counter[ObjectUse] = Counter()
    for _ in range(4):
        usage = await usage_of_shard(place.shard())
        listed = [entry async for entry in place.store.list("shard/s/")]
        assert sum(usage.objects.values()) == len(listed)
        assert sum(usage.size_bytes.values()) == sum(entry.size_bytes for entry in listed)
        seen += Counter(usage.objects)
        await place.shard().sweep()
        await place.shard().collect(after_us=0)
    assert set(seen) == set(ObjectUse)


async def test_t54_a_lease_is_no_reason_to_keep_what_nothing_names(place: Place) -> None:
    """A lease does not protect objects that no state ever named."""
    shard = await lived(place, 4)
    # A fixed clock: with the shared one, each sleep would renew the lease at once.
    leased = await place.shard(clock=HandClock()).lease()
    left = await shard.writer().write(rows(("dead", 1, 9, 1)), inline=False)
    for _ in range(3):
        await place.shard().sweep()
    assert {one.path for one in left}.isdisjoint(await keys_in(place.store))
    snapshot = await leased.snapshot(3)
    try:
        assert (await snapshot.to_arrow()).num_rows == 4
    except (HoldExpired, PartMissing) as error:
        raise AssertionError("a lease was broken") from error
    await leased.close()
