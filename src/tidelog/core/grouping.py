"""Groups of adjacent items of limited size, such as the parts that one task reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


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
