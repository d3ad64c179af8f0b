"""A large table in key order, in which the newest update of a key decides about its row. Pure.

After upserts most rows of a table stay as they are. A search of the changed keys finds the others,
so no row is hashed. The large table comes in stretches of keys. The cores work on several, and each
is so small that later ones use its memory again: new memory costs as much time as the decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidelog.persist.format.bounds import ordered
from tidelog.persist.format.part import (
    ARRAY_BYTES_MAX,
    int64_array,
    int64_of,
    longest_word,
    taken,
)
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
            Other columns may have dictionaries, which the result does not have.
        None: the key is not a column of numbers in order, the updates contradict the rows, or
        the values are too large for one array.
        """
        keys = _numbers(base.column(0))
        if keys is None or not (keys[1:] > keys[:-1]).all():
            return None
        first, last = keys[0], keys[-1]
        some = self._slice(self._place(first), self._place(last, after=True))
        names = self.rows.column_names
        pairs = [(base.column(name), some.rows.column(name)) for name in names]
        if any(_bytes_of(ours) + _bytes_of(theirs) > ARRAY_BYTES_MAX for ours, theirs in pairs):
            return None
        where = np.searchsorted(keys, some.keys)
        is_there = keys[where] == some.keys
        if not some._adds_up(is_there):
            return None
        joined = Joined(len(keys), where, is_there, some.is_added)
        columns = [joined.column(ours, theirs) for ours, theirs in pairs]
        return Stretch(first, last, pa.table(columns, schema=self.rows.schema))

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
        return taken(self.rows, np.flatnonzero(self.is_added))


@dataclass(frozen=True)
class Joined:
    """The rows of a base and those of changed keys, in the order of the keys.

    Shape: a changed key belongs ``where`` in the ``count`` rows of the base. There it replaces a
        row if it ``is_there``. It has a row if it ``is_added``.
    """

    count: int
    where: _Places
    is_there: _Bools
    is_added: _Bools

    def column(self, base: pa.ChunkedArray[Any], changed: pa.ChunkedArray[Any]) -> pa.Array[Any]:
        """Return a column of all rows from that of the base and that of the changed keys."""
        if pa.types.is_dictionary(base.type):
            packed: Any = base.unify_dictionaries().combine_chunks()
            words: pa.Array[Any] = pa.concat_arrays([packed.dictionary, *changed.chunks])
            after = np.arange(len(packed.dictionary), len(words), dtype=np.int32)
            numbers, more = (pa.chunked_array([some]) for some in (packed.indices, pa.array(after)))
            return words.take(self.column(numbers, more))
        if self._only_replaces and _is_plain(base) and _is_plain(changed):
            return _replaced(base.combine_chunks(), changed.combine_chunks(), self.where)
        return pa.concat_arrays([*base.chunks, *changed.chunks]).take(self._places)

    @cached_property
    def _only_replaces(self) -> bool:
        return bool(self.is_there.all() and self.is_added.all())

    @cached_property
    def _places(self) -> pa.Array[Any]:
        stays = np.ones(self.count, np.bool_)
        stays[self.where[self.is_there]] = False
        before = self.where - np.cumsum(self.is_there) + self.is_there
        added = self.count + np.flatnonzero(self.is_added)
        return int64_array(np.insert(np.flatnonzero(stays), before[self.is_added], added))


def _is_plain(column: pa.ChunkedArray[Any]) -> bool:
    """Return True if a column is values of 1 to 8 bytes without nulls."""
    dtype = column.type
    return pa.types.is_primitive(dtype) and 8 <= dtype.bit_width <= 64 and not column.null_count


def _replaced(base: pa.Array[Any], values: pa.Array[Any], where: _Places) -> pa.Array[Any]:
    # Arrow's allocator keeps the memory of earlier stretches; that of numpy returns it.
    buffer: Any = pa.allocate_buffer(len(base) * base.type.bit_width // 8)
    found = np.frombuffer(buffer, f"i{base.type.bit_width // 8}")
    found[:] = _bits(base)
    found[where] = _bits(values)
    return pa.Array.from_buffers(base.type, len(base), [None, buffer])


def _bits(array: pa.Array[Any]) -> _Numbers:
    """Return values of 1 to 8 bytes as integers with the same bits."""
    width = array.type.bit_width // 8
    data: Any = array.buffers()[1]
    return np.frombuffer(data, f"i{width}", len(array), array.offset * width)


def _bytes_of(column: pa.ChunkedArray[Any]) -> int:
    """Return the bytes of a column without dictionaries, at most."""
    if not pa.types.is_dictionary(column.type):
        return column.nbytes
    chunks: list[Any] = column.chunks
    return max(map(longest_word, chunks), default=0) * len(column)


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
        rows=taken(every.select(names), order[newest]),
        is_added=signs[newest] == 1,
        sums=np.add.reduceat(signs, begins),
    )


def _numbers(column: pa.ChunkedArray[Any]) -> _Numbers | None:
    """Return a column of numbers or times without nulls as a numpy array, or None."""
    found = ordered(column)
    if column.null_count or not len(column) or not pa.types.is_integer(found.type):
        return None
    return found.to_numpy()
