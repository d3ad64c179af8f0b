"""Lines of JSON or csv made from Arrow columns, without a Python object for each value.

`values` defines the text of each value. `line_cells` converts each column to text, with nulls, and
Arrow joins the texts of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelog.cli.line_cells import Cell, Cells, joined
from tidelog.cli.output import csv_line

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
