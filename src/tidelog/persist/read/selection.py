"""The rows and columns of a collection that a reader selects. Pure."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, SupportsIndex

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.core.arguments import check_kind, check_names, joined_names, quoted
from tidelog.errors import CorruptionError, UsageError
from tidelog.persist.format.bounds import NO_BOUNDS, Box, ConditionBounds, rows_within
from tidelog.persist.format.part import int64_array, int64_of, taken
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.format.updates import consolidate

if TYPE_CHECKING:
    import duckdb

    from tidelog.predicate.predicate import Predicate

BLOCK_ROWS: Final = 65_536
EACH_ROWS_MAX: Final = 100_000_000
COUNT_MAX: Final = 2**62  # Sums of counts then stay within 64 bits.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSelection:
    """The selected rows and columns; by default all.

    Shape: ``where`` is a condition in DuckDB's dialect. ``what`` is a prefix for option names in
        errors: the command line's is ``--``.
    """

    columns: Sequence[str] | None = None
    where: str | None = None
    limit: int | None = None
    what: str = ""

    def check(self, schema: ShardSchema) -> CheckedSelection:
        """Check the selection against a collection's columns.

        Raises:
            UsageError: a column does not exist, the condition is invalid, or the limit is not a
                number of rows.
        """
        limit = None if self.limit is None else _limit_of(self.limit, f"{self.what}limit")
        names = schema.names
        asked = names if self.columns is None else check_names(self.columns, f"{self.what}columns")
        columns = names if self.columns is None else [_known(name, names) for name in asked]
        if not columns or len(set(columns)) != len(columns):
            raise UsageError(
                f"{self.what}columns is empty, or names a column twice: name each column once",
                given=columns,
            )
        where = self.where
        predicate = None
        if where is not None:
            # This imports DuckDB, which takes 50 ms.
            from tidelog.predicate.expression import check_predicate

            told = f"{self.what}where"
            check_kind(where, str, f"{told} must be a condition in SQL, as a str")
            predicate = check_predicate(where, schema.data, definite=False, what=told)
        return CheckedSelection(columns=tuple(columns), predicate=predicate, limit=limit)


ALL_ROWS: Final = RowSelection()


def _limit_of(limit: SupportsIndex, what: str) -> int:
    try:
        found = operator.index(limit)  # Accepts numpy integers as well.
    except TypeError:
        raise UsageError(f"{what} must be a whole number of rows", given=quoted(limit)) from None
    if found < 0:
        raise UsageError(f"{what} must be at least 0", given=found)
    return found


def _known(name: object, names: Sequence[str]) -> str:
    if not isinstance(name, str) or name not in names:
        raise UsageError(f"no column named {quoted(name)}: the columns are {joined_names(names)}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSelection:
    """A selection that fits its collection."""

    columns: tuple[str, ...]
    predicate: Predicate | None
    limit: int | None

    def is_all(self, schema: ShardSchema) -> bool:
        """Return True if the selection omits nothing of this schema and keeps its column order."""
        return self.predicate is None and self.limit is None and list(self.columns) == schema.names

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must be read: the selected ones and those of the condition."""
        read = () if self.predicate is None else self.predicate.schema.names
        return tuple(dict.fromkeys([*self.columns, *read]))

    @contextmanager
    def sandbox(self) -> Iterator[duckdb.DuckDBPyConnection | None]:
        """Yield a sandbox for the condition (made in 30 ms), or None if none is needed."""
        if self._bounds.is_exact:
            yield None
            return
        from tidelog.predicate.predicate import open_sandbox

        with open_sandbox() as opened:
            yield opened

    @property
    def box(self) -> Box:
        """The bounds outside of which no row is selected."""
        return self._bounds.box

    @property
    def _bounds(self) -> ConditionBounds:
        if self.predicate is None:
            return NO_BOUNDS
        from tidelog.persist.read.pushdown import bounds_of

        return bounds_of(self.predicate)

    def chosen(
        self, rows: pa.Table, sandbox: duckdb.DuckDBPyConnection | None, *, name: str
    ) -> pa.Table:
        """Return the selected rows among some rows, in their order, with ``_diff``.

        Raises:
            UsageError: the condition fails on a row. CorruptionError: a row has a negative count.
        """
        found = self.filtered(rows, sandbox)
        check_multiplicity(found, name)
        return found

    def filtered(self, rows: pa.Table, sandbox: duckdb.DuckDBPyConnection | None) -> pa.Table:
        """Return the selected rows among some rows, whatever their count.

        Raises:
            UsageError: the condition fails on a row.
        """
        return self.matching(rows, sandbox).select([*self.columns, DIFF])

    def matching(self, rows: pa.Table, sandbox: duckdb.DuckDBPyConnection | None) -> pa.Table:
        """Return the rows that satisfy the condition, in their order, with all their columns.

        Raises:
            UsageError: the condition fails on a row.
        """
        if self.predicate is None or not rows.num_rows:
            return rows
        if sandbox is None:
            return rows_within(rows, self.box)
        return rows.filter(self.predicate.mask_in(sandbox, rows))

    def chosen_changes(
        self, updates: pa.Table, sandbox: duckdb.DuckDBPyConnection | None, *, data: pa.Schema
    ) -> pa.Table:
        """Return the selected updates among some updates, in their order; see `chosen`."""
        found = self.matching(updates, sandbox)
        if set(self.needed) == set(self.columns):
            return found.select([*self.columns, TIME, DIFF])
        # Without the condition's own columns, updates may cancel or become equal.
        narrow = ShardSchema(pa.schema([data.field(n) for n in self.columns]), 0)
        return consolidate([found], narrow)


def check_multiplicity(contents: pa.Table, name: str) -> None:
    """Refuse contents in which a row has a negative count.

    Raises:
        CorruptionError: a row has a negative count.
    """
    diffs = int64_of(contents, DIFF)
    if len(diffs) and diffs.min() < 0:
        raise CorruptionError(
            "a row of the collection has a negative count, because more copies were removed than "
            "added: scrub the collection; if it is whole, correct the program that wrote these "
            "diffs",
            name=name,
        )


def first_rows(contents: pa.Table, count: int) -> pa.Table:
    """Return the first ``count`` rows of contents; a row counts as often as it occurs."""
    ends = np.cumsum(int64_of(contents, DIFF))
    if not len(ends) or ends[-1] <= count:
        return contents
    whole = int(np.searchsorted(ends, count, side="left")) + (1 if count else 0)
    kept = contents.slice(0, whole)
    if not whole:
        return kept
    diffs = int64_of(kept, DIFF).copy()
    diffs[-1] -= ends[whole - 1] - count
    position = kept.schema.get_field_index(DIFF)
    return kept.set_column(position, kept.schema.field(position), int64_array(diffs))


def rows_count(contents: pa.Table) -> int:
    """Return the number of rows that contents represent, counted by ``_diff``."""
    return int(int64_of(contents, DIFF).sum())


def each_row(contents: pa.Table) -> Iterator[pa.Table]:
    """Yield contents with each row as often as it occurs, and a ``_diff`` of 1 each, in blocks.

    A row with a negative count comes once, with that count.

    Raises:
        UsageError: there are 2^62 rows or more.
    """
    diffs = int64_of(contents, DIFF)
    if (diffs == 1).all():
        yield contents
        return
    if np.maximum(diffs, 1).sum(dtype=float) >= COUNT_MAX:
        raise UsageError(
            "the snapshot has too many equal rows to repeat each: use consolidated=True"
        )
    position = contents.schema.get_field_index(DIFF)
    for places in _repeats(np.maximum(diffs, 1)):
        ones = int64_array(np.minimum(diffs[places], 1))
        rows = taken(contents, places)
        yield rows.set_column(position, contents.schema.field(position), ones)


def _repeats(counts: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the index of each row as often as ``counts`` gives, in blocks of `BLOCK_ROWS`."""
    ends = np.cumsum(counts)
    for start in range(0, int(ends[-1]), BLOCK_ROWS):
        places = np.arange(start, min(int(ends[-1]), start + BLOCK_ROWS))
        yield np.searchsorted(ends, places, side="right")


def check_rows_count(tables: Sequence[pa.Table]) -> None:
    """Refuse to build a table of far more rows than are stored.

    Raises:
        UsageError: the rows are more than `EACH_ROWS_MAX`, and most of them are equal.
    """
    stored = sum(table.num_rows for table in tables)
    rows = sum(np.maximum(int64_of(table, DIFF), 1).sum(dtype=float) for table in tables)
    if rows > max(EACH_ROWS_MAX, 2 * stored):
        raise UsageError(
            "the snapshot has too many equal rows for one table: read it with consolidated=True, "
            "or in batches",
            rows=int(rows),
        )


def repeated(contents: pa.Table) -> Iterator[pa.Table]:
    """Yield each row as often as its ``_diff`` gives, without that column, in bounded blocks.

    A row may occur a billion times.
    """
    diffs = int64_of(contents, DIFF)
    rows = contents.drop_columns([DIFF])
    if (diffs == 1).all():
        yield rows
        return
    for places in _repeats(diffs):
        yield taken(rows, places)
