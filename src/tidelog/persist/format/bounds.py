"""Bounds on columns: select the parts, row groups and rows that a query can match. Pure.

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
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.persist.format.part import Part, decode_bounds

Interval: TypeAlias = tuple[Any, Any]
Box: TypeAlias = Mapping[str, Interval]

OPEN: Interval = (None, None)


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
