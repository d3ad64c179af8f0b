"""The tables of a location, by name: create, open, list, write and drop.

A table is a collection that programs write. One transaction shard writes the shards of all tables,
so a commit is one request, and may change several tables. See `tidelog.persist.transactions`.

A creation lists the table in the catalog, then registers its shards. A drop removes it from the
catalog, then forgets its shards. So a process that dies leaves no registration without an entry of
the catalog. An alteration lists the new schema, then gives it to the shards.
Source: design page 6, "Tables"; decision 29.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.collection.altering import check_no_values
from tidelog.collection.catalog.catalog import Catalog, RenditionInfo, TableInfo
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.table.alteration import Alteration
from tidelog.collection.table.direct import DIRECT, WAL
from tidelog.collection.table.registering import drop_shard
from tidelog.collection.table_definition import TableDefinition
from tidelog.collection.table_handle import AT_ONCE, Table
from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock, run_all
from tidelog.core.frontier import Frontier
from tidelog.core.ids import TABLES, ShardId, check_name
from tidelog.errors import (
    ContentionError,
    NameTaken,
    NoSuchCollection,
    SchemaEvolved,
    UsageError,
)
from tidelog.persist.handle.argument_checks import check_flag
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import refuses_writes

ALTERATIONS_MAX: Final = 20


def table_transactions(
    store: Store, consensus: Consensus, clock: Clock, label: str = ""
) -> Transactions:
    """Return a handle of the transactions that write the tables; its shards are named by ids."""
    return Transactions(name=TABLES, store=store, consensus=consensus, clock=clock, label=label)


@refuses_writes()
@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All tables of a location."""

    store: Store
    consensus: Consensus
    clock: Clock
    controller: Controller
    transactions: Transactions

    async def create(
        self,
        name: str,
        schema: pa.Schema | str,
        *,
        key: Sequence[str] = (),
        shards: int = 1,
        retain_ms: int | None = None,
        mode: str = WAL,
    ) -> Table:
        """Create an empty table, readable from now on; or finish a creation that was interrupted.

        ``schema`` is an Arrow schema or text, such as ``'id bigint, name varchar'``. The columns of
        the ``key`` come first in the table. A row's key selects one of the ``shards``; without a
        key, the whole row does. Times older than ``retain_ms`` may become unreadable. In the
        ``mode`` "direct", the table has one shard and its own times, and no transaction changes it.

        If a process dies during its call, a call with the same arguments finishes the creation.

        Raises:
            UsageError: an argument is invalid. NOT_APPLIED.
            NameTaken: the name exists, or conflicts with the bad rows of a source. NOT_APPLIED.
                A call whose answer was lost may have finished this table: open it.
            LocationError: the store failed; call again.
        """
        check_name(name, of="name of a table")
        wanted = TableDefinition(name, schema, key, shards, retain_ms, mode)
        collection, rendition, info = wanted.planned(self.clock)
        try:
            await self.controller.create_table(collection, rendition, info)
        except NameTaken:
            catalog = await self.controller.catalog()
            if not await self._is_unfinished(catalog, rendition, info):
                raise
            rendition, info = catalog.active(name), catalog.tables[name]
        table = self._opened(rendition, info)
        try:
            await table.finish()
        except SchemaEvolved:  # Another process has altered the table since.
            table = await self.finished(name)
        # An empty commit moves the upper of the table past the clock, so that it can be read.
        await table.writer.insert({})
        return table

    async def open(self, name: str) -> Table:
        """Return the handle of a table.

        Raises:
            NoSuchCollection: no table has the name; the message lists the existing ones.
            UsageError: the name is not a text.
        """
        check_kind(name, str, "the name of a table must be a str")
        catalog = await self.controller.catalog()
        return self._opened(catalog.renditions[catalog.table(name).rendition], catalog.table(name))

    async def list(self) -> builtins.list[str]:
        """Return the names of all tables, in order."""
        return sorted((await self.controller.catalog()).tables)

    async def alter(
        self,
        name: str,
        *,
        add: pa.Schema | str | None = None,
        drop: Sequence[str] = (),
        discard_values: bool = False,
    ) -> Table:
        """Add columns to a table, and drop columns of it; return a handle with the new columns.

        ``add`` is an Arrow schema or text, such as ``'size double, note varchar'``. New columns
        come last, and are null in the rows that exist. All times have the new columns, also earlier
        ones. A column that has a value at a readable time is dropped only with ``discard_values``.
        A name is used once: a dropped column cannot be added again. Handles that were opened
        before read until one of their columns is dropped, and raise `SchemaEvolved` at a write.

        If a process dies during its call, a call with the same arguments finishes the alteration,
        and so does the next write. A repeated call changes nothing, also after other alterations,
        unless one of them has dropped a column that it adds.

        Raises:
            NoSuchCollection: no table has the name.
            UsageError: a column cannot be added or dropped, or has values. NOT_APPLIED.
            ContentionError: other processes altered the table; call again.
            LocationError: the store failed; call again.
        """
        change = Alteration.of(add, drop)
        check_flag(discard_values, "discard_values")
        table = await self.open(name)
        after = change.applied(table.rendition, table.info)
        is_new = after != table.rendition
        if is_new and not discard_values:
            await check_no_values(table, change)
        if is_new:
            await self.controller.alter_table(name, change.applied)
        return await self.finished(name)

    async def finished(self, name: str) -> Table:
        """Open a table, and finish its creation and its alterations, so that it can be read.

        Raises:
            NoSuchCollection: no table has the name.
            ContentionError: other processes altered the table; call again.
            LocationError: the store failed; call again.
        """
        for _ in range(ALTERATIONS_MAX):
            table = await self.open(name)
            with suppress(SchemaEvolved):  # Another process has listed a further alteration.
                await table.writer.refresh()
                await table.finish()
                if not table.writer.state.upper:
                    await table.writer.insert({})
                return table
        raise ContentionError(
            f"gave up after {ALTERATIONS_MAX} tries: other processes kept altering the table "
            f"{name!r}; try again"
        )

    async def drop(self, name: str) -> None:
        """Drop a table and its rows permanently; the collector deletes its objects.

        The table is dropped as soon as the catalog no longer has it. If the process dies after
        that, the collector does the rest.

        Raises:
            NoSuchCollection: no table has the name.
            LocationError: the store failed; list the tables to find out whether it was dropped.
        """
        rendition = await self.controller.drop_table(name)
        for shard in rendition.shards:
            await drop_shard(self.transactions, self._shard(shard))

    async def advance(self) -> int:
        """Make all tables complete up to now; return a time in milliseconds at which all are.

        This finishes interrupted creations of tables, too.

        Without writes, the newest complete time of the tables stays the same, and so does the
        common time of a query over tables and collections of sources.

        Raises:
            UsageError: the location has no table. LocationError: the store failed; call again.
        """
        catalog = await self.controller.catalog()
        tables = catalog.tables
        if not tables:
            raise UsageError("the location has no table yet: create one first")
        registered = (await self.transactions.refresh()).tables
        for name, info in tables.items():
            shards = catalog.renditions[info.rendition].shards
            if info.mode != DIRECT and not all(shard in registered for shard in shards):
                with suppress(NoSuchCollection):  # Another process has dropped the table since.
                    await self.finished(name)
        direct = [name for name, info in tables.items() if info.mode == DIRECT]
        writers: builtins.list[Transactions] = []
        for name in direct:
            table = await self.open(name)
            await table.refresh()  # Raises an error if the state is lost: a write would replace it.
            writers.append(table.writer)
        if len(direct) < len(tables):
            writers.append(self.transactions)
        done = await run_all([partial(one.insert, {}) for one in writers], at_once=AT_ONCE)
        return min(one.upper.time for one in done) - 1

    async def _is_unfinished(
        self, catalog: Catalog, rendition: RenditionInfo, info: TableInfo
    ) -> bool:
        """Return True if the catalog has this table, and its creation was interrupted."""
        known = catalog.tables.get(info.name)
        same = ("key", "retain_ms", "mode")
        if known is None or any(getattr(known, one) != getattr(info, one) for one in same):
            return False
        stored = catalog.renditions[known.rendition]
        if stored.schemas != rendition.schemas or len(stored.shards) != len(rendition.shards):
            return False
        state = await self._opened(stored, known).writer.refresh()
        return not state.upper or not all(shard in state.tables for shard in stored.shards)

    def _opened(self, rendition: RenditionInfo, info: TableInfo) -> Table:
        table = Table(
            name=info.name,
            rendition=rendition,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            table=info,
            transactions=None if info.mode == DIRECT else self.transactions,
            controller=self.controller,
            label=self.transactions.label,
        )
        for shard in table.shards:
            shard.first_holds = {HISTORY_HOLD: Frontier.at(0)}
        return table

    def _shard(self, shard: str) -> Shard:
        return Shard(
            id=ShardId(shard), store=self.store, consensus=self.consensus, clock=self.clock
        )
