"""Rows of parquet and arrow files, table by table."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.collection.formats.parquet import (
    cut_moments,
    footer_bytes,
    read_footer,
    wide_moments,
)
from tidelog.errors import CorruptionError

ROWS: Final = 131_072
_MAGIC: Final = b"ARROW1"
_FEATHER: Final = b"FEA1"


@dataclass(frozen=True, slots=True)
class BinaryRows:
    """The columns of a file, and its tables with some of them, of at most about `ROWS` rows."""

    schema: pa.Schema
    tables: Callable[[Sequence[str]], Iterator[pa.Table]]


def parquet_rows(source: pa.PythonFile) -> BinaryRows:
    """Open a parquet file.

    Timestamps of 96 bits, which Spark writes, may have any year. Arrow would read them as
    nanoseconds, which end in 2262, so they are read as microseconds.

    Raises:
        CorruptionError: the file is not parquet, is incomplete, or is encrypted.
    """
    size = source.seek(0, io.SEEK_END)
    source.seek(max(0, size - 8))
    length = footer_bytes(source.read())
    source.seek(max(0, size - length))
    metadata = read_footer(source.read())

    def batches(names: Sequence[str], unit: str) -> Iterator[pa.RecordBatch]:
        file = pq.ParquetFile(source, metadata=metadata, coerce_int96_timestamp_unit=unit)
        return file.iter_batches(ROWS, columns=list(names))

    def tables(names: Sequence[str]) -> Iterator[pa.Table]:
        wide = wide_moments(metadata, names)
        micros = batches(names, "us" if wide else "ns")
        nanos = batches(wide, "ns") if wide else ()
        first = 0
        for batch, same in zip_longest(micros, nanos):
            table = pa.Table.from_batches([batch])
            if same is not None:
                _check_moments(table, pa.Table.from_batches([same]), first)
            yield table
            first += table.num_rows

    return BinaryRows(metadata.schema.to_arrow_schema(), tables)


def _check_moments(micros: pa.Table, nanos: pa.Table, first: int) -> None:
    """Refuse timestamps of 96 bits with digits past the microsecond.

    Raises:
        CorruptionError: a timestamp has such digits.
    """
    cut = cut_moments(micros, nanos, nanos.column_names)
    for row in sorted(cut)[:1]:
        raise CorruptionError(
            f"the column {cut[row]!r} of row {first + row} has nanoseconds, which timestamps here "
            "cannot hold: round it to microseconds"
        )


def arrow_rows(source: pa.PythonFile) -> BinaryRows:
    """Open an Arrow file or stream.

    Raises:
        CorruptionError: the file is of another format.
    """
    begin = source.read(len(_MAGIC))
    source.seek(0)
    if begin == _MAGIC:
        file = pa.ipc.open_file(source)
        numbers = range(file.num_record_batches)
        return BinaryRows(file.schema, lambda _: _sliced(map(file.get_batch, numbers)))
    if begin.startswith(_FEATHER):
        raise CorruptionError("it is a Feather file of version 1: write it with version 2")
    try:
        stream = pa.ipc.open_stream(source)
    except pa.ArrowException as error:
        raise CorruptionError(f"it is no Arrow file, and no Arrow stream ({error})") from error
    return BinaryRows(stream.schema, lambda _: _sliced(iter(stream)))


def _sliced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for start in range(0, table.num_rows, ROWS):
            yield table.slice(start, ROWS)
