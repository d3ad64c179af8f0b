"""Runs: what is compacted, a window of sequences sorted by key. Pure.

Invariants: the runs of a log do not overlap in sequence, each follows the one before, and none
reaches over the end of a segment. So a scan walks them one after the other, and merges nothing.
Source: rfc-0001, "Append-Only Scan Optimization"; design page 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.keyed.format.part import RunPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All records of the sequences ``[lower, upper)``, as parts in the order of keys.

    ``id`` is its own. ``epoch`` is the write epoch in which it was begun; see `decide_compacted`.
    ``at_us`` is when the newest of it was compacted, by the clock of who did it. A run without
    parts says that the window has no records that have a key.
    """

    id: str
    epoch: int
    lower: int
    upper: int
    at_us: int = 0
    parts: tuple[RunPart, ...] = ()

    @property
    def records(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        """Return what is stored of it, directories as well."""
        return sum(part.num_bytes + part.directory_bytes for part in self.parts)

    @property
    def first_us(self) -> int | None:
        return min((part.first_us for part in self.parts), default=None)

    @property
    def last_us(self) -> int | None:
        return max((part.last_us for part in self.parts), default=None)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the objects in which it lies."""
        return tuple(path for part in self.parts for path in (part.path, part.directory))


def paths_of(runs: Iterable[Run]) -> set[str]:
    """Return the objects in which runs lie."""
    return {path for run in runs for path in run.paths}


def overlapping(runs: Sequence[Run], start: int, limit: int | None) -> list[Run]:
    """Return those of some runs that have any of the sequences ``[start, limit)``."""
    return [run for run in runs if run.upper > start and (limit is None or run.lower < limit)]
