"""Stories of keyed logs: from the first append to collection, and from a checkpoint to a drop.

Their crash points are visited as those of `sim.crash.stories`. Somebody compacts and collects
beside; an heir does all of it again.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sim.checkers.demands import demand
from sim.crash.points import VICTIM, Marks
from sim.kernel.fates import Script
from sim.kernel.loop import run
from sim.kernel.small import Limits
from sim.kernel.small_keyed import KeyedLimits, keyed_limited
from sim.kernel.world import Client, World
from sim.workloads.keyed import LOG, Keyed, keyed_of
from sim.workloads.keyed_play import finish
from sim.workloads.keyed_tending import read_checkpoint, retire
from sim.workloads.keyed_writing import Writing
from sim.workloads.plot import persist
from tidelog.errors import NameTaken, NoSuchCheckpoint, NoSuchLog
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.values import Retention

LIMITS: Final = KeyedLimits(
    loose_max=2,
    fan_in=2,
    range_rows=2,
    part_rows=3,
    machine=Limits(records_max=3, rollup_every=3),
)
FORK: Final = "f"
TRIES: Final = 5


@dataclass(slots=True)
class KeyedStory:
    """Appends, a seal, compaction, a merge, retirement, collection; see the module."""

    name: str = "keyed"
    marks: Marks = field(default_factory=Marks)

    def tell(self, fates: Script, *, seed: int) -> int:
        """See `sim.crash.points.Story`."""
        self.marks = Marks()
        plot = keyed_of(World(seed, fates), random.Random(f"keyed story {seed}"))
        with keyed_limited(LIMITS):
            run(lambda: self._play(plot), seed)
        return len(plot.world.clients[VICTIM].store.records)

    async def _play(self, plot: Keyed) -> None:
        world = plot.world
        maker, victim = world.client("maker"), world.client(VICTIM)
        await _made(plot, maker)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beside(plot, world.client("other")), name="other")
            await victim.live(self._live(plot, victim))
            plot.bury(victim)
        await self._live(plot, world.client("heir"))
        await finish(plot)
        self._check(plot)

    async def _live(self, plot: Keyed, client: Client) -> None:
        mark, truth = partial(self.marks.begin, client=client), plot.truth(LOG)
        mark("append")
        log = await _written(plot, client, 3)
        mark("seal")
        await persist(client, log.seal)
        mark("compaction")
        await persist(client, log.compact)
        mark("append")
        log = await _written(plot, client, 2)
        mark("merge")
        await persist(client, lambda: log.compact(everything=True))
        mark("retirement")
        await persist(client, lambda: retire(truth, log, Retention(segments=1)))
        demand(truth.retired > 1, "nothing was retired")
        mark("collection")
        for _ in range(2):
            await persist(client, lambda: log.collect(after_us=0))

    @staticmethod
    async def _beside(plot: Keyed, client: Client) -> None:
        log = await persist(client, lambda: plot.open(client, LOG, upkeep=False))
        for _ in range(3):
            await client.clock.sleep(60_000)
            await persist(client, log.compact)
            await persist(client, lambda: log.collect(after_us=0))

    def _check(self, plot: Keyed) -> None:
        demand(plot.truth(LOG).runs_made > 1, "no runs were made")


@dataclass(slots=True)
class KeyedForkStory(KeyedStory):
    """A checkpoint, a fork that is written and collected, and the end of both."""

    name: str = "keyed fork"

    async def _live(self, plot: Keyed, client: Client) -> None:
        mark, truth = partial(self.marks.begin, client=client), plot.truth(LOG)
        log = await _written(plot, client, 2)
        mark("checkpoint")
        with suppress(NameTaken):
            await persist(client, lambda: log.checkpoint("c"))
        if "c" in truth.checkpoints:
            await persist(client, lambda: read_checkpoint(plot, client, truth, "c"))
        mark("fork")
        log = await _written(plot, client, 1)
        with suppress(NameTaken):
            await persist(client, lambda: plot.logs(client).fork(LOG, FORK))
        with plot.trouble(FORK):
            fork = await _written(plot, client, 1, FORK)
            await persist(client, lambda: fork.compact(everything=True))
            await persist(client, lambda: fork.collect(after_us=0))
        mark("drop")
        plot.dropping.add(FORK)
        with suppress(NoSuchLog):
            await persist(client, lambda: plot.logs(client).drop(FORK))
        with suppress(NoSuchCheckpoint):
            await persist(client, lambda: log.drop_checkpoint("c"))
        await persist(client, lambda: log.collect(after_us=0))

    def _check(self, plot: Keyed) -> None:
        held = plot.truth(LOG).checkpoints
        demand(not held, "something is held for a fork that was dropped", held=sorted(held))
        demand(plot.truth(FORK).is_dropped, "the fork is still there")


async def _made(plot: Keyed, client: Client) -> None:
    async def make() -> None:
        with suppress(NameTaken):
            await plot.logs(client).create(LOG)

    await persist(client, make)


async def _written(plot: Keyed, client: Client, appends: int, name: str = LOG) -> KeyedLog:
    """Append to a log, until it is told that it is there; return a handle that writes nothing."""
    for _ in range(TRIES):
        log = await persist(client, lambda: plot.open(client, name, upkeep=False))
        writing = Writing(plot, client, log, plot.truth(name))
        for _ in range(appends):
            await writing.append()
        await writing.flush()
        is_done = not writing.is_over
        await writing.close()
        if is_done:
            return await persist(client, lambda: plot.open(client, name, upkeep=False))
    # Whoever died dropping it has sealed its wal: nobody writes it any more.
    demand(name in plot.dropping, "a log takes nothing", log=name)
    return await persist(client, lambda: plot.open(client, name, upkeep=False))
