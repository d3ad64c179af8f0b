"""Envelopes: from messages to updates of the output. Pure.

Shape: messages have the schema's columns, ``_time`` (int64), and, with `OWN_PREFIX` before their
    names, ``own`` (int64: the row's own time, as exactly as its column has it; 0 where there is
    none), ``rank`` (int64: which range, in path order), ``offset`` (int64) and ``delete`` (bool).
    ``none`` appends each; ``upsert`` makes the newest value of a key its only one, and a delete
    takes it away.

What is newest the rows' own times say, whenever they come: one that is late, and older than what
the key has, or than when it was deleted, changes nothing. Of one time, the last by address counts,
and whatever came with an earlier binding counts for less. Where rows have times and can be deleted,
deletions are kept beside the output, as rows of a key and the time at which it was deleted.
Source: design page 6, "The recipe, as it runs", step 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.places import Bools, Int64s
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.formats.times import exact_times, times_of
from tidelog.collection.source.binding import ANY_TIME
from tidelog.persist.duck import duck, quoted
from tidelog.persist.schema import DIFF, OWN_PREFIX, TIME, ShardSchema
from tidelog.rowhash import Hashes, hash_rows

OWN: Final = OWN_PREFIX + "own"
RANK: Final = OWN_PREFIX + "rank"
DELETE: Final = OWN_PREFIX + "delete"


@dataclass(frozen=True, slots=True)
class KeysBefore:
    """What is known of keys before a tick: rows of the output, and of the deletions.

    Shape: of each key at most one, in one of the two; those of other keys do no harm. What is
        ``forgotten`` says of each deletion whether it is too old to count.
    """

    rows: pa.Table
    deleted: pa.Table | None = None
    forgotten: Bools | None = None


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of an output's shard, and of its deletions, where these are kept."""

    rows: pa.Table
    deleted: pa.Table | None = None


def deletions_schema(schema: ShardSchema, time_column: str) -> ShardSchema:
    """Return the schema of the deletions that are kept beside an output."""
    names = dict.fromkeys([*schema.key, time_column])
    return ShardSchema(pa.schema([schema.data.field(n) for n in names]), len(schema.key))


def messages_schema(schema: ShardSchema) -> pa.Schema:
    """Return the schema of a table of messages."""
    fields = [pa.field(n, pa.int64()) for n in (TIME, OWN, RANK, OFFSET)]
    return pa.schema([*schema.data, *fields, pa.field(DELETE, pa.bool_())])


@dataclass(frozen=True, slots=True)
class Stamped:
    """Rows with their times and ranks; and the offsets of those that have no time, or a mad one."""

    rows: pa.Table
    timeless: Int64s
    ahead: Int64s


def stamp_rows(
    rows: pa.Table,
    source: SourceInfo,
    *,
    lower: int,
    upper: int,
    rank: int,
    time_max: int = ANY_TIME,
    is_held: bool = False,
    was_held: bool = False,
) -> Stamped:
    """Stamp decoded rows.

    With a time column, a row's time is its own, moved up to ``lower`` where that is complete;
    without one, all rows come at ``upper - 1``. Of a range that ``is_held``, rows from ``upper`` on
    are left out, for now; of one that ``was_held``, those before ``lower`` are in already.
    """
    none = np.zeros(0, dtype=np.int64)
    count = rows.num_rows
    if source.time_column is None:
        times, own = np.full(count, upper - 1, dtype=np.int64), np.zeros(count, dtype=np.int64)
        found = Stamped(rows, none, none)
    else:
        offsets = rows.column(OFFSET).to_numpy()
        times, there = times_of(rows.column(source.time_column), source.time_unit)
        good = there & (times <= time_max)
        now = good.copy()
        if is_held:
            now &= times < upper
        if was_held:
            now &= times >= lower
        rows, times = rows.filter(pa.array(now)), np.clip(times[now], lower, upper - 1)
        own = exact_times(rows.column(source.time_column))
        found = Stamped(rows, offsets[~there], offsets[there & ~good])
    stamped = rows.append_column(TIME, pa.array(times)).append_column(OWN, pa.array(own))
    ranks = pa.array(np.full(len(times), rank, dtype=np.int64))
    return replace(found, rows=stamped.append_column(RANK, ranks))


def apply_none(messages: pa.Table, schema: ShardSchema) -> pa.Table:
    """Append each message."""
    ones = pa.array(np.ones(messages.num_rows, dtype=np.int64))
    return messages.select([*schema.names, TIME]).append_column(DIFF, ones).cast(schema.updates)


def apply_upsert(
    messages: pa.Table, before: KeysBefore, schema: ShardSchema, *, time_column: str | None = None
) -> Updates:
    """Chain the messages of each key, in the order of their times, onto what it was before.

    Shape: several changes of a key give each their -old, +new at their own time; one that changes
        nothing gives none. Updates come by key, and those of a key by time. Deletions are given
        where there are any in ``before``, be they none.
    """
    kept = before.deleted
    kept_schema = None if kept is None else ShardSchema(kept.schema, schema.key_columns)
    if not messages.num_rows:
        return Updates(
            schema.updates.empty_table(),
            None if kept_schema is None else kept_schema.updates.empty_table(),
        )
    early = _early_messages(before, schema, time_column)
    rows = pa.concat_tables([early, messages]).combine_chunks()
    times, deletes = rows.column(TIME).to_numpy(), rows.column(DELETE).to_numpy()
    keys = hash_rows([rows.column(n) for n in schema.key], rows=rows.num_rows)
    chain = order_by_key(rows.select(schema.key), keys, in_order(rows))
    chain = chain[_is_newest_so_far(rows, keys, chain)]
    # Of several messages of a key at one time, the last one counts.
    superseded = _follows(keys, chain) & (times[chain[1:]] == times[chain[:-1]])
    chain = chain[np.append(~superseded, True)]
    links = _Links(chain, _follows(keys, chain), chain >= early.num_rows, times[chain])
    return Updates(
        _changes(links, rows, ~deletes, schema),
        None if kept_schema is None else _changes(links, rows, deletes, kept_schema),
    )


@dataclass(frozen=True, slots=True)
class _Links:
    """Places of messages in chains by key; of each, whether it is new, and when it counts.

    ``follows`` says of each but the first whether it is of the same key as the one before.
    """

    places: Int64s
    follows: Bools
    is_new: Bools
    times: Int64s


def _changes(links: _Links, rows: pa.Table, live: Bools, schema: ShardSchema) -> pa.Table:
    """Return the updates of a shard in which those rows stand that are ``live``."""
    data, live = rows.select(schema.names).take(links.places), live[links.places]
    follows = links.follows & live[:-1]
    unchanged = follows & live[1:] & _equals_last(data)
    # Where each message of the chain takes away the row before it, and where it brings its own.
    changes = np.zeros((len(live), 2), dtype=np.bool_)
    changes[1:, 0] = follows & ~unchanged
    changes[:, 1] = live & links.is_new & ~np.append(False, unchanged)
    at, brings = np.divmod(np.flatnonzero(changes), 2)
    updates = data.take(at - 1 + brings).append_column(TIME, pa.array(links.times[at]))
    return updates.append_column(DIFF, pa.array(2 * brings - 1)).cast(schema.updates)


def in_order(messages: pa.Table) -> Int64s:
    """Return the places of messages by (time, own time, range, offset)."""
    return _places_by(messages, TIME, OWN, RANK, OFFSET)


def _places_by(messages: pa.Table, *names: str) -> Int64s:
    columns = [messages.column(n).to_numpy() for n in names]
    if _is_ordered(*columns):
        return np.arange(messages.num_rows)
    return np.lexsort(columns[::-1])


def _is_newest_so_far(rows: pa.Table, keys: Hashes, chain: Int64s) -> Bools:
    """Say of each place of a chain whether no message of the key before it is newer by itself.

    What is late comes after what is newer, and counts for nothing then.
    """
    seniority = np.empty(rows.num_rows, dtype=np.int64)
    seniority[_places_by(rows, OWN, RANK, OFFSET)] = np.arange(rows.num_rows)
    key = np.append(0, np.cumsum(~_follows(keys, chain)))
    standing = key * rows.num_rows + seniority[chain]
    newest: Bools = standing == np.maximum.accumulate(standing)
    return newest


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


def _early_messages(before: KeysBefore, schema: ShardSchema, time_column: str | None) -> pa.Table:
    """Return what was before as messages that came before all others."""
    found = [_as_messages(before.rows, schema, _own_times(before.rows, time_column), deleted=False)]
    if before.deleted is not None:
        own = _own_times(before.deleted, time_column)
        if before.forgotten is not None:
            own = np.where(before.forgotten, np.iinfo(np.int64).min, own)
        found.append(_as_messages(before.deleted, schema, own, deleted=True))
    return pa.concat_tables(found)


def _own_times(rows: pa.Table, time_column: str | None) -> Int64s:
    if time_column is None:
        return np.full(rows.num_rows, -1, dtype=np.int64)
    return exact_times(rows.column(time_column))


def _as_messages(rows: pa.Table, schema: ShardSchema, own: Int64s, *, deleted: bool) -> pa.Table:
    count = rows.num_rows
    early = np.full(count, -1, dtype=np.int64)
    wanted = messages_schema(schema)
    columns: dict[str, Any] = {f.name: pa.nulls(count, f.type) for f in wanted}
    columns |= {name: rows.column(name) for name in rows.schema.names}
    columns |= {TIME: early, OWN: own, RANK: early, OFFSET: early}
    return pa.table({**columns, DELETE: np.full(count, deleted)}).cast(wanted)


def current_rows(
    updates: Sequence[pa.Table], messages: pa.Table, schema: ShardSchema, *, as_of: int
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
