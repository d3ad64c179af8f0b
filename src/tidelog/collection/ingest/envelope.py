"""Envelopes: from messages to updates of the output. Pure.

Shape: messages have the schema's columns and ``_time`` (int64). They also have these columns, each
    with `OWN_PREFIX` before its name. ``own`` (int64) is the row's own time in the full precision
    of its column, or 0 without a time column. ``rank`` (int64) is the index of the row's range, in
    path order. ``offset`` is int64, and ``delete`` is bool.

The envelope ``none`` appends each message. With ``upsert``, the newest message of a key is its only
row, and a delete removes that row.

The own times decide which message of a key is newest, not the order of arrival. A late message that
is older than the key's row, or than the key's deletion, changes nothing. If two own times are
equal, the later address is newer, and a message of this binding is newer than one of an earlier
binding. If rows have times and can be deleted, a second shard keeps each deletion: the key, and the
own time of the delete. Without it, a late row older than the delete would restore the key.
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
from tidelog.collection.formats.lines import Bools, Int64s
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.formats.times import exact_times, times_of
from tidelog.collection.source.binding import ANY_TIME
from tidelog.persist.format.schema import DIFF, OWN_PREFIX, TIME, ShardSchema
from tidelog.rowhash import Hashes, hash_rows

OWN: Final = OWN_PREFIX + "own"
RANK: Final = OWN_PREFIX + "rank"
DELETE: Final = OWN_PREFIX + "delete"


@dataclass(frozen=True, slots=True)
class KeysBefore:
    """The state of a tick's keys before it: their rows of the output and of the deletions.

    Shape: each key has at most one row, in one of the two. Rows of other keys do no harm.
    """

    rows: pa.Table
    deleted: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of an output shard, and of its deletions shard if there is one.

    ``hashes`` are those of the data columns of ``rows``, if they are known.
    """

    rows: pa.Table
    deleted: pa.Table | None = None
    hashes: Hashes | None = None


def deletions_schema(schema: ShardSchema, time_column: str) -> ShardSchema:
    """Return the schema of the deletions shard of an output: its key, and the time column."""
    names = dict.fromkeys([*schema.key, time_column])
    return ShardSchema(pa.schema([schema.data.field(n) for n in names]), len(schema.key))


def messages_schema(schema: ShardSchema) -> pa.Schema:
    """Return the schema of a table of messages."""
    fields = [pa.field(n, pa.int64()) for n in (TIME, OWN, RANK, OFFSET)]
    return pa.schema([*schema.data, *fields, pa.field(DELETE, pa.bool_())])


@dataclass(frozen=True, slots=True)
class StampedRows:
    """Rows with their times and ranks, and the offsets of the bad ones.

    ``timeless`` rows have no valid time, and ``ahead`` rows have one after the permitted maximum.
    """

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
) -> StampedRows:
    """Return decoded rows with a time, an own time and a rank.

    With a time column, the time of a row is its own time, or ``lower`` if the own time is complete
    already (a late row). Without a time column, all rows have the time ``upper - 1``. If the range
    ``is_held``, rows at ``upper`` or later are left out until a later binding. If it ``was_held``,
    rows before ``lower`` are left out, because an earlier binding has them.
    """
    none = np.zeros(0, dtype=np.int64)
    count = rows.num_rows
    if source.time_column is None:
        times, own = np.full(count, upper - 1, dtype=np.int64), np.zeros(count, dtype=np.int64)
        found = StampedRows(rows, none, none)
    else:
        offsets = rows.column(OFFSET).to_numpy()
        times, there = times_of(rows.column(source.time_column), source.time_unit)
        good = there & (times <= time_max)
        now = good.copy()
        if is_held:
            now &= times < upper
        if was_held:
            now &= times >= lower
        if not now.all():
            rows, times = rows.filter(pa.array(now)), times[now]
        times = np.clip(times, lower, upper - 1)
        own = exact_times(rows.column(source.time_column))
        found = StampedRows(rows, offsets[~there], offsets[there & ~good])
    stamped = rows.append_column(TIME, pa.array(times)).append_column(OWN, pa.array(own))
    ranks = pa.array(np.full(len(times), rank, dtype=np.int64))
    return replace(found, rows=stamped.append_column(RANK, ranks))


def restamp_rows(rows: pa.Table, source: SourceInfo, *, lower: int, upper: int) -> pa.Table:
    """Return rows that `stamp_rows` has kept, with the same times, computed again.

    The times follow from the rows, so a Spark job need not send them between its stages.
    """
    if source.time_column is None:
        times = np.full(rows.num_rows, upper - 1, dtype=np.int64)
        own = np.zeros(rows.num_rows, dtype=np.int64)
    else:
        column = rows.column(source.time_column)
        times = np.clip(times_of(column, source.time_unit)[0], lower, upper - 1)
        own = exact_times(column)
    return rows.append_column(TIME, pa.array(times)).append_column(OWN, pa.array(own))


def last_of_each(messages: pa.Table, named: Hashes) -> Int64s:
    """Return the places, in order, of the newest message of each key at each time.

    `apply_upsert` gives the same result for these alone: it uses only the newest of a key's
    messages at one time.
    """
    times = messages.column(TIME).to_numpy()
    chain = group_by_key(named, in_order(messages))
    superseded = _follows(named, chain) & (times[chain[1:]] == times[chain[:-1]])
    return np.sort(chain[np.append(~superseded, True)[: len(chain)]])


def apply_none(messages: pa.Table, schema: ShardSchema) -> pa.Table:
    """Return an update with diff +1 for each message; those of a collection have diffs already."""
    if DIFF in messages.column_names:
        return messages.select([*schema.names, TIME, DIFF]).cast(schema.updates)
    ones = pa.array(np.ones(messages.num_rows, dtype=np.int64))
    return messages.select([*schema.names, TIME]).append_column(DIFF, ones).cast(schema.updates)


def apply_upsert(
    messages: pa.Table,
    before: KeysBefore,
    schema: ShardSchema,
    *,
    time_column: str | None = None,
    named: Hashes | None = None,
) -> Updates:
    """Return the updates that the messages make, on top of the state of their keys before.

    For each key, a chain links the state before and the key's messages, in the order of their
    times. Each link that changes the row gives an update -1 of the old row and +1 of the new one,
    both at the link's time.

    Shape: ``named`` are the hashes of the messages' keys, if they are known; see `hash_keys`.
        Updates are sorted by key, then by time. The result has deletions, perhaps empty ones, if
        ``before`` has deletions.
    """
    kept = before.deleted
    kept_schema = None if kept is None else ShardSchema(kept.schema, schema.key_columns)
    if not messages.num_rows:
        return Updates(
            schema.updates.empty_table(),
            None if kept_schema is None else kept_schema.updates.empty_table(),
        )
    early = _early_messages(before, schema, time_column)
    rows = pa.concat_tables([early, messages])
    times, deletes = rows.column(TIME).to_numpy(), rows.column(DELETE).to_numpy()
    named = hash_keys(messages, schema) if named is None else named
    keys = _join_hashes(hash_keys(early, schema), named)
    chain = group_by_key(keys, in_order(rows))
    chain = chain[_is_newest_so_far(rows, keys, chain)]
    # A key has one row at a time. Messages of one time are in the order of their own times, so the
    # last of them is the newest.
    superseded = _follows(keys, chain) & (times[chain[1:]] == times[chain[:-1]])
    chain = chain[np.append(~superseded, True)]
    chain = sort_by_key(rows.select(schema.key), keys, chain)
    links = _Links(chain, _follows(keys, chain), chain >= early.num_rows, times[chain])
    live = ~deletes[chain]
    data = rows.select(schema.names)
    if len(chain) < rows.num_rows:
        data, links = _only_links(data, links)
    data = data.combine_chunks()
    found, hashes = _changes(links, data, live, schema)
    if kept_schema is None:
        return Updates(found, None, hashes)
    return Updates(found, _changes(links, data, ~live, kept_schema)[0], hashes)


def hash_keys(rows: pa.Table, schema: ShardSchema) -> Hashes:
    """Return the hash of each row's key."""
    return hash_rows([rows.column(n) for n in schema.key], rows=rows.num_rows)


def _join_hashes(one: Hashes, other: Hashes) -> Hashes:
    return Hashes(np.concatenate([one.lo, other.lo]), np.concatenate([one.hi, other.hi]))


@dataclass(frozen=True, slots=True)
class _Links:
    """The chains of all keys, one after another: the place of each message in the rows.

    ``follows`` has one item less than ``places``: True if a message has the same key as the one
    before it. ``is_new`` is False for the state before the tick. ``times`` are those of updates.
    """

    places: Int64s
    follows: Bools
    is_new: Bools
    times: Int64s


def _only_links(data: pa.Table, links: _Links) -> tuple[pa.Table, _Links]:
    """Return the rows that are in a chain, and the chains with their places among these rows."""
    there = np.zeros(data.num_rows, dtype=np.bool_)
    there[links.places] = True
    places = np.cumsum(there)[links.places] - 1
    return data.filter(pa.array(there)), replace(links, places=places)


def _changes(
    links: _Links, rows: pa.Table, live: Bools, schema: ShardSchema
) -> tuple[pa.Table, Hashes]:
    """Return the updates, with hashes, of a shard whose rows are the ``live`` links of the chains.

    For the output, live links are the messages that do not delete; for the deletions shard, they
    are the messages that delete.
    """
    if not live.any():
        none = np.zeros(0, dtype=np.uint64)
        return schema.updates.empty_table(), Hashes(none, none)
    data = rows.select(schema.names)
    # Hash each row once: it may be in two updates, +1 and a later -1.
    hashes = hash_rows(data.columns, rows=data.num_rows)
    follows = links.follows & live[:-1]
    unchanged = follows & live[1:] & _follows(hashes, links.places)
    # Column 0: the link removes the row of the link before it. Column 1: it adds its own row.
    changes = np.zeros((len(live), 2), dtype=np.bool_)
    changes[1:, 0] = follows & ~unchanged
    changes[:, 1] = live & links.is_new & ~np.append(False, unchanged)
    at, brings = np.divmod(np.flatnonzero(changes), 2)
    places = links.places[at - 1 + brings]
    updates = data.take(places).append_column(TIME, pa.array(links.times[at]))
    updates = updates.append_column(DIFF, pa.array(2 * brings - 1)).cast(schema.updates)
    return updates, Hashes(hashes.lo[places], hashes.hi[places])


def in_order(messages: pa.Table) -> Int64s:
    """Return the places of messages, sorted by (time, own time, range, offset)."""
    return _places_by(messages, TIME, OWN, RANK, OFFSET)


def _places_by(messages: pa.Table, *names: str) -> Int64s:
    columns = [messages.column(n).to_numpy() for n in names]
    if _is_ordered(*columns):
        return np.arange(messages.num_rows)
    return np.lexsort(columns[::-1])


def _is_newest_so_far(rows: pa.Table, keys: Hashes, chain: Int64s) -> Bools:
    """Return a mask of the links that are newer, by own time, than all earlier ones of their key.

    A late message has a later time than a newer message of its key, and is ignored.
    """
    seniority = np.empty(rows.num_rows, dtype=np.int64)
    seniority[_places_by(rows, OWN, RANK, OFFSET)] = np.arange(rows.num_rows)
    # The number of the key outweighs all seniorities, so the running maximum starts again at each
    # key.
    key = np.append(0, np.cumsum(~_follows(keys, chain)))
    progress = key * rows.num_rows + seniority[chain]
    newest: Bools = progress == np.maximum.accumulate(progress)
    return newest


def group_by_key(hashes: Hashes, places: Int64s) -> Int64s:
    """Return ``places`` with those of one key together; within a key, their order stays.

    Two keys are equal if their hashes of 128 bits are equal.
    """
    bits = np.uint64(max(1, len(places).bit_length()))
    # Pack the upper bits of each hash with the index of its place in the lower bits. A sort of
    # these numbers is several times as fast as a stable argsort, and has the same result.
    packed = hashes.lo[places] >> bits << bits
    packed |= np.arange(len(places), dtype=np.uint64)
    packed.sort()
    grouped = places[(packed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)]
    upper = packed >> bits
    meets = upper[1:] == upper[:-1]
    mixed = meets & ~_follows(hashes, grouped)
    # Different keys may share the upper bits. Sort only these runs, by the whole hash.
    if mixed.any():
        run = np.append(0, np.cumsum(~meets))
        is_mixed = np.zeros(int(run[-1]) + 1, dtype=np.bool_)
        is_mixed[run[1:][mixed]] = True
        at = np.flatnonzero(is_mixed[run])
        some = grouped[at]
        grouped[at] = some[np.lexsort((hashes.lo[some], hashes.hi[some], run[at]))]
    return grouped


def sort_by_key(key: pa.Table, hashes: Hashes, grouped: Int64s) -> Int64s:
    """Return grouped places (see `group_by_key`) sorted by key.

    Only one row of each key is compared. Keys of nested types have no order and stay grouped.
    """
    begins = np.flatnonzero(np.append(True, ~_follows(hashes, grouped)))
    distinct = key.take(grouped[begins])
    if any(pa.types.is_nested(f.type) for f in distinct.schema):
        return grouped
    order = pc.sort_indices(distinct, sort_keys=[(n, "ascending") for n in distinct.schema.names])
    by_key = order.to_numpy()
    counts = np.diff(np.append(begins, len(grouped)))[by_key]
    # The distance by which each group moves.
    shifts = begins[by_key] - (np.cumsum(counts) - counts)
    return grouped[np.repeat(shifts, counts) + np.arange(len(grouped))]


def _is_ordered(*columns: Int64s) -> bool:
    """Return True if rows ascend lexicographically by these columns."""
    tied: Bools = np.ones(max(0, len(columns[0]) - 1), dtype=np.bool_)
    for column in columns:
        if np.any(tied & (column[1:] < column[:-1])):
            return False
        tied &= column[1:] == column[:-1]
    return True


def _follows(hashes: Hashes, places: Int64s) -> Bools:
    """Return for each place but the first whether its hash equals that of the place before."""
    lo, hi = hashes.lo[places], hashes.hi[places]
    same: Bools = (lo[1:] == lo[:-1]) & (hi[1:] == hi[:-1])
    return same


def _early_messages(before: KeysBefore, schema: ShardSchema, time_column: str | None) -> pa.Table:
    """Return the state before a tick as messages that precede all messages of the tick."""
    found = [_as_messages(before.rows, schema, _own_times(before.rows, time_column), deleted=False)]
    if before.deleted is not None:
        own = _own_times(before.deleted, time_column)
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
    updates: Sequence[pa.Table], named: Hashes, schema: ShardSchema, *, as_of: int
) -> pa.Table:
    """Return the rows of an output at ``as_of`` for the keys with these hashes: the feedback.

    A key has at most one row at a time, so its updates alternate between +1 and -1. The last update
    up to ``as_of`` decides: if its diff is +1, its row is current. The result may have rows of
    other keys too.
    """
    filled = [t for t in updates if t.num_rows]
    if not filled or not len(named):
        return schema.data.empty_table()
    table = pa.concat_tables(filled)
    keys = hash_keys(table, schema)
    times, diffs = table.column(TIME).to_numpy(), table.column(DIFF).to_numpy()
    places = np.flatnonzero(_may_be_among(keys, named) & (times <= as_of))
    chain = group_by_key(keys, places)
    follows = _follows(keys, chain)
    back = (times[chain[1:]] < times[chain[:-1]]) | (
        (times[chain[1:]] == times[chain[:-1]]) & (diffs[chain[1:]] < diffs[chain[:-1]])
    )
    if np.any(follows & back):
        # The tables are not in the order of times, or a part of another writer is not sorted so.
        chain = group_by_key(keys, places[np.lexsort((diffs[places], times[places]))])
    is_last = np.append(~_follows(keys, chain), True)[: len(chain)]
    there = np.zeros(table.num_rows, dtype=np.bool_)
    there[chain[is_last & (diffs[chain] > 0)]] = True
    return table.select(schema.names).filter(pa.array(there)).cast(schema.data)


def _may_be_among(keys: Hashes, named: Hashes) -> Bools:
    """Return a mask of the keys that may be among ``named``; it is True for a few other keys too.

    A bitmap of hash prefixes costs less than a sort or a hash table.
    """
    bits = max(10, min(26, len(named).bit_length() + 4))
    shift = np.uint64(64 - bits)
    there = np.zeros(1 << bits, dtype=np.bool_)
    there[(named.lo >> shift).astype(np.int64)] = True
    found: Bools = there[(keys.lo >> shift).astype(np.int64)]
    return found
