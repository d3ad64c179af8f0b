"""Select the rows of a part that can match a query of a key, by its directory alone. Pure.

The rows of a key are in sequence order. If a key has more rows than a stride, the layout has the
first sequence of each stride of the key. The stride in which the key begins is the exception.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidelog.keyed.format.layout import PartLayout
from tidelog.keyed.format.part import KeyRows


class PartRows(NamedTuple):
    """Rows ``[first, limit)`` of a part."""

    first: int
    limit: int

    @property
    def rows(self) -> int:
        return self.limit - self.first


class Edges(NamedTuple):
    """The bounds of the first and the last row of a range of sequences within a key's rows.

    The range begins between ``first_least`` and ``first_most``, and ends between ``limit_least``
    and ``limit_most``.
    """

    first_least: int
    first_most: int
    limit_least: int
    limit_most: int


def edges_of(layout: PartLayout, found: KeyRows, start: int, limit: int) -> Edges:
    """Return the bounds of the rows of the sequences ``[start, limit)`` of a key."""
    first_least, first_most = _row_of(layout, found, start)
    limit_least, limit_most = _row_of(layout, found, limit)
    return Edges(first_least, first_most, limit_least, limit_most)


def rows_to_read(
    layout: PartLayout,
    found: KeyRows,
    start: int,
    limit: int,
    *,
    rows_max: int | None = None,
    newest_first: bool = False,
) -> PartRows:
    """Return rows that include all of a key's sequences ``[start, limit)``, or enough of them.

    With ``rows_max``, that many of the first rows are enough, or of the last with ``newest_first``.
    """
    edges = edges_of(layout, found, start, limit)
    first, end = edges.first_least, edges.limit_most
    if rows_max is not None and newest_first:
        first = max(first, edges.limit_least - rows_max)
    elif rows_max is not None:
        end = min(end, edges.first_most + rows_max)
    return PartRows(first, max(first, end))


def _row_of(layout: PartLayout, found: KeyRows, sequence: int) -> tuple[int, int]:
    """Return the least and the greatest possible index of the first row at or after a sequence."""
    first, limit = found.first_row, found.first_row + found.rows
    if sequence <= found.min_sequence:
        return first, first
    if sequence > found.max_sequence:
        return limit, limit
    # The row is neither the first nor the end: these two cases are handled above.
    if found.rows <= layout.page_rows:
        return first + 1, limit - 1
    stride, last = layout.stride_of(first), layout.stride_of(limit - 1)
    known = layout.first_sequences[stride + 1 : last + 1]
    stride += int(np.searchsorted(known, sequence, side="left"))
    # The first row of this stride is before the sequence, and that of the next stride is not.
    return (
        max(first, layout.first_row_of(stride)) + 1,
        min(limit - 1, layout.first_row_of(stride + 1)),
    )
