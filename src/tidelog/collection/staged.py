"""Writes of many processes into one table: each stages some rows, and one commits them all.

A process stages rows: it writes them as parts, and needs only the store. The parts have no effect
until a commit names them; without one, a sweep deletes them. The committer reads the rows
that they replace, and commits everything at one time, or nothing.
Source: design page 6, "Tables"; decision 28, on parts that were written before a commit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.collection.table.changes import (
    DELETE,
    INSERT,
    OVERWRITE,
    UPSERT,
    check_keys_once,
    staged_of,
)
from tidelog.collection.table.inputs import key_schema
from tidelog.collection.table.placement import placed
from tidelog.collection.table.staging import StagingArea, area_of, awaited, staged_pieces
from tidelog.collection.table.writes import TableWriter
from tidelog.collection.table_handle import Table, scoped_token
from tidelog.core.clock import Clock, backoff_us
from tidelog.core.frames import stream_bytes
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    DataDiffers,
    UsageError,
)
from tidelog.persist.format.part import negated
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import Verdict
from tidelog.persist.transactions.committing import (
    commit_written,
    next_time,
    target_of,
    write_rows,
)
from tidelog.persist.transactions.next_time import Reads, joined, joined_all
from tidelog.persist.transactions.transition import TableParts
from tidelog.store.port import Store

BY_KEY: Final = (UPSERT, DELETE)
OVERWRITES_MAX: Final = 50

IsRepeat = Callable[[int | None, int], bool]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows that one process has staged; a plain value.

    Shape: ``parts`` by shard. ``keys`` are the keys of the rows, as an Arrow stream; empty in a
        table without a key.
    """

    parts: dict[str, list[TableParts]]
    keys: bytes


async def staging_area(table: Table, operation: str = INSERT) -> StagingArea:
    """Return the present staging area of a table for an operation of `commit_staged`.

    Raises:
        NoSuchCollection: the table was dropped. LocationError: the store failed.
    """
    if operation == DELETE:
        return StagingArea(schema=key_schema(table.columns), targets=())
    shards = [shard.id for shard in table.shards]
    area = partial(area_of, table.writer, shards, table.columns, stored=table.schema)
    return await table.registered(area)


async def stage_rows(
    area: StagingArea, store: Store, clock: Clock, pieces: Iterator[pa.Table]
) -> StagedRows:
    """Write pieces of rows, of `tidelog.collection.table.inputs.tables_of`, as parts.

    Raises:
        UsageError: the rows do not fit. LocationError: the store failed.
    """
    parts, keys = await staged_pieces(area, store, clock, awaited(pieces, clock))
    return StagedRows(parts, stream_bytes(keys, "zstd") if area.schema.key else b"")


def check_operation(table: Table, operation: str) -> None:
    """Check that a table permits an operation.

    Raises:
        UsageError: it needs a key, and the table has none.
    """
    if operation in BY_KEY and not table.info.key:
        raise UsageError(
            f"the table {table.name!r} has no key, which {operation!r} needs: insert the rows, "
            "or create a table with a key"
        )


async def has_committed(table: Table, token: Token) -> bool:
    """Return True if a token, or a greater number of its writer, was committed.

    Raises:
        UsageError: the token is not valid. LocationError: the store failed.
    """
    scoped = scoped_token(table.info, token)
    assert scoped is not None
    last = (await table.writer.refresh()).writers.get(scoped[0])
    return is_older(None if last is None else last.number, scoped[1])


def is_older(last: int | None, number: int) -> bool:
    """Return True if a token's number is not greater than the last one of its writer."""
    return last is not None and number <= last


async def commit_staged(
    table: Table,
    staged: Sequence[StagedRows],
    operation: str,
    *,
    token: Token | None = None,
    continues: bool = False,
    is_repeat: IsRepeat = is_older,
) -> int | None:
    """Commit staged rows at one time; return it, or None if the token was committed before.

    ``operation`` is "insert", "upsert", "delete" (by key), or "overwrite", which takes back all
    present rows. A ``token`` is committed at most once: later calls are skipped, even with other
    rows, and so are smaller numbers. ``is_repeat`` compares the writer's last number with that of
    the token, and may raise. With ``continues``, the writer of the token must have written the
    table before. A commit without rows moves the upper.

    Raises:
        KeyExists: an inserted key exists. NOT_APPLIED.
        UsageError: a key occurs twice, or a token that continues has no earlier write. NOT_APPLIED.
        PartsSwept: a sweep may have deleted the parts: stage the rows again. NOT_APPLIED.
        NoSuchCollection: the table was dropped. NOT_APPLIED.
        SchemaEvolved: the table was altered after the rows were staged. NOT_APPLIED.
        ContentionError: other writers kept changing the same rows. NOT_APPLIED.
        LocationError: the store failed; with a token, call again.
    """
    scoped = scoped_token(table.info, token)
    if scoped is not None:
        last = (await table.writer.refresh()).writers.get(scoped[0])
        if is_repeat(None if last is None else last.number, scoped[1]):
            return None
        if last is None and continues:
            raise UsageError(
                f"the table {table.name!r} has no earlier batch of this query, so the checkpoint "
                "belongs to another table: start the query with a new checkpoint",
                batch=scoped[1],
            )
    try:
        return await _commit(table, staged, operation, scoped)
    except DataDiffers:
        return None  # Another process has committed the token since the check above.


async def _commit(
    table: Table, staged: Sequence[StagedRows], operation: str, token: Token | None
) -> int:
    parts: dict[str, list[TableParts]] = {
        shard: [part for one in staged for part in one.parts.get(shard, [])]
        for shard in {shard for one in staged for shard in one.parts}
    }
    if operation == INSERT and not table.info.key:
        commit = partial(table.writer.commit_parts, parts, token=token)
        return (await table.registered(commit)).upper.time - 1
    keys = await table.clock.offload(lambda: _unpacked(staged, table.columns))
    if operation == OVERWRITE:
        await table.clock.offload(partial(check_keys_once, keys, table.columns))
        return await table.registered(partial(_overwrite, table, parts, token))
    change = await table.clock.offload(partial(staged_of, operation, keys, table.columns))
    writer = TableWriter(reader=table.reader)
    write = partial(writer.write, change, token=token, staged=joined_all(parts))
    return await table.registered(write)


async def _overwrite(
    table: Table, parts: Mapping[str, Sequence[TableParts]], token: Token | None
) -> int:
    """Commit parts, and take back all other rows, which are read and written in pieces.

    If another commit comes first, only its changes are taken back in addition.
    """
    transactions, reading = table.writer, table.reading(ALL_ROWS)
    request = next_time(transactions, None, token)
    taken: dict[str, list[TableParts]] = {}
    since: int | None = None
    for attempt in range(OVERWRITES_MAX):
        until = await table.resolve_as_of(None)
        try:
            await _take_back(
                table,
                table.contents(reading, until)
                if since is None
                else table.changes_of(reading, since, until),
                taken,
            )
        except AsOfBeforeSince:
            since, taken = None, {}  # A merge no longer keeps the changes apart.
            continue
        since = until
        writes: dict[str, TableParts] = {
            shard.id: joined(shard.id, [*parts.get(shard.id, ()), *taken.get(shard.id, ())])
            for shard in table.shards
            if shard.id in parts or shard.id in taken
        }
        reads = Reads(upper=until + 1, shards={shard.id for shard in table.shards})
        done = await commit_written(transactions, writes, replace(request, reads=reads))
        if done.verdict is not Verdict.MISMATCH:
            return done.upper.time - 1
        await table.clock.sleep(backoff_us(attempt, table.clock))
    raise ContentionError(
        f"gave up after {OVERWRITES_MAX} tries: other commits to the table {table.name!r} kept "
        "coming first; try again"
    )


async def _take_back(
    table: Table, pieces: AsyncGenerator[pa.Table, None], taken: dict[str, list[TableParts]]
) -> None:
    """Write parts that take back rows, and add them to ``taken``."""
    async with aclosing(pieces):
        async for piece in pieces:
            rows = await table.clock.offload(partial(_taken_back, piece, table.columns))
            shares = placed(rows, table.schema, len(table.shards))
            for shard, share in zip(table.shards, shares, strict=True):
                if share.num_rows:
                    target = await target_of(table.writer, shard.id, schema=table.schema)
                    part = await write_rows(target, table.store, table.clock, share)
                    taken.setdefault(shard.id, []).append(part)


def _taken_back(piece: pa.Table, schema: ShardSchema) -> pa.Table:
    return negated(piece.select(schema.contents.names).cast(schema.contents))


def _unpacked(staged: Iterable[StagedRows], schema: ShardSchema) -> pa.Table:
    tables = [key_schema(schema).data.empty_table()]
    for one in staged:
        if one.keys:
            with pa.ipc.open_stream(pa.py_buffer(one.keys)) as stream:
                tables.append(stream.read_all())
    return pa.concat_tables(tables)
