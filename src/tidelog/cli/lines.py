"""Rows as lines of JSON or csv, made by DuckDB out of Arrow columns: no value becomes Python's.

What a value looks like is said in `values`; what DuckDB would write otherwise is made text before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.cli.output import csv_line
from tidelog.cli.values import EXACT_DIGITS, iso_text, json_values
from tidelog.persist.duck import duck_in_order, text_literal

if TYPE_CHECKING:
    import duckdb

BLOCK_BYTES: Final = 8 * 1024 * 1024
BATCH_ROWS: Final = 16_384  # What one thread takes at once.
_ROWS: Final = "tidelog_rows"

Write = Callable[[memoryview], None]


class LineRows:
    """Writes Arrow rows as lines; see `tidelog.cli.output.Rows`.

    ``is_csv`` is False for JSON. Csv has a header, and quotes where they are needed.
    """

    def __init__(self, schema: pa.Schema, write: Write, *, is_csv: bool) -> None:
        self._write = write
        self._is_csv = is_csv
        self._stack = ExitStack()
        self._connection: duckdb.DuckDBPyConnection | None = None
        if is_csv:
            self._write(memoryview(csv_line(schema.names).encode()))

    def write(self, table: pa.Table) -> None:
        """Write rows, of the schema that was told."""
        for block in _blocks(table):
            for buffer in self._lines(block):
                self._write(buffer)

    def close(self) -> None:
        self._stack.close()

    def _lines(self, block: pa.Table) -> Iterator[memoryview]:
        if self._connection is None:
            # Opened when there is a row: it takes 30 ms.
            self._connection = self._stack.enter_context(duck_in_order())
        columns, cells = [], []
        for number, column in enumerate(block.columns):
            plain, cell = _shown(column, f"c{number}", is_csv=self._is_csv)
            columns.append(plain)
            cells.append(cell)
        rows = pa.table(columns, [f"c{number}" for number in range(len(columns))])
        batches = rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
        self._connection.register(_ROWS, pa.Table.from_batches(batches))
        line = _csv_line(cells) if self._is_csv else _json_line(block.column_names, cells)
        made = self._connection.sql(f"SELECT {line} AS line FROM {_ROWS}").to_arrow_table()
        for chunk in made.column("line").chunks:
            yield _text_of(chunk)


def _blocks(table: pa.Table) -> Iterator[pa.Table]:
    rows = table.num_rows
    if rows:
        step = max(1, int(rows * BLOCK_BYTES / max(BLOCK_BYTES, table.nbytes)))
        for start in range(0, rows, step):
            yield table.slice(start, step)


def _text_of(lines: pa.Array[Any]) -> memoryview:
    """Return the bytes of all lines: Arrow has them one behind the other."""
    if not isinstance(lines, pa.StringArray):
        lines = lines.cast(pa.string())
    _, offsets, data = lines.buffers()
    if offsets is None or data is None:
        return memoryview(b"")
    places = memoryview(offsets).cast("i")
    return memoryview(data)[places[lines.offset] : places[lines.offset + len(lines)]]


def _json_line(names: list[str], cells: list[str]) -> str:
    pairs = (f"{text_literal(n)}, {cell}" for n, cell in zip(names, cells, strict=True))
    return f"json_object({', '.join(pairs)})::VARCHAR || chr(10)"


def _csv_line(cells: list[str]) -> str:
    line = ", ',', ".join(cells)
    # A line of nothing at all would be no record: a lone null is written as the empty string.
    alone = f"coalesce(nullif({line}, ''), '\"\"')" if len(cells) == 1 else line
    return f"concat({alone}, chr(10))"


def _shown(
    column: pa.ChunkedArray[Any], name: str, *, is_csv: bool
) -> tuple[pa.ChunkedArray[Any] | pa.Array[Any], str]:
    """Return a column as DuckDB is given it, and the SQL that makes a cell of it."""
    dtype = column.type
    if pa.types.is_string(dtype):
        if not is_csv:
            return column, name
        return column, _plain(name, is_csv=True) if _is_bare(column) else _csv_text(name)
    if pa.types.is_binary(dtype):
        return column, _plain(f"to_base64({name})", is_csv=is_csv)
    if pa.types.is_temporal(dtype):
        text = pa.chunked_array([iso_text(chunk) for chunk in column.chunks], pa.string())
        return text, _plain(name, is_csv=is_csv)
    if isinstance(dtype, pa.Decimal128Type):
        return column, _plain(_decimal(dtype, name, is_csv=is_csv), is_csv=is_csv)
    if pa.types.is_float32(dtype) or pa.types.is_float16(dtype):
        # By way of the shortest text that is this number.
        column = column.cast(pa.string()).cast(pa.float64())
    if _is_as_json_is(column):
        return column, _nested(name, column.type, is_csv=is_csv)
    values = [value for chunk in column.chunks for value in json_values(chunk)]
    return _as_json(values, name, is_csv=is_csv)


def _as_json(values: list[Any], name: str, *, is_csv: bool) -> tuple[pa.Array[Any], str]:
    """Return values of a kind that DuckDB would write otherwise as text of JSON."""
    texts = [None if v is None else msgspec.json.encode(v).decode() for v in values]
    if not is_csv:
        return pa.array(texts, pa.string()), f"{name}::JSON"
    # A number that JSON has not is text here, without JSON's quotes.
    bare = [v if isinstance(v, str) else text for v, text in zip(values, texts, strict=True)]
    return pa.array(bare, pa.string()), _csv_text(name)


def _is_as_json_is(column: pa.ChunkedArray[Any] | pa.Array[Any]) -> bool:
    """Say whether DuckDB writes the column as we do."""
    dtype = column.type
    if pa.types.is_float64(dtype):
        return pc.all(pc.is_finite(column)).as_py() is not False
    if isinstance(column, pa.ChunkedArray):
        return all(_is_as_json_is(chunk) for chunk in column.chunks)
    if isinstance(column, pa.ListArray):
        return _is_as_json_is(column.flatten())
    if isinstance(column, pa.StructArray):
        return dtype.num_fields > 0 and all(map(_is_as_json_is, column.flatten()))
    return bool(
        pa.types.is_integer(dtype) or pa.types.is_boolean(dtype) or pa.types.is_string(dtype)
    )


def _decimal(dtype: pa.Decimal128Type[Any, Any], name: str, *, is_csv: bool) -> str:
    if is_csv or dtype.precision > EXACT_DIGITS:
        return f"{name}::VARCHAR"
    return f"{name}::DOUBLE" if dtype.scale else f"{name}::BIGINT"


def _nested(name: str, dtype: pa.DataType, *, is_csv: bool) -> str:
    if is_csv and pa.types.is_nested(dtype):
        return _csv_text(f"to_json({name})::VARCHAR")
    return _plain(name, is_csv=is_csv)


def _plain(expression: str, *, is_csv: bool) -> str:
    return f"coalesce({expression}::VARCHAR, '')" if is_csv else expression


def _is_bare(column: pa.ChunkedArray[Any]) -> bool:
    """Say whether no text of a column needs quotes, as is mostly so: a look at all its bytes."""
    for chunk in column.chunks:
        _, offsets, data = chunk.buffers()
        if not len(chunk) or offsets is None:
            continue
        ends = np.frombuffer(memoryview(offsets), np.int32, len(chunk) + 1, 4 * chunk.offset)
        if np.count_nonzero(ends[1:] == ends[:-1]) > chunk.null_count:
            return False  # No text at all is quoted.
        told = np.frombuffer(memoryview(data or b""), np.uint8)[ends[0] : ends[-1]]
        text = told.tobytes()
        if text and (told.min() <= ord(" ") or b"," in text or b'"' in text):
            return False
    return True


def _csv_text(text: str) -> str:
    """Return SQL for text in csv: quoted where it would be read otherwise, "" where it is empty."""
    return (
        f"CASE WHEN {text} IS NULL THEN '' WHEN {text} = '' OR contains({text}, ',') "
        f"OR contains({text}, '\"') OR contains({text}, chr(10)) OR contains({text}, chr(13)) "
        f"OR ord({text}) <= 32 OR ord(right({text}, 1)) <= 32 "
        f"THEN '\"' || replace({text}, '\"', '\"\"') || '\"' ELSE {text} END"
    )
