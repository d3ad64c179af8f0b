"""Bounds on columns: which parts, row groups and rows can hold what a reader asks for. Pure.

Shape: a `Box` has the least and the greatest value asked for by column, both included, None where
    that side is open. Values are such as `ordered` makes: numbers for what is a number or a time,
    text for text. What has no plain order (floats, with their NaN, decimals, bytes, nested
    columns) has no bounds.
Invariants: what is left out cannot lie within the box; what is kept may lie outside, but for rows.
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
    """Say whether columns of a type can be bounded."""
    return pa.types.is_integer(dtype) or pa.types.is_string(dtype) or pa.types.is_temporal(dtype)


def ordered(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Return a column as bounds are compared with it: times are the numbers that stand for them.

    Python holds not every time that Arrow holds, and their numbers have the same order.
    """
    dtype = column.type
    if not pa.types.is_temporal(dtype):
        return column
    return column.cast(pa.int32() if dtype.bit_width == 32 else pa.int64())


def scalar_of(value: Any, dtype: pa.DataType) -> pa.Scalar[Any]:
    """Return a number or text as Arrow's.

    `pyarrow.scalar` does the same, and loads pandas for it, where it is installed: 0.3 s.
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
    """Say whether two intervals can have a value in common; an open side reaches everything."""
    (least, greatest), (low, high) = known, wanted
    before = greatest is not None and low is not None and greatest < low
    after = least is not None and high is not None and high < least
    return not before and not after


def meet(bounds: Iterable[tuple[str, Interval]]) -> dict[str, Interval]:
    """Return the box of what lies within all of some bounds."""
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
    """Return the least and the greatest value of each key column whose bounds the part tells."""
    # Of no other kinds of values readers choose parts; see `is_ordered`.
    return {
        name: interval
        for name, interval in decode_bounds(part).items()
        if type(interval[0]) in (int, str)
    }


def part_reaches(part: Part, box: Box) -> bool:
    """Say whether a part can hold rows within the box."""
    known = box_of_part(part) if box else {}
    return all(overlaps(known.get(name, OPEN), wanted) for name, wanted in box.items())


def box_of_group(group: pq.RowGroupMetaData, names: frozenset[str]) -> dict[str, Interval]:
    """Return between what the named columns of a row group lie; nulls come after all values.

    A column of which nothing is known is left out.
    """
    found: dict[str, Interval] = {}
    columns = [group.column(index) for index in range(group.num_columns)]
    paths = Counter(column.path_in_schema for column in columns)
    for column in columns:
        # A column "a.b" and the field b of a column "a" have one path: neither is believed.
        is_meant = column.path_in_schema in names and paths[column.path_in_schema] == 1
        statistics = column.statistics if is_meant else None
        if statistics is None or not statistics.has_min_max:
            continue
        least, greatest = extent_of(statistics)
        has_nulls = statistics.null_count is None or statistics.null_count > 0
        found[column.path_in_schema] = (least, None if has_nulls else greatest)
    return found


def extent_of(statistics: pq.Statistics) -> Interval:
    """Return the least and the greatest value that statistics tell."""
    # What Python makes of a time can be out of its range; its number cannot.
    if statistics.logical_type.type in ("DATE", "TIME", "TIMESTAMP"):
        return statistics.min_raw, statistics.max_raw
    return statistics.min, statistics.max


def rows_within(table: pa.Table, box: Box) -> pa.Table:
    """Keep the rows within the box; a null lies within no bounds."""
    for name, (low, high) in box.items():
        column = ordered(table.column(name))
        if low is not None:
            inside = pc.greater_equal(column, scalar_of(low, column.type))
            table, column = table.filter(inside), column.filter(inside)
        if high is not None:
            table = table.filter(pc.less_equal(column, scalar_of(high, column.type)))
    return table
