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
from tidelog.persist.format.schema import DIFF, OWN_PREFIX, TIME, ShardSchema
from tidelog.rowhash import Hashes, hash_rows

OWN: Final = OWN_PREFIX + "own"
RANK: Final = OWN_PREFIX + "rank"
DELETE: Final = OWN_PREFIX + "delete"


@dataclass(frozen=True, slots=True)
class KeysBefore:
    """What is known of keys before a tick: rows of the output, and of the deletions.

    Shape: of each key at most one, in one of the two; those of other keys do no harm.
    """

    rows: pa.Table
    deleted: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of an output's shard, and of its deletions, where these are kept.

    ``hashes`` are those of the rows' data columns, where they are known.
    """

    rows: pa.Table
    deleted: pa.Table | None = None
    hashes: Hashes | None = None


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
        if not now.all():
            rows, times = rows.filter(pa.array(now)), times[now]
        times = np.clip(times, lower, upper - 1)
        own = exact_times(rows.column(source.time_column))
        found = Stamped(rows, offsets[~there], offsets[there & ~good])
    stamped = rows.append_column(TIME, pa.array(times)).append_column(OWN, pa.array(own))
    ranks = pa.array(np.full(len(times), rank, dtype=np.int64))
    return replace(found, rows=stamped.append_column(RANK, ranks))


def restamp_rows(rows: pa.Table, source: SourceInfo, *, lower: int, upper: int) -> pa.Table:
    """Return rows that `stamp_rows` let through with their times, which follow from them."""
    if source.time_column is None:
        times = np.full(rows.num_rows, upper - 1, dtype=np.int64)
        own = np.zeros(rows.num_rows, dtype=np.int64)
    else:
        column = rows.column(source.time_column)
        times = np.clip(times_of(column, source.time_unit)[0], lower, upper - 1)
        own = exact_times(column)
    return rows.append_column(TIME, pa.array(times)).append_column(OWN, pa.array(own))


def last_of_each(messages: pa.Table, named: Hashes) -> Int64s:
    """Return the places of messages that others of their key and time do not supersede, in order.

    It is all that `apply_upsert` asks of them: what came at one time leaves the newest, or nothing.
    """
    times = messages.column(TIME).to_numpy()
    chain = group_by_key(named, in_order(messages))
    superseded = _follows(named, chain) & (times[chain[1:]] == times[chain[:-1]])
    return np.sort(chain[np.append(~superseded, True)[: len(chain)]])


def apply_none(messages: pa.Table, schema: ShardSchema) -> pa.Table:
    """Append each message."""
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
    """Chain the messages of each key, in the order of their times, onto what it was before.

    Shape: ``named`` are the hashes of the messages' keys, if they are known; see `hash_keys`.
        Several changes of a key give each their -old, +new at their own time; one that changes
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
    rows = pa.concat_tables([early, messages])
    times, deletes = rows.column(TIME).to_numpy(), rows.column(DELETE).to_numpy()
    named = hash_keys(messages, schema) if named is None else named
    keys = _join_hashes(hash_keys(early, schema), named)
    chain = group_by_key(keys, in_order(rows))
    chain = chain[_is_newest_so_far(rows, keys, chain)]
    # Of several messages of a key at one time, the last one counts.
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
    """Return the hashes of rows' keys."""
    return hash_rows([rows.column(n) for n in schema.key], rows=rows.num_rows)


def _join_hashes(one: Hashes, other: Hashes) -> Hashes:
    return Hashes(np.concatenate([one.lo, other.lo]), np.concatenate([one.hi, other.hi]))


@dataclass(frozen=True, slots=True)
class _Links:
    """Places of messages in chains by key; of each, whether it is new, and when it counts.

    ``follows`` says of each but the first whether it is of the same key as the one before.
    """

    places: Int64s
    follows: Bools
    is_new: Bools
    times: Int64s


def _only_links(data: pa.Table, links: _Links) -> tuple[pa.Table, _Links]:
    """Return the rows that stand in chains, and their places among these."""
    there = np.zeros(data.num_rows, dtype=np.bool_)
    there[links.places] = True
    places = np.cumsum(there)[links.places] - 1
    return data.filter(pa.array(there)), replace(links, places=places)


def _changes(
    links: _Links, rows: pa.Table, live: Bools, schema: ShardSchema
) -> tuple[pa.Table, Hashes]:
    """Return the updates of a shard in which those links stand that are ``live``, and hashes."""
    if not live.any():
        none = np.zeros(0, dtype=np.uint64)
        return schema.updates.empty_table(), Hashes(none, none)
    data = rows.select(schema.names)
    # Each row is hashed once, though it may come, and go again.
    hashes = hash_rows(data.columns, rows=data.num_rows)
    follows = links.follows & live[:-1]
    unchanged = follows & live[1:] & _follows(hashes, links.places)
    # Where each message of the chain takes away the row before it, and where it brings its own.
    changes = np.zeros((len(live), 2), dtype=np.bool_)
    changes[1:, 0] = follows & ~unchanged
    changes[:, 1] = live & links.is_new & ~np.append(False, unchanged)
    at, brings = np.divmod(np.flatnonzero(changes), 2)
    places = links.places[at - 1 + brings]
    updates = data.take(places).append_column(TIME, pa.array(links.times[at]))
    updates = updates.append_column(DIFF, pa.array(2 * brings - 1)).cast(schema.updates)
    return updates, Hashes(hashes.lo[places], hashes.hi[places])


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


def group_by_key(hashes: Hashes, places: Int64s) -> Int64s:
    """Return ``places`` with those of one key together, in the order that they have.

    Two keys are the same where their hashes of 128 bits are.
    """
    bits = np.uint64(max(1, len(places).bit_length()))
    # The upper bits of a hash, and below them where it stands: a sort of plain numbers is several
    # times as fast as one of places, and as stable.
    packed = hashes.lo[places] >> bits << bits
    packed |= np.arange(len(places), dtype=np.uint64)
    packed.sort()
    grouped = places[(packed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)]
    upper = packed >> bits
    meets = upper[1:] == upper[:-1]
    mixed = meets & ~_follows(hashes, grouped)
    if mixed.any():
        run = np.append(0, np.cumsum(~meets))
        is_mixed = np.zeros(int(run[-1]) + 1, dtype=np.bool_)
        is_mixed[run[1:][mixed]] = True
        at = np.flatnonzero(is_mixed[run])
        some = grouped[at]
        grouped[at] = some[np.lexsort((hashes.lo[some], hashes.hi[some], run[at]))]
    return grouped


def sort_by_key(key: pa.Table, hashes: Hashes, grouped: Int64s) -> Int64s:
    """Return places that `group_by_key` gave with the keys in order; one of each is compared."""
    begins = np.flatnonzero(np.append(True, ~_follows(hashes, grouped)))
    distinct = key.take(grouped[begins])
    if any(pa.types.is_nested(f.type) for f in distinct.schema):
        return grouped  # These have no order.
    order = pc.sort_indices(distinct, sort_keys=[(n, "ascending") for n in distinct.schema.names])
    by_key = order.to_numpy()
    counts = np.diff(np.append(begins, len(grouped)))[by_key]
    # Where each group goes, less where it comes from.
    shifts = begins[by_key] - (np.cumsum(counts) - counts)
    return grouped[np.repeat(shifts, counts) + np.arange(len(grouped))]


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


def _early_messages(before: KeysBefore, schema: ShardSchema, time_column: str | None) -> pa.Table:
    """Return what was before as messages that came before all others."""
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
    """Return the output's rows at ``as_of`` for the keys of these hashes: the feedback.

    Of a key, the updates are a chain: one row at the most stands at a time, and goes before the
    next one comes. Rows of some other keys may be among those that are returned.
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
        # Parts that were put together by others, or come in another order than that of time.
        chain = group_by_key(keys, places[np.lexsort((diffs[places], times[places]))])
    is_last = np.append(~_follows(keys, chain), True)[: len(chain)]
    there = np.zeros(table.num_rows, dtype=np.bool_)
    there[chain[is_last & (diffs[chain] > 0)]] = True
    return table.select(schema.names).filter(pa.array(there)).cast(schema.data)


def _may_be_among(keys: Hashes, named: Hashes) -> Bools:
    """Say of each key whether it may be one of those that are named; of few others, too."""
    bits = max(10, min(26, len(named).bit_length() + 4))
    shift = np.uint64(64 - bits)
    there = np.zeros(1 << bits, dtype=np.bool_)
    there[(named.lo >> shift).astype(np.int64)] = True
    found: Bools = there[(keys.lo >> shift).astype(np.int64)]
    return found
