"""A snapshot in pieces by key ranges, never all in memory.

An update can cancel another, so a piece must contain all updates of its rows. A piece is a range of
the first key column. In each part that the range reaches, only the row groups that it reaches are
decoded. A part is opened when the first range reaches it. A reader may stop early, and the rest is
not read.
Invariants: the sum of the pieces is the snapshot; pieces come in key order.
Source: persist, "Snapshot".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.lookahead import BYTES_MAX, in_order
from tidelog.persist.format.bounds import (
    OPEN,
    Box,
    Interval,
    box_of_part,
    is_ordered,
    ordered,
    part_reaches,
    rows_within,
    scalar_of,
)
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import DIFF, ShardSchema
from tidelog.persist.format.updates import merge
from tidelog.persist.read.opened import OpenPart, PartOpener, is_in_order
from tidelog.persist.read.pieces import AHEAD_MAX, HELD_BYTES_MAX, SnapshotQuery

MERGES: Final = 2  # Pieces that are merged or wait for the reader, while the next is decoded.
# A change of the thread takes as long as work on so many rows.
FEW_ROWS: Final = 1_000
FEW_BYTES: Final = 64 * 1024
REST_BYTES_MAX: Final = 64 * 1024 * 1024  # The limit for rows decoded too early.


async def pieces_by_key(
    parts: Sequence[Part], wanted: SnapshotQuery, opener: PartOpener, *, bytes_max: int = BYTES_MAX
) -> AsyncGenerator[pa.Table, None]:
    """Yield key, columns and ``_diff``, consolidated, in key order.

    The key is included even if it is not among the columns. ``opener`` must load the bounds of the
    first column.

    Units: pieces that are made ahead take about ``bytes_max`` of memory at most.

    Raises:
        CorruptionError, LocationError: see `PartOpener.open`.
    """
    schema = opener.schema
    names = list(dict.fromkeys([*schema.key, *wanted.columns, *wanted.box]))
    narrow = ShardSchema(pa.schema([schema.data.field(n) for n in names]), 0)

    def merged(updates: _Updates) -> pa.Table:
        # The tables are taken here, so that they are free before the reader gets the result.
        return merge(updates.taken(), narrow, key=schema.key, is_grouped=wanted.is_grouped)

    async def worked(updates: _Updates) -> pa.Table:
        if updates.size_bytes <= FEW_BYTES:
            return merged(updates)
        return await opener.clock.offload(partial(merged, updates))

    made = in_order(
        _ranges(parts, wanted, opener, names),
        worked,
        size_of=attrgetter("size_bytes"),
        at_once=MERGES,
        bytes_max=bytes_max,
        allowed=MERGES if wanted.is_at_once else 1,
    )
    async with aclosing(made) as pieces:
        async for _, piece in pieces:
            if piece.num_rows:
                yield piece


async def _ranges(
    parts: Sequence[Part], wanted: SnapshotQuery, opener: PartOpener, names: list[str]
) -> AsyncGenerator[_Updates, None]:
    """Yield the updates of each range of the first column, by part."""
    schema = opener.schema
    reached = [part for part in parts if part_reaches(part, wanted.box)]
    # Without a key, parts are not sorted.
    can_cut = schema.key_columns > 0 and is_ordered(schema.data.field(0).type)
    sweep = Sweep(reached, wanted, opener, names, can_cut=can_cut)
    while not sweep.is_over:
        high = await sweep.cut()
        take = partial(sweep.take, high)
        yield _Updates(take() if sweep.is_small else await opener.clock.offload(take))


class _Updates:
    """The updates of one range, by part, until a merge takes them."""

    def __init__(self, tables: list[pa.Table]) -> None:
        self._tables = tables
        self.size_bytes = sum(table.nbytes for table in tables)

    def taken(self) -> list[pa.Table]:
        """Return the tables, and keep no reference to them."""
        tables, self._tables = self._tables, []
        return tables


class _Cursor:
    """The position of a sweep in a part: the next row group, and decoded rows not yet returned."""

    def __init__(self, opened: OpenPart, column: str) -> None:
        self.opened = opened
        self.next = 0
        self.rest: pa.Table | None = None
        self.is_in_order = is_in_order(opened.groups, column)
        self._column = column

    @property
    def is_over(self) -> bool:
        return self.rest is None and self.next >= len(self.opened.groups)

    def ahead(self, box: Box) -> Iterator[tuple[int, Interval, int]]:
        """Yield the number, bounds and rows of each remaining row group that reaches the box."""
        for number in range(self.next, len(self.opened.groups)):
            group = self.opened.groups[number]
            if group.reaches(box):
                yield number, group.bounds.get(self._column, OPEN), group.rows


class Opens(Protocol):
    """Opens the parts that a sweep reaches; see `PartOpener`."""

    @property
    def schema(self) -> ShardSchema: ...

    async def open(self, parts: Sequence[Part], *, in_files: bool = False) -> list[OpenPart]: ...


class Sweep:
    """A sweep through parts by the first column of their shard, from ``low``; nulls come last.

    A cut is the exclusive end of a range; with None, the range takes all the rest. ``can_cut``
    states that the column has an order, so parts may be sorted by it.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        wanted: SnapshotQuery,
        opener: Opens,
        names: list[str],
        *,
        can_cut: bool,
    ) -> None:
        self._wanted = wanted
        self._opener = opener
        self._names = names
        self._column = opener.schema.data.field(0).name
        self._can_cut = can_cut
        self._low: Any = None
        begins = [(self._least(part), part) for part in parts]
        unknown = [(None, part) for least, part in begins if least is None]
        known = [(least, part) for least, part in begins if least is not None]
        self._waiting = [*unknown, *sorted(known, key=lambda pair: pair[0])]
        self._cursors: list[_Cursor] = []

    @property
    def is_over(self) -> bool:
        return not self._waiting and not self._cursors

    @property
    def is_small(self) -> bool:
        """True if the open parts have few rows."""
        return sum(cursor.opened.part.rows for cursor in self._cursors) <= FEW_ROWS

    def _least(self, part: Part) -> Any:
        return box_of_part(part).get(self._column, OPEN)[0] if self._can_cut else None

    async def cut(self) -> Any:
        """Open the parts that the next range reaches, and return the end of that range."""
        ahead = 1
        while True:
            # Opening parts can change the choice: they may be unsorted, or have rows in the range.
            # So choose again until the range reaches no unopened part.
            high = self._choose()
            due = [
                part
                for least, part in self._waiting[:ahead]
                if high is None or least is None or least < high
            ]
            if not due:
                return high
            await self._open(due)
            ahead = min(2 * ahead, AHEAD_MAX)

    async def _open(self, parts: list[Part]) -> None:
        held = [cursor.opened.part for cursor in self._cursors]
        in_files = sum(p.size_bytes for p in [*held, *parts] if p.path) > HELD_BYTES_MAX
        opened = await self._opener.open(parts, in_files=in_files)
        self._cursors += [_Cursor(one, self._column) for one in opened]
        del self._waiting[: len(parts)]

    def _choose(self) -> Any:
        """Return the end of a range that holds about as many rows as a piece; see `cut`."""
        # A cut through an unsorted part would decode all of that part for each range.
        if not self._can_cut or not all(cursor.is_in_order for cursor in self._cursors):
            return None
        count = 0
        later: list[tuple[Any, int]] = []
        for cursor in self._cursors:
            count += cursor.rest.num_rows if cursor.rest is not None else 0
            for _, (least, _), rows in cursor.ahead(self._wanted.box):
                if least is None or (self._low is not None and least <= self._low):
                    count += rows
                else:
                    later.append((least, rows))
        for least, rows in sorted(later):
            if count >= self._wanted.piece_rows:
                return least
            count += rows
        return None

    def take(self, high: Any) -> list[pa.Table]:
        """Return the rows before ``high``, by part, and advance to ``high``."""
        by_part = [list(self._before(cursor, high)) for cursor in self._cursors]
        found = [pa.concat_tables(tables) for tables in by_part if tables]
        self._cursors = [c for c in self._cursors if high is not None and not c.is_over]
        self._low = high
        return found

    def _before(self, cursor: _Cursor, high: Any) -> Iterator[pa.Table]:
        """Yield a part's rows before ``high``; keep decoded rows beyond it if they are few."""
        names = [*self._names, DIFF]
        kept: list[pa.Table] = []
        if cursor.rest is not None:
            before, after = self._split(cursor.rest, high)
            yield before
            kept.append(after)
        room = REST_BYTES_MAX - sum(c.rest.nbytes for c in self._cursors if c.rest is not None)
        cursor.rest, following = None, len(cursor.opened.groups)
        for number, (least, greatest), _ in cursor.ahead(self._wanted.box):
            if high is not None and least is not None and least >= high:
                following = number
                break
            table = cursor.opened.read([number], names, as_of=self._wanted.as_of, use_threads=True)
            table = rows_within(table, self._wanted.box)
            if least is None or (self._low is not None and least < self._low):
                table = self._from_low(table)
            is_before = high is not None and greatest is not None and greatest < high
            before, after = self._split(table, None if is_before else high)
            yield before
            if not after.num_rows:
                continue
            if after.nbytes > room and greatest is not None:
                following = number  # Decode this group again in the next range.
                break
            kept.append(after)
        cursor.next = following
        kept = [table for table in kept if table.num_rows]
        cursor.rest = pa.concat_tables(kept) if kept else None

    def _from_low(self, table: pa.Table) -> pa.Table:
        if self._low is None:
            return table
        column = ordered(table.column(self._column))
        # Nulls come after all values.
        return table.filter(pc.invert(_is_less(column, self._low)))

    def _split(self, table: pa.Table, high: Any) -> tuple[pa.Table, pa.Table]:
        """Return the rows before ``high``, and the rows from ``high``."""
        if high is None:
            return table, table.slice(0, 0)
        before = _is_less(ordered(table.column(self._column)), high)
        return table.filter(before), table.filter(pc.invert(before))


def _is_less(column: pa.ChunkedArray[Any], high: Any) -> pa.ChunkedArray[pa.BooleanScalar]:
    less = pc.less(column, scalar_of(high, column.type))
    # A null is not less than any value.
    known = pc.if_else(pc.is_valid(column), less, pc.is_valid(column))
    return cast("pa.ChunkedArray[pa.BooleanScalar]", known)
