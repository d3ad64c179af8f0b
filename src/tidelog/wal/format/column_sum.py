"""The checksum with which reads of slot logs compare records: an xxh3-128 of their columns. Pure.

It is of the values, not of how they lie in memory or in a file: chunks, slices, offsets, padding,
and what lies under a null make no difference. It finds what damage there can be at the speed of
memory. It holds nobody off who means to deceive: that is for setsums.

Shape: what is hashed, all numbers little endian: the number of records (8 bytes); all positions,
    all times (8 bytes each); of streams, then of keys if any record has one, and then of bodies all
    lengths (4 bytes each, -1 for null), then all bytes. So no two tables run together as the same
    bytes: where keys stand in the place of bodies, more follows.
Invariants: stable for ever, for sums are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash


def column_sum(records: pa.Table) -> str:
    """Return the sum of a table of records, as 32 hex digits."""
    state = xxhash.xxh3_128(records.num_rows.to_bytes(8, "little"))
    for name in ("position", "timestamp_us"):
        for chunk in records.column(name).chunks:
            state.update(chunk.to_numpy().astype("<i8", copy=False).data)
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
    lengths = pc.binary_length(column)
    if column.null_count:
        lengths = pc.fill_null(lengths, pa.scalar(-1, pa.int32()))
    found: np.ndarray[Any, Any] = lengths.to_numpy().astype("<i4", copy=False)
    return found


def _bytes(column: Any) -> Iterator[memoryview]:
    """Yield the bytes of all values, one after the other; what lies under a null is no value."""
    if column.null_count == len(column):
        return
    values = column.drop_null() if column.null_count else column
    _, offsets, data = values.buffers()
    if data is not None:
        ends = np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset)
        yield memoryview(data)[int(ends[0]) : int(ends[-1])]
