"""Stories of a fork, from its creation to its end, and of a lost manifest.

Their crash points are visited like those of `sim.crash.stories`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sim.checkers.demands import demand
from sim.crash.points import VICTIM
from sim.kernel.faults import Script
from sim.kernel.loop import run
from sim.kernel.world import Client, World
from sim.workloads.fork import ForkTrial, checked, finish, make, trial_of
from sim.workloads.scenario import persist
from tidelog.errors import LocationError, LogSealed, NameTaken
from tidelog.wal.format.manifest import MANIFEST


@dataclass(slots=True)
class ForkStory:
    """A fork is made, written, collected and destroyed; its source grows and is collected."""

    name: str = "fork"

    def tell(self, schedule: Script, *, seed: int) -> int:
        """Run the story; see `sim.crash.points.Story`."""
        return _told(self._play, schedule, seed)

    async def _play(self, trial: ForkTrial) -> None:
        world = trial.world
        victim, other = world.client(VICTIM), world.client("other")
        await make(trial, other)
        for _ in range(2):
            await trial.append(other, "a")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beside(trial, other), name="other")
            await victim.live(self._live(trial, victim))
            trial.bury(victim)
        await self._live(trial, world.client("heir"))
        demand(trial.watch.live() == ["a"], "the fork is still there")
        await finish(trial)

    @staticmethod
    async def _beside(trial: ForkTrial, client: Client) -> None:
        await trial.append(client, "a")
        await trial.collect(client, "a", is_all=True)

    async def _live(self, trial: ForkTrial, client: Client) -> None:
        if "f" in trial.watch.logs and "f" not in trial.watch.live():
            await persist(client, lambda: trial.destroy(client, "f"))
            return
        await persist(client, lambda: self._fork(trial, client))
        with suppress(LogSealed, LocationError):
            await trial.append(client, "f")
            await trial.collect(client, "f", is_all=True)
            await trial.read(client, "f", trial.watch.logs["f"].manifest.oldest)
        await persist(client, lambda: trial.destroy(client, "f"))

    @staticmethod
    async def _fork(trial: ForkTrial, client: Client) -> None:
        """Make the fork, unless it exists; a killed call may have left a pin."""
        with suppress(NameTaken):
            await trial.shelf(client).fork("a", "f")


@dataclass(slots=True)
class RebuildStory:
    """A log's manifest is lost, and rebuilt from the links."""

    name: str = "rebuild"

    def tell(self, schedule: Script, *, seed: int) -> int:
        """Run the story; see `sim.crash.points.Story`."""
        return _told(self._play, schedule, seed)

    async def _play(self, trial: ForkTrial) -> None:
        world = trial.world
        maker, victim = world.client("maker"), world.client(VICTIM)
        await make(trial, maker)
        for _ in range(4):
            await trial.append(maker, "a")
        await trial.collect(maker, "a")
        for key in [key for key in world.store.objects if key.endswith(MANIFEST)]:
            del world.store.objects[key]
        before = dict(trial.watch.logs["a"].bodies)
        await victim.live(self._rebuild(trial, victim))
        heir = world.client("heir")
        await self._rebuild(trial, heir)
        demand(trial.watch.logs["a"].bodies == before, "the log has other records")
        await trial.append(heir, "a")
        await finish(trial)

    @staticmethod
    async def _rebuild(trial: ForkTrial, client: Client) -> None:
        async def rebuild() -> None:
            with suppress(NameTaken):
                await trial.shelf(client).rebuild("a")

        await persist(client, rebuild)


def _told(
    play: Callable[[ForkTrial], Coroutine[Any, Any, None]], schedule: Script, seed: int
) -> int:
    world = World(seed, schedule)
    trial = trial_of(world, random.Random(f"fork story {seed}"), grace_us=20_000)
    run(lambda: play(trial), seed)
    checked(trial)
    return len(world.clients[VICTIM].store.records)
