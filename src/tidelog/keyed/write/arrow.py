"""Appended tables: their two columns, in batches of one append each. Pure."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import UsageError
from tidelog.keyed.format.records import one_chunk
from tidelog.wal.append.bodies import RECORD_BYTES_MAX
from tidelog.wal.format.fragment_sets import KEY_BYTES_MAX

BATCH_BYTES: Final = 8 * 1024 * 1024
COLUMNS: Final = ["key", "value"]
_TYPES: Final = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
_CHUNK_BYTES: Final = 1024 * 1024  # Smaller chunks are combined; otherwise each would be a batch.


def columns_of(records: pa.Table | pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Return the keys and the values of a table of less than 2 GiB.

    Raises:
        UsageError: it is not a table of ``key`` and ``value``, both binary, without nulls.
    """
    _check_columns(records)
    keys, values = (one_chunk(records.column(name)).cast(pa.binary()) for name in COLUMNS)
    return keys, values


def batches_of(records: pa.Table | pa.RecordBatch) -> list[tuple[pa.BinaryArray, pa.BinaryArray]]:
    """Divide a table of any size into keys and values of about `BATCH_BYTES`, or one record.

    The whole table is checked first, so an invalid table appends nothing.

    Raises:
        UsageError: it is not a table of ``key`` and ``value``, both binary, without nulls, or a key
            or a value is too long, or there are no records.
    """
    _check_columns(records)
    table = records if isinstance(records, pa.Table) else pa.Table.from_batches([records])
    if not table.num_rows:
        raise UsageError("an append must have at least one record")
    table = table.select(COLUMNS)
    for column in table.columns:
        if column.num_chunks * _CHUNK_BYTES > table.nbytes:
            table = table.combine_chunks()  # Into chunks of less than 2 GiB.
            break
    batches = []
    for batch in table.to_batches():
        keys, values = batch.columns
        check_lengths(keys)
        check_lengths(values, RECORD_BYTES_MAX, "value")
        ends = np.cumsum(_lengths(keys) + _lengths(values))
        at = 0
        while at < len(ends):
            most = (ends[at - 1] if at else 0) + BATCH_BYTES
            limit = max(at + 1, int(np.searchsorted(ends, most, side="right")))
            batches.append((_binary(keys, at, limit), _binary(values, at, limit)))
            at = limit
    return batches


def check_lengths(column: Any, most: int = KEY_BYTES_MAX, what: str = "key") -> None:
    """Refuse values that are too long.

    Raises:
        UsageError: a value is too long.
    """
    longest: int = pc.max(pc.binary_length(column)).as_py() or 0
    if longest > most:
        raise UsageError(f"a {what} must have at most {most} bytes", size_bytes=longest)


def _check_columns(records: pa.Table | pa.RecordBatch) -> None:
    given: object = records
    if not isinstance(given, pa.Table | pa.RecordBatch):
        raise UsageError(
            f"append_arrow takes a table, not {type(given).__name__}: call append for a list"
        )
    names = records.schema.names
    if sorted(names) != COLUMNS:
        raise UsageError(
            "append_arrow takes a table with the columns key and value", columns=", ".join(names)
        )
    for name in COLUMNS:
        column: Any = records.column(name)
        if column.type not in _TYPES:
            raise UsageError(
                f"the column {name} must have the type binary: cast it", found=str(column.type)
            )
        if column.null_count:
            raise UsageError(
                f"the column {name} must not have nulls: each record needs a key and a value"
            )


def _binary(column: Any, at: int, limit: int) -> pa.BinaryArray:
    """Return a slice of a column as binary; Arrow cannot cast a whole column past 2 GiB."""
    part: Any = column.slice(at, limit - at)
    if column.type in (pa.large_binary(), pa.large_string()):
        # `take` copies only the slice, without the bytes before it.
        part = part.take(pa.array(np.arange(limit - at)))
    binary: pa.BinaryArray = part.cast(pa.binary())
    return binary


def _lengths(column: Any) -> np.ndarray[Any, Any]:
    lengths: Any = pc.binary_length(column)
    return np.asarray(lengths.cast(pa.int64()))
