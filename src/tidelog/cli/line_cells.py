"""Conversion of Arrow columns to the text of JSON and csv lines.

`values` defines the text of each value. Arrow converts most columns; DuckDB converts the types for
which Arrow's text differs from that. A null stays null.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.cli.values import EXACT_DIGITS, iso_text, json_values
from tidelog.persist.format.bounds import scalar_of

if TYPE_CHECKING:
    import duckdb

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
