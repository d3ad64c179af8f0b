"""The contents of a snapshot, read as tables without holding all of them in memory.

The parts determine the method. If each update is +1 and there is no key, rows are read as written.
If parts are sorted by key, they are read by key ranges. Other parts are grouped by SQL: in memory
if they are small, otherwise from files with a memory limit.
Invariants: the sum of the tables is the snapshot in the selected columns; no diff is 0.
Source: persist, "Snapshot"; design page 4, "Reading".
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.core.clock import Clock, run_all
from tidelog.persist.format.bounds import box_of_part, groups_by_key, is_ordered, part_reaches
from tidelog.persist.format.newest import Newest, Stretch, newest_of
from tidelog.persist.format.part import Part, int64_array
from tidelog.persist.format.schema import DIFF, ShardSchema
from tidelog.persist.format.updates import sum_up
from tidelog.persist.read.opened import OpenPart, PartOpener
from tidelog.persist.read.pieces import SnapshotQuery, opener_names, pieces_as_written
from tidelog.persist.read.reader import SMALL_ROWS, together
from tidelog.persist.read.selection import CheckedSelection
from tidelog.persist.read.spilled_rows import MEMORY_BYTES, SpilledRows
from tidelog.persist.read.sweep import pieces_by_key
from tidelog.store.port import Store

# The stored bytes of parts; decoded they are several times as large.
IN_MEMORY_BYTES: Final = 8 * 1024 * 1024
SINGLE_VALUE_BYTES_MAX: Final = 4 * 1024 * 1024
GROUPS_DECODED: Final = 4  # By one thread; a part has up to some dozens of groups.
ONES_ROWS: Final = 65_536
LAYERED_ROWS_MAX: Final = 8_000_000  # They are in memory twice.

T = TypeVar("T")
Use: TypeAlias = Callable[[pa.Table], T]
Pieces: TypeAlias = AsyncGenerator[pa.Table, None]


class Way(enum.Enum):
    """The method of reading the contents of parts."""

    AS_WRITTEN = "as written"
    BY_KEY = "by key"
    AT_ONCE = "at once"
    SPILLED = "spilled"


def choose_way(parts: Sequence[Part], schema: ShardSchema) -> Way:
    """Choose the method that reads the contents of parts in bounded memory."""
    if not schema.key_columns and all(part.plain for part in parts):
        return Way.AS_WRITTEN
    if _can_sweep(parts, schema):
        return Way.BY_KEY
    is_small = sum(part.size_bytes for part in parts) <= IN_MEMORY_BYTES
    return Way.AT_ONCE if is_small else Way.SPILLED


def _can_sweep(parts: Sequence[Part], schema: ShardSchema) -> bool:
    if not schema.key_columns or not is_ordered(schema.data.field(0).type):
        return False
    unsorted_bytes = sum(part.size_bytes for part in parts if not part.is_sorted)
    # An unsorted part must be decoded for the first range, and then held or decoded again.
    if unsorted_bytes > IN_MEMORY_BYTES:
        return False
    large = (part for part in parts if part.size_bytes > SINGLE_VALUE_BYTES_MAX)
    return not any(_has_single_value(part, schema.names[0]) for part in large)


def _has_single_value(part: Part, column: str) -> bool:
    """Return True if a part may hold a single value of a column, which no range can split."""
    least, greatest = box_of_part(part).get(column, (None, None))
    return least is None or bool(least == greatest)


def divided(parts: Sequence[Part], schema: ShardSchema) -> list[tuple[bool, list[Part]]]:
    """Divide parts into stretches of keys; True marks a stretch whose rows occur as written.

    As far as bounds show, a row of such a stretch meets no update with another diff than 1. So no
    update cancels it.
    """
    groups = groups_by_key(parts, schema)
    if groups is None:
        return [(False, list(parts))]
    marked = ((all(part.plain for part in group), group) for group in groups)
    return [
        (is_plain, [part for _, group in some for part in group])
        for is_plain, some in groupby(marked, key=itemgetter(0))
    ]


def parts_in_order(parts: Sequence[Part], schema: ShardSchema) -> list[Part] | None:
    """Return parts in the order of their rows, if no update meets another; None otherwise.

    The rows as written are then the contents, in key order.
    """
    groups = groups_by_key(parts, schema)
    if groups is None or not all(part.plain for part in parts):
        return None
    is_keyed = schema.key_columns > 0
    if any(len(group) > 1 or (is_keyed and not group[0].is_sorted) for group in groups):
        return None
    return [part for group in groups for part in group]


@dataclass(frozen=True, slots=True)
class Layers:
    """Parts in which the newest update of a key decides about it.

    Shape: ``base`` has all its rows in key order, and each diff is 1. All updates of a part of
        ``later`` have one time, which is after the times of the base; the parts are in this order.
    """

    base: tuple[Part, ...]
    later: tuple[Part, ...]


def layers_of(parts: Sequence[Part], schema: ShardSchema) -> Layers | None:
    """Return the layers of the parts of a collection whose rows have unique keys, or None.

    A part of the base can have a key once only: if it had two rows of a key, another part with a
    time between theirs would remove the first row.
    """
    in_time = sorted(parts, key=lambda part: part.time_min)
    count = next((n for n, part in enumerate(in_time) if not part.plain), len(in_time))
    base, later = in_time[:count], in_time[count:]
    in_order = parts_in_order(base, schema)
    if schema.key_columns != 1 or not in_order or not later:
        return None
    if sum(part.rows for part in parts) > LAYERED_ROWS_MAX:
        return None
    end = max(part.time_max for part in base)
    if any(part.time_min <= end or part.time_min < part.time_max for part in later):
        return None
    return Layers(tuple(in_order), tuple(later))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentsReader:
    """Reads selected rows and columns of a shard, in tables.

    Units: SQL holds at most ``memory_bytes`` in memory and spills the rest to files.
    """

    schema: ShardSchema
    selection: CheckedSelection
    as_of: int
    store: Store
    clock: Clock
    memory_bytes: int = MEMORY_BYTES

    @property
    def narrow(self) -> ShardSchema:
        """The schema of the selected columns, without a key."""
        return _narrowed(self.schema, self.selection.columns)

    async def tables(self, parts: Sequence[Part]) -> Pieces:
        """Yield the columns and ``_diff`` of the selected rows.

        Raises:
            UsageError: the condition fails on a row. PartMissing: an object is missing.
            CorruptionError: the bytes differ from those written. LocationError: the store failed.
        """
        with self.selection.sandbox() as sandbox:
            box = self.selection.box
            wanted = SnapshotQuery(
                as_of=self.as_of, columns=self.selection.needed, box=box, is_grouped=True
            )
            reached = [part for part in parts if part_reaches(part, box)]

            async with aclosing(self._read(reached, wanted)) as pieces:
                async for piece in pieces:
                    choose = partial(self.selection.filtered, piece, sandbox)
                    # Without a condition there is nothing to compute.
                    found = choose() if sandbox is None else await self.clock.offload(choose)
                    if found.num_rows:
                        yield found

    async def as_written(self, parts: Sequence[Part]) -> pa.Table:
        """Return the columns and ``_diff`` of all rows of parts in which each update is +1.

        Only the selected columns are decoded, several parts concurrently.

        Raises:
            PartMissing, CorruptionError, LocationError: see `tables`.
        """
        out = self.narrow.contents
        same: asyncio.Future[Use[pa.Table]] = asyncio.get_running_loop().create_future()
        same.set_result(lambda table: table)
        names = self.selection.columns
        tables = await self._stretches(parts, names, same, groups_decoded=GROUPS_DECODED)
        table = pa.concat_tables([out.empty_table().drop_columns([DIFF]), *tables])
        return table.append_column(out.field(DIFF), ones(table.num_rows))

    async def newest(self, layers: Layers) -> pa.Table | None:
        """Return the columns and ``_diff`` of the newest row of each key, in key order.

        None: the key is not a column of numbers, the updates contradict one another, or values are
        too large.

        Raises:
            PartMissing, CorruptionError, LocationError: see `tables`.
        """
        columns = self.selection.columns
        names = tuple(dict.fromkeys([*self.schema.key, *columns]))
        texts = {name for name in names if pa.types.is_string(self.schema.data.field(name).type)}
        times = [part.time_min for part in layers.later]
        over: asyncio.Future[Use[Stretch | None]] = asyncio.get_running_loop().create_future()

        def decode(opened: OpenPart) -> pa.Table:
            groups = range(len(opened.groups))
            return opened.read(groups, [*names, DIFF], as_of=self.as_of)

        async def changes() -> Newest | None:
            later = await self._opener(()).opened_by(layers.later, decode)
            newest = await self.clock.offload(lambda: newest_of(later, times, columns))
            over.set_result(newest.over if newest else lambda _: None)
            return newest

        async def base() -> list[Stretch | None]:
            packed = frozenset(texts - {*self.schema.key})
            return await self._stretches(layers.base, names, over, packed=packed)

        both: list[Callable[[], Awaitable[Any]]] = [changes, base]
        newest, stretches = await run_all(both, at_once=2)
        found = newest.all_of(stretches) if newest else None
        diffs = self.narrow.contents.field(DIFF)
        return None if found is None else found.append_column(diffs, ones(found.num_rows))

    async def _stretches(
        self,
        parts: Sequence[Part],
        names: Sequence[str],
        use: asyncio.Future[Use[T]],
        *,
        groups_decoded: int = 1,
        packed: frozenset[str] = frozenset(),
    ) -> list[T]:
        """Return the result of ``use`` for each stretch of the rows of parts, in order.

        Text columns in ``packed`` may keep the dictionaries of large parts.
        """
        opener = replace(self._opener(()), names=frozenset())

        def decode(groups: Sequence[int], opened: OpenPart) -> pa.Table:
            is_small = opened.part.rows <= SMALL_ROWS
            return opened.read(groups, names, as_of=self.as_of, use_threads=not is_small)

        def decode_all(opened: OpenPart) -> pa.Table:
            return decode(range(len(opened.groups)), opened)

        async def stretch(opened: OpenPart, groups: Sequence[int]) -> T:
            offload = self.clock.offload
            if not use.done():
                rows = await offload(partial(decode, groups, opened))
                return await offload(partial(await use, rows))
            work = use.result()
            return await offload(lambda: work(decode(groups, opened)))

        async def read(some: Sequence[Part]) -> list[T]:
            if some[0].rows <= SMALL_ROWS:
                tables = await opener.opened_by(some, decode_all)
                return [(await use)(pa.concat_tables(tables))]
            (opened,) = await replace(opener, packed=packed).open(some)
            groups = range(len(opened.groups))
            # Arrow decodes the row groups of one call sequentially per column, so split them into
            # several calls.
            starts = range(0, len(groups), groups_decoded)
            shares = [groups[start : start + groups_decoded] for start in starts]
            return await run_all(
                [partial(stretch, opened, share) for share in shares], at_once=opener.reads
            )

        work = [partial(read, some) for some in together(parts)]
        return [one for some in await run_all(work, at_once=opener.reads) for one in some]

    def _opener(self, box: Iterable[str]) -> PartOpener:
        return PartOpener(
            store=self.store,
            clock=self.clock,
            schema=self.schema,
            names=opener_names(self.schema, box),
        )

    def _read(self, parts: Sequence[Part], wanted: SnapshotQuery) -> Pieces:
        opener = self._opener(wanted.box)
        ways: dict[Way, Callable[[], Pieces]] = {
            Way.AS_WRITTEN: lambda: pieces_as_written(
                parts, wanted, opener, bytes_max=self.memory_bytes
            ),
            Way.BY_KEY: lambda: pieces_by_key(parts, wanted, opener, bytes_max=self.memory_bytes),
            Way.AT_ONCE: lambda: _at_once(parts, wanted, opener),
            Way.SPILLED: lambda: SpilledRows(
                opener=opener, wanted=wanted, memory_bytes=self.memory_bytes
            ).tables(parts),
        }
        return ways[choose_way(parts, self.schema)]()


async def _at_once(parts: Sequence[Part], wanted: SnapshotQuery, opener: PartOpener) -> Pieces:
    """Yield the columns and ``_diff``, consolidated, as one table."""
    names = list(dict.fromkeys([*wanted.columns, *wanted.box]))
    opened = await opener.open(parts)

    def read(one: OpenPart) -> pa.Table:
        groups = [n for n, group in enumerate(one.groups) if group.reaches(wanted.box)]
        return one.read(groups, [*names, DIFF], as_of=wanted.as_of)

    def sum_of_all() -> pa.Table:
        return sum_up([read(one) for one in opened], _narrowed(opener.schema, names))

    found = await opener.clock.offload(sum_of_all)
    if found.num_rows:
        yield found


def ones(rows: int) -> pa.ChunkedArray[Any]:
    """Return a column of ones whose chunks share one block of memory."""
    block = int64_array(np.ones(min(rows, ONES_ROWS), np.int64))
    whole, left = divmod(rows, ONES_ROWS)
    return pa.chunked_array([*[block] * whole, block.slice(0, left)], pa.int64())


def _narrowed(schema: ShardSchema, names: Sequence[str]) -> ShardSchema:
    return ShardSchema(pa.schema([schema.data.field(name) for name in names]), 0)
