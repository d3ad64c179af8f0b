"""Bounds on columns, to select what a query can match; and updates in the order of keys. Pure.

A key that occurs once needs no merging. Most rows therefore need at most sorting by key, and only
rows whose key repeats must be compared as a whole.

Shape: a `Box` maps a column to the least and the greatest value wanted, both inclusive; None leaves
    that side open. Values have the form that `ordered` produces: numbers for numbers and times,
    text for text. Types without a plain order (floats with their NaN, decimals, bytes, nested
    columns) have no bounds.
Invariants: anything excluded is outside the box. A part or row group that is kept may also be
    outside it; a row may not.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.core.threads import cores, on_cores
from tidelog.errors import require
from tidelog.persist.format.part import Part, decode_bounds, int64_array, int64_of, taken
from tidelog.persist.format.schema import DIFF, ShardSchema

Interval: TypeAlias = tuple[Any, Any]
Box: TypeAlias = Mapping[str, Interval]

OPEN: Interval = (None, None)


@dataclass(frozen=True, slots=True)
class ConditionBounds:
    """The bounds that a condition sets; with ``is_exact``, it selects exactly the rows within."""

    box: Box
    is_exact: bool


NO_BOUNDS: Final = ConditionBounds({}, is_exact=True)


def is_ordered(dtype: pa.DataType) -> bool:
    """Return True if columns of a type can have bounds."""
    return pa.types.is_integer(dtype) or pa.types.is_string(dtype) or pa.types.is_temporal(dtype)


def ordered(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Return a column in the form that bounds are compared with: times become numbers.

    Arrow has times that Python cannot represent; their numbers have the same order.
    """
    dtype = column.type
    if not pa.types.is_temporal(dtype):
        return column
    return column.cast(pa.int32() if dtype.bit_width == 32 else pa.int64())


def scalar_of(value: Any, dtype: pa.DataType) -> pa.Scalar[Any]:
    """Return a number or text as an Arrow scalar.

    `pyarrow.scalar` would import pandas if it is installed, which takes 0.3 s.
    """
    if pa.types.is_string(dtype):
        data = value.encode()
        offsets = np.array([0, len(data)], np.int32).tobytes()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    else:
        signed = not pa.types.is_unsigned_integer(dtype)
        data = int(value).to_bytes(dtype.bit_width // 8, sys.byteorder, signed=signed)
        buffers = [None, pa.py_buffer(data)]
    return pa.Array.from_buffers(dtype, 1, buffers)[0]


def overlaps(known: Interval, wanted: Interval) -> bool:
    """Return True if two intervals can have a value in common; an open side is unbounded."""
    (least, greatest), (low, high) = known, wanted
    before = greatest is not None and low is not None and greatest < low
    after = least is not None and high is not None and high < least
    return not before and not after


def meet(bounds: Iterable[tuple[str, Interval]]) -> dict[str, Interval]:
    """Return the box of the rows that satisfy all bounds."""
    found: dict[str, Interval] = {}
    for name, (low, high) in bounds:
        least, greatest = found.get(name, OPEN)
        lows = [value for value in (least, low) if value is not None]
        highs = [value for value in (greatest, high) if value is not None]
        found[name] = (max(lows, default=None), min(highs, default=None))
    return found


def whole_range(dtype: pa.DataType) -> range:
    """Return the whole numbers that a column of a type can hold."""
    signed = not pa.types.is_unsigned_integer(dtype)
    least = -(1 << (dtype.bit_width - 1)) if signed else 0
    return range(least, least + (1 << dtype.bit_width))


def box_of_part(part: Part) -> dict[str, Interval]:
    """Return the bounds of each key column for which the part has them."""
    # Only these types can have bounds in a query; see `is_ordered`.
    return {
        name: interval
        for name, interval in decode_bounds(part).items()
        if type(interval[0]) in (int, str)
    }


def part_reaches(part: Part, box: Box) -> bool:
    """Return True if a part can hold rows within the box."""
    known = box_of_part(part) if box else {}
    return all(overlaps(known.get(name, OPEN), wanted) for name, wanted in box.items())


def groups_by_key(parts: Sequence[Part], schema: ShardSchema) -> list[list[Part]] | None:
    """Group parts whose rows can meet, in key order; None if descriptors do not determine that.

    Without a key, rows meet no others if each diff is 1.
    """
    if not schema.key_columns:
        return [[part] for part in parts] if all(part.plain for part in parts) else None
    bounds = [box_of_part(part).get(schema.names[0], OPEN) for part in parts]
    if any(least is None for least, _ in bounds):
        return None
    groups: list[list[Part]] = []
    reached: Any = None
    pairs = zip(bounds, parts, strict=True)
    for (least, greatest), part in sorted(pairs, key=lambda pair: pair[0]):
        if groups and least <= reached:
            groups[-1].append(part)
            reached = max(reached, greatest)
        else:
            groups.append([part])
            reached = greatest
    return groups


def box_of_group(group: pq.RowGroupMetaData, names: frozenset[str]) -> dict[str, Interval]:
    """Return the bounds of the named columns of a row group; nulls sort after all values.

    Columns without statistics are omitted.
    """
    found: dict[str, Interval] = {}
    columns = [group.column(index) for index in range(group.num_columns)]
    paths = Counter(column.path_in_schema for column in columns)
    for column in columns:
        # A column "a.b" and the field b of a column "a" have the same path, so ignore both.
        is_meant = column.path_in_schema in names and paths[column.path_in_schema] == 1
        statistics = column.statistics if is_meant else None
        if statistics is None or not statistics.has_min_max:
            continue
        least, greatest = extent_of(statistics)
        has_nulls = statistics.null_count is None or statistics.null_count > 0
        found[column.path_in_schema] = (least, None if has_nulls else greatest)
    return found


def extent_of(statistics: pq.Statistics) -> Interval:
    """Return the least and the greatest value in statistics."""
    # Python's datetime cannot represent every time; the raw number has no such limit.
    if statistics.logical_type.type in ("DATE", "TIME", "TIMESTAMP"):
        return statistics.min_raw, statistics.max_raw
    return statistics.min, statistics.max


def rows_within(table: pa.Table, box: Box) -> pa.Table:
    """Return the rows within the box; a null is outside of all bounds."""
    for name, (low, high) in box.items():
        column = ordered(table.column(name))
        if low is not None:
            inside = pc.greater_equal(column, scalar_of(low, column.type))
            table, column = table.filter(inside), column.filter(inside)
        if high is not None:
            table = table.filter(pc.less_equal(column, scalar_of(high, column.type)))
    return table


# Larger tables are left to SQL, which limits its memory and spills.
SORTED_ROWS_MAX: Final = 1_000_000
LOOK_ROWS: Final = 1_024
SHARE_ROWS: Final = 131_072  # Fewer rows are sorted faster by one thread.
SAMPLE_ROWS: Final = 1_024
CHUNK_ROWS: Final = 8_192

_Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
_Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def can_sort(tables: Sequence[pa.Table], key: Sequence[str]) -> bool:
    """Return True if Arrow can sort the rows of some tables in the same order as SQL."""
    if not tables or not key or sum(t.num_rows for t in tables) > SORTED_ROWS_MAX:
        return False
    return all(is_ordered(tables[0].schema.field(name).type) for name in key)


def in_few_chunks(table: pa.Table) -> pa.Table:
    """Return a table whose chunks have thousands of rows: each chunk costs every later step."""
    chunks = max((column.num_chunks for column in table.columns), default=1)
    return table.combine_chunks() if table.num_rows < CHUNK_ROWS * (chunks - 1) else table


def joined_in_order(tables: Sequence[pa.Table], key: Sequence[str]) -> pa.Table | None:
    """Return the concatenated tables if each row's key is then greater than the one before."""
    if any(table.column(name).null_count for table in tables for name in key):
        return None
    in_order = sorted(tables, key=lambda table: _first(table, key))
    joined = in_few_chunks(pa.concat_tables(in_order))
    return joined if _all_rise(joined, key) else None


def is_rising(table: pa.Table, key: Sequence[str]) -> bool:
    """Return True if each row's key is known to be greater than the one before."""
    if not key or not all(is_ordered(table.schema.field(name).type) for name in key):
        return False
    if any(table.column(name).null_count for name in key):
        return False
    # An unordered table usually shows that in its first rows.
    first = table.slice(0, LOOK_ROWS)
    return _all_rise(first, key) and _all_rise(table, key)


def sorted_rows(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows of a table sorted by some columns, nulls last."""
    return taken(table, pc.sort_indices(table, [(name, "ascending") for name in names]))


def sorted_in_shares(table: pa.Table, key: Sequence[str], order: Sequence[str]) -> pa.Table:
    """Return a table sorted by the columns of ``order``, which begins with ``key``.

    Each core sorts the rows of a range of the first column, if columns of its type can be compared.
    """
    columns = [table.column(name) for name in key]
    is_known = all(is_ordered(column.type) and not column.null_count for column in columns)
    if table.num_rows < 2 * SHARE_ROWS or not is_known:
        return sorted_rows(table, order)
    sample = table.select(key).take(_spread(table.num_rows))
    is_unique = sample.group_by(list(key)).aggregate([]).num_rows == sample.num_rows
    shares = _shares(ordered(columns[0]), min(cores(), table.num_rows // SHARE_ROWS))
    work = [
        partial(_sorted_share, table, share, key if is_unique else [], order) for share in shares
    ]
    return pa.concat_tables(on_cores(work))


def _spread(rows: int) -> _Places:
    return np.linspace(0, rows - 1, min(rows, SAMPLE_ROWS)).astype(np.int64)


def _shares(column: pa.ChunkedArray[Any], count: int) -> list[_Places | None]:
    """Return the rows of each of ``count`` adjacent ranges of a column; None stands for all rows.

    In a sample, the ranges hold about as many rows each.
    """
    if count < 2:
        return [None]
    sample = column.take(_spread(len(column)))
    sample = sample.take(pc.sort_indices(sample))
    found: list[_Places | None] = []
    rest = np.ones(len(column), np.bool_)
    for number in range(1, count):
        pivot = sample[number * len(sample) // count]
        less = pc.less(column, pivot).to_numpy() & rest
        found.append(np.flatnonzero(less))
        rest &= ~less
    return [*found, np.flatnonzero(rest)]


def _sorted_share(
    table: pa.Table, share: _Places | None, key: Sequence[str], order: Sequence[str]
) -> pa.Table:
    """Return rows sorted by ``order``; ``key`` names the columns that are unique in most rows."""
    if not key:
        some = table if share is None else taken(table, share)
        return sorted_rows(some, order)
    keys = table.select(key) if share is None else table.select(key).take(share)
    if not keys.num_rows:
        return table.slice(0, 0)
    found = _places(keys, key)
    # Rows of one key are adjacent now, so a sort of only the rows of repeated keys sorts all.
    is_new = np.concatenate([[True], _rises(keys.take(found), key), [True]])
    repeated = np.flatnonzero(~(is_new[:-1] & is_new[1:]))
    places = found.to_numpy().astype(np.int64) if share is None else share[found.to_numpy()]
    if len(repeated):
        some = taken(table.select(order), places[repeated])
        by_all = pc.sort_indices(some, [(name, "ascending") for name in order])
        places[repeated] = places[repeated][by_all.to_numpy()]
    return taken(table, places)


def sorted_by_key(table: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows with a unique key, in key order, and all other rows.

    A key with a null cannot be compared here, so its rows are among the other rows.
    """
    table = taken(table, _places(table, key))
    is_new = np.concatenate([[True], _rises(table, key), [True]])
    is_single = is_new[:-1] & is_new[1:]
    if is_single.all() and not any(table.column(name).null_count for name in key):
        return table, table.slice(0, 0)
    return _chosen(table, is_single), _chosen(table, ~is_single)


def summed(table: pa.Table) -> pa.Table | None:
    """Return data and ``_diff``, consolidated, in data order; None if SQL must do it.

    SQL must do it if there are nulls, which cannot be compared here, or if a sum may overflow 64
    bits, which numpy would not detect.
    """
    names = [name for name in table.column_names if name != DIFF]
    if not can_sort([table], names) or any(table.column(name).null_count for name in names):
        return None
    if not table.num_rows:
        return table
    if may_overflow(table):
        return None
    table = taken(table, _places(table, names))
    is_first = np.concatenate([[True], _rises(table, names)])
    sums = np.add.reduceat(int64_of(table, DIFF), np.flatnonzero(is_first))
    position = table.schema.get_field_index(DIFF)
    made = _chosen(table, is_first).set_column(position, DIFF, int64_array(sums))
    return _chosen(made, sums != 0)


def may_overflow(table: pa.Table) -> bool:
    """Return True if a sum of ``_diff`` over some rows may not fit 64 bits."""
    diffs = int64_of(table, DIFF)
    return bool(len(diffs)) and max(-int(diffs.min()), int(diffs.max())) * len(diffs) >= 2**63


def in_key_order(tables: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Return the concatenated tables in key order; rows of equal keys keep their order."""
    joined = pa.concat_tables(tables)
    return taken(joined, _places(joined, key))


def _places(table: pa.Table, key: Sequence[str]) -> pa.Array[Any]:
    columns = pa.table([ordered(table.column(name)) for name in key], list(key))
    return pc.sort_indices(columns, [(name, "ascending") for name in key])


def _first(table: pa.Table, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(ordered(table.column(name).slice(0, 1))[0].as_py() for name in key)


def _chosen(table: pa.Table, which: _Bools) -> pa.Table:
    return taken(table, np.flatnonzero(which))


def _rises(table: pa.Table, key: Sequence[str]) -> _Bools:
    """Return for each row after the first whether its key is known to exceed the one before."""
    rises = _compared(table, key)
    # `fill_null` would create a scalar, and Arrow imports pandas for that.
    known = pc.and_kleene(rises, pc.is_valid(rises))
    return cast("_Bools", int64_of(pa.table({DIFF: known.cast(pa.int64())}), DIFF) != 0)


def _all_rise(table: pa.Table, key: Sequence[str]) -> bool:
    """Return True if each row's key is known to be greater than the one before."""
    return pc.all(_compared(table, key), skip_nulls=False, min_count=0).as_py() is True


def _compared(table: pa.Table, key: Sequence[str]) -> Any:
    """Compare the key of each row after the first with the one before; null if not comparable."""
    rises: Any = None
    for name in reversed(key):
        column = ordered(table.column(name))
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        less = pc.less(before, after)
        if rises is not None:
            less = pc.or_kleene(less, pc.and_kleene(pc.equal(before, after), rises))
        rises = less
    require(rises is not None, "rows without a key have no order")
    return rises
