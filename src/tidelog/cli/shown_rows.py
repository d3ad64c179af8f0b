"""The rows that a table on a terminal shows: the first ones, and the count of the others."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Final

from tidelog.cli.output import say

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_MAX: Final = 100  # Rows of a table on a terminal, unless the user gives a limit.
COUNTED_MAX: Final = 1_000_000  # Rows that are read on only to be counted.


class ShownRows:
    """The first rows of many, and the count of those left out; without a limit, all rows."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._shown = 0
        self.left = 0

    @property
    def is_done(self) -> bool:
        """Return True if the count of the others has reached its limit."""
        return self.left > COUNTED_MAX

    def shown(self, table: pa.Table) -> pa.Table:
        """Return the rows of the next table to show, and count the others."""
        if self._limit is None:
            return table
        shown = table.slice(0, max(0, self._limit - self._shown))
        self._shown += shown.num_rows
        self.left += table.num_rows - shown.num_rows
        return shown

    def report(self) -> None:
        """Say how many rows were left out, if any were."""
        if self.left:
            more = f"over {COUNTED_MAX:,}" if self.is_done else f"{self.left:,}"
            say(f"... {more} more rows: pass --limit N, or write to a file for all rows")


async def shown_rows(
    tables: AsyncIterator[pa.Table], format: str, limit: int | None
) -> AsyncIterator[pa.Table]:
    """Yield the rows to write: the first ones for a table on a terminal without a limit, or all."""
    is_cut = format == "table" and limit is None and sys.stdout.isatty()
    cut = ShownRows(SHOWN_MAX if is_cut else None)
    try:
        async for table in tables:
            shown = cut.shown(table)
            if shown.num_rows or not table.num_rows:
                yield shown
            if cut.is_done:
                break
        cut.report()
    finally:
        if isinstance(tables, AsyncGenerator):
            await tables.aclose()
