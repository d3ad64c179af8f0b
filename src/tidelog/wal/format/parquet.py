"""Opening the Parquet files that hold a log's records, of either protocol. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.errors import CorruptionError

FOREIGN: Final = (pa.ArrowException, ValueError, KeyError, OSError)


def open_parquet(data: bytes) -> pq.ParquetFile:
    """Open a file; a page may be far larger than Parquet's writers usually make it.

    Raises:
        FOREIGN: it is none.
    """
    return pq.ParquetFile(
        pa.BufferReader(data),
        thrift_string_size_limit=2**31 - 1,
        thrift_container_size_limit=2**31 - 1,
        page_checksum_verification=True,
    )


def read_records(
    file: pq.ParquetFile, columns: Sequence[str], schema: pa.Schema, *, path: str, what: str
) -> pa.Table:
    """Read columns, in whatever encodings they are written, as those of ``schema``, one by one.

    Raises:
        CorruptionError: one has another type, or nulls where there may be none. FOREIGN: the file
        has no such columns, or cannot be read.
    """
    found = file.read(columns=list(columns), use_threads=False).select(list(columns))
    for field, column in zip(schema, found.columns, strict=True):
        if column.type != field.type or (column.null_count and not field.nullable):
            raise CorruptionError(f"{what} column {field.name} is not what it should be", path=path)
    return pa.table(found.columns, schema=schema)
