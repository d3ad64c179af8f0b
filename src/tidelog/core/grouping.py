"""Groups of adjacent items of limited size, such as the parts that one task reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import pyarrow as pa

T = TypeVar("T")

ROWS_MAX: Final = 1_000_000  # As many as DuckDB has by default.
ROWS_MIN: Final = 2_048  # A block of DuckDB.
ARRAY_BYTES: Final = 256 * 1024 * 1024  # An array of text holds eight times as much.


def groups_by_size(
    items: Iterable[T], size_of: Callable[[T], int], *, most: int
) -> Iterator[list[T]]:
    """Yield adjacent items in groups of at most ``most`` in sum; a larger item is alone."""
    group: list[T] = []
    size = 0
    for item in items:
        added = size_of(item)
        if group and size + added > most:
            yield group
            group, size = [], 0
        group.append(item)
        size += added
    if group:
        yield group


def rows_of_array(table: pa.Table) -> int:
    """Return how many rows like those of a table an array of text may have.

    SQL then returns several arrays for larger rows. One array holds at most 2 GiB of text.
    """
    row_bytes = table.nbytes // max(1, table.num_rows) + 1
    return max(ROWS_MIN, min(ROWS_MAX, ARRAY_BYTES // row_bytes))
