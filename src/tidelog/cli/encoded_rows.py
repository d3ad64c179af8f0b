"""Writers of rows as lines of JSON or csv, as Arrow and as Parquet; see `tidelog.cli.writers`.

No line needs a Python object for each value: each column becomes text, with nulls, and Arrow joins
the texts of each row. `values` defines the text of each value.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.cli.output import csv_line
from tidelog.cli.values import EXACT_DIGITS, iso_text, json_values
from tidelog.persist.format.bounds import scalar_of
from tidelog.persist.format.parquet import encoding_of

if TYPE_CHECKING:
    import duckdb

BLOCK_BYTES: Final = 8 * 1024 * 1024
CELL_BYTES: Final = 8  # Estimated text per cell, in addition to the column's bytes and its name.

Write = Callable[[memoryview], None]


class LineRows:
    """A writer of Arrow rows as lines; see `tidelog.cli.writers.PreparedRows`.

    ``is_csv`` is False for JSON. Csv has a header, and quotes only where a reader needs them.
    """

    def __init__(self, schema: pa.Schema, write: Write, *, is_csv: bool) -> None:
        self._write = write
        self._cells = Cells(is_csv=is_csv)
        self._line = _csv_lines if is_csv else _json_lines
        if is_csv:
            self._write(memoryview(csv_line(schema.names).encode()))

    def prepare(self, table: pa.Table) -> Callable[[], None]:
        """Convert rows to text, and return the function that writes them."""
        return partial(self._put, list(self._lines(table)))

    def close(self) -> None:
        self._cells.close()

    def _lines(self, table: pa.Table) -> Iterator[memoryview]:
        for block in _blocks(table):
            for batch in block.combine_chunks().to_batches():
                lines = self._line(batch.schema.names, self._cells.of(batch))
                yield _text_of(lines)

    def _put(self, lines: list[memoryview]) -> None:
        for text in lines:
            self._write(text)


def _csv_lines(_names: Sequence[str], cells: Sequence[Cell]) -> pa.Array[Any]:
    # Csv readers skip an empty line, so a row of one null is written as the empty string.
    null = '""' if len(cells) == 1 else ""
    texts = [cell.text for cell in cells]
    ends = joined([texts[-1], "\n"], null=null)
    return joined([*texts[:-1], ends], between=",", null=null)


def _json_lines(names: Sequence[str], cells: Sequence[Cell]) -> pa.Array[Any]:
    pieces: list[pa.Array[Any] | str] = []
    before = "{"
    for label, cell in zip(map(_label, names), cells, strict=True):
        if cell.is_quoted and cell.text.null_count:
            pieces += [before + label, joined(['"', cell.text, '"'])]
            before = ","
        else:
            quote = '"' if cell.is_quoted else ""
            pieces += [before + label + quote, cell.text]
            before = quote + ","
    return joined([*pieces, before[:-1] + "}\n"], null="null")


def _label(name: str) -> str:
    return msgspec.json.encode(name).decode() + ":"


def _blocks(table: pa.Table) -> Iterator[pa.Table]:
    """Yield slices of a table whose columns and text each take about `BLOCK_BYTES`."""
    rows = table.num_rows
    if rows:
        beside = rows * sum(len(name) + CELL_BYTES for name in table.column_names)
        step = max(1, int(rows * BLOCK_BYTES / max(BLOCK_BYTES, table.nbytes + beside)))
        for start in range(0, rows, step):
            yield table.slice(start, step)


def _text_of(lines: pa.Array[Any]) -> memoryview:
    """Return the bytes of all lines without a copy: Arrow stores them contiguously."""
    _, offsets, data = lines.buffers()
    if offsets is None or data is None:
        return memoryview(b"")
    places = memoryview(offsets).cast("i")
    return memoryview(data)[places[lines.offset] : places[lines.offset + len(lines)]]


BATCH_ROWS: Final = 16_384  # Rows of one task of a DuckDB thread.
_ROWS: Final = "tidelog_rows"
_TEXT: Final = pa.string()
_ESCAPED: Final = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A column's text; if ``is_quoted``, JSON puts quotes around each value."""

    text: pa.Array[Any]
    is_quoted: bool = False


class Cells:
    """A converter of columns to text; threads may share it."""

    def __init__(self, *, is_csv: bool) -> None:
        self._is_csv = is_csv
        self._stack = ExitStack()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.Lock()

    def of(self, batch: pa.RecordBatch) -> list[Cell]:
        """Return the text of each column."""
        cells = [self._by_arrow(column) for column in batch.columns]
        asked = [(number, batch.column(number)) for number, cell in enumerate(cells) if not cell]
        if asked:
            made = self._by_duck([column for _, column in asked])
            for (number, _), cell in zip(asked, made, strict=True):
                cells[number] = cell
        return [cell for cell in cells if cell]

    def close(self) -> None:
        self._stack.close()

    def _by_arrow(self, column: pa.Array[Any]) -> Cell | None:
        """Return the text by Arrow, or by Python for types that only Python can convert.

        None means that DuckDB converts the column.
        """
        dtype = column.type
        if pa.types.is_string(dtype):
            return self._text(column)
        if pa.types.is_integer(dtype) or pa.types.is_boolean(dtype):
            return Cell(column.cast(_TEXT))
        if pa.types.is_temporal(dtype):
            return Cell(iso_text(column), is_quoted=True)
        if pa.types.is_floating(dtype):
            return Cell(_float_text(column, quote="" if self._is_csv else '"'))
        if isinstance(dtype, pa.Decimal128Type) or pa.types.is_binary(dtype):
            return None
        if _is_as_json_is(column):
            return None
        return self._by_python(json_values(column))

    def _text(self, column: pa.Array[Any]) -> Cell:
        return Cell(_csv_text(column) if self._is_csv else _json_text(column), is_quoted=True)

    def _by_python(self, values: list[Any]) -> Cell:
        """Return the JSON text of nested values whose text by DuckDB would differ."""
        texts = [None if v is None else msgspec.json.encode(v).decode() for v in values]
        column = pa.array(texts, _TEXT)
        return Cell(_csv_text(column) if self._is_csv else column)

    def _by_duck(self, columns: Sequence[pa.Array[Any]]) -> list[Cell]:
        names = [f"c{number}" for number in range(len(columns))]
        batch = pa.RecordBatch.from_arrays(list(columns), names)
        parts = [batch.slice(at, BATCH_ROWS) for at in range(0, batch.num_rows, BATCH_ROWS)]
        asked = [
            self._asked(column.type, name) for column, name in zip(columns, names, strict=True)
        ]
        sql = ", ".join(
            f"({sql})::VARCHAR AS {n}" for (sql, _), n in zip(asked, names, strict=True)
        )
        with self._lock:
            connection = self._opened()
            connection.register(_ROWS, pa.Table.from_batches(parts))
            made = connection.sql(f"SELECT {sql} FROM {_ROWS}").to_arrow_table().combine_chunks()
        cells: list[Cell] = []
        for column, (_, is_quoted), name in zip(columns, asked, names, strict=True):
            text = made.column(name).cast(_TEXT).chunk(0)
            # The base64 of zero bytes is the empty text. Csv must quote it: unquoted means null.
            is_doubtful = self._is_csv and not pa.types.is_decimal(column.type)
            cells.append(Cell(_csv_text(text) if is_doubtful else text, is_quoted=is_quoted))
        return cells

    def _opened(self) -> duckdb.DuckDBPyConnection:
        from tidelog.persist.format.duck import duck_in_order

        if self._connection is None:
            # An empty result opens no connection: that takes 30 ms.
            self._connection = self._stack.enter_context(duck_in_order())
        return self._connection

    def _asked(self, dtype: pa.DataType, name: str) -> tuple[str, bool]:
        """Return SQL for a column's text, and True if JSON puts quotes around it."""
        if pa.types.is_binary(dtype):
            return f"to_base64({name})", True
        if not isinstance(dtype, pa.Decimal128Type):
            return f"to_json({name})", False
        if self._is_csv or dtype.precision > EXACT_DIGITS:
            return name, True
        return (f"to_json({name}::DOUBLE)" if dtype.scale else f"{name}::BIGINT"), False


def joined(
    pieces: Sequence[pa.Array[Any] | str], *, between: str = "", null: str | None = None
) -> pa.Array[Any]:
    """Join texts row by row; ``null`` replaces nulls, and without it a null makes the row null."""
    told: list[Any] = [scalar_of(p, _TEXT) if isinstance(p, str) else p for p in pieces]
    made: Any = pc.binary_join_element_wise(
        *told,
        scalar_of(between, _TEXT),
        null_handling="emit_null" if null is None else "replace",
        null_replacement=null or "",
    )
    return cast("pa.Array[Any]", made)


def _float_text(column: pa.Array[Any], *, quote: str) -> pa.Array[Any]:
    """Return the shortest text of each float; ``.0`` marks whole numbers as floats."""
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    text: pa.Array[Any] = column.cast(_TEXT)
    is_whole = pc.and_kleene(pc.equal(column, pc.floor(column)), pc.is_valid(column))
    if pc.any(is_whole).as_py():
        few = text.filter(is_whole)
        is_told = pc.match_substring_regex(few, "[en]")  # As in 1e+20, and inf.
        text = pc.replace_with_mask(text, is_whole, pc.if_else(is_told, few, joined([few, ".0"])))
    if pc.all(pc.is_finite(column)).as_py() is False:
        words = [f"{quote}{word}{quote}" for word in ("NaN", "Infinity", "-Infinity")]
        nan, above, below = (scalar_of(word, _TEXT) for word in words)
        is_above = pc.greater(column, pc.negate(column))
        endless = pc.if_else(is_above, above, below)
        text = pc.if_else(pc.is_inf(column), endless, pc.if_else(pc.is_nan(column), nan, text))
    return text


def _bytes_of(column: pa.Array[Any]) -> npt.NDArray[np.uint8]:
    """Return the concatenated bytes of all values."""
    _, offsets, data = column.buffers()
    if not len(column) or offsets is None or data is None:
        return np.empty(0, np.uint8)
    ends = np.frombuffer(memoryview(offsets), np.int32, len(column) + 1, 4 * column.offset)
    return np.frombuffer(memoryview(data), np.uint8)[ends[0] : ends[-1]]


def _json_text(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return text escaped for JSON, without the quotes around it."""
    told = _bytes_of(column)
    found = told.tobytes()
    for sign in ("\\", '"'):
        if sign.encode() in found:
            column = pc.replace_substring(column, sign, "\\" + sign)
    if len(told) and told.min() < ord(" "):
        for code in np.unique(told[told < ord(" ")]).tolist():
            escaped = _ESCAPED.get(code, f"\\u{code:04x}")
            column = pc.replace_substring(column, chr(code), escaped)
    return column


def _csv_text(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return text for csv: quoted if a reader would change it, and ``""`` if it is empty."""
    if _is_bare(column):
        return column
    is_doubtful = pc.match_substring_regex(column, r'[,"\r\n]|^[\x00-\x20]|[\x00-\x20]$|^$')
    quoted = joined(['"', pc.replace_substring(column, '"', '""'), '"'])
    return cast("pa.Array[Any]", pc.if_else(is_doubtful, quoted, column))


def _is_bare(column: pa.Array[Any]) -> bool:
    """Return True if no value of the column can need quotes, from one look at all its bytes.

    This is the common case, and much cheaper than a regular expression on each value.
    """
    _, offsets, _ = column.buffers()
    if not len(column) or offsets is None:
        return True
    ends = np.frombuffer(memoryview(offsets), np.int32, len(column) + 1, 4 * column.offset)
    if np.count_nonzero(ends[1:] == ends[:-1]) > column.null_count:
        return False  # An empty text needs quotes: without them it means null.
    told = _bytes_of(column)
    found = told.tobytes()
    return not (found and (told.min() <= ord(" ") or b"," in found or b'"' in found))


def _is_as_json_is(column: pa.Array[Any]) -> bool:
    """Return True if DuckDB's JSON of a nested column is the same as that of `values`."""
    dtype = column.type
    if pa.types.is_float64(dtype):
        return pc.all(pc.is_finite(column)).as_py() is not False
    if isinstance(column, pa.ListArray):
        return _is_as_json_is(column.flatten())
    if isinstance(column, pa.StructArray):
        return dtype.num_fields > 0 and all(map(_is_as_json_is, column.flatten()))
    return bool(
        pa.types.is_integer(dtype) or pa.types.is_boolean(dtype) or pa.types.is_string(dtype)
    )


class Out(Protocol):
    """A sink of bytes; Arrow needs the other members of a file object."""

    closed: bool

    def write(self, data: bytes | memoryview, /) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class ArrowRows:
    """A writer of rows as an Arrow file, or as an Arrow stream."""

    def __init__(self, schema: pa.Schema, out: Out, *, is_file: bool) -> None:
        self._schema = schema
        sink = pa.PythonFile(cast("Any", out), mode="w")
        made = pa.ipc.new_file(sink, schema) if is_file else pa.ipc.new_stream(sink, schema)
        self._write, self.close = made.write_table, made.close

    def prepare(self, table: pa.Table) -> Callable[[], None]:
        return partial(self._write, table.cast(self._schema))


class ParquetRows:
    """A writer of rows as Parquet; the first table decides the encodings.

    A text column that has a dictionary keeps it, which takes a third less time.
    """

    def __init__(self, schema: pa.Schema, out: Out) -> None:
        self._schema = schema
        self._sink = pa.PythonFile(cast("Any", out), mode="w")
        self._writer: pq.ParquetWriter | None = None
        self._written = schema

    def prepare(self, table: pa.Table) -> Callable[[], None]:
        return partial(self._write, table)

    def close(self) -> None:
        self._opened(self._schema.empty_table()).close()

    def _write(self, table: pa.Table) -> None:
        writer = self._opened(table)
        if not table.schema.equals(self._written):
            # Cast through the plain types: this table may have dictionaries in other columns than
            # the first one.
            table = table.cast(self._schema).cast(self._written)
        writer.write_table(table)

    def _opened(self, table: pa.Table) -> pq.ParquetWriter:
        if self._writer is None:
            given = zip(self._schema, table.schema.types, strict=True)
            fields = [f.with_type(t) if pa.types.is_dictionary(t) else f for f, t in given]
            self._written = pa.schema(fields)
            self._writer = pq.ParquetWriter(
                self._sink,
                self._written,
                compression="snappy",
                store_schema=False,
                **encoding_of(table),
            )
            # The stored Arrow schema has plain types, so that readers see no dictionaries.
            told = base64.b64encode(self._schema.serialize().to_pybytes())
            self._writer.add_key_value_metadata({"ARROW:schema": told.decode()})
        return self._writer
