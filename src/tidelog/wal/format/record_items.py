"""Records of both protocols: their positions, the items of setsums, and column sums. Pure.

An item is a head of fixed length, followed by the variable fields of a record. Arrow joins them for
many records at once: building each item in Python takes longer than hashing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidelog.errors import UsageError
from tidelog.wal.format.arrays import binary_scalar, lengths_of, numbers_of

POSITION_MAX: Final = 2**63 - 1

# Bytes and rows joined at once, so that they stay in the processor's cache.
PIECE_BYTES: Final = 1024 * 1024
PIECE_ROWS: Final = 1_024


def items_of(heads: np.ndarray[Any, Any], *parts: Any) -> Iterator[list[bytes]]:
    """Yield the items of records, a piece at a time: a head, then the record's value of each part.

    Shape: a part is a binary array without nulls. Only the values of the last part may be large.
    """
    for start, limit in _pieces(parts[-1]):
        count = limit - start
        data = pa.py_buffer(heads[start:limit].tobytes())
        fixed: Any = pa.Array.from_buffers(pa.binary(heads.itemsize), count, [None, data])
        rows = [fixed.cast(pa.binary()), *(part.slice(start, count) for part in parts)]
        joined: Any = pc.binary_join_element_wise(*rows, binary_scalar(b""))
        yield joined.to_pylist()


def _pieces(bodies: pa.BinaryArray) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with bounded rows and bytes, unless a single row exceeds the bytes."""
    ends: Any = np.cumsum(lengths_of(bodies), dtype=np.int64)
    start = reached = 0
    while start < len(bodies):
        within = int(np.searchsorted(ends, reached + PIECE_BYTES, side="right"))
        limit = min(max(within, start + 1), start + PIECE_ROWS, len(bodies))
        yield start, limit
        start, reached = limit, int(ends[limit - 1])


def has_positions(records: pa.Table, start: int, limit: int) -> bool:
    """Return True if records have exactly the positions ``[start, limit)``, and at least one.

    The counts are compared first, because a forged object may claim a range of any size.
    """
    found: Any = numbers_of(records.column("position"))
    if not len(found) or len(found) != limit - start:
        return False
    ends = (int(found[0]), int(found[-1]))
    return ends == (start, limit - 1) and bool((np.diff(found) == 1).all())


def positions_from(start: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return consecutive positions.

    Raises:
        UsageError: the last one is over 2^63-1, which readers cannot show.
    """
    if start + count > POSITION_MAX + 1:
        raise log_full("position", start + count)
    return np.arange(start, start + count, dtype=np.int64)


def log_full(counter: str, count: int) -> UsageError:
    """Return the error of a log whose counter has no next value."""
    return UsageError(
        f"the log is full, its {counter} counter has no next value: append to another log",
        count=count,
    )


def column_sum(records: pa.Table) -> str:
    """Return the sum with which reads of slot logs verify records: an xxh3-128 of their columns.

    It covers the values, not their layout in memory or in a file: chunks, slices, offsets, padding
    and bytes under a null make no difference. It finds accidental damage at memory speed. It does
    not resist deliberate forgery; setsums do. It never changes, because sums are stored.

    Shape: 32 hex digits. The hashed bytes, with all numbers little endian: the number of records (8
    bytes); all positions, then all times (8 bytes each). Then come the streams, the keys if any
    record has one, and the bodies: for each column first all lengths (4 bytes each, -1 for null),
    then all bytes. Two different tables never yield the same bytes: if a column of keys is in the
    place of the bodies, more bytes follow it.
    """
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
