"""Collections as readers see them: the active rendition's shards as one.

Source: storage, "Fat client"; design page 6, "Times".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidelog.clock import Clock
from tidelog.collection.catalog import ERRORS_SCHEMA, Catalog, RenditionInfo
from tidelog.collection.times import format_time
from tidelog.collection.types import sql_type
from tidelog.consensus.port import Consensus
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    CorruptionError,
    NoSuchCollection,
    UsageError,
    require,
)
from tidelog.frontier import Frontier, join, meet
from tidelog.ids import ShardId
from tidelog.persist.reader import parts_between
from tidelog.persist.schema import DIFF, ShardSchema
from tidelog.persist.shard import Shard, ShardSnapshot
from tidelog.persist.updates import consolidate
from tidelog.store.port import Store


@dataclass(slots=True, kw_only=True)
class Collection:
    """A handle on one collection; what it reads is definite, however many others read and write."""

    name: str
    rendition: RenditionInfo
    store: Store
    consensus: Consensus
    clock: Clock
    is_errors: bool = False
    schema: ShardSchema = field(init=False)
    shards: list[Shard] = field(init=False)
    _beside: list[Shard] = field(init=False)

    def __post_init__(self) -> None:
        data = self.rendition.data_schema
        errors = self.rendition.errors
        self.schema = ERRORS_SCHEMA if self.is_errors else data
        outputs = [self._shard(shard, data) for shard in self.rendition.shards]
        beside = [self._shard(errors, ERRORS_SCHEMA)] if errors is not None else []
        self.shards, self._beside = (beside, outputs) if self.is_errors else (outputs, beside)

    def _shard(self, shard_id: str, schema: ShardSchema) -> Shard:
        return Shard(
            id=ShardId(shard_id),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            schema=schema,
        )

    async def refresh(self) -> None:
        """Read where the shards stand."""
        for shard in (*self.shards, *self._beside):
            await shard.refresh()

    @property
    def since(self) -> Frontier:
        """Return from when on times can be read, as of the last refresh."""
        return join([s.state.since_frontier for s in self.shards])

    @property
    def upper(self) -> Frontier:
        """Return up to when it is complete, errors included, as of the last refresh."""
        return meet([s.state.upper_frontier for s in (*self.shards, *self._beside)])

    async def resolve_as_of(self, as_of: int | None) -> int:
        """Return the time to be read: the one asked for, or the newest that is complete.

        Raises:
            AsOfBeforeSince, AsOfNotComplete: the message says which times can be read.
        """
        await self.refresh()
        upper = self.upper
        if upper == Frontier.at(0):
            raise AsOfNotComplete(
                f"nothing of {self.name!r} is complete yet: run 'tidelog ingest' first"
            )
        if as_of is None:
            if upper.is_empty:
                raise UsageError("the collection is finished: give the time to be read")
            return upper.time - 1
        self._check_since(as_of)
        if not upper.passed(as_of):
            raise AsOfNotComplete(
                f"{self.name!r} is complete up to {format_time(upper.time - 1)}: ask for a time "
                "up to then, or ingest more",
                asked=format_time(as_of),
            )
        return as_of

    async def snapshot(self, as_of: int | None = None) -> pa.Table:
        """Return the contents at a time: data columns and ``_diff``, consolidated."""
        tables = [await s.to_arrow() for s in await self.snapshots(as_of)]
        found = pa.concat_tables(tables)
        check_multiplicity(found, self.name)
        return found

    async def snapshots(self, as_of: int | None = None) -> list[ShardSnapshot]:
        """Return the snapshot of each shard at a time, not read yet."""
        time = await self.resolve_as_of(as_of)
        return [shard.snapshot_of(shard.state, time) for shard in self.shards]

    async def changes(self, since: int, until: int | None = None) -> pa.Table:
        """Return updates at times after ``since``, up to ``until``: consolidated, in time order.

        With a snapshot as of ``since``, they make the whole as of ``until``.
        """
        await self.refresh()
        self._check_since(since)
        last = await self.resolve_as_of(until)
        if last < since:
            raise UsageError(
                "the changes end before they begin: give --until a later time than --since",
                since=format_time(since),
                until=format_time(last),
            )
        tables: list[pa.Table] = []
        for shard in self.shards:
            parts = parts_between(shard.state, since, last)
            tables.extend(await shard.reader.read(parts, self.schema))
        return await self.clock.offload(
            lambda: consolidate(tables, self.schema, after=since, until=last)
        )

    async def describe(self) -> dict[str, Any]:
        """Return what there is to know: schema, frontiers, renditions, sizes."""
        await self.refresh()
        since, upper = self.since, self.upper
        states = [s.state for s in self.shards]
        return {
            "name": self.name,
            "schema": [{"name": f.name, "type": sql_type(f.type)} for f in self.schema.data],
            "key": self.schema.key,
            "since": None if since.is_empty else since.time,
            "upper": None if upper.is_empty else upper.time,
            "complete_to": None
            if upper.is_empty or not upper.time
            else format_time(upper.time - 1),
            "renditions": [
                {
                    "id": self.rendition.id,
                    "active": True,
                    "shards": [s.id for s in self.shards],
                }
            ],
            "rows": sum(s.diffs for s in states),
            "updates": sum(s.rows for s in states),
            "bytes": sum(s.size_bytes for s in states),
            "parts": sum(len(b.parts) for s in states for b in s.batches),
        }

    def _check_since(self, as_of: int) -> None:
        since = self.since
        require(not since.is_empty, "a collection's since is empty", name=self.name)
        if as_of < since.time:
            raise AsOfBeforeSince(
                f"{self.name!r} keeps times from {format_time(since.time)} on: ask for one of them",
                asked=format_time(as_of),
            )


def check_multiplicity(contents: pa.Table, name: str) -> None:
    """Refuse contents in which something is there less than no times.

    Raises:
        CorruptionError: so it is.
    """
    diffs = contents.column(DIFF).to_numpy()
    if len(diffs) and diffs.min() < 0:
        raise CorruptionError("a row of the collection has a negative multiplicity", name=name)


def find_collection(
    catalog: Catalog, name: str, *, store: Store, consensus: Consensus, clock: Clock
) -> Collection:
    """Return the handle of a collection, or of a source's errors under ``NAME_errors``.

    Raises:
        NoSuchCollection: there is none of that name; the message names those that there are.
    """
    rendition = catalog.errors_of(name)
    is_errors = rendition is not None
    if rendition is None:
        if name not in catalog.collections:
            known = ", ".join(sorted(catalog.collections)) or "none yet"
            raise NoSuchCollection(f"there is no collection {name!r}: there are {known}")
        rendition = catalog.active(name)
    return Collection(
        name=name,
        rendition=rendition,
        store=store,
        consensus=consensus,
        clock=clock,
        is_errors=is_errors,
    )
