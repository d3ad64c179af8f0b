"""Tables for people: columns aligned, as wide as their first rows need and the terminal allows."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size

from tidelog.cli.output import clean_text

if TYPE_CHECKING:
    import pyarrow as pa

WIDTH_MIN: Final = 6  # A column is not made narrower than this for the others' sake.
_GAP: Final = "  "


class Grid:
    """Writes lines of cells. Widths are settled by the first call of `write`; longer cells are cut.

    ``width`` is how wide a line may be; None for any. A cell of None is written NULL.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        right: Sequence[bool],
        width: int | None,
        out: Callable[[str], None],
    ) -> None:
        self._names = [clean_text(name) for name in names]
        self._right = right
        self._width = width
        self._out = out
        self._widths: list[int] | None = None

    def write(self, rows: Sequence[Sequence[str | None]]) -> None:
        """Write rows; before the first, the names."""
        cleaned = [["NULL" if c is None else clean_text(c) for c in row] for row in rows]
        if self._widths is None:
            self._widths = self._fit([self._names, *cleaned])
            self._line(self._names)
            self._out(_GAP.join("-" * w for w in self._widths) + "\n")
        for row in cleaned:
            self._line(row)

    def _line(self, cells: Sequence[str]) -> None:
        widths = self._widths or []
        told = [
            _aligned(cell, width, right=right)
            for cell, width, right in zip(cells, widths, self._right, strict=True)
        ]
        self._out(_GAP.join(told).rstrip() + "\n")

    def _fit(self, rows: Sequence[Sequence[str]]) -> list[int]:
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        if self._width is None:
            return widths
        room = max(self._width - len(_GAP) * (len(widths) - 1), 0)
        # Take from the widest, until all fit or none has more than it must have.
        while sum(widths) > room and max(widths) > WIDTH_MIN:
            widest = widths.index(max(widths))
            rest = sorted(widths)[-2] if len(widths) > 1 else 0
            excess = sum(widths) - room
            widths[widest] = max(widths[widest] - excess, min(rest, widths[widest] - 1), WIDTH_MIN)
        return widths


class GridRows:
    """Writes Arrow rows as a table for people; see `tidelog.cli.output.Rows`."""

    def __init__(self, schema: pa.Schema, out: Callable[[str], None], *, width: int | None) -> None:
        from tidelog.cli.values import is_number

        right = [is_number(field.type) for field in schema]
        self._grid = Grid(schema.names, right=right, width=width, out=out)
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
    """Return how wide the terminal is; None where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _aligned(cell: str, width: int, *, right: bool) -> str:
    length = cell_len(cell)
    if length > width:
        return set_cell_size(cell, width - 1) + "…"
    return " " * (width - length) + cell if right else cell + " " * (width - length)
