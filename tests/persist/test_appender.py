"""Appenders: each interval lands exactly once, and progress costs few requests."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from kit.clocks import HandClock, SwiftClock
from kit.shards import ALREADY, COMMITTED, Place, contents, in_memory, on_store, rows
from tidelog.core.frontier import Frontier
from tidelog.errors import DeadlineExceeded, LocationError, Outcome, UpperMismatch, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.testing import Fault, FaultyStore, RecordedStore, Request
from tidelog.testing.faulty import DelayedStore


async def test_an_appender_goes_on_where_its_name_left_off(place: Place) -> None:
    """A writer that reopens an appender by name resumes after the last interval that landed."""
    async with await place.shard().appender("sink") as one:
        await one.append(rows(("a", 1, 0, 1)), 2)
        await one.append(None, 5)
    async with await place.shard().appender("sink") as heir:
        assert (heir.upper, heir.number) == (Frontier.at(5), 2)
        await heir.append(rows(("b", 2, 6, 1)), 7)
    assert await contents(place.shard(), 6) == {("a", 1): 1, ("b", 2): 1}
    shard = place.shard()
    assert await shard.drop_writer("sink")
    assert not await shard.drop_writer("sink")
    assert (await place.shard().refresh()).writers == {}


async def test_another_writer_is_met_with_an_error() -> None:
    """The writer that loses gets UpperMismatch, which states the shard's upper."""
    place = in_memory()
    one, two = await place.shard().appender("a"), await place.shard().appender("b")
    await one.append(rows(("a", 1, 0, 1)), 2)
    with pytest.raises(UpperMismatch, match="open the appender again") as told:
        await two.append(rows(("b", 1, 0, 1)), 3)
    assert told.value.facts["upper"] == Frontier.at(2)
    assert await contents(place.shard(), 1) == {("a", 1): 1}


async def test_two_of_one_name_lose_nothing_to_each_other(place: Place) -> None:
    """The late writer gets UpperMismatch, because the stored rows are not its own."""
    late, other = await place.shard().appender("till"), await place.shard().appender("till")
    await other.append(rows(("b", 1, 0, 1)), 2)
    with pytest.raises(UpperMismatch, match="open the appender again"):
        await late.append(rows(("a", 1, 0, 1)), 2)
    with pytest.raises(UpperMismatch):
        await late.append(rows(("a", 1, 0, 1)), 1)
    await other.append(rows(("b", 2, 2, 1)), 4)
    assert await contents(place.shard(), 3) == {("b", 1): 1, ("b", 2): 1}


async def test_two_of_one_name_that_bring_the_same_both_succeed() -> None:
    """A sink may restart while its old process still runs."""
    place = in_memory()
    one, two = await place.shard().appender("sink"), await place.shard().appender("sink")
    for appender in (one, two):
        await appender.append(rows(("a", 1, 0, 1)), 2)
        assert appender.upper == Frontier.at(2)
    assert await contents(place.shard(), 1) == {("a", 1): 1}


async def test_progress_waits_for_the_beat_or_for_a_write() -> None:
    """Advances without rows wait for the heartbeat or the next append."""
    clock = SwiftClock()
    recorded = RecordedStore(MemoryStore())
    shard = on_store(recorded).shard(clock=clock)
    await shard.hold("history")
    async with await shard.appender("ticker", heartbeat_us=10_000_000_000) as ticker:
        await ticker.append(rows(("a", 1, 0, 1)), 1)
        recorded.records.clear()
        for time in range(2, 1_000):
            await ticker.advance(time)
            await ticker.move_hold("history", time - 2)
        assert not recorded.records
        assert ticker.upper == Frontier.at(999)
        await ticker.append(rows(("b", 1, 999, 1)), 1_000)
        assert len([r for r in recorded.records if r.op == "put"]) == 1
        assert (shard.state.upper, shard.state.since) == (1_000, 997)
        recorded.records.clear()
        await ticker.advance(2_000)
        assert not recorded.records
    assert (await shard.refresh()).upper == 2_000


async def test_the_beat_comes_by_itself() -> None:
    """An appender publishes an advance at its next heartbeat, without another call."""
    place = in_memory()
    ticker = await place.shard().appender("ticker", heartbeat_us=5_000_000)
    await ticker.append(None, 1)
    await ticker.advance(7)
    for _ in range(20):
        await asyncio.sleep(0)
    assert await place.shard().upper() == Frontier.at(7)
    with pytest.raises(UsageError, match="cannot move back"):
        await ticker.advance(3)


@pytest.mark.parametrize("seed", range(25))
async def test_each_interval_is_there_once_whatever_becomes_of_the_answers(seed: int) -> None:
    """T17 to T20: each interval lands once, despite lost requests, lost answers and refusals."""
    dice = random.Random(f"appender {seed}")
    fates = [Fault(), Fault(), Fault(told=False), Fault(happened=False, told=False)]

    def toss(request: Request) -> Fault:
        return dice.choice(fates) if request.changes else Fault()

    sound = MemoryStore()
    shaken = on_store(FaultyStore(sound, toss=toss))
    wanted: Counter[tuple[object, ...]] = Counter()
    time = 0
    appender = await shaken.shard().appender("w", heartbeat_us=dice.choice([0, 3_000]))
    while time < 30:
        step = dice.randrange(1, 4)
        quiet = dice.random() < 0.4
        name = f"k{dice.randrange(3)}"
        for _ in range(200):
            try:
                if quiet:
                    await appender.advance(time + step)
                else:
                    await appender.append(rows((name, time, time, 1)), time + step)
                break
            except LocationError:
                continue
        else:
            raise AssertionError("the store fails for ever")
        if not quiet:
            wanted[name, time] += 1
        time += step
    for _ in range(200):
        try:
            await appender.close()
            break
        except LocationError:
            continue
    found = on_store(sound).shard()
    assert await found.upper() == Frontier.at(time)
    assert await contents(found, time - 1) == wanted


async def test_a_call_ends_in_its_time() -> None:
    """A call ends at its timeout, even without an answer. A write under way may land."""
    clock = HandClock()
    slow = DelayedStore(MemoryStore(), clock=clock, delay_us=lambda _, __: 50_000_000)
    shard = on_store(slow).shard(clock=clock)
    limited = shard.within(1_000_000)
    calls: list[tuple[Coroutine[Any, Any, object], str, Outcome]] = [
        (limited.upper(), "did not finish within its timeout", Outcome.NOT_APPLIED),
        (limited.hold("h"), "may still be applied", Outcome.UNKNOWN),
        (
            limited.compare_and_append(rows(("a", 1, 0, 1)), 0, 1),
            "may still be applied",
            Outcome.UNKNOWN,
        ),
    ]
    for call, sentence, outcome in calls:
        task = asyncio.create_task(call)
        await clock.pass_us(0)
        await clock.pass_us(1_000_000)
        with pytest.raises(DeadlineExceeded, match=sentence) as told:
            await task
        assert told.value.outcome is outcome
    for _ in range(20):
        await clock.pass_us(50_000_000)
    assert shard.state.upper == 1, "what was under way landed"


async def test_a_dropped_writer_name_counts_from_0_again(place: Place) -> None:
    """A dropped name counts from 0 again. Its new writes are not mistaken for its old ones."""
    shard = place.shard()
    for lower in (0, 4, 8):
        writer = await shard.appender("n")
        await writer.append(rows(("a", lower, lower, 1)), lower + 2)
        await writer.advance(lower + 4)
        await writer.close()
        assert await shard.drop_writer("n")
    assert await contents(place.shard(), 11) == {("a", n): 1 for n in (0, 4, 8)}


async def test_a_retry_is_known_though_its_name_was_dropped_meanwhile() -> None:
    """A retry of an interval with equal rows gets ALREADY, even after its name was dropped."""
    shard = in_memory().shard()
    table = rows(("a", 1, 0, 1))
    for verdict in (COMMITTED, ALREADY):
        done = await shard.compare_and_append(table, 0, 4, token=("n", 0), named=True)
        assert done.verdict is verdict
        await shard.drop_writer("n")
