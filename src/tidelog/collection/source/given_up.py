"""Ranges that a source gives up, for kinds other than files: `tidelog source skip` records them.

The catalog has one key for each range. A range that was bound is left out. Messages that were lost
before their binding are bound together with the next messages of their path: the binding itself
records them (`RowRange.giving_up`), so every ingester computes the same rows for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.collection.source.binding import AddressRange, Taken
from tidelog.collection.source.kind import RowRange

_SEPARATOR = "\n"


def skip_key(found: AddressRange) -> str:
    """Return the key of a range in the catalog; messages that it gives up already do not count."""
    return f"{found.path}{_SEPARATOR}{found.first}-{found.limit}"


def path_of_key(key: str) -> str:
    """Return the path in a key of the catalog."""
    return key.rpartition(_SEPARATOR)[0]


@dataclass(frozen=True, slots=True)
class GivenUp:
    """All ranges that a source gives up, by path, as ``(start, limit)``."""

    keys: frozenset[str] = frozenset()
    _ranges: dict[str, list[tuple[int, int]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for key in sorted(self.keys):
            path, _, bounds = key.rpartition(_SEPARATOR)
            start, _, limit = bounds.partition("-")
            self._ranges.setdefault(path, []).append((int(start), int(limit)))

    def after(self, path: str, found: AddressRange | None) -> tuple[int, int] | None:
        """Return the range given up after the newest bound range of a path, if there is one."""
        ranges = self._ranges.get(path, [])
        if not ranges:
            return None
        start = min(ranges)[0] if found is None else found.limit
        limit = max((high for low, high in ranges if low <= start), default=start)
        return (start, limit) if start < limit else None

    def gaps(self, taken: Taken) -> dict[str, tuple[int, int]]:
        """Return the ranges given up after ``taken``, by path."""
        found = {path: self.after(path, taken.get(path)) for path in self._ranges}
        return {path: gap for path, gap in found.items() if gap is not None}


def with_gaps(
    ranges: Iterable[RowRange],
    gaps: Mapping[str, tuple[int, int]],
    taken: Taken,
    *,
    alone: bool,
) -> Sequence[RowRange]:
    """Return ranges that begin with the messages given up before them.

    With ``alone``, messages given up at the end of a path become a range without other messages.
    """
    found = [one.giving_up(gaps[one.path][0]) if one.path in gaps else one for one in ranges]
    followed = {one.path for one in found}
    for path, (start, limit) in sorted(gaps.items()):
        if alone and path not in followed:
            late = taken[path].late if path in taken else 0
            found.append(RowRange(path=path, start=limit, limit=limit, late=late).giving_up(start))
    return found
