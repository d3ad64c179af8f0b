"""The story of a shard's whole life: named writes, leases, retention, merges, and its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard
from sim.crash.stories import MarkedStory, persist
from sim.kernel.world import Client, World
from sim.workloads.ingest import demand_same
from sim.workloads.shard import SCHEMA, shard_of, table_of
from tidelog.core.frontier import Frontier
from tidelog.errors import AsOfBeforeSince, HoldExpired, PartMissing
from tidelog.persist.format.updates import accumulate
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.compactor import compact
from tidelog.persist.maintenance.sweeper import sweep
from tidelog.testing.models import Update, contents_of
from tidelog.testing.models import accumulate as accumulated

UPDATES: Final = (
    (Update(("a", 1, 0.0), 0, 1), Update(("b", None, 1.5), 1, 2)),
    (Update(("a", 1, 0.0), 2, -1), Update(("a", 2, None), 3, 1)),
    (Update(("b", None, 1.5), 4, -1), Update(("c", 0, 0.0), 5, 1)),
)
STEP: Final = 2
END: Final = STEP * len(UPDATES)
KEPT: Final = 4  # The earliest readable time after retention.
LEASE_US: Final = 60_000_000


@dataclass(slots=True)
class MaintenanceStory(MarkedStory):
    """A named writer, a reader under a lease, retention, merges, sweeps, and the tombstone."""

    name: str = "shard, for years"

    async def _play(self, world: World) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._merge(world.client("other")), name="other")
            await self._lived(world)

    def _shard(self, client: Client) -> Shard:
        return shard_of(client, "s")

    async def _live(self, client: Client) -> None:
        """Do the victim's work; an heir can repeat all of it with the same result."""
        shard, mark = self._shard(client), partial(self.marks.begin, client=client)
        mark("open")
        if await persist(client, shard.upper) == Frontier.empty():
            await self._bury(client, shard)
            return
        if shard.state.since == 0:
            await persist(client, partial(shard.hold, "history", 0))
        mark("append")
        await self._append(client, shard)
        mark("lease")
        await self._read(client, shard)
        mark("retention")
        if "history" in shard.state.holds:
            await persist(client, partial(shard.move_hold, "history", KEPT))
        mark("merge")
        await persist(client, partial(compact, shard, full=True))
        mark("collection")
        await persist(client, partial(shard.collect, after_us=0))
        mark("sweep")
        await persist(client, partial(sweep, shard))
        mark("snapshot")
        snapshot = await persist(client, partial(shard.snapshot, END - 1))
        found = contents_of(await persist(client, partial(snapshot.to_arrow, consolidated=True)))
        everything = [update for step in UPDATES for update in step]
        demand(found == accumulated(everything, END - 1), "a snapshot is wrong", saw=found)
        mark("drop of a writer")
        await persist(client, partial(shard.drop_writer, "w"))
        mark("tombstone")
        await self._bury(client, shard)

    async def _append(self, client: Client, shard: Shard) -> None:
        writer = await persist(client, partial(shard.appender, "w"))
        for number, updates in enumerate(UPDATES):
            upper = STEP * (number + 1)
            if writer.upper < Frontier.at(upper):
                await persist(client, partial(writer.append, table_of(list(updates)), upper))

    async def _read(self, client: Client, shard: Shard) -> None:
        """Read parts planned under a lease; merges and deletions must not remove them."""
        reader = await persist(client, partial(shard.lease, lease_us=LEASE_US))
        as_of = max(reader.since.time, 3)
        planned = await persist(client, partial(reader.snapshot, as_of))
        await client.clock.sleep(50_000)
        try:
            tables = await persist(client, partial(shard.reader.read, planned.parts, SCHEMA))
        except PartMissing as error:
            demand(False, "what a lease holds is gone", error=str(error))
            raise
        found = contents_of(accumulate(tables, SCHEMA, as_of=as_of))
        everything = [update for step in UPDATES for update in step]
        demand(found == accumulated(everything, as_of), "a reader saw something else", saw=found)
        await reader.close()

    async def _bury(self, client: Client, shard: Shard) -> None:
        await persist(client, shard.drop)
        await persist(client, partial(shard.collect, after_us=0))
        await persist(client, partial(sweep, shard))

    async def _merge(self, client: Client) -> None:
        """Merge and delete next to the victim, and end leases that no client renews."""
        shard = self._shard(client)
        while await persist(client, shard.upper) != Frontier.empty():
            try:
                await persist(client, partial(compact, shard, full=True))
                await persist(client, partial(shard.collect, after_us=0))
                await persist(client, partial(sweep, shard))
            except (AsOfBeforeSince, HoldExpired):
                continue
            await client.clock.sleep(15_000)

    def _check(self, shards: dict[str, ObservedShard]) -> None:
        found = shards["s"]
        everything = [update for step in UPDATES for update in step]
        demand_same(found.updates, everything, "the shard held something else")
        demand((found.upper, found.state.since) == (None, None), "the shard is not at its end")
        demand(not len(found.state.batches), "a batch is left")
        demand(not found.state.writers, "a writer is remembered")


@dataclass(slots=True)
class ExpiryStory(MarkedStory):
    """A reader has died; a client that watched its lease ends it, and the parts it held go."""

    name: str = "expiry"

    async def _play(self, world: World) -> None:
        gone = world.client("gone")
        shard = shard_of(gone, "s")
        for number, updates in enumerate(UPDATES):
            await shard.try_compare_and_append(
                table_of(list(updates)), STEP * number, STEP * (number + 1)
            )
        reader = await shard.lease(lease_us=LEASE_US)
        await reader.stop()
        await self._lived(world)

    async def _live(self, client: Client) -> None:
        shard = shard_of(client, "s")
        self.marks.begin("merge under a lease", client)
        await persist(client, partial(shard.compact, full=True))
        await persist(client, partial(shard.collect, after_us=0))
        self.marks.begin("expiry", client)
        # The first look records the lease; only a later look can end it.
        await persist(client, shard.end_leases)
        await client.clock.sleep(2 * LEASE_US)
        await persist(client, shard.end_leases)
        demand(not shard.state.holds, "a lease that nobody renews stands", holds=shard.state.holds)
        self.marks.begin("collection", client)
        await persist(client, partial(shard.collect, after_us=0))
        await persist(client, partial(sweep, shard))
        snapshot = await persist(client, partial(shard.snapshot, END - 1))
        found = contents_of(await persist(client, partial(snapshot.to_arrow, consolidated=True)))
        everything = [update for step in UPDATES for update in step]
        demand(found == accumulated(everything, END - 1), "a snapshot is wrong", saw=found)

    def _check(self, shards: dict[str, ObservedShard]) -> None:
        found = shards["s"]
        everything = [update for step in UPDATES for update in step]
        demand_same(found.updates, everything, "the shard held something else")
        demand(not found.state.holds, "a lease is left", holds=found.state.holds)
        demand(len(list(found.state.batches)) == 1, "batches are left apart")
