"""Runs: compacted windows of sequences, sorted by key. Pure.

Invariants: the runs of a log do not overlap in sequence, each follows the one before, and none
    crosses the end of a segment. A scan therefore reads one run after the other and merges nothing.
Source: rfc-0001, "Append-Only Scan Optimization"; design page 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.keyed.format.part import RunPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All records of the sequences ``[lower, upper)``, as parts in key order.

    ``epoch`` is the write epoch in which the run was begun; see `decide_compact`. ``at_us`` is
    the time at which its newest records were compacted, by the compactor's clock. A run without
    parts means that the window has no records with a key.
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
        """The stored size, including directories."""
        return sum(part.num_bytes + part.directory_bytes for part in self.parts)

    @property
    def first_us(self) -> int | None:
        return min((part.first_us for part in self.parts), default=None)

    @property
    def last_us(self) -> int | None:
        return max((part.last_us for part in self.parts), default=None)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of its objects."""
        return tuple(path for part in self.parts for path in (part.path, part.directory))


def paths_of(runs: Iterable[Run]) -> set[str]:
    """Return the paths of the objects of runs."""
    return {path for run in runs for path in run.paths}


def overlapping(runs: Sequence[Run], start: int, limit: int | None) -> list[Run]:
    """Return the runs that overlap the sequences ``[start, limit)``."""
    return [run for run in runs if run.upper > start and (limit is None or run.lower < limit)]
