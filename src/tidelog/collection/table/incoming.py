"""Incoming rows: writes of rows of any kind and any length into a table, each one commit.

A few rows are one piece, and stay in memory. Otherwise each piece is written as parts before the
next one is read. Memory then holds two pieces, the keys of all rows, and the rows of the table that
a write by key replaces. A merge that must choose among its rows keeps them in a temporary file.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from tidelog.collection.table.changes import (
    INSERT,
    UPSERT,
    MergeRule,
    TableChange,
    check_upsert,
    inserted,
    staged_of,
    upserted,
)
from tidelog.collection.table.inputs import fitting, tables_of
from tidelog.collection.table.placement import placed
from tidelog.collection.table.spool import Spool, spooled
from tidelog.collection.table.staging import (
    StagingArea,
    area_of,
    awaited,
    staged_pieces,
)
from tidelog.collection.table.writes import TableWriter
from tidelog.core.clock import Clock
from tidelog.core.temporary import temporary_file
from tidelog.errors import LocationError, UsageError
from tidelog.persist.format.inputs import arrow_table, check_rows
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import AppendResult
from tidelog.persist.transactions.committing import (
    SMALL_BYTES,
    commit_rows,
    next_time,
    rows_at,
)
from tidelog.persist.transactions.next_time import joined_all
from tidelog.persist.transactions.transactions import Transactions
from tidelog.persist.transactions.transition import TableParts
from tidelog.persist.write.streaming import gathered
from tidelog.store.port import Store

T = TypeVar("T")
Pieces = AsyncGenerator[pa.Table, None]
STREAM_BYTES: Final = 256 * 1024 * 1024
SMALL_ROWS: Final = 8_192


async def or_altered(write: Awaitable[T], check_listed: Callable[[], Awaitable[None]]) -> T:
    """Return the result of a write; if it refuses its rows, first check the table's columns.

    The rows may have columns that the table has since an alteration, and this handle has not.
    """
    try:
        return await write
    except UsageError:
        with suppress(LocationError):
            await check_listed()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingRows:
    """One write of rows into a table, at a time and with a token of the caller's choice.

    ``registered`` returns the result of a call; it finishes the creation of the table first, if
    that was interrupted.
    """

    writer: TableWriter
    transactions: Transactions
    store: Store
    registered: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
    at: int | None
    token: Token | None

    async def put(self, rows: object, operation: str) -> int:
        """Insert or upsert rows; return the time as of which they are visible."""
        if operation == UPSERT:
            check_upsert(self._schema)
        async with aclosing(stream_of(rows, self._schema, self._clock)) as pieces:
            begun = await _begun(pieces)
            if len(begun) > 1:
                return await self._put_staged(_all(begun, pieces), operation)
        return await self._put_whole(self._whole(begun), operation)

    async def merge(self, rows: object, rule: MergeRule) -> int:
        """Merge rows; return the time as of which the result is visible."""
        schema = self._schema
        stream = stream_of(rows, rule.given(schema), self._clock, needed=rule.columns)
        async with aclosing(stream) as pieces:
            begun = await _begun(pieces)
            if len(begun) > 1 and rule.is_upsert(schema):
                return await self._put_staged(_all(begun, pieces), UPSERT)
            if len(begun) > 1:
                with temporary_file() as file:
                    columns = {*rule.columns, *schema.key}
                    rest = _all(begun, pieces)
                    spool = await spooled(file, rest, schema, columns, self._clock)
                    return await self._merge_spooled(spool, rule)
        make = partial(rule.merge, self._whole(begun), schema)
        return await self._write(await self._clock.offload(make))

    @property
    def _schema(self) -> ShardSchema:
        return self.writer.reader.schema

    @property
    def _clock(self) -> Clock:
        return self.writer.reader.transactions.clock

    def _whole(self, begun: list[pa.Table]) -> pa.Table:
        return begun[0] if begun else self._schema.data.empty_table()

    async def _put_whole(self, rows: pa.Table, operation: str) -> int:
        schema, reader = self._schema, self.writer.reader
        if operation == UPSERT or schema.key:
            make = upserted if operation == UPSERT else inserted
            change: TableChange = await self._clock.offload(partial(make, rows, schema))
            return await self._write(change)
        shares: dict[str, pa.Table] = dict(
            zip(reader.shards, placed(rows, reader.stored, len(reader.shards)), strict=True)
        )
        time: int = (await self.registered(partial(self._insert, shares))).upper.time - 1
        return time

    async def _insert(self, shares: Mapping[str, pa.Table]) -> AppendResult:
        transactions = self.transactions
        request = next_time(transactions, self.at, self.token)
        time = max(request.earliest, transactions.state.upper)
        updates = {shard: rows_at(some, time) for shard, some in shares.items()}
        schemas = dict.fromkeys(updates, self.writer.reader.stored)
        return await commit_rows(transactions, updates, time, request, schemas=schemas)

    async def _put_staged(self, pieces: Pieces, operation: str) -> int:
        area = await self._area()
        parts, keys = await staged_pieces(area, self.store, self._clock, pieces)
        if operation == INSERT and not self._schema.key:
            commit = partial(self.transactions.commit_parts, parts, at=self.at, token=self.token)
            time: int = (await self.registered(commit)).upper.time - 1
            return time
        make = partial(staged_of, operation, keys, self._schema)
        return await self._write(await self._clock.offload(make), staged=joined_all(parts))

    async def _merge_spooled(self, spool: Spool, rule: MergeRule) -> int:
        change = await self._clock.offload(partial(rule.spooled, spool.known, self._schema))

        async def stage(old: pa.Table) -> Mapping[str, TableParts]:
            area = await self._area()
            chosen = spool.chosen(await self._clock.offload(partial(change.copies, old)))
            rows = awaited(chosen, self._clock)
            return joined_all((await staged_pieces(area, self.store, self._clock, rows))[0])

        return await self._write(change, stage=stage)

    async def _area(self) -> StagingArea:
        reader = self.writer.reader
        area: StagingArea = await self.registered(
            partial(
                area_of, reader.transactions, reader.shards, reader.schema, stored=reader.stored
            )
        )
        return area

    async def _write(self, change: TableChange, **more: Any) -> int:
        write = partial(self.writer.write, change, at=self.at, token=self.token, **more)
        time: int = await self.registered(write)
        return time


async def _begun(pieces: Pieces) -> list[pa.Table]:
    """Return the first two pieces, or those that exist."""
    found = [await anext(pieces, None)]
    if found[0] is not None:
        found.append(await anext(pieces, None))
    return [piece for piece in found if piece is not None]


async def _all(begun: list[pa.Table], rest: Pieces) -> Pieces:
    """Yield the pieces that were read first, then the rest; ``begun`` keeps none of them."""
    while begun:
        yield begun.pop(0)
    async for piece in rest:
        yield piece


async def stream_of(
    rows: object, schema: ShardSchema, clock: Clock, *, needed: Sequence[str] = ()
) -> AsyncGenerator[pa.Table, None]:
    """Yield rows in pieces of about `STREAM_BYTES`; an async iterable of tables is accepted, too.

    Raises:
        UsageError: see `tidelog.collection.table.inputs.table_of`.
    """
    check_rows(rows)
    if isinstance(rows, pa.Table | pa.RecordBatch) and _stays_small(rows, schema):
        for piece in tables_of(rows, schema, needed=needed):
            yield piece  # This takes less time than to wake a thread.
        return
    tables = (
        _arriving(rows, schema, clock, needed)
        if isinstance(rows, AsyncIterable)
        else tables_of(rows, schema, needed=needed)
    )
    async with aclosing(gathered(tables, STREAM_BYTES, clock)) as pieces:
        async for piece in pieces:
            yield piece


def _stays_small(rows: pa.Table | pa.RecordBatch, schema: ShardSchema) -> bool:
    """Return True if rows are small, and are still small with the columns of the table.

    Some types take no space for a row, such as nulls, or little, such as words of a dictionary.
    """
    if rows.num_rows > SMALL_ROWS or rows.nbytes >= SMALL_BYTES:
        return False
    types = {field.name: field.type for field in schema.data}
    return all(
        pa.types.is_primitive(field.type) or field.type == types.get(field.name)
        for field in rows.schema
    )


async def _arriving(
    rows: AsyncIterable[object], schema: ShardSchema, clock: Clock, needed: Sequence[str]
) -> AsyncGenerator[pa.Table, None]:
    first = 0
    async for one in rows:
        piece = arrow_table(one)
        yield await clock.offload(partial(fitting, piece, schema, first=first, needed=needed))
        first += piece.num_rows
