"""Stories of keyed logs: from the first append to collection, and from a checkpoint to a drop.

Their crash points are visited like those of `sim.crash.stories`. Another client compacts and
collects concurrently; an heir repeats all of the victim's work.
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
from sim.kernel.faults import Script
from sim.kernel.loop import run
from sim.kernel.small import Limits
from sim.kernel.small_keyed import KeyedLimits, keyed_limited
from sim.kernel.world import Client, World
from sim.workloads.keyed import LOG, KeyedRun, keyed_of
from sim.workloads.keyed_maintenance import read_checkpoint, retire
from sim.workloads.keyed_play import finish
from sim.workloads.keyed_writing import WriteHandle
from sim.workloads.scenario import persist
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

    def tell(self, schedule: Script, *, seed: int) -> int:
        """Run the story; see `sim.crash.points.Story`."""
        self.marks = Marks()
        scenario = keyed_of(World(seed, schedule), random.Random(f"keyed story {seed}"))
        with keyed_limited(LIMITS):
            run(lambda: self._play(scenario), seed)
        return len(scenario.world.clients[VICTIM].store.records)

    async def _play(self, scenario: KeyedRun) -> None:
        world = scenario.world
        maker, victim = world.client("maker"), world.client(VICTIM)
        await _made(scenario, maker)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beside(scenario, world.client("other")), name="other")
            await victim.live(self._live(scenario, victim))
            scenario.bury(victim)
        await self._live(scenario, world.client("heir"))
        await finish(scenario)
        self._check(scenario)

    async def _live(self, scenario: KeyedRun, client: Client) -> None:
        mark, truth = partial(self.marks.begin, client=client), scenario.truth(LOG)
        mark("append")
        log = await _written(scenario, client, 3)
        mark("seal")
        await persist(client, log.seal)
        mark("compaction")
        await persist(client, log.compact)
        mark("append")
        log = await _written(scenario, client, 2)
        mark("merge")
        await persist(client, lambda: log.compact(full=True))
        mark("retirement")
        await persist(client, lambda: retire(truth, log, Retention(segments=1)))
        demand(truth.retired > 1, "nothing was retired")
        mark("collection")
        for _ in range(2):
            await persist(client, lambda: log.collect(after_us=0))

    @staticmethod
    async def _beside(scenario: KeyedRun, client: Client) -> None:
        log = await persist(client, lambda: scenario.open(client, LOG, maintenance=False))
        for _ in range(3):
            await client.clock.sleep(60_000)
            await persist(client, log.compact)
            await persist(client, lambda: log.collect(after_us=0))

    def _check(self, scenario: KeyedRun) -> None:
        demand(scenario.truth(LOG).runs_made > 1, "no runs were made")


@dataclass(slots=True)
class KeyedForkStory(KeyedStory):
    """A checkpoint, a fork that is written and collected, and the end of both."""

    name: str = "keyed fork"

    async def _live(self, scenario: KeyedRun, client: Client) -> None:
        mark, truth = partial(self.marks.begin, client=client), scenario.truth(LOG)
        log = await _written(scenario, client, 2)
        mark("checkpoint")
        with suppress(NameTaken):
            await persist(client, lambda: log.create_checkpoint("c"))
        if "c" in truth.checkpoints:
            await persist(client, lambda: read_checkpoint(scenario, client, truth, "c"))
        mark("fork")
        log = await _written(scenario, client, 1)
        with suppress(NameTaken):
            await persist(client, lambda: scenario.logs(client).fork(LOG, FORK))
        with scenario.trouble(FORK):
            fork = await _written(scenario, client, 1, FORK)
            await persist(client, lambda: fork.compact(full=True))
            await persist(client, lambda: fork.collect(after_us=0))
        mark("drop")
        scenario.dropping.add(FORK)
        with suppress(NoSuchLog):
            await persist(client, lambda: scenario.logs(client).drop(FORK))
        with suppress(NoSuchCheckpoint):
            await persist(client, lambda: log.drop_checkpoint("c"))
        await persist(client, lambda: log.collect(after_us=0))

    def _check(self, scenario: KeyedRun) -> None:
        held = scenario.truth(LOG).checkpoints
        demand(not held, "something is held for a fork that was dropped", held=sorted(held))
        demand(scenario.truth(FORK).is_dropped, "the fork is still there")


async def _made(scenario: KeyedRun, client: Client) -> None:
    async def make() -> None:
        with suppress(NameTaken):
            await scenario.logs(client).create(LOG)

    await persist(client, make)


async def _written(scenario: KeyedRun, client: Client, appends: int, name: str = LOG) -> KeyedLog:
    """Append until the log acknowledges it; return a handle that writes nothing."""
    for _ in range(TRIES):
        log = await persist(client, lambda: scenario.open(client, name, maintenance=False))
        writing = WriteHandle(scenario, client, log, scenario.truth(name))
        for _ in range(appends):
            await writing.append()
        await writing.flush()
        is_done = not writing.is_over
        await writing.close()
        if is_done:
            return await persist(client, lambda: scenario.open(client, name, maintenance=False))
    # A client that died while it dropped the log has sealed the wal: no append can succeed.
    demand(name in scenario.dropping, "a log takes nothing", log=name)
    return await persist(client, lambda: scenario.open(client, name, maintenance=False))
