"""The stories of a shard, a source, the catalog and a log, whose crash points are visited.

`sim.workloads.collect` has the story of a collection. `sim.crash.stories_fork` has those of a fork
and of a lost manifest.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeVar

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard, check_all
from sim.checkers.watch import Watch
from sim.crash.points import VICTIM, Marks
from sim.kernel.faults import Script
from sim.kernel.loop import run
from sim.kernel.small import Limits, limited
from sim.kernel.world import Client, World
from sim.workloads.files import Input, Shape, generate
from sim.workloads.ingest import demand_same
from sim.workloads.log import LogStory
from sim.workloads.shard import shard_of, table_of
from sim.workloads.slot import SealStory, SlotScenario
from sim.workloads.sources import (
    SimSource,
    bindings_of,
    check_bindings,
    check_errors,
    check_placed,
    errors_expected,
    replay,
    replay_alone,
)
from tidelog.collection.catalog.catalog import Catalog
from tidelog.collection.catalog.controller import Controller
from tidelog.core.frontier import Frontier
from tidelog.errors import LocationError, NameTaken, NoSuchCollection
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import Verdict
from tidelog.testing.models import Update, accumulate, consolidate, contents_of, updates_of

T = TypeVar("T")

TRIES: Final = 50
SMALL: Final = Limits(records_max=2, writes_kept=1, inline_bytes=0, rollup_every=2)
MIDDLING: Final = Limits(records_max=4, rollup_every=3)
SHAPE: Final = Shape(files=1, lines=7, keys=2, bad=0.2)


async def persist(client: Client, call: Callable[[], Awaitable[T]]) -> T:
    """Retry a call while the store fails, as any caller would."""
    for _ in range(TRIES):
        try:
            return await call()
        except LocationError:
            await client.clock.sleep(10_000)
    raise AssertionError("the store fails for ever")


def told(
    schedule: Script,
    seed: int,
    limits: Limits,
    play: Callable[[World], Coroutine[Any, Any, None]],
    check: Callable[[dict[str, ObservedShard]], None],
    *,
    attempts: int = 20,
) -> int:
    """Run a story in a world of its own, check it, and count the victim's requests."""
    world = World(seed, schedule, attempts=attempts)
    watch = Watch(world.store)
    world.watchers.append(watch)
    with limited(limits):
        run(lambda: play(world), seed)
        check(check_all(world.store, watch))
    victim = world.clients[VICTIM]
    demand(
        len(victim.store.records) == victim.requests_count or victim.is_dead,
        "requests were counted in two ways, and differ",
    )
    return len(victim.store.records)


@dataclass(slots=True, kw_only=True)
class MarkedStory:
    """A story that records the purpose of each request of its victim.

    An heir repeats all of the victim's work.
    """

    attempts: int = 20
    limits: Limits = SMALL
    marks: Marks = field(default_factory=Marks)

    def tell(self, schedule: Script, *, seed: int) -> int:
        self.marks = Marks()
        return told(schedule, seed, self.limits, self._play, self._check, attempts=self.attempts)

    async def _play(self, world: World) -> None:
        await self._lived(world)

    async def _lived(self, world: World) -> None:
        """Run the victim until it finishes or dies, then its heir."""
        victim = world.client(VICTIM)
        await victim.live(self._live(victim))
        await self._live(world.client("heir"))

    async def _live(self, client: Client) -> None:
        raise NotImplementedError

    def _check(self, shards: dict[str, ObservedShard]) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class ShardStory:
    """Holds, tokens, a shared append, a snapshot and a listener, next to another writer."""

    name: str = "shard"
    attempts: int = 20
    limits: Limits = SMALL

    FIRST = (Update(("a", 1, 0.0), 0, 1), Update(("b", None, 1.5), 1, 2))
    SECOND = (Update(("a", 1, 0.0), 3, -1), Update(("a", 2, None), 3, 1))
    SHARED = tuple(Update(("c", time, None), time, 1) for time in range(4, 9))

    def tell(self, schedule: Script, *, seed: int) -> int:
        return told(schedule, seed, self.limits, self._play, self._check, attempts=self.attempts)

    async def _play(self, world: World) -> None:
        victim, other = world.client(VICTIM), world.client("other")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._share(other, (4, 6, 9)), name="other")
            await victim.live(self._live(victim))
            await self._live(world.client("heir"))

    def _shard(self, client: Client) -> Shard:
        return shard_of(client, "s")

    async def _live(self, client: Client) -> None:
        """Do the victim's work; an heir can repeat all of it with the same result."""
        shard = self._shard(client)
        # An earlier life may have moved and released the hold; then since has advanced.
        if await persist(client, shard.since) == Frontier.at(0):
            await persist(client, lambda: shard.hold("h", 0))
        for number, (updates, lower, upper) in enumerate(((self.FIRST, 0, 2), (self.SECOND, 2, 4))):
            write = partial(
                shard.try_compare_and_append,
                table_of(list(updates)),
                lower,
                upper,
                token=(VICTIM, number),
                named=number == 1,
            )
            done = await persist(client, write)
            demand(done.verdict is not Verdict.MISMATCH, "a write was refused", done=done)
        await self._share(client, (4, 9))
        snapshot = await persist(client, lambda: shard.snapshot(3))
        found = contents_of(await persist(client, partial(snapshot.to_arrow, consolidated=True)))
        demand(
            found == accumulate((*self.FIRST, *self.SECOND), 3), "a snapshot is wrong", saw=found
        )
        heard = await persist(client, lambda: self._listen(shard))
        demand(
            consolidate(heard) == consolidate(self.SHARED, after=3),
            "a listener heard something else",
            heard=heard,
        )
        if "h" in shard.state.holds:
            await persist(client, lambda: shard.move_hold("h", 3))
            await persist(client, lambda: shard.drop_hold("h"))

    async def _share(self, client: Client, cuts: tuple[int, ...]) -> None:
        shard = self._shard(client)
        await persist(client, lambda: shard.wait_for_upper(3))
        for lower, upper in pairwise(cuts):
            updates = [u for u in self.SHARED if lower <= u.time < upper]
            await persist(client, partial(shard.append, table_of(updates), lower, upper))

    async def _listen(self, shard: Shard) -> list[Update]:
        found: list[Update] = []
        async for progress in shard.listen(3):
            found.extend(updates_of(progress.updates))
            if progress.upper.time >= 9:
                break
        return found

    def _check(self, shards: dict[str, ObservedShard]) -> None:
        everything = [*self.FIRST, *self.SECOND, *self.SHARED]
        demand_same(shards["s"].updates, everything, "the shard holds something else")
        demand(shards["s"].upper == 9, "upper is elsewhere", upper=shards["s"].upper)
        demand(shards["s"].state.since == 3, "since is elsewhere")
        demand(not shards["s"].state.holds, "a hold stayed")


@dataclass(slots=True)
class IngestStory:
    """Two ingesters of one source over two output shards; the victim is one of them."""

    name: str = "ingest"
    source: SimSource = field(default_factory=lambda: SimSource(delete_when=None, bytes_max=260))
    shape: Shape = SHAPE
    input_seed: int = 5
    limits: Limits = MIDDLING

    def tell(self, schedule: Script, *, seed: int) -> int:
        shape = replace(self.shape, required=self.source.required)
        given = generate(random.Random(self.input_seed), shape)
        return told(
            schedule,
            seed,
            self.limits,
            lambda world: self._play(world, given),
            lambda shards: self._check(shards, given),
        )

    async def _play(self, world: World, given: Input) -> None:
        for path in sorted(given.files):
            await world.store.put(path, given.bytes_of(path))
        await self.source.create(world.client("maker"))
        victim, other = world.client(VICTIM), world.client("other")
        async with asyncio.TaskGroup() as group:
            group.create_task(victim.live(self._ingest(victim)), name=VICTIM)
            group.create_task(self._ingest(other), name="other")
        await self._ingest(world.client("heir"))

    async def _ingest(self, client: Client) -> None:
        ingester = self.source.ingester(client)
        await persist(client, ingester.refresh)
        head = await persist(client, ingester.source.head)
        for _ in range(TRIES):
            tick = await persist(client, lambda: ingester.tick(head))
            if tick is None or (not self.source.timed and not tick.left_bytes):
                return
        raise AssertionError("there is no end to it")

    def _check(self, shards: dict[str, ObservedShard], given: Input) -> None:
        rendition = self.source.rendition
        outputs = [shards[name] for name in rendition.shards]
        bindings = bindings_of(shards[rendition.remap or ""])
        demand(len(bindings) > 1, "there was only one tick")
        check_bindings(bindings, given)
        updates = [u for shard in outputs for u in shard.updates]
        demand_same(updates, replay(self.source, bindings, given), "the output is something else")
        if self.source.timed:
            demand_same(updates, replay_alone(self.source, given), "times are not the rows' own")
        check_placed(self.source, outputs)
        check_errors(shards[rendition.errors or ""], errors_expected(bindings, given))


@dataclass(slots=True)
class CatalogStory:
    """Sources created and dropped, while another client creates the same name."""

    name: str = "catalog"
    limits: Limits = SMALL

    def tell(self, schedule: Script, *, seed: int) -> int:
        return told(schedule, seed, self.limits, self._play, self._check)

    async def _play(self, world: World) -> None:
        victim, other = world.client(VICTIM), world.client("other")
        async with asyncio.TaskGroup() as group:
            group.create_task(victim.live(self._live(victim)), name=VICTIM)
            group.create_task(self._create(other), name="other")
        heir = world.client("heir")
        await self._live(heir)
        catalog = await persist(heir, self._controller(heir).catalog)
        demand(not catalog.sources, "a source was not dropped", sources=catalog.sources)
        demand(not catalog.collections and not catalog.renditions, "a drop was half done")
        made = SimSource().rendition
        shards = {*made.shards, *made.deletions, made.errors, made.remap}
        demand(catalog.dropped == shards, "shards of what was dropped are not listed")

    def _controller(self, client: Client) -> Controller:
        return SimSource().controller(client)

    async def _create(self, client: Client) -> None:
        with suppress(NameTaken):
            await persist(client, lambda: SimSource().create(client))

    async def _live(self, client: Client) -> None:
        await self._create(client)
        controller = self._controller(client)
        self._whole(await persist(client, controller.catalog))
        with suppress(NoSuchCollection):
            await persist(client, lambda: controller.drop_source("s"))
        self._whole(await persist(client, controller.catalog))

    def _whole(self, catalog: Catalog) -> None:
        kinds = (catalog.sources, catalog.collections, catalog.renditions)
        demand(len({bool(kind) for kind in kinds}) == 1, "something was half done", catalog=catalog)

    def _check(self, shards: dict[str, ObservedShard]) -> None:
        demand(set(shards) == {"catalog"}, "there are other shards")


StoryOf = ShardStory | IngestStory | CatalogStory | LogStory
STORIES: Final[tuple[StoryOf, ...]] = (
    ShardStory(),
    ShardStory(name="shard, impatient", attempts=1),
    IngestStory(name="ingest upsert, by time"),
    IngestStory(
        name="ingest upsert, by the clock",
        source=SimSource(delete_when=None, timed=False, bytes_max=260),
    ),
    IngestStory(name="ingest none, by time", source=SimSource(envelope="none", bytes_max=260)),
    IngestStory(
        name="ingest a group", source=SimSource(delete_when=None, bytes_max=260, is_grouped=True)
    ),
    CatalogStory(),
    LogStory(),
    LogStory(name="slot log", scenario_of=SlotScenario),
    SealStory(),
)
