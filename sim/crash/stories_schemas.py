"""The story of a shard whose columns change: an heir finds which change landed, and continues."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard
from sim.crash.points import VICTIM
from sim.crash.stories import MarkedStory, persist
from sim.kernel.world import Client
from sim.workloads.shard import SCHEMA, shard_of
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import Verdict
from tidelog.testing.models import contents_of

_ADDED: Final = SCHEMA.data.append(pa.field("y", pa.int64()))
EVOLVED: Final = (SCHEMA.data, _ADDED, _ADDED.remove(_ADDED.get_field_index("v")))


@dataclass(slots=True)
class EvolveStory(MarkedStory):
    """A column is added and one dropped between writes, and rows of all schemas are merged."""

    name: str = "schemas"

    async def _live(self, client: Client) -> None:
        """Do the victim's work; an heir can repeat all of it with the same result."""
        shard = shard_of(client, "s")
        await persist(client, shard.upper)
        follower = Shard(
            id=shard.id, store=client.store, consensus=client.consensus, clock=client.clock
        )
        for number, columns in enumerate(EVOLVED):
            if number and await persist(client, partial(_schemas, follower)) <= number:
                self.marks.begin("evolution", client)
                await persist(client, partial(follower.evolve_schema, columns, expected=number - 1))
            self.marks.begin("append", client)
            row = {"k": "a", "v": 1, "x": 0.5, "y": 7, TIME: number, DIFF: 1}
            table = pa.Table.from_pylist([row], schema=ShardSchema(columns, 1).updates)
            writer = shard if number == 0 else follower
            write = partial(
                writer.try_compare_and_append, table, number, number + 1, token=(VICTIM, number)
            )
            done = await persist(client, write)
            demand(done.verdict is not Verdict.MISMATCH, "a write was refused", done=done)
        self.marks.begin("merge", client)
        await persist(client, partial(follower.hold, "h"))
        await persist(client, partial(follower.move_hold, "h", 2))
        await persist(client, partial(follower.compact, full=True))
        await persist(client, partial(follower.collect, after_us=0))
        snapshot = await persist(client, partial(follower.snapshot, 2))
        found = contents_of(await persist(client, partial(snapshot.to_arrow, consolidated=True)))
        wanted = {("a", 0.5, None): 1, ("a", 0.5, 7): 2}
        demand(found == wanted, "a snapshot is wrong", saw=found)

    def _check(self, shards: dict[str, ObservedShard]) -> None:
        found = shards["s"]
        demand(found.names == ["k", "v", "x", "y"], "columns are others", names=found.names)
        rows = [("a", 1, 0.5, None), ("a", 1, 0.5, 7), ("a", None, 0.5, 7)]
        demand(sorted(map(repr, rows)) == sorted(repr(u.row) for u in found.updates), "other rows")


async def _schemas(shard: Shard) -> int:
    return len(await shard.schemas())
