"""Stories of logs that share: a fork from its beginning to its end; and a manifest that was lost.

Their crash points are visited as those of `sim.crash.stories`.
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
from sim.kernel.fates import Script
from sim.kernel.loop import run
from sim.kernel.world import Client, World
from sim.workloads.fork import Game, checked, finish, game_of, make
from sim.workloads.plot import persist
from tidelog.errors import LocationError, LogSealed, NameTaken
from tidelog.wal.format.manifest import MANIFEST


@dataclass(slots=True)
class ForkStory:
    """A fork is made, written, collected and destroyed; its source goes on, and is collected."""

    name: str = "fork"

    def tell(self, fates: Script, *, seed: int) -> int:
        """See `sim.crash.points.Story`."""
        return _told(self._play, fates, seed)

    async def _play(self, game: Game) -> None:
        world = game.world
        victim, other = world.client(VICTIM), world.client("other")
        await make(game, other)
        for _ in range(2):
            await game.append(other, "a")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beside(game, other), name="other")
            await victim.live(self._live(game, victim))
            game.bury(victim)
        await self._live(game, world.client("heir"))
        demand(game.watch.live() == ["a"], "the fork is still there")
        await finish(game)

    @staticmethod
    async def _beside(game: Game, client: Client) -> None:
        await game.append(client, "a")
        await game.collect(client, "a", is_all=True)

    async def _live(self, game: Game, client: Client) -> None:
        if "f" in game.watch.logs and "f" not in game.watch.live():
            await persist(client, lambda: game.destroy(client, "f"))
            return
        await persist(client, lambda: self._fork(game, client))
        with suppress(LogSealed, LocationError):
            await game.append(client, "f")
            await game.collect(client, "f", is_all=True)
            await game.read(client, "f", game.watch.logs["f"].manifest.oldest)
        await persist(client, lambda: game.destroy(client, "f"))

    @staticmethod
    async def _fork(game: Game, client: Client) -> None:
        """Make the fork, unless it exists; a killed call may have left a pin."""
        with suppress(NameTaken):
            await game.shelf(client).fork("a", "f")


@dataclass(slots=True)
class RebuildStory:
    """A log's manifest is lost, and made again from the links."""

    name: str = "rebuild"

    def tell(self, fates: Script, *, seed: int) -> int:
        """See `sim.crash.points.Story`."""
        return _told(self._play, fates, seed)

    async def _play(self, game: Game) -> None:
        world = game.world
        maker, victim = world.client("maker"), world.client(VICTIM)
        await make(game, maker)
        for _ in range(4):
            await game.append(maker, "a")
        await game.collect(maker, "a")
        for key in [key for key in world.store.objects if key.endswith(MANIFEST)]:
            del world.store.objects[key]
        before = dict(game.watch.logs["a"].bodies)
        await victim.live(self._rebuild(game, victim))
        heir = world.client("heir")
        await self._rebuild(game, heir)
        demand(game.watch.logs["a"].bodies == before, "the log has other records")
        await game.append(heir, "a")
        await finish(game)

    @staticmethod
    async def _rebuild(game: Game, client: Client) -> None:
        async def rebuild() -> None:
            with suppress(NameTaken):
                await game.shelf(client).rebuild("a")

        await persist(client, rebuild)


def _told(play: Callable[[Game], Coroutine[Any, Any, None]], fates: Script, seed: int) -> int:
    world = World(seed, fates)
    game = game_of(world, random.Random(f"fork story {seed}"), grace_us=20_000)
    run(lambda: play(game), seed)
    checked(game)
    return len(world.clients[VICTIM].store.records)
