"""Cuts: how many of a source's next units one binding takes. Pure.

A unit is what cannot be split: a record of a text file, a row group of a parquet file. With times
from the data, a binding ends between two distinct times of the data as known when it is minted:
all units before the cut are earlier than the first one after it. So a run that was killed and one
that was not cut alike, and no time's records are split over two bindings.
Source: design page 6, "Times from the data".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tidelog.collection.places import Int64s

NO_TIME_LEAST: Final = np.iinfo(np.int64).max
NO_TIME_GREATEST: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Units:
    """The times of units in address order: each one's least and greatest, and its late rows.

    A unit in which no time can be read has the least of `NO_TIME_LEAST` and the greatest of
    `NO_TIME_GREATEST`.
    """

    least: Int64s
    greatest: Int64s
    late: Int64s

    @classmethod
    def timeless(cls, count: int) -> Units:
        return cls(
            np.full(count, NO_TIME_LEAST, np.int64),
            np.full(count, NO_TIME_GREATEST, np.int64),
            np.zeros(count, np.int64),
        )

    @classmethod
    def join(cls, parts: list[Units]) -> Units:
        return cls(
            np.concatenate([p.least for p in parts]),
            np.concatenate([p.greatest for p in parts]),
            np.concatenate([p.late for p in parts]),
        )

    def __len__(self) -> int:
        return len(self.least)


@dataclass(frozen=True, slots=True)
class Cut:
    """How many units to take, the greatest time in them, and how many of their rows are late."""

    units: int
    time_max: int | None
    late: int


def choose_cut(units: Units, *, complete: bool) -> Cut | None:
    """Choose how many of the units to take, the most there may be; None asks to be shown more.

    ``complete`` says that there are no units after these.
    """
    if complete:
        return describe_cut(units, len(units))
    reached = np.maximum.accumulate(units.greatest)
    known = reached[:-1] > NO_TIME_GREATEST
    # A unit without a time opens none: it stays with the one before it.
    opens = (units.least[1:] > reached[:-1]) & (units.greatest[1:] > NO_TIME_GREATEST)
    places = np.flatnonzero(known & opens)
    return describe_cut(units, int(places[-1]) + 1) if len(places) else None


def choose_rough_cut(units: Units) -> Cut | None:
    """Choose a cut where times go up and down: between two neighbours of other times.

    What comes after it with an earlier time will be late, and counted. None: all have one time.
    """
    valid = np.flatnonzero(units.greatest > NO_TIME_GREATEST)
    changes = np.flatnonzero(units.least[valid][1:] != units.greatest[valid][:-1])
    return describe_cut(units, int(valid[changes[-1] + 1])) if len(changes) else None


def describe_cut(units: Units, count: int) -> Cut:
    """Return the cut after ``count`` units."""
    greatest = units.greatest[:count]
    known = greatest[greatest > NO_TIME_GREATEST]
    return Cut(count, int(known.max()) if len(known) else None, int(units.late[:count].sum()))


def upper_after(cut: Cut, lower: int) -> int:
    """Return the upper of a binding from ``lower`` on that takes a cut: its greatest time + 1."""
    return max(cut.time_max if cut.time_max is not None else lower, lower) + 1
