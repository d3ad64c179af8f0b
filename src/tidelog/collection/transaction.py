"""Transactions over several tables: reads as of one time, and writes that land as a whole.

A transaction begins at its first call. It reads as of the newest complete time of that moment, with
its own earlier writes. Nothing is written before its commit. If another commit has changed a table
that it read or wrote, its own commit is refused. So transactions are serializable.
Source: design page 6, "Tables".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

import pyarrow as pa

from tidelog.collection.reading import Contents, Reading
from tidelog.collection.table.changes import (
    TableChange,
    WhenMatched,
    WhenNotMatched,
    delete_of,
    insert_of,
    merge_of,
    update_of,
    upsert_of,
)
from tidelog.collection.table.direct import DIRECT
from tidelog.collection.table.incoming import or_altered
from tidelog.collection.table.lookups import Lookup
from tidelog.collection.table.placement import placed
from tidelog.collection.table.reader import TableReader, TableView
from tidelog.collection.table.writes import check_at, planned_updates
from tidelog.collection.table_handle import Table
from tidelog.collection.tables import Tables
from tidelog.core.clock import backoff_us, offload_waiting
from tidelog.core.frontier import Frontier
from tidelog.core.ids import new_writer_id
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    HandleError,
    LocationError,
    NotRegistered,
    SchemaEvolved,
    UpperMismatch,
    UsageError,
)
from tidelog.persist.format.corrected import consolidated
from tidelog.persist.read.selection import (
    ALL_ROWS,
    RowSelection,
    first_rows,
    repeated,
)
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import AppendResult, Verdict
from tidelog.persist.transactions.committing import NextTime, commit_rows, earliest_time, rows_at
from tidelog.persist.transactions.next_time import Reads, moved_since
from tidelog.store.wrappers.read_only import refuses_writes

T = TypeVar("T")
TRIES_MAX: Final = 50


@dataclass(slots=True)
class _Touched:
    """A table of a transaction: its own updates so far, and the shards that it has read."""

    table: Table
    reader: TableReader
    updates: pa.Table
    shards_read: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _WithUpdates:
    """A table as a transaction sees it: its contents at a time, and the transaction's updates."""

    table: Table
    updates: pa.Table

    async def rows_of(self, reading: Reading, time: int) -> AsyncGenerator[pa.Table, None]:
        """Yield the selected rows, each as often as it occurs."""
        whole = self.table.reading(ALL_ROWS)
        contents = self.table.contents(whole, time)
        async with aclosing(contents) as pieces:
            found = [piece async for piece in pieces]
        schema = self.updates.schema
        tables = [self.updates, *(one.select(schema.names).cast(schema) for one in found)]
        with reading.wanted.sandbox() as sandbox:
            rows = consolidated(pa.concat_tables(tables))
            chosen = reading.wanted.chosen(rows, sandbox, name=self.table.name)
        if reading.wanted.limit is not None:
            chosen = first_rows(chosen, reading.wanted.limit)
        for some in repeated(chosen):
            yield some


@refuses_writes("tables.store")
@dataclass(slots=True, kw_only=True)
class TableTransaction:
    """A transaction over tables; use it in ``async with``, which commits it at the end.

    If the block raises an error, nothing is written. ``time`` is the time in milliseconds as of
    which its writes are visible, after the commit.
    """

    tables: Tables
    at: int | None = None
    time: int | None = field(init=False, default=None)
    token: Token = field(init=False)
    _upper: int | None = field(init=False, default=None)
    _touched: dict[str, _Touched] = field(init=False, default_factory=dict)
    is_refused: bool = field(init=False, default=False)
    _is_sent: bool = field(init=False, default=False)
    _has_ended: bool = field(init=False, default=False)
    _turn: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        check_at(self.at)
        self.token = new_writer_id(self.tables.clock), 0

    def __repr__(self) -> str:
        return f"<tidelog transaction of {', '.join(sorted(self._touched)) or 'no table yet'}>"

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._has_ended:
            await self.commit()
        # The answer of a commit can be lost. Then the caller may repeat it after the block.
        self._has_ended = not self._is_sent or self._has_ended

    async def snapshot(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> Contents:
        """Return the rows of a table, with the earlier writes of this transaction.

        Raises:
            NoSuchCollection: no table has the name, or it was dropped.
            UsageError: the table has the mode "direct".
            AsOfBeforeSince: the time at which this transaction reads is no longer readable, after
                another commit and a merge: begin again.
            UsageError: a column does not exist, or the condition is invalid.
            HandleError: the transaction has ended.
        """
        async with self._turn:
            found = await self._of(name)
            selection = RowSelection(columns=columns, where=where, limit=limit)
            reading = found.table.reading(selection)
            await found.table.refresh()
            with self._readable():
                found.table.check_since(self._as_of)
            found.shards_read.update(found.reader.shards)
            seen = (
                _WithUpdates(found.table, found.updates) if found.updates.num_rows else found.table
            )
            return Contents(as_of=self._as_of, reading=reading, collection=seen)

    async def insert(self, name: str, rows: object) -> None:
        """Add rows to a table; in a table with a key, the keys must be new.

        Raises:
            KeyExists: a key exists; the message names it. UsageError: the rows do not fit.
            NoSuchCollection, HandleError: see `snapshot`.
        """
        await self._change(name, partial(insert_of, rows))

    async def upsert(self, name: str, rows: object) -> None:
        """Insert rows, or replace the rows of their keys.

        Raises:
            UsageError: the table has no key, or the rows do not fit.
            NoSuchCollection, HandleError: see `snapshot`.
        """
        await self._change(name, partial(upsert_of, rows))

    async def delete(self, name: str, *, keys: object = None, where: str | None = None) -> None:
        """Delete the rows of some keys, or those for which a condition is true.

        Raises:
            UsageError: both or none are given, or do not fit.
            NoSuchCollection, HandleError: see `snapshot`.
        """
        await self._change(name, partial(delete_of, keys, where))

    async def update(self, name: str, *, set: Mapping[str, str], where: str) -> None:
        """Set columns of the rows for which a condition is true, by SQL over the old row.

        Raises:
            KeyExists: a new key exists. UsageError: an expression is invalid or fails on a row.
            NoSuchCollection, HandleError: see `snapshot`.
        """
        await self._change(name, partial(update_of, set, where))

    async def merge(
        self,
        name: str,
        rows: object,
        *,
        on: Sequence[str] | None = None,
        when_matched: WhenMatched = "update",
        when_not_matched: WhenNotMatched = "insert",
    ) -> None:
        """Merge rows into a table; see `Table.merge`.

        Raises:
            KeyExists: a new key exists. UsageError: an argument is wrong, or rows do not fit.
            NoSuchCollection, HandleError: see `snapshot`.
        """
        plan = partial(
            merge_of, rows, on, when_matched=when_matched, when_not_matched=when_not_matched
        )
        await self._change(name, plan)

    async def commit(self) -> int:
        """Commit all writes or nothing; return the time as of which they are visible.

        After an error of the store, a second call commits them once, also after the block of the
        transaction. A transaction without writes needs no commit; the time is then the one at which
        it read.

        Raises:
            UpperMismatch: another commit has changed a table that this transaction read or wrote;
                the message names the table. Begin again. NOT_APPLIED.
            NoSuchCollection: a table was dropped. SchemaEvolved: a table was altered. NOT_APPLIED.
            HandleError: the transaction has ended.
            LocationError: the store failed; call again, unless ``outcome`` is APPLIED.
        """
        async with self._turn:
            if self._has_ended:
                raise _ended()
            await self._begin()
            try:
                self.time = await self._commit()
            except LocationError:
                self._is_sent = True
                raise
            except BaseException:
                self._has_ended = True
                raise
            self._has_ended = True
            return self.time

    @property
    def _as_of(self) -> int:
        return (self._upper or 0) - 1

    def _check_open(self) -> None:
        if self._has_ended or self._is_sent:
            raise _ended()

    async def _begin(self) -> None:
        if self._upper is None:
            self._upper = (await self.tables.transactions.refresh()).upper

    async def _of(self, name: str) -> _Touched:
        self._check_open()
        await self._begin()
        found = self._touched.get(name)
        if found is None:
            table = await self.tables.open(name)
            if table.info.mode == DIRECT:
                raise UsageError(
                    f"the table {name!r} has the mode 'direct', so no transaction can use it: write"
                    " it outside of the transaction, or create it in mode 'wal'"
                )
            if not self._upper:  # No time is complete yet, because the creation was interrupted.
                table = await self.tables.finished(name)
                self._upper = self.tables.transactions.state.upper
            found = _Touched(table, table.reader, table.columns.contents.empty_table())
            self._touched[name] = found
        return found

    async def _change(self, name: str, plan: Callable[..., TableChange]) -> None:
        async with self._turn:
            found = await self._of(name)
            clock = self.tables.clock
            with self._unaltered():
                change = await or_altered(
                    offload_waiting(partial(plan, schema=found.table.columns), clock),
                    found.table.check_listed,
                )
            planned = await planned_updates(change, partial(self._rows, found), clock)
            both = pa.concat_tables([found.updates, planned.updates.cast(found.updates.schema)])
            found.updates = consolidated(both)

    async def _view(self, found: _Touched) -> TableView:
        """Return the states of a table's shards, to be read as of the time of the transaction."""
        reader = found.reader
        with self._unaltered():
            newest = await found.table.registered(partial(reader.view, reader.shards, fresh=False))
        with self._readable():
            for state in newest.states.values():
                state.check_readable(max(self._as_of, 0))
        return TableView(self._upper or 0, newest.states)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Record a refusal if the time of the transaction is no longer readable.

        Only a commit since its beginning, and the retention of the table, can be the cause.
        """
        try:
            yield
        except AsOfBeforeSince:
            self.is_refused = True
            raise

    @contextmanager
    def _unaltered(self) -> Iterator[None]:
        """Record a refusal if a table was altered: another transaction has the new columns."""
        try:
            yield
        except SchemaEvolved:
            self.is_refused = True
            raise

    async def _rows(self, found: _Touched, lookup: Lookup) -> pa.Table:
        """Return the rows of a lookup, with the transaction's own updates."""
        view = await self._view(found)
        found.shards_read.update(found.reader.shards_of(lookup))
        rows = await found.reader.rows(lookup, view)
        if not found.updates.num_rows:
            return rows
        own = found.updates.filter(pa.array(lookup.mask(found.updates)))
        return consolidated(pa.concat_tables([rows, own.cast(rows.schema)]))

    async def _commit(self) -> int:
        updates: dict[str, pa.Table] = {}
        upper = self._upper or 0
        for one in self._touched.values():
            pieces = placed(one.updates, one.table.schema, len(one.reader.shards))
            pairs = zip(one.reader.shards, pieces, strict=True)
            updates |= {shard: rows_at(piece, upper) for shard, piece in pairs if piece.num_rows}
        if not updates:
            return self._as_of
        reads = Reads(
            upper=upper,
            shards=frozenset(s for one in self._touched.values() for s in one.shards_read),
        )
        done = await self._sent(updates, reads)
        if done.verdict is Verdict.MISMATCH:
            self.is_refused = True
            moved = set(moved_since(self.tables.transactions.state, reads, updates))
            names = [name for name, one in self._touched.items() if moved & {*one.reader.shards}]
            shown = " and ".join(f"the table {name!r}" for name in sorted(names))
            raise UpperMismatch(
                f"another commit has changed {shown} since this transaction began, and "
                "nothing was written: begin again, or use lake.transact(...)",
                upper=done.upper,
                expected=Frontier.at(upper),
            )
        return done.upper.time - 1

    async def _sent(self, updates: Mapping[str, pa.Table], reads: Reads) -> AppendResult:
        transactions = self.tables.transactions
        request = NextTime(
            earliest=earliest_time(transactions, self.at),
            token=self.token,
            known_upper=reads.upper,
            is_retry=self._is_sent,
            reads=reads,
        )
        schemas = {
            shard: one.table.schema for one in self._touched.values() for shard in one.reader.shards
        }
        for attempt in range(TRIES_MAX):
            try:
                return await commit_rows(
                    transactions, updates, reads.upper, request, schemas=schemas
                )
            except (NotRegistered, UsageError, SchemaEvolved) as error:
                # A table may have been dropped or altered since; then this raises that error.
                for one in self._touched.values():
                    view = partial(one.reader.view, one.reader.shards, fresh=True)
                    with self._unaltered():
                        await one.table.registered(view)
                if not isinstance(error, NotRegistered | SchemaEvolved):
                    raise
            # A creation or an alteration was under way, and is finished now. The registration
            # counts as a write, so the state refuses the commit if it depends on the shard.
            await transactions.clock.sleep(backoff_us(attempt, transactions.clock))
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries: other processes kept altering the tables of the "
            "transaction; try again"
        )


async def transact(
    attempts: AsyncGenerator[TableTransaction, None],
    work: Callable[[TableTransaction], Awaitable[T]],
) -> T:
    """Run ``work`` with a transaction and commit it; do so again after a conflict or alteration.

    Raises:
        ContentionError: other commits changed its tables at every try. All errors of ``work`` and
            of `TableTransaction.commit`.
    """
    async with aclosing(attempts) as tries:
        async for transaction in tries:
            try:
                async with transaction:
                    return await work(transaction)
            except (UpperMismatch, AsOfBeforeSince, SchemaEvolved):
                if not transaction.is_refused:
                    raise
    raise AssertionError("the last try returns or raises")


async def attempts(
    tables: Tables, *, at: int | None = None
) -> AsyncGenerator[TableTransaction, None]:
    """Yield transactions, each after a longer pause, until the caller has committed one."""
    for attempt in range(TRIES_MAX):
        if attempt:
            await tables.clock.sleep(backoff_us(attempt, tables.clock))
        yield TableTransaction(tables=tables, at=at)
    raise ContentionError(
        f"gave up after {TRIES_MAX} tries: other commits kept changing the tables of the "
        "transaction; try again"
    )


def _ended() -> HandleError:
    return HandleError("this transaction has ended: begin another one with lake.transaction()")
