"""The controller: creates, lists, describes and drops the sources and collections of a location.

Its state is a shard, the catalog. Each command is one compare_and_append, so it is atomic and
survives a crash at any point. If two commands race, the loser decides again on the catalog that
the winner wrote.
Source: storage, "Controller".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidelog.collection.catalog.announcing import announce_change
from tidelog.collection.catalog.catalog import (
    CATALOG_SCHEMA,
    Catalog,
    Change,
    CollectionInfo,
    Era,
    RenditionInfo,
    SourceInfo,
    TableInfo,
    plan_alter,
    plan_create,
    plan_create_table,
    plan_drop,
    plan_drop_table,
    plan_forget,
    plan_released,
    plan_retain,
    plan_skip,
    read_catalog,
)
from tidelog.collection.catalog.lost import has_sources
from tidelog.collection.catalog.renditions import (
    plan_drop_rendition,
    plan_dropping,
    plan_handover,
    plan_rendition,
)
from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock, backoff_us
from tidelog.core.frontier import Frontier
from tidelog.core.ids import CATALOG_SHARD, new_writer_id
from tidelog.errors import ContentionError, LocationError
from tidelog.machine.lost import state_lost
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import Verdict
from tidelog.store.port import Store

NEWEST_HOLD: Final = "newest"


@dataclass(slots=True, kw_only=True)
class Controller:
    """Reads and changes the catalog of one location."""

    store: Store
    consensus: Consensus
    clock: Clock
    attempts: int = 100
    shard: Shard = field(init=False)
    _read: tuple[int, Catalog] | None = None

    def __post_init__(self) -> None:
        self.shard = Shard(
            id=CATALOG_SHARD,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            schema=CATALOG_SCHEMA,
        )

    async def catalog(self) -> Catalog:
        """Return the newest catalog. If it is unchanged since the last call, this is one request.

        Raises:
            CorruptionError: the catalog's state is lost. LocationError: the store failed.
        """
        await self.shard.refresh()
        if self.shard.state.upper == 0 and await has_sources(self.consensus):
            # Another process may have created the first source between the two requests.
            await self.shard.refresh()
            if self.shard.state.upper == 0:
                raise state_lost(CATALOG_SHARD)
        return await self._contents()

    async def create_source(
        self, collection: CollectionInfo, rendition: RenditionInfo, source: SourceInfo
    ) -> None:
        """Create a source with its collection.

        Raises:
            NameTaken: the name exists.
        """
        await self._change(lambda known: plan_create(known, collection, rendition, source))

    async def drop_source(self, name: str) -> None:
        """Drop a source and its collection.

        Raises:
            NoSuchCollection: no source has the name.
        """
        before = await self.catalog()
        await self._change(lambda known: plan_drop(known, name))
        # The source is dropped. Without the announcement, its ingesters notice that later.
        with suppress(LocationError):
            await self.announce(name, before)

    async def create_table(
        self, collection: CollectionInfo, rendition: RenditionInfo, table: TableInfo
    ) -> None:
        """Create a table with its collection; its shards are registered afterwards.

        Raises:
            NameTaken: the name exists.
        """
        await self._change(lambda known: plan_create_table(known, collection, rendition, table))

    async def drop_table(self, name: str) -> RenditionInfo:
        """Drop a table and its collection; return its rendition, whose shards the caller drops.

        Raises:
            NoSuchCollection: no table has the name.
        """
        dropped: list[RenditionInfo] = []

        def plan(known: Catalog) -> list[Change]:
            changes = plan_drop_table(known, name)
            dropped[:] = [known.active(name)]
            return changes

        await self._change(plan)
        return dropped[0]

    async def alter_table(
        self, name: str, change: Callable[[RenditionInfo, TableInfo], RenditionInfo]
    ) -> None:
        """List the next schema of a table; its shards get it afterwards.

        Raises:
            NoSuchCollection: no table has the name. All errors of ``change``.
        """
        await self._change(lambda known: plan_alter(known, known.table(name), change))

    async def alter_source(
        self, name: str, change: Callable[[RenditionInfo, SourceInfo], RenditionInfo]
    ) -> None:
        """List the next schema of a source; its shards get it with the next rows.

        Raises:
            NoSuchCollection: no source has the name. All errors of ``change``.
        """
        await self._change(lambda known: plan_alter(known, known.source(name), change))
        await self.announce(name)

    async def announce(self, name: str, catalog: Catalog | None = None) -> None:
        """Announce a change of a source's entries to its ingesters; see `announce_change`.

        ``catalog`` is one that lists the source, by default the newest.

        Raises:
            LocationError: the store failed; call again.
        """
        known = await self.catalog() if catalog is None else catalog
        await announce_change(
            known, name, store=self.store, consensus=self.consensus, clock=self.clock
        )

    async def skip_files(self, name: str, paths: Sequence[str]) -> SourceInfo:
        """Record the files that a source skips; return the changed source.

        Raises:
            NoSuchCollection: no source has the name.
        """
        now_us = self.clock.now_us()
        await self._change(lambda known: plan_skip(known, name, paths, now_us=now_us))
        return (await self.catalog()).source(name)

    async def retain(self, name: str, retain_ms: int | None) -> None:
        """Set the retention of a collection; None keeps its whole past.

        Raises:
            NoSuchCollection: no table has the name, and no source.
        """
        await self._change(lambda known: plan_retain(known, name, retain_ms))
        await self.announce(name)

    async def add_rendition(
        self, rendition: RenditionInfo, source: SourceInfo, *, of: RenditionInfo
    ) -> None:
        """Add a rendition, made from ``of``, and the source that feeds it to a collection.

        Raises:
            NameTaken: the name exists. NoSuchCollection: the collection was dropped.
            SchemaEvolved: another process has altered or dropped ``of``.
        """
        await self._change(lambda known: plan_rendition(known, rendition, source, of=of))

    async def record_handover(self, name: str, era: Era) -> None:
        """Copy the mark of a handover to the catalog.

        Raises:
            NoSuchCollection: the collection was dropped.
        """
        await self._change(lambda known: plan_handover(known, name, era))

    async def set_dropping(self, name: str, *, dropping: bool) -> RenditionInfo:
        """Record the begin of the drop of a rendition, or take it back; return the rendition.

        Raises:
            NoSuchCollection: no rendition has the name. UsageError: it is the active one.
        """
        await self._change(lambda known: plan_dropping(known, name, dropping=dropping))
        return (await self.catalog()).rendition(name)

    async def drop_rendition(self, name: str) -> None:
        """Remove a rendition whose drop has begun.

        Raises:
            NoSuchCollection: no rendition has the name. UsageError: it is the active one.
        """
        await self._change(lambda known: plan_drop_rendition(known, name))

    async def forget(self, shards: Sequence[str]) -> None:
        """Remove dropped shards from the catalog, once only the records of their end are left."""
        await self._change(lambda known: plan_forget(known, shards))

    async def released(self, id: str) -> None:
        """Record that a dropped source has released its holds outside of the location."""
        await self._change(lambda known: plan_released(known, id))

    async def _change(self, plan: Callable[[Catalog], list[Change]]) -> None:
        token = (new_writer_id(self.clock), 0)
        for attempt in range(self.attempts):
            changes = plan(await self.catalog())
            # The time of the catalog read, not of the shard's state: another call of this process
            # may have read a newer state concurrently.
            lower = 0 if self._read is None else self._read[0]
            time = max(lower, self.clock.now_us() // 1_000)
            # No reader needs an earlier catalog, so merges may drop it.
            holds = {NEWEST_HOLD: Frontier.at(max(lower - 1, 0))}
            done = await self.shard.try_compare_and_append(
                _updates(changes, time), lower, time + 1, token=token, holds=holds
            )
            if done.verdict is not Verdict.MISMATCH:
                return
            await self.clock.sleep(backoff_us(attempt, self.clock))
        raise ContentionError(
            f"gave up after {self.attempts} tries: other processes kept changing the catalog; try "
            "again"
        )

    async def _contents(self) -> Catalog:
        state = self.shard.state
        if state.upper == 0:
            return Catalog()
        upper = state.upper_frontier.time
        if self._read is None or self._read[0] != upper:
            # This state is complete below its upper. So the read waits for no commit.
            table = await self.shard.snapshot_of(state, upper - 1).to_arrow(consolidated=True)
            columns = (table.column(n).to_pylist() for n in CATALOG_SCHEMA.names)
            self._read = (upper, read_catalog(zip(*columns, strict=True)))
        return self._read[1]


def _updates(changes: list[Change], time: int) -> pa.Table:
    return pa.table(
        {
            "kind": [row[0] for row, _ in changes],
            "name": [row[1] for row, _ in changes],
            "value": [row[2] for row, _ in changes],
            "_time": [time] * len(changes),
            "_diff": [diff for _, diff in changes],
        },
        schema=CATALOG_SCHEMA.updates,
    )
