"""Sweeping: the sweeper deletes unnamed objects, but none that a writer may still name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.shards import COMMITTED, Place, contents, in_memory, rows
from tidelog.core.frontier import Frontier
from tidelog.core.ids import SeqNo
from tidelog.errors import PartsSwept
from tidelog.machine.record import History, VanishedObjects, describe_rollup
from tidelog.persist.format import part
from tidelog.persist.format.part import Part, epoch_of
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.sweeper import sweep, usage_of_shard
from tidelog.persist.maintenance.usage import NOTHING, ObjectUse, ShardUsage, tell_apart
from tidelog.persist.states.state import State
from tidelog.store.memory import MemoryStore


@pytest.fixture(autouse=True)
def _objects() -> Iterator[None]:
    with patch.object(part, "INLINE_BYTES", 0):
        yield


async def upload(shard: Shard, key: str, time: int) -> list[Part]:
    """Write parts without a commit, as a writer that dies or stalls does."""
    return await shard.writer().write(rows((key, 1, time, 1)), inline=False)


def keys(place: Place) -> list[str]:
    assert isinstance(place.store, MemoryStore)
    return sorted(key for key in place.store.objects if key.startswith("shard/"))


async def test_what_a_writer_left_goes_by_the_third_sweep() -> None:
    """The first sweep finds a part, the second gives it a full period, and the third deletes it."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    (lost,) = await upload(shard, "b", 1)
    for deleted, epoch in ((0, 1), (0, 2), (1, 2)):
        found = await sweep(place.shard())
        assert (found.deleted, (await shard.refresh()).write_epoch) == (deleted, epoch)
    assert lost.path not in keys(place)
    found = await sweep(place.shard())
    assert (found.deleted, found.usage.objects[ObjectUse.LIVE]) == (0, 2), "a part, and a rollup"
    assert (await shard.refresh()).write_epoch == 2, "where nothing is found, nothing is written"
    assert await contents(place.shard(), 0) == {("a", 1): 1}


@pytest.mark.parametrize("end", ["dropped", "finished", "given up"])
async def test_a_sweep_deletes_parts_of_a_killed_writer_in_an_ended_shard(end: str) -> None:
    """Parts of a dead writer are deleted, even if the shard ended before the sweep."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    (lost,) = await upload(shard, "b", 1)
    if end == "dropped":
        await shard.drop()
        await shard.collect(after_us=0)
    else:
        await shard.compare_and_append(None, 1, None)
    if end == "given up":
        await shard.hold("h")
        await shard.move_hold("h", None)

    found = [await sweep(place.shard()) for _ in range(4)]
    assert [one.deleted for one in found] == [0, 0, 1, 0]
    assert found[-1].usage.objects[ObjectUse.YOUNG] == 0
    assert lost.path not in keys(place)
    if end == "finished":
        assert await contents(place.shard(), 0) == {("a", 1): 1}


async def test_a_sleeper_cannot_name_what_was_swept() -> None:
    """A stalled writer cannot commit deleted parts: it gets PartsSwept, and writes them again."""
    place = in_memory()
    sleeper = place.shard()
    await sleeper.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    parts = await upload(sleeper, "b", 1)
    await sweep(place.shard())
    other = place.shard()
    await other.refresh()
    later = await upload(other, "c", 1)
    await sweep(place.shard())
    await sweep(place.shard())
    with pytest.raises(PartsSwept, match="write them again"):
        await sleeper.commit_parts(parts, Frontier.at(1), Frontier.at(2))
    assert parts[0].path not in keys(place)
    assert later[0].path in keys(place), "it is too young to delete"
    done = await sleeper.compare_and_append(rows(("b", 1, 1, 1)), 1, 2)
    assert done.verdict is COMMITTED
    assert await contents(place.shard(), 1) == {("a", 1): 1, ("b", 1): 1}


async def test_a_write_that_two_sweeps_passed_is_written_again() -> None:
    """The call itself writes the parts again, so its caller sees only a slow write."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    sweeps = [3]
    write = type(shard.writer())._put

    async def slow(self: object, *given: object) -> Part:
        found: Part = await write(self, *given)  # type: ignore[arg-type]
        while sweeps[0]:
            sweeps[0] -= 1
            await sweep(place.shard())
        return found

    with patch.object(type(shard.writer()), "_put", slow):
        done = await shard.compare_and_append(rows(("b", 1, 1, 1)), 1, 2)
    assert done.verdict is COMMITTED
    assert await contents(place.shard(), 1) == {("a", 1): 1, ("b", 1): 1}


async def test_rollups_that_lost_their_race_go_at_once() -> None:
    """The sweeper deletes a rollup older than a named one at once: no record can name it later."""
    place = in_memory()
    machines = [place.shard() for _ in range(3)]
    for shard in machines:
        shard.machine.rollup_every = 2
    for time in range(30):
        shard = machines[time % 3]
        await shard.refresh()
        await shard.compare_and_append(None, time, time + 1)
    stray = f"shard/s/rollup/{1:016x}-stray"
    await place.store.put(stray, b"x")
    there = len(keys(place))
    found = await sweep(machines[0])
    assert found.deleted >= 1
    assert stray not in keys(place)
    assert len(keys(place)) <= there - found.deleted
    named = {one.path for one in machines[0].machine.history.rollups}
    assert {key for key in keys(place) if "/rollup/" in key} == named
    assert (await place.shard().refresh()).upper == 30


async def test_a_rollup_that_waits_to_be_named_raises_no_epoch() -> None:
    """A waiting rollup must not raise the write epoch: each sweep would then write a record."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    await place.store.put(f"shard/s/rollup/{99:016x}-waits", b"x")
    for _ in range(3):
        found = await sweep(place.shard())
        assert (found.deleted, found.usage.objects[ObjectUse.YOUNG]) == (0, 1)
    assert (await shard.refresh()).write_epoch == 0


async def test_concurrent_sweeps_lose_no_acknowledged_row() -> None:
    """Every acknowledged row survives concurrent sweeps."""
    place = in_memory()
    stop = asyncio.Event()

    async def sweeping() -> None:
        while not stop.is_set():
            await sweep(place.shard())
            await asyncio.sleep(0.005)

    async def writing() -> None:
        shard = place.shard()
        for time in range(40):
            # Without a pause between sweeps, the writer might never commit its parts in time.
            for _ in range(50):
                with suppress(PartsSwept):
                    await shard.compare_and_append(rows(("k", time, time, 1)), time, time + 1)
                    break
        stop.set()

    await asyncio.gather(writing(), sweeping(), sweeping())
    assert await contents(place.shard(), 39) == {("k", n): 1 for n in range(40)}


async def test_usage_adds_up_to_the_listing() -> None:
    """The usage report counts every listed object exactly once."""
    place = in_memory()
    shard = place.shard()
    for time in range(6):
        await shard.compare_and_append(rows(("a", time, time, 1)), time, time + 1)
    await upload(shard, "lost", 6)
    await shard.compact(full=True)
    await place.store.put("shard/s/standing/1", b"checkpoint")
    found = await usage_of_shard(place.shard())
    assert isinstance(place.store, MemoryStore)
    sizes = {key: len(place.store.objects[key].data) for key in keys(place)}
    assert sum(found.objects.values()) == len(sizes)
    assert sum(found.size_bytes.values()) == sum(sizes.values())
    assert found.objects == {
        ObjectUse.LIVE: 1,
        ObjectUse.GONE: 6,
        ObjectUse.YOUNG: 1,
        ObjectUse.DEAD: 0,
        ObjectUse.OTHER: 1,
    }
    twice = found + NOTHING + found
    assert twice.objects[ObjectUse.GONE] == 12


@given(
    epoch=st.integers(0, 4),
    parts=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=8),
    rollups=st.sets(st.integers(1, 9), max_size=5),
    newest=st.integers(0, 9),
)
def test_nothing_that_may_be_named_is_dead(
    epoch: int, parts: list[tuple[int, bool]], rollups: set[int], newest: int
) -> None:
    """The sweeper keeps parts of the last two epochs, merged parts that wait, and newer rollups."""
    listed = [(f"shard/s/part/{e:08x}/{n}.parquet", 1) for n, (e, _) in enumerate(parts)]
    gone = tuple(key for (key, _), (_, waits) in zip(listed, parts, strict=True) if waits)
    listed += [(f"shard/s/rollup/{n:016x}-x", 1) for n in rollups]
    named = describe_rollup(SeqNo(newest), f"shard/s/rollup/{newest:016x}-y", b"")
    history = History(rollups=(named,) if newest else (), gone=(VanishedObjects(1, 0, gone),))
    found: ShardUsage = tell_apart(listed, State(write_epoch=epoch), history)
    for key in found.dead:
        assert key not in gone
        own = epoch_of(key)
        assert own is None or own < epoch - 1
        assert own is not None or int(key.split("/")[-1][:16], 16) <= newest
    assert sum(found.objects.values()) == len(listed)
