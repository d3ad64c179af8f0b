"""Envelopes: from messages to updates of the output. Pure.

Shape: messages have the schema's columns, ``_time`` (int64), ``_rank`` (int64: which range, in
    path order), ``_offset`` and ``_delete`` (bool). ``none`` appends each; ``upsert`` makes the
    newest value of a key its only one, and a delete takes it away.
Source: design page 6, "The recipe, as it runs", step 4.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.catalog import SourceInfo
from tidelog.collection.records import OFFSET, Int64s
from tidelog.collection.times import times_of
from tidelog.persist.duck import duck, quoted
from tidelog.persist.schema import DIFF, TIME, ShardSchema
from tidelog.rowhash import Hashes, hash_rows

Bools = np.ndarray[Any, np.dtype[np.bool_]]

RANK: Final = "_rank"
DELETE: Final = "_delete"


def messages_schema(schema: ShardSchema) -> pa.Schema:
    """Return the schema of a table of messages."""
    fields = [pa.field(n, pa.int64()) for n in (TIME, RANK, OFFSET)]
    return pa.schema([*schema.data, *fields, pa.field(DELETE, pa.bool_())])


def stamp_rows(
    rows: pa.Table, source: SourceInfo, *, lower: int, upper: int, rank: int
) -> tuple[pa.Table, pa.Table]:
    """Return decoded rows their times, ranks; and those apart whose time is none.

    With a time column, a row's time is its own, moved up to ``lower`` where that is complete;
    without one, all rows come at ``upper - 1``.
    """
    count = rows.num_rows
    if source.time_column is None:
        times = np.full(count, upper - 1, dtype=np.int64)
        timeless = rows.slice(0, 0)
    else:
        times, there = times_of(rows.column(source.time_column), source.time_unit)
        timeless = rows.filter(pa.array(~there))
        rows, times = rows.filter(pa.array(there)), times[there]
        times = np.clip(times, lower, upper - 1)
    ranks = np.full(len(times), rank, dtype=np.int64)
    stamped = rows.append_column(TIME, pa.array(times)).append_column(RANK, pa.array(ranks))
    return stamped, timeless


def apply_none(messages: pa.Table, schema: ShardSchema) -> pa.Table:
    """Append each message."""
    ones = pa.array(np.ones(messages.num_rows, dtype=np.int64))
    return messages.select([*schema.names, TIME]).append_column(DIFF, ones).cast(schema.updates)


def apply_upsert(messages: pa.Table, current: pa.Table, schema: ShardSchema) -> pa.Table:
    """Chain the messages of each key, in the order of (time, range, offset), onto its current row.

    Shape: ``current`` has the schema's columns: the output's rows as they are before these
        messages, at most one a key (those of other keys do no harm). Several changes of a key give
        each their -old, +new at their own time; one that changes nothing gives none. Updates come
        by key, and those of a key by time.
    """
    if not messages.num_rows:
        return schema.updates.empty_table()
    rows = pa.concat_tables([_as_messages(current, schema), messages]).combine_chunks()
    times, deletes = rows.column(TIME).to_numpy(), rows.column(DELETE).to_numpy()
    keys = hash_rows([rows.column(n) for n in schema.key], rows=rows.num_rows)
    chain = order_by_key(rows.select(schema.key), keys, in_order(rows))
    # Of several messages of a key at one time, the last one counts.
    superseded = _follows(keys, chain) & (times[chain[1:]] == times[chain[:-1]])
    chain = chain[np.append(~superseded, True)]
    data = rows.select(schema.names).take(chain)
    times, live = times[chain], ~deletes[chain]
    follows = _follows(keys, chain) & live[:-1]
    unchanged = follows & live[1:] & _equals_last(data)
    # Where each message of the chain takes away the row before it, and where it brings its own.
    changes = np.zeros((len(chain), 2), dtype=np.bool_)
    changes[1:, 0] = follows & ~unchanged
    changes[:, 1] = live & (chain >= current.num_rows) & ~np.append(False, unchanged)
    at, brings = np.divmod(np.flatnonzero(changes), 2)
    updates = data.take(at - 1 + brings).append_column(TIME, pa.array(times[at]))
    return updates.append_column(DIFF, pa.array(2 * brings - 1)).cast(schema.updates)


def in_order(messages: pa.Table) -> Int64s:
    """Return the places of messages by (time, range, offset)."""
    columns = [messages.column(n).to_numpy() for n in (TIME, RANK, OFFSET)]
    if _is_ordered(*columns):
        return np.arange(messages.num_rows)
    return np.lexsort(columns[::-1])


def order_by_key(key: pa.Table, hashes: Hashes, places: Int64s) -> Int64s:
    """Return ``places`` by key, and in the order that they have among those of one key.

    Two keys are the same where their hashes of 128 bits are; only one of each is compared.
    """
    grouped = places[np.argsort(hashes.lo[places], kind="stable")]
    split = (hashes.lo[grouped[1:]] == hashes.lo[grouped[:-1]]) & ~_follows(hashes, grouped)
    if split.any():
        grouped = places[np.lexsort((hashes.hi[places], hashes.lo[places]))]
    begins = np.append(True, ~_follows(hashes, grouped))
    distinct = key.take(grouped[begins])
    if any(pa.types.is_nested(f.type) for f in distinct.schema):
        return grouped  # These have no order.
    by_key = pc.sort_indices(distinct, sort_keys=[(n, "ascending") for n in distinct.schema.names])
    ranks = np.empty(distinct.num_rows, dtype=np.int64)
    ranks[by_key.to_numpy()] = np.arange(distinct.num_rows)
    return grouped[np.argsort(ranks[np.cumsum(begins) - 1], kind="stable")]


def _is_ordered(*columns: Int64s) -> bool:
    """Say whether rows go up, the first column being the one that counts most."""
    tied: Bools = np.ones(max(0, len(columns[0]) - 1), dtype=np.bool_)
    for column in columns:
        if np.any(tied & (column[1:] < column[:-1])):
            return False
        tied &= column[1:] == column[:-1]
    return True


def _follows(hashes: Hashes, places: Int64s) -> Bools:
    """Say of each place but the first whether its row is the same as the one before."""
    lo, hi = hashes.lo[places], hashes.hi[places]
    same: Bools = (lo[1:] == lo[:-1]) & (hi[1:] == hi[:-1])
    return same


def _equals_last(data: pa.Table) -> Bools:
    """Say of each row but the first whether it equals the one before."""
    hashes = hash_rows(data.columns, rows=data.num_rows)
    return _follows(hashes, np.arange(data.num_rows))


def _as_messages(current: pa.Table, schema: ShardSchema) -> pa.Table:
    """Return current rows as messages that came before all others."""
    count = current.num_rows
    early = pa.array(np.full(count, -1, dtype=np.int64))
    rows = current.select(schema.names)
    for name in (TIME, RANK, OFFSET):
        rows = rows.append_column(name, early)
    return rows.append_column(DELETE, pa.array(np.zeros(count, dtype=np.bool_))).cast(
        messages_schema(schema)
    )


def current_rows(
    updates: list[pa.Table], messages: pa.Table, schema: ShardSchema, *, as_of: int
) -> pa.Table:
    """Return the output's rows at ``as_of`` for the keys that messages name: the feedback."""
    filled = [t for t in updates if t.num_rows]
    if not filled or not messages.num_rows:
        return schema.data.empty_table()
    data = ", ".join(quoted(n) for n in schema.names)
    key = ", ".join(quoted(n) for n in schema.key)
    sql = f"""
        SELECT {data} FROM updates SEMI JOIN (SELECT DISTINCT {key} FROM messages) AS wanted
        USING ({key}) WHERE {TIME} <= {as_of} GROUP BY {data} HAVING sum({DIFF}) <> 0
    """
    with duck() as connection:
        connection.register("updates", pa.concat_tables(filled))
        connection.register("messages", messages.select(schema.key))
        found: pa.Table = connection.sql(sql).to_arrow_table()
    return found.cast(schema.data)
