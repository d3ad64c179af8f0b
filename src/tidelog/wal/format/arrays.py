"""Arrays of records: conversions without pandas, positions, items of setsums, column sums. Pure.

PyArrow's own conversions (`pyarrow.array`, `pyarrow.scalar`, ``to_numpy``) import pandas, if it is
installed, to recognize its types. The first append would spend half a second on that import.

An item of a setsum is a head of fixed length, followed by the variable fields of a record. Arrow
joins them for many records at once: building each item in Python takes longer than hashing it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidelog.errors import UsageError


def binary_array(values: Sequence[bytes | bytearray]) -> pa.BinaryArray:
    """Return values as an array of type binary; the caller checks that they have under 2 GiB."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    made: Any = pa.Array.from_buffers(pa.binary(), len(values), buffers)
    return cast("pa.BinaryArray", made)


def binary_scalar(value: bytes) -> pa.BinaryScalar:
    return binary_array([value])[0]


def array_of_numbers(numbers: np.ndarray[Any, Any]) -> Any:
    """Return numbers as an Arrow array, which shares their memory."""
    data = pa.py_buffer(np.ascontiguousarray(numbers).data)
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, data])


def lengths_of(column: Any) -> Any:
    """Return the lengths of an array or a column of type binary: int32, and -1 for a null."""
    lengths: Any = pc.binary_length(column)
    return numbers_of(pc.fill_null(lengths, _NULL) if lengths.null_count else lengths)


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def numbers_of(column: Any) -> Any:
    """Return the numbers of an array or a column, without a copy if it has one chunk.

    A column with nulls becomes what ``to_numpy`` makes of it.
    """
    if column.null_count:
        return column.to_numpy(zero_copy_only=False)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.from_dlpack(column)


_NULL: Final = array_of_numbers(np.array([-1], np.int32))[0]


POSITION_MAX: Final = 2**63 - 1

# Bytes and rows joined at once, so that they stay in the processor's cache.
PIECE_BYTES: Final = 1024 * 1024
PIECE_ROWS: Final = 1_024
_NOTHING: Final = binary_scalar(b"")


def items_of(heads: np.ndarray[Any, Any], *parts: Any) -> Iterator[list[bytes]]:
    """Yield the items of records, a piece at a time: a head, then the record's value of each part.

    Shape: a part is a binary array without nulls. Only the values of the last part may be large.
    """
    for start, limit in _pieces(parts[-1]):
        count = limit - start
        data = pa.py_buffer(heads[start:limit].tobytes())
        fixed: Any = pa.Array.from_buffers(pa.binary(heads.itemsize), count, [None, data])
        rows = [fixed.cast(pa.binary()), *[part.slice(start, count) for part in parts]]
        joined: Any = pc.binary_join_element_wise(*rows, _NOTHING)
        yield joined.to_pylist()


def _pieces(bodies: pa.BinaryArray) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with bounded rows and bytes, unless a single row exceeds the bytes."""
    if len(bodies) <= PIECE_ROWS and bodies.nbytes <= PIECE_BYTES:
        yield 0, len(bodies)
        return
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
            state.update(np.from_dlpack(chunk).astype("<i8", copy=False).data)
    keys = records.column("key")
    has_keys = keys.null_count < len(keys)
    for name in ("stream", *(("key",) if has_keys else ()), "body"):
        parts = [_lengths_and_bytes(chunk) for chunk in records.column(name).chunks]
        for lengths, _ in parts:
            state.update(lengths.data)
        for _, values in parts:
            state.update(values)
    return state.hexdigest()


def _lengths_and_bytes(column: Any) -> tuple[np.ndarray[Any, Any], bytes | memoryview]:
    """Return the lengths of all values, and their bytes in order without those under a null."""
    if column.null_count == len(column):
        return np.full(len(column), -1, dtype="<i4"), b""
    values = column.drop_null() if column.null_count else column
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset)
    lengths = lengths_of(column) if column.null_count else np.diff(ends)
    held = b"" if data is None else memoryview(data)[int(ends[0]) : int(ends[-1])]
    return lengths.astype("<i4", copy=False), held
