"""Staging: rows of a table are written as parts, before the commit that names them.

The parts have no effect until a commit names them; without one, a sweep deletes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from tidelog.collection.table.inputs import key_schema
from tidelog.collection.table.placement import placed
from tidelog.core.clock import Clock
from tidelog.persist.format.part import copied_columns
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.transactions.committing import PartsTarget, target_of, write_rows
from tidelog.persist.transactions.port import TransactionsHandle
from tidelog.persist.transactions.transition import TableParts
from tidelog.store.port import Store

StagedParts = dict[str, list[TableParts]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingArea:
    """All that a process needs to stage rows of a table; a plain value.

    Shape: ``targets`` has one target for each shard, in the order of the shards. A delete stages
        no parts, so it has no targets, and ``schema`` has only the key columns.
    """

    schema: ShardSchema
    targets: tuple[PartsTarget, ...]


async def area_of(
    transactions: TransactionsHandle,
    shards: Sequence[str],
    schema: ShardSchema,
    *,
    stored: ShardSchema,
) -> StagingArea:
    """Return the present staging area of a table with some shards, whose schema is ``stored``.

    Raises:
        NotRegistered: the table was dropped, or its creation was interrupted.
        SchemaEvolved: the table was altered.
    """
    targets = [await target_of(transactions, shard, schema=stored) for shard in shards]
    # The parts of thousands of tasks would make the commit's record too large if they were inline.
    objects = tuple(replace(target, inline=False) for target in targets)
    return StagingArea(schema=schema, targets=objects)


async def staged_pieces(
    area: StagingArea, store: Store, clock: Clock, pieces: AsyncIterator[pa.Table]
) -> tuple[StagedParts, pa.Table]:
    """Write pieces of rows as parts, one piece after the other; return the parts and the keys.

    Shape: a piece is one of `tidelog.collection.table.incoming.stream_of`, or has ``_diff`` in
        addition. The keys are in the order of the rows.

    Raises:
        UsageError: the rows do not fit. LocationError: the store failed.
    """
    parts: StagedParts = {}
    keys = [key_schema(area.schema).data.empty_table()]
    async for piece in pieces:
        if area.schema.key:
            keys.append(await clock.offload(partial(copied_columns, piece, area.schema.key)))
        shares: list[pa.Table] = []
        if area.targets:
            place = partial(placed, piece, area.targets[0].schema, len(area.targets))
            shares = await clock.offload(place)
        for target, share in zip(area.targets, shares, strict=True):
            if share.num_rows:
                part = await write_rows(target, store, clock, share)
                parts.setdefault(target.shard, []).append(part)
    return parts, pa.concat_tables(keys)


async def awaited(pieces: Iterator[pa.Table], clock: Clock) -> AsyncIterator[pa.Table]:
    """Yield the items of an iterator, each computed on another thread."""
    while (piece := await clock.offload(lambda: next(pieces, None))) is not None:
        yield piece
