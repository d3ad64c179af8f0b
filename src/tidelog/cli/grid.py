"""Tables for people: aligned columns, as wide as their rows need and the terminal allows.

Rows are written as they arrive. If later rows need wider columns, the names are written again above
them. A cell that is wider than its column continues on the next line. If the terminal is too narrow
for all columns, each row becomes lines of a name and a value.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, chop_cells, set_cell_size

if TYPE_CHECKING:
    import pyarrow as pa

WIDTH_MIN: Final = 6  # A column is never made narrower than this to fit the other columns.
LINES_MAX: Final = 8  # The most lines of a cell; longer text is cut. Numbers and times are shorter.
_GAP: Final = "  "


class Grid:
    """A writer of lines of cells; see the module. Columns become wider, never narrower.

    ``width`` is the greatest width of a line; None means no limit. ``whole`` columns are never
    narrower than their cells. A cell of None is written NULL.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        right: Sequence[bool],
        width: int | None,
        out: Callable[[str], None],
        whole: Sequence[bool] | None = None,
    ) -> None:
        self._names = [clean_text(name) for name in names]
        self._right = right
        self._whole = whole or [False] * len(self._names)
        self._width = width
        self._out = out
        self._longest = [0] * len(self._names)
        self._widths: list[int] = []
        least = len(self._names) * (WIDTH_MIN + len(_GAP)) - len(_GAP)
        self._is_too_narrow = width is not None and least > width
        self._rows_count = 0

    def write(self, rows: Sequence[Sequence[str | None]]) -> None:
        """Write rows, and the column names before the first row."""
        cleaned = [["NULL" if c is None else clean_text(c) for c in row] for row in rows]
        if not self._is_too_narrow:
            self._fit(cleaned)
        for row in cleaned:
            self._rows_count += 1
            if self._is_too_narrow:
                self._record(row)
            else:
                self._line(row)

    def _fit(self, rows: Sequence[Sequence[str]]) -> None:
        """Widen the columns for the rows, and write the names if the widths change."""
        before = self._widths
        self._settle([self._names, *rows])
        if self._widths != before and not self._is_too_narrow:
            self._line(self._names)
            self._out(_GAP.join("-" * width for width in self._widths) + "\n")

    def _line(self, cells: Sequence[str]) -> None:
        widths = self._widths
        columns = [_wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for lines in zip_longest(*columns, fillvalue=""):
            told = [
                _aligned(text, width, right=right)
                for text, width, right in zip(lines, widths, self._right, strict=True)
            ]
            self._out(_GAP.join(told).rstrip() + "\n")

    def _record(self, row: Sequence[str]) -> None:
        """Write a row as lines of a name and a value, below its number."""
        room = self._width or 0
        narrow = max(1, min(max(map(cell_len, self._names)), room // 3))
        wide = max(1, room - narrow - len(_GAP))
        self._out(f"-- {self._rows_count} --\n"[: room + 1])
        for name, cell in zip(self._names, row, strict=True):
            for told, text in zip_longest(
                _wrapped(name, narrow), _wrapped(cell, wide), fillvalue=""
            ):
                self._out(f"{_aligned(told, narrow, right=False)}{_GAP}{text}".rstrip() + "\n")

    def _settle(self, rows: Sequence[Sequence[str]]) -> None:
        """Choose the widths; the terminal is too narrow if a number or a time does not fit."""
        longest = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        self._longest = list(map(max, self._longest, longest))
        self._widths = widths = list(self._longest)
        if self._width is None:
            return
        room = max(self._width - len(_GAP) * (len(widths) - 1), 0)
        soft = [place for place, whole in enumerate(self._whole) if not whole]
        _narrow(widths, soft, room)
        self._is_too_narrow = sum(widths) > room


def _narrow(widths: list[int], places: Sequence[int], room: int) -> None:
    """Narrow the widest columns until all fit, or all have the minimum width."""
    while places and sum(widths) > room and max(widths[p] for p in places) > WIDTH_MIN:
        widest = max(places, key=lambda place: widths[place])
        rest = max((widths[p] for p in places if p != widest), default=0)
        excess = sum(widths) - room
        widths[widest] = max(widths[widest] - excess, min(rest, widths[widest] - 1), WIDTH_MIN)


class GridRows:
    """A writer of Arrow rows as a table for people; see `tidelog.cli.output.Rows`."""

    def __init__(self, schema: pa.Schema, out: Callable[[str], None], *, width: int | None) -> None:
        from tidelog.cli.values import is_number, is_time

        right = [is_number(field.type) for field in schema]
        whole = [is_number(field.type) or is_time(field.type) for field in schema]
        self._grid = Grid(schema.names, right=right, width=width, out=out, whole=whole)
        self._begun = False

    def write(self, table: pa.Table) -> None:
        from tidelog.cli.values import text_values

        for batch in table.to_batches():
            columns = [text_values(column) for column in batch.columns]
            self._grid.write(list(zip(*columns, strict=True)))
            self._begun = True

    def close(self) -> None:
        if not self._begun:
            self._grid.write([])


def terminal_width() -> int | None:
    """Return the width of the terminal; None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _wrapped(cell: str, width: int) -> list[str]:
    """Return a cell's lines, broken after a space if possible."""
    if cell_len(cell) <= width:
        return [cell]
    lines: list[str] = []
    while cell and len(lines) <= LINES_MAX:
        line = next(filter(None, chop_cells(cell[: 4 * width], width)))
        last_space = line.rfind(" ")
        if len(line) < len(cell) and cell[len(line)] != " " and last_space > 0:
            line = line[: last_space + 1]
        lines.append(line)
        cell = cell[len(line) :].removeprefix(" ")
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX - 1], set_cell_size(lines[LINES_MAX - 1], width - 1) + "…"]
    return lines


def _aligned(cell: str, width: int, *, right: bool) -> str:
    padding = " " * (width - cell_len(cell))
    return padding + cell if right else cell + padding


def clean_text(text: str) -> str:
    """Return text on one line, with control characters escaped so that no terminal obeys them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
