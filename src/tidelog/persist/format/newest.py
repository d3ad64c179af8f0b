"""A large table in key order, in which the newest update of a key decides about its row. Pure.

After upserts most rows of a table stay as they are. A search of the changed keys finds the others,
so no row is hashed. The large table comes in stretches of keys. The cores work on several, and each
is so small that later ones use its memory again: new memory costs as much time as the decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidelog.persist.format.bounds import ordered
from tidelog.persist.format.part import int64_array, int64_of
from tidelog.persist.format.schema import DIFF

_Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
_Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The rows from the first to the last key of some rows of the base."""

    first: Any
    last: Any
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest update of each changed key.

    Shape: ``keys`` are distinct and in order, and ``rows`` has the selected columns of each.
        ``is_added`` is False if the newest update removed the row. ``sums`` has the sum of all
        diffs of each key.
    """

    keys: _Numbers
    rows: pa.Table
    is_added: _Bools
    sums: _Places

    def over(self, base: pa.Table) -> Stretch | None:
        """Return a stretch of the base with these updates.

        Shape: the first column of ``base`` is the key; it has one row at least. Each diff is 1.
        None: the key is not a column of numbers in order, or the updates contradict the rows.
        """
        keys = _numbers(base.column(0))
        if keys is None or not (keys[1:] > keys[:-1]).all():
            return None
        first, last = keys[0], keys[-1]
        some = self._slice(self._place(first), self._place(last, after=True))
        where = np.searchsorted(keys, some.keys)
        is_there = keys[where] == some.keys
        if not some._adds_up(is_there):
            return None
        stays = np.ones(len(keys), np.bool_)
        stays[where[is_there]] = False
        before = where - np.cumsum(is_there) + is_there
        added = len(keys) + np.flatnonzero(some.is_added)
        places = np.insert(np.flatnonzero(stays), before[some.is_added], added)
        both = pa.concat_tables([base.select(self.rows.column_names), some.rows])
        return Stretch(first, last, both.take(int64_array(places)))

    def all_of(self, stretches: Sequence[Stretch | None]) -> pa.Table | None:
        """Return the rows of all stretches, and the added rows that are outside them, in key order.

        None: a stretch is None, their keys are not in order, or the updates contradict the rows.
        """
        between: list[Newest] = []
        tables: list[pa.Table] = []
        end, last = 0, None
        for one in stretches:
            if one is None or (last is not None and last >= one.first):
                return None
            between.append(self._slice(end, self._place(one.first)))
            tables += [between[-1]._added, one.rows]
            end, last = self._place(one.last, after=True), one.last
        between.append(self._slice(end, len(self.keys)))
        tables.append(between[-1]._added)
        return pa.concat_tables(tables) if all(some._adds_up() for some in between) else None

    def _place(self, key: Any, *, after: bool = False) -> int:
        return int(np.searchsorted(self.keys, key, side="right" if after else "left"))

    def _slice(self, start: int, end: int) -> Newest:
        rows = self.rows.slice(start, end - start)
        return Newest(self.keys[start:end], rows, self.is_added[start:end], self.sums[start:end])

    def _adds_up(self, is_there: _Bools | bool = False) -> bool:
        """Return True if the diffs of each key turn the rows of the base into those of now.

        A row more or less has a fault that only a sum of all rows shows.
        """
        return bool((self.sums == self.is_added.astype(np.int64) - is_there).all())

    @property
    def _added(self) -> pa.Table:
        return self.rows.take(int64_array(np.flatnonzero(self.is_added)))


def newest_of(
    updates: Sequence[pa.Table], times: Sequence[int], names: Sequence[str]
) -> Newest | None:
    """Return the newest of some updates, with the columns ``names``.

    Shape: there is one update at least. The first column is the key, and each key has at most one
        row at a time. All updates of a table have the time that ``times`` has for it; the times
        never fall.
    None: the key is not a column of numbers.
    """
    every = pa.concat_tables(updates)
    keys, diffs = _numbers(every.column(0)), int64_of(every, DIFF)
    if keys is None or (np.abs(diffs) != 1).any():
        return None
    # The tables are in the order of their times, so a stable sort keeps this order for each key.
    order = np.argsort(keys, kind="stable")
    in_order, signs = keys[order], diffs[order]
    ends = np.flatnonzero(np.append(in_order[1:] != in_order[:-1], True))
    begins = np.append(0, ends[:-1] + 1)
    before = np.maximum(ends - 1, begins)
    # A commit that changes a row removes the old one and adds the new one, in either order.
    twice = np.flatnonzero((signs[ends] == -1) & (signs[before] == 1))
    first_rows = np.cumsum([0, *(table.num_rows for table in updates)])

    def times_of(some: _Places) -> _Numbers:
        return np.asarray(times)[np.searchsorted(first_rows, order[some], side="right") - 1]

    same = twice[times_of(ends[twice]) == times_of(before[twice])]
    newest = ends.copy()
    newest[same] = before[same]
    return Newest(
        keys=in_order[newest],
        rows=every.select(names).take(int64_array(order[newest])),
        is_added=signs[newest] == 1,
        sums=np.add.reduceat(signs, begins),
    )


def _numbers(column: pa.ChunkedArray[Any]) -> _Numbers | None:
    """Return a column of numbers or times without nulls as a numpy array, or None."""
    found = ordered(column)
    if column.null_count or not len(column) or not pa.types.is_integer(found.type):
        return None
    return found.to_numpy()
