"""A large table in key order, corrected by the updates of a few of its rows. Pure.

An upsert changes few rows. Then most rows of a part meet no other update: the first column alone
shows that, without a sort of all rows. Only the rows that may meet an update are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidelog.persist.format.bounds import (
    can_sort,
    in_key_order,
    is_rising,
    may_overflow,
    ordered,
    sorted_by_key,
    sorted_rows,
)
from tidelog.persist.format.part import int64_array, int64_of, taken
from tidelog.persist.format.schema import DIFF
from tidelog.rowhash import hash_rows

# With more updates than one for so many rows, a sort of all rows costs about as much.
ROWS_PER_UPDATE: Final = 3

_Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
_Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def corrected(tables: Sequence[pa.Table], key: Sequence[str]) -> pa.Table | None:
    """Return the consolidated rows of tables in key order; None if another way is needed or faster.

    Shape: the tables have the columns of ``key`` first, others after them, and ``_diff``. Rows of
        equal keys are in the order of their other columns.
    """
    place = max(range(len(tables)), key=lambda number: tables[number].num_rows)
    large, others = tables[place], [*tables[:place], *tables[place + 1 :]]
    updates = pa.concat_tables(others) if others else large.slice(0, 0)
    is_few = updates.num_rows * ROWS_PER_UPDATE <= large.num_rows
    if not is_few or updates.column(key[0]).null_count or not is_rising(large, key):
        return None
    meets = _among(large.column(key[0]), updates.column(key[0]))
    meeting = taken(large, np.flatnonzero(meets))
    if meeting.num_rows * ROWS_PER_UPDATE > large.num_rows:
        return None
    summed = summed_by_hash(pa.concat_tables([meeting, updates]))
    if summed is None:
        return None
    alone = np.flatnonzero(~meets)
    return _put_in_order(large, alone, summed, key)


def _among(column: pa.ChunkedArray[Any], values: pa.ChunkedArray[Any]) -> _Bools:
    """Return True for each value of a sorted column that is one of some values."""
    ours, wanted = ordered(column), ordered(values)
    if not pa.types.is_integer(ours.type):
        return np.asarray(pc.is_in(ours, value_set=wanted.combine_chunks()), np.bool_)
    # A search for each wanted value takes a tenth of the time that hashes of all rows take.
    rows, some = ours.to_numpy(), np.sort(wanted.to_numpy())
    first, end = np.searchsorted(rows, some), np.searchsorted(rows, some, side="right")
    there = end > first
    steps = np.zeros(len(rows) + 1, np.int8)
    steps[first[there]] += 1
    steps[end[there]] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def _put_in_order(
    large: pa.Table, alone: _Places, summed: pa.Table, key: Sequence[str]
) -> pa.Table:
    """Return the rows ``alone`` of a table and all rows of another one, both in order, in order.

    No row of one has the same first column as a row of the other, so that column decides.
    """
    ours, theirs = ordered(large.column(key[0])), ordered(summed.column(key[0]))
    if not pa.types.is_integer(ours.type):
        return in_key_order([taken(large, alone), summed], key)
    where = np.searchsorted(ours.to_numpy()[alone], theirs.to_numpy())
    added = np.arange(large.num_rows, large.num_rows + summed.num_rows)
    places = np.insert(alone, where, added)
    return taken(pa.concat_tables([large, summed]), places)


def summed_by_hash(rows: pa.Table) -> pa.Table | None:
    """Return consolidated rows in the order of their columns; None if that needs SQL."""
    if may_overflow(rows) or not _sorts_by_arrow(rows):
        return None
    return in_order_of_columns(consolidated(rows))


def in_order_of_columns(rows: pa.Table) -> pa.Table | None:
    """Return rows in the order of their columns, nulls last; None if that needs SQL."""
    if not _sorts_by_arrow(rows):
        return None
    return sorted_rows(rows, [name for name in rows.column_names if name != DIFF])


def _sorts_by_arrow(rows: pa.Table) -> bool:
    return all(_is_sorted_by_arrow(field.type) for field in rows.schema)


def _is_sorted_by_arrow(dtype: pa.DataType) -> bool:
    """Return True if Arrow sorts a type, and in the same order as SQL: NaN after other numbers."""
    return (
        pt.is_integer(dtype)
        or pt.is_float32(dtype)
        or pt.is_float64(dtype)
        or pt.is_boolean(dtype)
        or pt.is_string(dtype)
        or pt.is_temporal(dtype)
    )


def consolidated(updates: pa.Table, *, key: Sequence[str] = ()) -> pa.Table:
    """Return updates with the diffs of equal rows added, and without rows whose sum is 0.

    ``key`` names columns that few rows share, if any; no diff is 0. Then most rows need no hash.
    """
    if updates.num_rows < 2:
        return updates
    if key and can_sort([updates], key):
        single, others = sorted_by_key(updates, key)
        return pa.concat_tables([single, consolidated(others)])
    data = updates.drop_columns([DIFF])
    hashes = hash_rows(data.columns, rows=data.num_rows)
    # Different rows hardly ever share the lower half of a hash, and one sort costs a tenth of two.
    order = np.argsort(hashes.lo)
    lo, hi = hashes.lo[order], hashes.hi[order]
    if ((lo[1:] == lo[:-1]) & (hi[1:] != hi[:-1])).any():
        order = np.lexsort((hashes.hi, hashes.lo))
        lo, hi = hashes.lo[order], hashes.hi[order]
    begins = np.flatnonzero(np.append(True, (lo[1:] != lo[:-1]) | (hi[1:] != hi[:-1])))
    sums = np.add.reduceat(int64_of(updates, DIFF)[order], begins)
    kept = np.flatnonzero(sums)
    found = taken(data, order[begins][kept])
    return found.append_column(updates.schema.field(DIFF), int64_array(sums[kept]))
