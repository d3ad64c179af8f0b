"""The handle of one table: it writes rows, and reads them as a collection.

Source: design page 6, "Tables"; decision 29.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from tidelog.collection.catalog.catalog import TableInfo
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.collection import Collection
from tidelog.collection.formats.times import When
from tidelog.collection.table.changes import (
    INSERT,
    UPSERT,
    TableChange,
    WhenMatched,
    WhenNotMatched,
    delete_of,
    rule_of,
    update_of,
)
from tidelog.collection.table.direct import DIRECT, DirectTransactions
from tidelog.collection.table.history import TableCommit, add_counts, commits_of
from tidelog.collection.table.incoming import IncomingRows, or_altered
from tidelog.collection.table.reader import TableReader, altered
from tidelog.collection.table.registering import settle_shard
from tidelog.collection.table.writes import TableWriter, check_at
from tidelog.core.arguments import check_whole
from tidelog.core.clock import offload_waiting, run_all
from tidelog.core.frontier import Frontier
from tidelog.core.ids import TABLES
from tidelog.errors import (
    NoSuchCollection,
    NotRegistered,
    SchemaEvolved,
    UsageError,
)
from tidelog.persist.format.schema import ShardSchema, decode_schema
from tidelog.persist.handle.argument_checks import check_write_token
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.persist.states.state import Token
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.wrappers.read_only import refuses_writes

T = TypeVar("T")
AT_ONCE: Final = 8
FINISHES_MAX: Final = 4


@refuses_writes()
@dataclass(slots=True, kw_only=True, repr=False)
class Table(Collection):
    """A handle of one table: the reads of a collection, and writes."""

    controller: Controller
    label: str = ""  # The writer of commits without a token, in the history of a direct table.
    _changes: TableWriter | None = field(init=False, default=None)
    _direct: DirectTransactions | None = field(init=False, default=None)

    def __repr__(self) -> str:
        return f"<tidelog table {self.name!r}: {len(self.schema.names)} columns>"

    @property
    def info(self) -> TableInfo:
        assert self.table is not None
        return self.table

    @property
    def columns(self) -> ShardSchema:
        """Return the columns and the key of the table.

        The shards of a table without a key are sorted by all columns, which may still be null.
        """
        return ShardSchema(self.schema.data, len(self.info.key))

    @property
    def writer(self) -> Transactions:
        """Return the transactions that write the table; a direct table has its own."""
        if self.transactions is not None:
            return self.transactions
        if self._direct is None:
            self._direct = DirectTransactions(
                name=TABLES,
                store=self.store,
                consensus=self.consensus,
                clock=self.clock,
                label=self.label,
                only=self.shards[0],
            )
        return self._direct

    @property
    def reader(self) -> TableReader:
        """Return the reader of the rows on which writes depend."""
        return self._keyed_writer.reader

    @property
    def _keyed_writer(self) -> TableWriter:
        if self._changes is None:
            reader = TableReader(
                name=self.name,
                schema=self.columns,
                stored=self.schema,
                shards=[shard.id for shard in self.shards],
                transactions=self.writer,
            )
            self._changes = TableWriter(reader=reader)
        return self._changes

    async def insert(
        self, rows: object, *, at: int | None = None, token: Token | None = None
    ) -> int:
        """Add rows; return the time in milliseconds as of which they are visible.

        ``rows`` are an Arrow table, batch or reader, a pandas or Polars DataFrame, any object with
        the Arrow stream interface, or a list of dicts. A missing column is null. In a table with a
        key, the keys must be new. Without a key, an insert never conflicts, and a reader may be
        longer than memory holds.

        The time is the first one that is not before ``at`` (default: the clock) and past all
        earlier commits. A ``token`` is a writer's name and a number that rises with each write to
        this table: a retry with it adds the rows once, and returns the same time.

        Raises:
            KeyExists: a key exists; the message names it. NOT_APPLIED.
            UsageError: the rows do not fit the table. NOT_APPLIED.
            DataDiffers: the token was used for other rows, in a table without a key (with a key,
                the rows of a retry are not compared). NOT_APPLIED.
            NoSuchCollection: the table was dropped. SchemaEvolved: it was altered. NOT_APPLIED.
            ContentionError: other writers kept changing the same rows. NOT_APPLIED.
            PartsSwept: the rows of a reader took too long to arrive. NOT_APPLIED.
            OutcomeUnknown: the writer has used a greater number. LocationError: the store failed.
        """
        return await or_altered(self._incoming(at, token).put(rows, INSERT), self.check_listed)

    def _incoming(self, at: int | None, token: Token | None) -> IncomingRows:
        check_at(at)
        return IncomingRows(
            writer=self._keyed_writer,
            transactions=self.writer,
            store=self.store,
            registered=self.registered,
            at=at,
            token=scoped_token(self.info, token),
        )

    async def upsert(
        self, rows: object, *, at: int | None = None, token: Token | None = None
    ) -> int:
        """Insert rows, or replace the rows of their keys; return the time, as `insert` does.

        A column that the rows lack becomes null. A row that is equal to the stored one changes
        nothing. With the ``token`` of an earlier call, the rows are not compared.

        Raises:
            UsageError: the table has no key, a key occurs twice, or the rows do not fit.
            All other errors of `insert`, except KeyExists and DataDiffers.
        """
        return await or_altered(self._incoming(at, token).put(rows, UPSERT), self.check_listed)

    async def delete(
        self,
        *,
        keys: object = None,
        where: str | None = None,
        all_rows_max: int | None = None,
        at: int | None = None,
        token: Token | None = None,
    ) -> int:
        """Delete rows by keys or by a condition; return the time, as `insert` does.

        ``keys`` are rows of the key columns, or a list of values if the key is one column. A key
        without a row is no error. ``where`` is a condition in DuckDB's dialect. A delete of all
        rows is refused if they are more than ``all_rows_max``, whichever writes come first.

        Raises:
            DeletesAllRows: the delete would leave no row; see ``all_rows_max``.
            UsageError: both or none are given, do not fit, or the table has no key for ``keys``.
            All other errors of `upsert`.
        """
        if all_rows_max is not None:
            check_whole(all_rows_max, "all_rows_max")
        plan = partial(delete_of, keys, where)
        return await self._change(plan, at, token, all_rows_max=all_rows_max)

    async def update(
        self,
        *,
        set: Mapping[str, str],
        where: str,
        at: int | None = None,
        token: Token | None = None,
    ) -> int:
        """Set columns of the rows for which ``where`` is true; return the time, as `insert` does.

        ``set`` has SQL expressions in DuckDB's dialect by column; each is computed over the old
        row. An update may change keys, if they stay unique.

        Raises:
            KeyExists: a new key exists. UsageError: an expression or the condition is invalid, or
                fails on a row; a value does not fit; or two rows would have one key.
            All other errors of `upsert`.
        """
        return await self._change(partial(update_of, set, where), at, token)

    async def merge(
        self,
        rows: object,
        *,
        on: Sequence[str] | None = None,
        when_matched: WhenMatched = "update",
        when_not_matched: WhenNotMatched = "insert",
        at: int | None = None,
        token: Token | None = None,
    ) -> int:
        """Compare rows with the table in the columns ``on``; return the time, as `insert` does.

        By default, ``on`` are the key columns. ``when_matched`` decides about rows of the table
        that match: "update" (replace them), "delete" or "ignore". ``when_not_matched`` decides
        about the other given rows: "insert" or "ignore". As in SQL, a null matches nothing.

        Raises:
            KeyExists: a new key exists. UsageError: an argument is wrong, rows do not fit, or two
                rows have equal values in the columns ``on``, or would have one key.
            All other errors of `upsert`.
        """
        rule = rule_of(
            on, self.columns, when_matched=when_matched, when_not_matched=when_not_matched
        )
        return await or_altered(self._incoming(at, token).merge(rows, rule), self.check_listed)

    async def _change(
        self,
        plan: Callable[..., TableChange],
        at: int | None,
        token: Token | None,
        *,
        all_rows_max: int | None = None,
    ) -> int:
        check_at(at)
        token = scoped_token(self.info, token)
        planned = offload_waiting(partial(plan, schema=self.columns), self.clock)
        change = await or_altered(planned, self.check_listed)
        write = partial(
            self._keyed_writer.write, change, at=at, token=token, all_rows_max=all_rows_max
        )
        return await self.registered(write)

    async def registered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call; first finish an interrupted creation or alteration.

        Raises:
            NoSuchCollection: the table was dropped. SchemaEvolved: it was altered. All errors of
                the call.
        """
        for _ in range(FINISHES_MAX):
            try:
                return await call()
            except (NotRegistered, SchemaEvolved):
                # A slow process may still end registrations for an alteration that is finished.
                await self.finish()
        try:
            return await call()
        except NotRegistered as error:
            # The call has parts of an earlier registration: a finished table is registered.
            raise SchemaEvolved(
                f"another process altered the table {self.name!r} while these rows were written, "
                "and nothing was written: open the table, and write the rows again"
            ) from error

    async def finish(self) -> None:
        """Finish a creation or an alteration: register the shards with the table's columns.

        The only shard of a direct table is created instead.

        Raises:
            NoSuchCollection: the table was dropped. SchemaEvolved: it was altered since.
            LocationError: the store failed; call again.
        """
        await self.check_listed()
        if self.info.mode == DIRECT:
            await self.refresh()  # Raises an error if the state is lost.
            await self.writer.insert({})  # The first write creates the shard.
            return
        schemas = self.rendition.schemas
        work = [
            partial(settle_shard, self.writer, self._founder(one), schemas) for one in self.shards
        ]
        try:
            await run_all(work, at_once=AT_ONCE)
        except UsageError:
            # Another process may have dropped the table, and its shards, after the check.
            await self.check_listed()
            raise

    async def check_listed(self) -> None:
        """Check that the catalog still has the table, with the columns of this handle.

        Raises:
            NoSuchCollection: the table was dropped. SchemaEvolved: it was altered.
        """
        catalog = await self.controller.catalog()
        found = catalog.tables.get(self.name)
        if found is None or found.rendition != self.info.rendition:
            raise dropped_since(self.name)
        rendition = catalog.renditions[found.rendition]
        if rendition.schema != self.rendition.schema:
            raise altered(self.name)

    def _founder(self, shard: Shard) -> Shard:
        """Return a handle with the first schema and the first holds, which a new shard gets."""
        first = self._shard(shard.id, decode_schema(self.rendition.schemas[0]))
        first.first_holds = {HISTORY_HOLD: Frontier.at(0)}
        return first

    async def history(
        self, since: When | None = None, until: When | None = None
    ) -> builtins.list[TableCommit]:
        """Return the commits after ``since`` and up to ``until``, in the order of their times.

        By default, they are those of all readable times. A commit that changes no row is not among
        them. A commit's ``by`` is the name in its token, or user@host:pid of its process. The call
        reads the rows of the commits.

        Raises:
            AsOfBeforeSince: ``since`` is no longer readable.
            AsOfNotComplete: ``until`` is not complete yet.
            UsageError: ``until`` is before ``since``, or a value is not a time.
            NoSuchCollection: the table was dropped. LocationError: the store failed.
        """
        if since is None:
            await self.resolve_as_of(None)
            since = self.since.time
        first, last = await self.resolve_between(since, until)
        counts: dict[int, tuple[int, int]] = {}
        async with aclosing(self.changes_of(self.reading(ALL_ROWS), first, last)) as pieces:
            async for piece in pieces:
                await self.clock.offload(partial(add_counts, counts, piece))
        return commits_of(counts, self.states, f"{self.info.rendition}/")


def dropped_since(name: str) -> NoSuchCollection:
    """Return the error of a handle whose table was dropped."""
    return NoSuchCollection(
        f"the table {name!r} was dropped after this process opened it: open it again if a new "
        "table has its name"
    )


def scoped_token(info: TableInfo, token: Token | None) -> Token | None:
    """Return the token as the transactions of all tables know it: a writer is one of a table.

    Otherwise a token that a writer used for another table would be a retry.
    """
    check_write_token(token)
    return None if token is None else (f"{info.rendition}/{token[0]}", token[1])
