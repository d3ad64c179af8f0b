"""The simulator's foundations: time, order and faults."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from sim.kernel.faults import Dice, Fault, Script
from sim.kernel.loop import Crashed, Deadlock, Livelock, SimLoop, run
from sim.kernel.rates import Rates
from sim.kernel.world import Client, World
from tidelog.errors import LocationError, ObjectNotFound, Outcome


def test_time_passes_only_when_all_wait() -> None:
    """An hour takes no time, and both sleepers wake at their times."""
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("late", 3_600))
            group.create_task(sleeper("soon", 60))

    run(main, 1)

    assert woken == [("soon", 60.0), ("late", 3_600.0)]


def test_the_seed_decides_the_order_of_tasks() -> None:
    """Different seeds give different orders, and each seed repeats its order."""

    def order(seed: int) -> list[int]:
        found: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep(0)
            found.append(number)

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(6):
                    group.create_task(one(number))

        run(main, seed)
        return found

    assert len({tuple(order(seed)) for seed in range(20)}) > 10
    assert all(order(seed) == order(seed) for seed in range(20))


def test_a_deadlock_names_the_waiting_task() -> None:
    """A run that hangs raises Deadlock, which names the task and where it waits."""

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_ever(), name="the patient one")

    async def wait_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match=r"the patient one at .*wait_for_ever"):
        run(main, 1)


def test_a_task_that_is_left_behind_is_found() -> None:
    """A run ends when all of its tasks end, not when its first coroutine returns."""
    kept: list[asyncio.Task[None]] = []

    async def main() -> None:
        kept.append(asyncio.create_task(wait_for_ever(), name="left behind"))

    async def wait_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="left behind"):
        run(main, 1)


def test_a_livelock_ends() -> None:
    """A task that never stops yielding is stopped after a number of steps."""

    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    loop = SimLoop(1, steps_max=1_000)  # type: ignore[abstract]
    with pytest.raises(Livelock):
        loop.run_until_complete(main())


def test_timeouts_and_cancellation_work_in_virtual_time() -> None:
    """A timeout expires at the loop's time, and cancels its work."""

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(3_600)
        return asyncio.get_running_loop().time()

    assert run(main, 1) == 5.0


FAULTS = {
    "well": (Fault(), None, True),
    "refused": (Fault(happened=False), Outcome.NOT_APPLIED, False),
    "lost on the way": (Fault(happened=False, told=False), Outcome.UNKNOWN, False),
    "answer lost": (Fault(told=False), Outcome.UNKNOWN, True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_put_happens_or_not_and_is_told_or_not(name: str) -> None:
    """A put has four outcomes: it happens or not, and its caller gets the answer or not."""
    fault, outcome, there = FAULTS[name]
    world = World(1, Script({("a", 0): fault}))
    client = world.client("a")

    async def main() -> Outcome | None:
        try:
            await client.store.put("key", b"x")
        except LocationError as error:
            return error.outcome
        return None

    assert run(main, 1) == outcome
    assert ("key" in world.store.objects) == there


def test_a_late_put_lands_after_its_failure_was_told() -> None:
    """A put may land after its caller got an error."""
    world = World(1, Script({("a", 0): Fault(happened=False, told=False, late_us=1_000)}))
    client = world.client("a")
    seen: list[bool] = []

    async def main() -> None:
        with pytest.raises(LocationError):
            await client.store.put("key", b"x")
        seen.append("key" in world.store.objects)
        await asyncio.sleep(1)
        seen.append("key" in world.store.objects)

    run(main, 1)

    assert seen == [False, True]


def test_a_dead_client_does_nothing_more_and_others_live_on() -> None:
    """A crash ends all tasks of one client, and of no other client."""
    world = World(1, Script({("a", 1): Fault(happened=False, told=False, dies=True)}))
    mortal, other = world.client("a"), world.client("b")
    steps: list[str] = []

    async def life(client: Client) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(idle(client))
                for number in range(4):
                    await client.store.put(f"{client.name}{number}", b"")
                    steps.append(f"{client.name}{number}")
        except* LocationError:
            steps.append("a crash was taken for an error")

    async def idle(client: Client) -> None:
        await client.clock.sleep(3_600_000_000)
        steps.append(f"{client.name} woke")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(mortal.live(life(mortal)))
            group.create_task(other.live(life(other)))

    run(main, 1)

    assert sorted(world.store.objects) == ["a0", "b0", "b1", "b2", "b3"]
    assert [s for s in steps if s.startswith("a")] == ["a0"]
    assert "b woke" in steps
    with pytest.raises(Crashed):
        run(lambda: mortal.store.get("a0"), 1)


def test_one_seed_gives_one_trace() -> None:
    """Equal seeds give equal traces, so that a failure can be repeated."""

    def trace(seed: int) -> str:
        faults = Dice(random.Random(seed), Rates(lost_after=0.2, late=0.2, slow=0.3))
        world = World(seed, faults)

        async def work(client: Client) -> None:
            for number in range(10):
                try:
                    await client.store.put(client.clock.unique(), bytes(number))
                    await client.store.get("missing")
                except (LocationError, ObjectNotFound):
                    await client.clock.sleep(1_000)

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for name in ("a", "b", "c"):
                    group.create_task(work(world.client(name)))

        run(main, seed)
        return world.trace()

    assert [trace(seed) for seed in range(5)] == [trace(seed) for seed in range(5)]
    assert len({trace(seed) for seed in range(5)}) == 5
