"""Lookups: the rows of a table that a write depends on. Pure.

A write reads these rows first. If another commit came first, the write is planned again only if
that commit changed such a row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.arguments import check_kind
from tidelog.persist.format.bounds import OPEN, Box, Interval, is_ordered, ordered, overlaps
from tidelog.persist.format.schema import ShardSchema
from tidelog.rowhash import Hashes, hash_rows

if TYPE_CHECKING:
    from tidelog.predicate.predicate import Predicate

Bools: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.int64]
_BITS_MAX: Final = 26


class Lookup(Protocol):
    """A choice of rows of a table."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that decide about a row."""
        ...

    def mask(self, rows: pa.Table) -> Bools:
        """Return True for each row that is chosen; ``rows`` has at least the columns."""
        ...

    def reaches(self, bounds: Mapping[str, Interval]) -> bool:
        """Return True if a row within the bounds can be chosen; unknown columns have no bounds."""
        ...


@dataclass(frozen=True)
class ByValues:
    """The rows whose columns have one of some combinations of values.

    Shape: ``values`` has the columns. As in SQL, a null equals no value.
    """

    values: pa.Table

    @property
    def columns(self) -> list[str]:
        return list(self.values.column_names)

    def mask(self, rows: pa.Table) -> Bools:
        return self.places(rows) >= 0

    def places(self, rows: pa.Table) -> Places:
        """Return the index of each row's combination among ``values``, or -1."""
        if (among := self._places_by_number(rows)) is not None:
            return among
        hashes = _hashes(rows.select(self.columns))
        found = np.full(len(hashes), -1, np.int64)
        known, order = self._sorted
        if not len(order):
            return found
        some = np.flatnonzero(self._may_be_among(hashes) & ~_has_null(rows, self.columns))
        lo, hi = hashes.lo[some], hashes.hi[some]
        first = np.searchsorted(known.lo, lo)
        # Two combinations may share 64 of the 128 bits.
        for step in (1, 0):
            at = np.minimum(first + step, len(order) - 1)
            same = (known.lo[at] == lo) & (known.hi[at] == hi)
            found[some[same]] = order[at[same]]
        return found

    def _places_by_number(self, rows: pa.Table) -> Places | None:
        """Return `places` of a single column of numbers; None if its rows must be hashed."""
        column = rows.column(self.columns[0])
        numbers = None if column.null_count else self._numbers
        if numbers is None or column.type != self.values.schema.types[0]:
            return None
        known, order = numbers
        values = ordered(column).to_numpy()
        if len(values) > len(known) and bool((values[1:] >= values[:-1]).all()):
            return _places_in_order(values, known, order)
        at = np.minimum(np.searchsorted(known, values), len(known) - 1)
        return np.where(known[at] == values, order[at], -1)

    def reaches(self, bounds: Mapping[str, Interval]) -> bool:
        return all(
            _any_within(values, bounds.get(name, OPEN)) for name, values in self._ordered.items()
        )

    @cached_property
    def repeated(self) -> int | None:
        """The index of the first combination that occurs before; None if all are distinct."""
        known, order = self._sorted
        again = np.flatnonzero((known.lo[1:] == known.lo[:-1]) & (known.hi[1:] == known.hi[:-1]))
        return int(order[again + 1].min()) if len(again) else None

    @cached_property
    def _numbers(self) -> tuple[npt.NDArray[Any], Places] | None:
        """The sorted values of a single column of numbers, and the index of each."""
        column = ordered(self.values.column(0))
        is_number = len(self.columns) == 1 and pa.types.is_integer(column.type)
        if not is_number or column.null_count or not len(column):
            return None
        values = column.to_numpy()
        order = np.argsort(values, kind="stable")
        return values[order], order

    @cached_property
    def _sorted(self) -> tuple[Hashes, Places]:
        """The hashes of the combinations without a null, sorted, and the index of each."""
        hashes = _hashes(self.values)
        there = np.flatnonzero(~_has_null(self.values, self.columns))
        order = there[np.lexsort((there, hashes.hi[there], hashes.lo[there]))]
        return Hashes(hashes.lo[order], hashes.hi[order]), order

    @cached_property
    def _bitmap(self) -> Bools:
        lo = self._sorted[0].lo
        bits = max(10, min(_BITS_MAX, len(lo).bit_length() + 4))
        there = np.zeros(1 << bits, np.bool_)
        there[(lo >> np.uint64(64 - bits)).astype(np.int64)] = True
        return there

    def _may_be_among(self, hashes: Hashes) -> Bools:
        """Return a mask of the hashes that may be known: a bitmap costs less than a search."""
        shift = np.uint64(64 - (len(self._bitmap).bit_length() - 1))
        found: Bools = self._bitmap[(hashes.lo >> shift).astype(np.int64)]
        return found

    @cached_property
    def _ordered(self) -> dict[str, Sequence[Any]]:
        """The sorted values of each column that can have bounds, in the form of bounds."""
        found: dict[str, Sequence[Any]] = {}
        for name in self.columns:
            column = ordered(self.values.column(name))
            if is_ordered(self.values.schema.field(name).type):
                distinct = pc.unique(column.drop_null())
                values: Any = distinct.take(pc.sort_indices(distinct))
                is_number = pa.types.is_integer(values.type)
                # A list of numbers takes longer than the rest of a lookup.
                found[name] = values.to_numpy() if is_number else values.to_pylist()
        return found


@dataclass(frozen=True)
class ByCondition:
    """The rows for which a condition is true.

    Shape: ``box`` are bounds outside of which no row is chosen.
    """

    predicate: Predicate
    box: Box

    @property
    def columns(self) -> list[str]:
        return list(self.predicate.schema.names)

    def mask(self, rows: pa.Table) -> Bools:
        return self.predicate.mask(rows)

    def reaches(self, bounds: Mapping[str, Interval]) -> bool:
        return all(overlaps(bounds.get(name, OPEN), wanted) for name, wanted in self.box.items())


def by_condition(sql: str, schema: ShardSchema) -> ByCondition:
    """Return the lookup of a condition in DuckDB's dialect.

    Raises:
        UsageError: the condition is not valid.
    """
    # These import DuckDB, which takes 50 ms.
    from tidelog.persist.read.pushdown import bounds_of
    from tidelog.predicate.expression import check_predicate

    check_kind(sql, str, "where= must be a condition in SQL, as a str")
    predicate = check_predicate(sql, schema.data, definite=False, what="where=")
    return ByCondition(predicate, bounds_of(predicate).box)


def distinct(values: pa.Table) -> ByValues:
    """Return the lookup of the distinct combinations of some values."""
    lookup = ByValues(values)
    if lookup.repeated is None:
        return lookup
    hashes = _hashes(values)
    pairs = np.stack([hashes.lo, hashes.hi], axis=1)
    return ByValues(values.take(np.sort(np.unique(pairs, axis=0, return_index=True)[1])))


def _places_in_order(values: npt.NDArray[Any], known: npt.NDArray[Any], order: Places) -> Places:
    """Return the index of each of some sorted values among the distinct known ones, or -1.

    It takes a tenth of the time of a search for each value, if they are many.
    """
    reached = slice(np.searchsorted(known, values[0]), np.searchsorted(known, values[-1], "right"))
    first = np.searchsorted(values, known[reached])
    counts = np.searchsorted(values, known[reached], "right") - first
    found = np.full(len(values), -1, np.int64)
    ends = np.cumsum(counts)
    where = np.arange(counts.sum()) + np.repeat(first - ends + counts, counts)
    found[where] = np.repeat(order[reached], counts)
    return found


def _hashes(rows: pa.Table) -> Hashes:
    return hash_rows(rows.columns, rows=rows.num_rows)


def _has_null(rows: pa.Table, columns: Sequence[str]) -> Bools:
    found = np.zeros(rows.num_rows, np.bool_)
    for name in columns:
        column = rows.column(name)
        if column.null_count:
            found |= column.is_null().to_numpy()
    return found


def _any_within(values: Sequence[Any], bounds: Interval) -> bool:
    """Return True if one of the sorted values is within the bounds."""
    least, greatest = bounds
    at = 0 if least is None else bisect_left(values, least)
    return at < len(values) and (greatest is None or bool(values[at] <= greatest))
