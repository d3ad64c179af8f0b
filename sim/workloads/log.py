"""Logs under faults: writers that contend, die and return, and readers next to them."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from sim.checkers.linear_log import check_log
from sim.crash.points import VICTIM
from sim.kernel.faults import Dice, Script
from sim.kernel.loop import run
from sim.kernel.rates import rates_of, worse_of
from sim.kernel.world import Client, World
from sim.workloads.scenario import STEPS_MAX, Report, Scenario, finish, persist, report_of


def simulate_log(seed: int, scenario_of: type[Scenario] = Scenario) -> Report:
    """Run one seed, and check everything.

    Raises:
        NotLinearLog, Violated: a check failed. Any other error: a client failed with an error
            that it
        must not raise.
    """
    dice = random.Random(f"log {seed}")
    scenario = scenario_of(World(seed, schedule_of(seed, "w0", "w1")), dice)
    run(lambda: _play(scenario), seed, steps_max=STEPS_MAX)
    check_log(scenario.history, scenario.final)
    return report_of(scenario)


def schedule_of(seed: int, *mortal: str) -> Dice:
    """Return the fault schedule of a seed, with the rarer faults of its day."""
    return Dice(
        random.Random(f"dice {seed}"),
        rates_of(seed),
        frozenset(mortal),
        worse=worse_of(seed),
        worse_random=random.Random(f"worse dice {seed}"),
    )


async def _play(scenario: Scenario) -> None:
    writers = [scenario.world.client(f"w{n}") for n in range(scenario.dice.choice([1, 2, 3]))]
    maker = scenario.world.client("maker")
    await persist(maker, lambda: scenario.make(maker))
    scenario.writing.update(writers)
    async with asyncio.TaskGroup() as group:
        for client in writers:
            client.start(group, _write_on(scenario, client))
        for name in ("r0", "r1"):
            reader = scenario.world.client(name)
            reader.start(group, _read_on(scenario, reader))
        scenario.others(group)
    await finish(scenario, scenario.world.client("last"))


async def _write_on(scenario: Scenario, client: Client) -> None:
    try:
        await client.live(_write(scenario, client))
    finally:
        scenario.writing.discard(client)
        scenario.bury(client)


async def _write(scenario: Scenario, client: Client) -> None:
    number = 0
    for _ in range(scenario.dice.choice([1, 2])):
        writer = scenario.writer(client)
        rounds = scenario.dice.randrange(2, 6)
        for left in reversed(range(rounds)):
            await client.clock.sleep(scenario.dice.randrange(40_000))
            calls = []
            for _ in range(scenario.dice.choice([1, 3, 6])):
                sizes = range(scenario.dice.choice([1, 1, 2, 3]))
                bodies = [f"{client.name} {number} {n}".encode() for n in sizes]
                appending = scenario.append(client, writer, bodies)
                calls.append(scenario.is_cancelled("append", appending))
                number += 1
            if scenario.worse.cancels and not left:
                break  # The writer closes while appends are under way.
            await asyncio.gather(*calls)
            calls.clear()
        await asyncio.gather(*calls, scenario.close(client, writer))


async def _read_on(scenario: Scenario, client: Client) -> None:
    within_us = 100_000
    while not scenario.is_over:
        await client.clock.sleep(scenario.dice.randrange(within_us))
        # A run with long pauses lasts minutes, most of which are waiting.
        within_us += within_us // 8
        # If every third request fails, a read of many requests may never end.
        with scenario.trouble():
            await scenario.read(client, scenario.dice.choice([1, 1, 2, 7]))


@dataclass(slots=True)
class LogStory:
    """Opens, appends and rollovers next to another writer; an heir continues."""

    name: str = "log"
    scenario_of: type[Scenario] = Scenario

    def tell(self, schedule: Script, *, seed: int) -> int:
        """Run the story; see `sim.crash.points.Story`."""
        scenario = self.scenario_of(World(seed, schedule), random.Random(f"log story {seed}"))
        run(lambda: self._play(scenario), seed)
        check_log(scenario.history, scenario.final)
        victim = scenario.world.clients[VICTIM]
        return len(victim.store.records)

    async def _play(self, scenario: Scenario) -> None:
        victim, other = scenario.world.client(VICTIM), scenario.world.client("other")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._live(scenario, other, 4), name="other")
            await victim.live(self._live(scenario, victim, 6))
            scenario.bury(victim)
            heir = scenario.world.client("heir")
            await self._live(scenario, heir, 2)
        await finish(scenario, scenario.world.client("last"))

    @staticmethod
    async def _live(scenario: Scenario, client: Client, appends: int) -> None:
        await persist(client, lambda: scenario.make(client))
        writer = scenario.writer(client)
        for number in range(appends):
            bodies = [f"{client.name} {number} {n}".encode() for n in range(2)]
            await scenario.append(client, writer, bodies)
        await scenario.close(client, writer)
        with scenario.trouble():
            await scenario.read(client, 1)
