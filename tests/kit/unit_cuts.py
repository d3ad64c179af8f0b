"""Cuts by the times of every record: the model for cuts by summaries of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Unit:
    """A record or a row group: its offset, and its least and greatest time, if any."""

    offset: int
    least: int | None
    greatest: int | None
    late: int = 0


def cut_of(units: Sequence[Unit]) -> int | None:
    """Return the number of units before the last one that is later than all earlier units."""
    found = None
    reached: int | None = None
    for place, unit in enumerate(units):
        if unit.least is None or unit.greatest is None:
            continue
        if reached is not None and unit.least > reached:
            found = place
        reached = unit.greatest if reached is None else max(reached, unit.greatest)
    return found


def rough_cut_of(units: Sequence[Unit]) -> int | None:
    """Return the number of units before the last one whose time differs from the one before."""
    known = [(place, unit) for place, unit in enumerate(units) if unit.least is not None]
    changes = [place for (_, a), (place, b) in pairwise(known) if b.least != a.greatest]
    return changes[-1] if changes else None


def greatest_in(units: Sequence[Unit]) -> int | None:
    """Return the greatest time of the units."""
    return max((unit.greatest for unit in units if unit.greatest is not None), default=None)
