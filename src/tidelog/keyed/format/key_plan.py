"""Which rows of a part can have what is asked of a key, by its directory alone. Pure.

Within a key rows are in the order of sequences. Where a key has more rows than a stride, the first
sequence of each of its strides is known, but that of the stride in which it begins.
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
    """Where a range of sequences begins and ends in a key's rows: each between two rows.

    It begins at ``first_least`` or later, at ``first_most`` or before; ends likewise.
    """

    first_least: int
    first_most: int
    limit_least: int
    limit_most: int


def edges_of(layout: PartLayout, found: KeyRows, start: int, limit: int) -> Edges:
    """Return between which rows the sequences ``[start, limit)`` of a key begin and end."""
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
    """Return rows that have all of a key's sequences ``[start, limit)``, or enough of them.

    With ``rows_max`` as many of the first ones are enough, or of the last ones.
    """
    edges = edges_of(layout, found, start, limit)
    first, end = edges.first_least, edges.limit_most
    if rows_max is not None and newest_first:
        first = max(first, edges.limit_least - rows_max)
    elif rows_max is not None:
        end = min(end, edges.first_most + rows_max)
    return PartRows(first, max(first, end))


def _row_of(layout: PartLayout, found: KeyRows, sequence: int) -> tuple[int, int]:
    """Return the least and the most that the first row from a sequence on can be."""
    first, limit = found.first_row, found.first_row + found.rows
    if sequence <= found.min_sequence:
        return first, first
    if sequence > found.max_sequence:
        return limit, limit
    # Neither the first row nor the end: these two are known.
    if found.rows <= layout.page_rows:
        return first + 1, limit - 1
    stride, last = layout.stride_of(first), layout.stride_of(limit - 1)
    known = layout.first_sequences[stride + 1 : last + 1]
    stride += int(np.searchsorted(known, sequence, side="left"))
    # This stride's first row is before it, and the next one's is not.
    return (
        max(first, layout.first_row_of(stride)) + 1,
        min(limit - 1, layout.first_row_of(stride + 1)),
    )
