"""Leased readers: data stays readable during the lease, and the reader gets an error afterwards.

The numbers T24 to T36 are those of the anchor notes' conformance scenarios.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any
from unittest.mock import patch

import pytest

from kit.clocks import HandClock
from kit.shards import in_memory, merge_away, shard_in_parts
from tidelog.core.clock import SystemClock
from tidelog.core.frontier import Frontier
from tidelog.errors import AsOfBeforeSince, HoldExpired, LocationError, OutcomeUnknown, UsageError
from tidelog.persist.read.splits import read_split

LEASE_US = 60_000_000


async def test_a_reader_renews_its_lease_while_it_lives() -> None:
    """The lease renews itself in the background, even if the reader reads slowly."""
    place, clock = in_memory(), HandClock()
    await shard_in_parts(place, count=2)
    reader = await place.shard(clock=clock).lease(lease_us=LEASE_US)
    watcher = place.shard(clock=clock)
    for _ in range(10):
        await clock.pass_us(LEASE_US // 2)
        assert await watcher.end_leases() == 0
    assert (await watcher.refresh()).holds[reader.name].beat >= 8
    await reader.close()


@pytest.mark.parametrize("landed", [True, False])
async def test_a_lease_whose_answer_is_unknown_is_placed_once(landed: bool) -> None:
    """The lease may or may not have landed. In both cases the retry leaves exactly one hold."""
    place = in_memory()
    await shard_in_parts(place, count=2)
    shard = place.shard()
    commit, tries = shard.machine.commit, list[object]()

    async def lose_the_first(decide: Any) -> Any:
        tries.append(decide)
        if len(tries) > 1:
            return await commit(decide)
        if landed:
            await commit(decide)
        raise OutcomeUnknown("the record was truncated before its write could be read back")

    with patch.object(type(shard.machine), "commit", lambda _, decide: lose_the_first(decide)):
        reader = await shard.lease(lease_us=LEASE_US)
    holds = (await place.shard().refresh()).holds
    assert [name for name in holds if name.startswith("reader-")] == [reader.name]
    await reader.close()


async def test_a_reader_whose_lease_was_ended_is_told_at_its_next_step() -> None:
    """T26: each call of the reader raises HoldExpired, and none returns fewer rows."""
    place = in_memory()
    shard = await shard_in_parts(place, count=2)
    clock = HandClock()
    reader = await place.shard(clock=clock).lease(lease_us=LEASE_US)
    assert await shard.drop_hold(reader.name)
    await clock.pass_us(LEASE_US // 2)
    with pytest.raises(HoldExpired):
        await reader.snapshot(1)
    with pytest.raises(HoldExpired):
        await anext(aiter(reader.listen(0)))
    with pytest.raises(HoldExpired):
        await reader.move_hold(1)


async def test_a_fixed_term_outlives_its_process_and_ends_by_itself() -> None:
    """A fixed term protects a Spark job's splits without renewal, and then ends by the clock."""
    place = in_memory()
    shard = await shard_in_parts(place, count=12)
    clock = HandClock()
    reader = await place.shard(clock=clock).lease(lease_us=LEASE_US, fixed=True, purpose="a job")
    hold = (await shard.refresh()).holds[reader.name]
    assert (hold.is_fixed, hold.purpose, hold.until_us) == (True, "a job", reader.until_us)
    splits = (await reader.snapshot(5)).splits(1)
    await merge_away(place.shard(clock=HandClock()))
    assert (await read_split(splits[0], store=place.store, clock=HandClock())).num_rows
    await clock.pass_us(LEASE_US)
    with pytest.raises(HoldExpired, match="term of this reader has ended"):
        await reader.snapshot(5)
    # The collector in `merge_away` recorded a sighting of this lease one term ago.
    assert await place.shard(clock=clock).end_leases() == 1


async def test_the_lease_of_a_listener_keeps_the_unread_updates() -> None:
    """T26: it keeps them whatever other holders do. A move by the reader releases the rest."""
    place = in_memory()
    shard = await shard_in_parts(place, count=12)
    async with await place.shard(clock=HandClock()).lease(0, lease_us=LEASE_US) as reader:
        await shard.move_hold("history", 11)
        assert await shard.since() == Frontier.at(0)
        await merge_away(place.shard(clock=HandClock()))
        async for progress in reader.listen(0):
            assert progress.updates.num_rows == 700 * 11
            assert await reader.move_hold(progress.upper.time - 1) == Frontier.at(11)
            break
        assert await reader.move_hold(3) == Frontier.at(11)
        assert reader.since == Frontier.at(11), "what is given up is given up"
    assert await shard.since() == Frontier.at(11)
    with pytest.raises(AsOfBeforeSince, match="earliest readable time is 11"):
        await place.shard().snapshot(3)


async def test_a_lease_cannot_be_placed_where_nothing_is_kept() -> None:
    """A lease outside the retained times raises UsageError and leaves no hold."""
    place = in_memory()
    shard = await shard_in_parts(place, count=12)
    await shard.move_hold("history", 6)
    with pytest.raises(UsageError, match="not be before the shard"):
        await shard.lease(3)
    with pytest.raises(UsageError, match="not be past the shard"):
        await shard.lease(99)
    with pytest.raises(UsageError, match="lease_us must be at least"):
        await shard.lease(lease_us=0)
    assert (await shard.refresh()).holds.keys() == {"history"}


async def test_a_reader_whose_wait_times_out_holds_nothing() -> None:
    """T24: a wait that times out leaves no hold behind."""
    place = in_memory()
    shard = await shard_in_parts(place, count=2)
    with pytest.raises(LocationError):
        async with await place.shard(clock=HandClock()).lease(lease_us=LEASE_US) as reader:
            await reader.snapshot(50, timeout_us=0)
    assert (await shard.refresh()).holds.keys() == {"history"}


async def test_a_shard_that_is_no_more_gives_a_reader_of_nothing() -> None:
    """T36: a lease of a dropped shard is closed from the start, and writes no record."""
    place = in_memory()
    shard = await shard_in_parts(place, count=2)
    await shard.drop()
    seqno = shard.machine.seqno
    reader = await place.shard().lease()
    assert reader.since == Frontier.empty()
    with pytest.raises(AsOfBeforeSince, match="no time is readable"):
        await reader.snapshot(1)
    await reader.close()
    await shard.refresh()
    assert shard.machine.seqno == seqno


async def test_a_garbage_reader_stops_renewing_its_lease() -> None:
    """P137: a reader that was never closed stops renewing once it is garbage."""
    place, clock = in_memory(), HandClock()
    shard = await shard_in_parts(place, clock, count=2)

    async def forgetful() -> str:
        reader = await place.shard(clock=clock).lease(lease_us=LEASE_US)
        await clock.pass_us(LEASE_US // 2)
        return reader.name

    name = await forgetful()
    gc.collect()
    assert (await shard.refresh()).holds[name].beat == 1
    await clock.pass_us(LEASE_US // 2)
    assert (await shard.refresh()).holds[name].beat == 1
    await shard.end_leases()
    await clock.pass_us(LEASE_US + 1)
    assert await shard.end_leases() == 1


async def test_two_collectors_one_lease_apart_end_the_lease_of_a_dead_reader() -> None:
    """Runs by cron: one records the beat, the next ends the lease. A live reader keeps its own."""
    place, clock = in_memory(), HandClock()
    shard = await shard_in_parts(place, count=2)
    dead = await place.shard(clock=clock).lease(lease_us=LEASE_US)
    await dead.stop()
    term = await place.shard(clock=clock).lease(lease_us=LEASE_US, fixed=True)
    living = await place.shard(clock=clock).lease(lease_us=LEASE_US)

    await place.shard(clock=clock).collect()
    assert {dead.name, term.name, living.name} <= (await shard.refresh()).holds.keys()
    for _ in range(3):
        await clock.pass_us(LEASE_US // 3)
    await place.shard(clock=clock).collect()

    holds = (await shard.refresh()).holds
    assert living.name in holds
    assert not {dead.name, term.name} & holds.keys()
    assert shard.state.sightings.keys() == {living.name}
    seqno = shard.machine.seqno
    await place.shard(clock=clock).collect()
    await shard.refresh()
    assert shard.machine.seqno == seqno, "a beat is recorded once"
    await living.close()
    assert not (await shard.refresh()).sightings


class OtherMachine(SystemClock):
    """The clock of another machine, with a wall time some minutes ahead."""

    def __init__(self, minutes: int) -> None:
        self.ahead_us = minutes * 60_000_000

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us

    def monotonic_us(self) -> int:
        return super().monotonic_us() + 2**40

    def boot(self) -> str:
        return f"another, {self.ahead_us}"


async def test_no_collector_ends_a_live_lease_because_its_clock_is_ahead() -> None:
    """A collector whose clock is up to an hour ahead must not end a live lease."""
    place = in_memory()
    shard = await shard_in_parts(place, count=2)
    async with await place.shard(clock=SystemClock()).lease(lease_us=LEASE_US) as reader:
        assert await place.shard(clock=SystemClock()).end_leases() == 0
        for minutes in (10, 30, 59):
            assert await place.shard(clock=OtherMachine(minutes)).end_leases() == 0

        await reader.renew()
        assert (await shard.refresh()).holds[reader.name].beat == 1


def test_processes_of_one_machine_have_one_time_since_its_start() -> None:
    """A collector run by cron compares the monotonic clock with the previous run's."""
    code = "from tidelog.core.clock import SystemClock as C; print(C().monotonic_us(), C().boot())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    at_us, _, boot = told.stdout.strip().partition(" ")

    assert boot == SystemClock().boot()
    if boot:
        assert 0 <= SystemClock().monotonic_us() - int(at_us) < 600_000_000
