"""Logs under fire: writers that contend, die and come back, and readers beside them."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from sim.checkers.linear_log import check_log
from sim.crash.points import VICTIM
from sim.kernel.fates import Dice, Script
from sim.kernel.loop import run
from sim.kernel.weather import rates_of, worse_of
from sim.kernel.world import Client, World
from sim.workloads.plot import STEPS_MAX, Plot, Report, finish, persist, report_of


def simulate_log(seed: int, plot_of: type[Plot] = Plot) -> Report:
    """Run one seed, and check everything.

    Raises:
        NotLinearLog, Violated: something does not hold. Anything else: a client failed as it never
        should.
    """
    dice = random.Random(f"log {seed}")
    plot = plot_of(World(seed, fates_of(seed, "w0", "w1")), dice)
    run(lambda: _play(plot), seed, steps_max=STEPS_MAX)
    check_log(plot.history, plot.final)
    return report_of(plot)


def fates_of(seed: int, *mortal: str) -> Dice:
    """Return the fates of a seed, and what is worse on its day."""
    return Dice(
        random.Random(f"dice {seed}"),
        rates_of(seed),
        frozenset(mortal),
        worse=worse_of(seed),
        worse_random=random.Random(f"worse dice {seed}"),
    )


async def _play(plot: Plot) -> None:
    writers = [plot.world.client(f"w{n}") for n in range(plot.dice.choice([1, 2, 3]))]
    maker = plot.world.client("maker")
    await persist(maker, lambda: plot.make(maker))
    plot.writing.update(writers)
    async with asyncio.TaskGroup() as group:
        for client in writers:
            client.start(group, _write_on(plot, client))
        for name in ("r0", "r1"):
            reader = plot.world.client(name)
            reader.start(group, _read_on(plot, reader))
        plot.others(group)
    await finish(plot, plot.world.client("last"))


async def _write_on(plot: Plot, client: Client) -> None:
    try:
        await client.live(_write(plot, client))
    finally:
        plot.writing.discard(client)
        plot.bury(client)


async def _write(plot: Plot, client: Client) -> None:
    number = 0
    for _ in range(plot.dice.choice([1, 2])):
        writer = plot.writer(client)
        rounds = plot.dice.randrange(2, 6)
        for left in reversed(range(rounds)):
            await client.clock.sleep(plot.dice.randrange(40_000))
            calls = []
            for _ in range(plot.dice.choice([1, 3, 6])):
                sizes = range(plot.dice.choice([1, 1, 2, 3]))
                bodies = [f"{client.name} {number} {n}".encode() for n in sizes]
                appending = plot.append(client, writer, bodies)
                calls.append(plot.is_cancelled("append", appending))
                number += 1
            if plot.worse.cancels and not left:
                break  # Closed while it appends.
            await asyncio.gather(*calls)
            calls.clear()
        await asyncio.gather(*calls, plot.close(client, writer))


async def _read_on(plot: Plot, client: Client) -> None:
    within_us = 100_000
    while not plot.is_over:
        await client.clock.sleep(plot.dice.randrange(within_us))
        within_us += within_us // 8  # On a day that goes on for minutes, most of it is waiting.
        # Where the store fails at every third request, a read of many may never come to its end.
        with plot.trouble():
            await plot.read(client, plot.dice.choice([1, 1, 2, 7]))


@dataclass(slots=True)
class LogStory:
    """Opens, appends and rollovers, another writer beside; an heir goes on."""

    name: str = "log"
    plot_of: type[Plot] = Plot

    def tell(self, fates: Script, *, seed: int) -> int:
        """See `sim.crash.points.Story`."""
        plot = self.plot_of(World(seed, fates), random.Random(f"log story {seed}"))
        run(lambda: self._play(plot), seed)
        check_log(plot.history, plot.final)
        victim = plot.world.clients[VICTIM]
        return len(victim.store.records)

    async def _play(self, plot: Plot) -> None:
        victim, other = plot.world.client(VICTIM), plot.world.client("other")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._live(plot, other, 4), name="other")
            await victim.live(self._live(plot, victim, 6))
            plot.bury(victim)
            heir = plot.world.client("heir")
            await self._live(plot, heir, 2)
        await finish(plot, plot.world.client("last"))

    @staticmethod
    async def _live(plot: Plot, client: Client, appends: int) -> None:
        await persist(client, lambda: plot.make(client))
        writer = plot.writer(client)
        for number in range(appends):
            bodies = [f"{client.name} {number} {n}".encode() for n in range(2)]
            await plot.append(client, writer, bodies)
        await plot.close(client, writer)
        with plot.trouble():
            await plot.read(client, 1)
