"""The places of shards in tests: stores, consensus, and handles as in separate processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable

import pyarrow as pa

from kit.clocks import SwiftClock
from kit.shard_tables import schema_of, table_of
from tidelog.consensus.memory import MemoryConsensus
from tidelog.consensus.port import Consensus
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle.port import Progress
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import Verdict
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing.models import (
    Row,
    ShardModel,
    Update,
    contents_of,
    updates_of,
)

SCHEMA = schema_of(["string", "int64"], keys=1)
COMMITTED, ALREADY, MISMATCH = Verdict.COMMITTED, Verdict.ALREADY, Verdict.MISMATCH


class Place:
    """A store and a consensus for shards; each handle is like that of a separate process."""

    def __init__(self, store: Store, consensus: Callable[[Store], Consensus]) -> None:
        self.store = store
        self._consensus = consensus

    def consensus(self, store: Store | None = None) -> Consensus:
        """Return the consensus of another process, on its own connection ``store`` if given."""
        return self._consensus(store or self.store)

    def shard(
        self,
        *,
        schema: ShardSchema | None = SCHEMA,
        store: Store | None = None,
        name: str = "s",
        clock: SystemClock | None = None,
        consensus: Consensus | None = None,
    ) -> Shard:
        within = store or self.store
        return Shard(
            id=ShardId(name),
            store=within,
            consensus=consensus or self.consensus(within),
            clock=clock or SwiftClock(),
            schema=schema,
        )


def in_memory() -> Place:
    shared = MemoryConsensus()
    return Place(MemoryStore(), lambda _: shared)


def on_store(store: Store) -> Place:
    return Place(store, lambda within: StoreConsensus(store=within, clock=SwiftClock()))


def rows(*updates: tuple[str, int | None, int, int]) -> pa.Table:
    return table_of(SCHEMA, list(updates))


async def contents(shard: Shard, as_of: int, *, wait: bool = False) -> Counter[Row]:
    return contents_of(await (await shard.snapshot(as_of, wait=wait)).to_arrow(consolidated=True))


async def heard(listener: AsyncIterator[Progress], upper: int | None) -> list[Update]:
    """Return the updates of a listener until it has reached ``upper``."""
    found: list[Update] = []
    async for progress in listener:
        found.extend(updates_of(progress.updates))
        if progress.upper == Frontier.of(upper):
            break
        assert progress.upper < Frontier.of(upper)
    return found


async def history(shard: Shard) -> ShardModel:
    """Write batches of all kinds, and return their model."""
    model = ShardModel()
    steps: list[tuple[list[tuple[str, int | None, int, int]], int, int]] = [
        ([("a", 1, 0, 1), ("b", None, 1, 2)], 0, 2),
        ([], 2, 3),
        ([("a", 1, 4, -1), ("a", 2, 4, 1), ("c", 3, 3, 1)], 3, 6),
        ([("c", 3, 6, -1)], 6, 7),
        ([("b", None, 9, -1), ("b", None, 9, 1)], 7, 10),
    ]
    for updates, lower, upper in steps:
        await shard.compare_and_append(rows(*updates), lower, upper)
        model.compare_and_append(updates_of(rows(*updates)), lower, upper)
    return model
