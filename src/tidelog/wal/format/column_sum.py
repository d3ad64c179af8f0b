"""The checksum with which reads of slot logs verify records: an xxh3-128 of their columns. Pure.

It covers the values, not their layout in memory or in a file: chunks, slices, offsets, padding and
bytes under a null make no difference. It finds accidental damage at memory speed. It does not
resist deliberate forgery; setsums do.

Shape: the hashed bytes, with all numbers little endian: the number of records (8 bytes); all
positions, then all times (8 bytes each). Then come the streams, the keys if any record has one, and
the bodies: for each column first all lengths (4 bytes each, -1 for null), then all bytes. Two
different tables never yield the same bytes: if a column of keys is in the place of the bodies, more
bytes follow it.
Invariants: this never changes, because sums are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from tidelog.wal.format.arrays import lengths_of, numbers_of


def column_sum(records: pa.Table) -> str:
    """Return the sum of a table of records as 32 hex digits."""
    state = xxhash.xxh3_128(records.num_rows.to_bytes(8, "little"))
    for name in ("position", "timestamp_us"):
        for chunk in records.column(name).chunks:
            state.update(numbers_of(chunk).astype("<i8", copy=False).data)
    keys = records.column("key")
    has_keys = keys.null_count < len(keys)
    for name in ("stream", *(("key",) if has_keys else ()), "body"):
        chunks: list[Any] = records.column(name).chunks
        for chunk in chunks:
            state.update(_lengths(chunk).data)
        for chunk in chunks:
            for values in _bytes(chunk):
                state.update(values)
    return state.hexdigest()


def _lengths(column: Any) -> np.ndarray[Any, Any]:
    if column.null_count == len(column):
        return np.full(len(column), -1, dtype="<i4")
    found: np.ndarray[Any, Any] = lengths_of(column).astype("<i4", copy=False)
    return found


def _bytes(column: Any) -> Iterator[memoryview]:
    """Yield the bytes of all values in order, without bytes under a null."""
    if column.null_count == len(column):
        return
    values = column.drop_null() if column.null_count else column
    _, offsets, data = values.buffers()
    if data is not None:
        ends = np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset)
        yield memoryview(data)[int(ends[0]) : int(ends[-1])]
