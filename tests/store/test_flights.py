"""Shared calls: sent once for several waiters, and cancelled with the last one."""

from __future__ import annotations

import asyncio
import gc

import pytest

from kit.clocks import simulated
from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.core.lookahead import SharedCalls
from tidelog.errors import LocationError

SEEDS = range(20)


class Calls:
    """Calls that take a second and are counted."""

    def __init__(self, *, fails: bool = False) -> None:
        self.clock = SimClock(1)
        self.flights = SharedCalls[str, int]()
        self.fails = fails
        self.sent_count = 0
        self.ended_count = 0

    async def send(self) -> int:
        self.sent_count += 1
        try:
            await self.clock.sleep(1_000_000)
        finally:
            self.ended_count += 1
        if self.fails:
            raise LocationError("it failed")
        return self.sent_count

    async def ask(self) -> int:
        flight = self.flights.join("a", self.send)
        return await self.flights.wait("a", flight)


@pytest.mark.parametrize("seed", SEEDS)
@simulated
async def test_one_call_serves_all_concurrent_callers(seed: int) -> None:
    """Concurrent callers share one call, and the next caller starts another."""
    calls = Calls()
    assert await asyncio.gather(*(calls.ask() for _ in range(9))) == [1] * 9
    assert await calls.ask() == 2
    assert "a" not in calls.flights


@pytest.mark.parametrize("seed", SEEDS)
@simulated
async def test_who_is_cancelled_takes_only_himself_away(seed: int) -> None:
    """A cancelled waiter affects no other. This holds for the one that started the call too."""
    calls = Calls()
    tasks = [asyncio.create_task(calls.ask()) for _ in range(4)]
    await calls.clock.sleep(1_000)
    for task in tasks[:3]:
        task.cancel()
    assert await tasks[3] == 1
    assert [task.cancelled() for task in tasks] == [True, True, True, False]
    assert calls.sent_count == 1


@pytest.mark.parametrize("seed", SEEDS)
@simulated
async def test_a_call_ends_with_its_last_waiter(seed: int) -> None:
    """A new caller does not get a call that its last waiter has cancelled."""
    calls = Calls()
    tasks = [asyncio.create_task(calls.ask()) for _ in range(3)]
    await calls.clock.sleep(1_000)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert (calls.sent_count, calls.ended_count) == (1, 1)
    assert len(asyncio.all_tasks()) == 1
    late = [asyncio.create_task(calls.ask()) for _ in range(2)]
    await calls.clock.sleep(1_000)
    late[0].cancel()
    assert await late[1] == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failure_without_a_waiter_is_not_reported(seed: int) -> None:
    """A failure without a waiter is not reported. Its waiters were cancelled when it failed."""

    async def main() -> None:
        calls = Calls(fails=True)
        task = asyncio.create_task(calls.ask())
        await calls.clock.sleep(1_000_000)
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(LocationError):
            await calls.ask()

    run(main, seed)
    gc.collect()  # A lost exception is reported at its collection, and warnings are errors.


@simulated
async def test_an_earlier_call_has_a_lower_number() -> None:
    """A call has a lower number than every call that is sent later."""
    calls = Calls()
    first = calls.flights.join("a", calls.send)
    assert first.number < calls.flights.next_number
    calls.flights.leave(["a", "never sent"])
    second = calls.flights.join("a", calls.send)
    assert second.number > first.number
    # Sent in either order.
    gave = await asyncio.gather(calls.flights.wait("a", first), calls.flights.wait("a", second))
    assert set(gave) == {2}
