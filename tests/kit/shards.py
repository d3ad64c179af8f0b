"""The places of shards in tests: stores, consensus, and handles as in separate processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from kit.clocks import HandClock, SwiftClock
from kit.shard_tables import schema_of, table_of
from tidelog.collection.reading import Reading
from tidelog.consensus.memory import MemoryConsensus
from tidelog.consensus.port import Consensus
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.handle.port import Progress
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.selection import RowSelection
from tidelog.persist.states.transition import Verdict
from tidelog.persist.write.writer import PartWriter
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing.models import (
    Row,
    ShardModel,
    Update,
    contents_of,
    rows_of,
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


def plain_part(**told: Any) -> Part:
    """Return a descriptor of one update at time 0, with other fields as given."""
    given: dict[str, Any] = {"size_bytes": 1, "xxh3": b"", "rows": 1, "diffs": 1, "time_min": 0}
    sums = {"time_max": told.get("time_min", 0), "sum_v": bytes(16), "sum_t": bytes(16)}
    return Part(**{**given, **sums, **told})


def writer_for(shard: Shard, **told: Any) -> PartWriter:
    """Return a writer of a shard's parts with settings of the test."""
    made = shard.writer()
    given = {"store": made.store, "clock": made.clock, "shard": made.shard, "schema": made.schema}
    return PartWriter(**{**given, **told})


async def append_cut(
    shard: Shard, table: pa.Table, cuts: Sequence[int], model: ShardModel | None = None
) -> None:
    """Append updates in batches that end at the cuts, also to a model."""
    for lower, upper in pairwise([0, *cuts]):
        times = table.column(TIME).to_numpy()
        some = table.filter(pa.array((times >= lower) & (times < upper)))
        await shard.compare_and_append(some, lower, upper)
        if model is not None:
            model.compare_and_append(updates_of(some), lower, upper)


async def shard_in_parts(
    place: Place, clock: SystemClock | None = None, *, count: int = 8
) -> Shard:
    """Return a shard with a hold, and with one batch of one part at each time."""
    shard = place.shard(clock=clock or HandClock())
    for time in range(count):
        many = [(f"k{n}", time, time, 1) for n in range(700)]
        await shard.compare_and_append(rows(*many), time, time + 1)
    await shard.hold("history", 0)
    return shard


async def merge_away(shard: Shard) -> None:
    """Merge everything, and delete the replaced parts at once, as another process."""
    await shard.refresh()
    await shard.compact(full=True)
    await shard.collect(after_us=0)


def projected(found: Counter[Row], names: Sequence[str], columns: Sequence[str]) -> dict[Row, int]:
    """Return the counts of rows with the chosen columns only."""
    places = [names.index(column) for column in columns]
    counts: Counter[Row] = Counter()
    for row, count in found.items():
        counts[tuple(row[place] for place in places)] += count
    return nonzero(counts)


def counts_in(tables: Sequence[pa.Table], names: Sequence[str]) -> dict[Row, int]:
    """Return the count of each row, as the sum of its diffs."""
    counts: Counter[Row] = Counter()
    for table in tables:
        diffs = table.column(DIFF).to_numpy().tolist()
        for row, diff in zip(rows_of(table, names), diffs, strict=True):
            counts[row] += diff
    return nonzero(counts)


def nonzero(found: Counter[Row]) -> dict[Row, int]:
    return {row: count for row, count in found.items() if count}


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


def reading_of(shard: Shard, schema: ShardSchema, columns: Sequence[str]) -> Reading:
    """Return the read of columns of a shard as those of a collection."""
    return Reading(
        name="c",
        rendition="",
        schema=schema,
        appended=False,
        store=shard.store,
        clock=shard.clock,
        wanted=RowSelection(columns=columns).check(schema),
    )
