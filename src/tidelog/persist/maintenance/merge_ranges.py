"""Large merges by ranges, which hold only a few values of the first column in memory.

Parts are copied to files on this machine: unchanged if they are sorted by the first column,
otherwise after sorting. Ranges of that column are then read from all files at once, as in a
snapshot, and each range is consolidated separately. This is correct because only equal rows cancel,
and equal rows are in the same range.
Source: persist, "Compaction"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelog.core.clock import run_all
from tidelog.core.frontier import TIME_MAX
from tidelog.core.lookahead import in_order
from tidelog.persist.format.bounds import OPEN, in_key_order, is_ordered
from tidelog.persist.format.parquet import encode_parquet
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import TIME, ShardSchema
from tidelog.persist.read.opened import OpenPart, PartOpener, is_in_order
from tidelog.persist.read.pieces import DECODED, SnapshotQuery
from tidelog.persist.read.reader import PartReader
from tidelog.persist.read.sweep import Sweep

# The approximate size of the rows that are consolidated at once.
RANGE_BYTES: Final = 64 * 1024 * 1024
RANGE_ROWS_MAX: Final = 262_144
SINGLE_ROWS_MAX: Final = 4 * RANGE_ROWS_MAX  # The limit for one value of the first column.
OPENED_AT_ONCE: Final = 2

Load = Callable[[Part], Awaitable[pa.Table]]
SumUp = Callable[[Sequence[pa.Table]], pa.Table]


def can_range(schema: ShardSchema) -> bool:
    """Return True if the bounds of row groups can separate values of the first column."""
    first = schema.data.field(0).type
    return is_ordered(first) and not pa.types.is_floating(first)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeMerger:
    """Merges parts by ranges of the first column of ``schema``, the shard's newest schema.

    ``load`` reads a part in that schema.
    """

    schema: ShardSchema
    reader: PartReader
    load: Load
    sum_up: SumUp
    _opened: dict[int, OpenPart] = field(init=False, default_factory=dict)

    async def open_all(self, parts: Sequence[Part]) -> bool:
        """Copy all parts to files; return True if ranges of them are small.

        They are not small if one value of the first column occurs in too many rows.

        Raises:
            CorruptionError: a part is missing, or was changed. LocationError: the store failed.
        """
        work = [partial(self._open, part) for part in parts]
        opened = await run_all(work, at_once=OPENED_AT_ONCE)
        self._opened.update((id(part), one) for part, one in zip(parts, opened, strict=True))
        name = self.schema.names[0]
        rows: Counter[Any] = Counter()
        for one in opened:
            if not is_in_order(one.groups, name):
                return False
            for group in one.groups:
                least, greatest = group.bounds.get(name, OPEN)
                if least is None or least == greatest:
                    rows[least] += group.rows
        return all(count <= SINGLE_ROWS_MAX for count in rows.values())

    async def merged(self, parts: Sequence[Part]) -> AsyncGenerator[pa.Table, None]:
        """Yield the consolidated rows of each range of the opened parts, in order."""
        ahead = in_order(self._ranges(parts), self._summed, size_of=_size_of, at_once=2)
        async with aclosing(ahead) as ranges:
            async for _, table in ranges:
                yield table

    async def open(self, parts: Sequence[Part], *, in_files: bool = False) -> list[OpenPart]:
        """Return the parts that `open_all` has opened; see `Sweep`."""
        return [self._opened[id(part)] for part in parts]

    async def _ranges(self, parts: Sequence[Part]) -> AsyncGenerator[list[pa.Table], None]:
        names = [*self.schema.names, TIME]
        wanted = SnapshotQuery(
            as_of=TIME_MAX, columns=tuple(names), box={}, piece_rows=_rows_of(parts)
        )
        sweep = Sweep(parts, wanted, self, names, can_cut=True)
        while not sweep.is_over:
            high = await sweep.cut()
            yield await self.reader.clock.offload(partial(sweep.take, high))

    async def _summed(self, tables: list[pa.Table]) -> pa.Table:
        rows = [table.cast(self.schema.updates) for table in tables]
        return await self.reader.clock.offload(partial(self.sum_up, rows))

    async def _open(self, part: Part) -> OpenPart:
        opener = PartOpener(
            store=self.reader.store,
            clock=self.reader.clock,
            schema=self.schema,
            names=frozenset(self.schema.names[:1]),
        )
        if part.is_sorted and self.schema.of_part(part.schema_id).data.equals(self.schema.data):
            (opened,) = await opener.open([part], in_files=True)
            if is_in_order(opened.groups, self.schema.names[0]):
                return opened
        table = await self.load(part)

        def put_in_order() -> OpenPart:
            data = encode_parquet(in_key_order([table], self.schema.names[:1]))
            now = msgspec.structs.replace(part, schema_id=self.schema.newest_id)
            return opener.opened(now, data, in_files=True)

        return await self.reader.clock.offload(put_in_order)


def _rows_of(parts: Sequence[Part]) -> int:
    """Return the approximate number of rows of a range."""
    rows = sum(part.rows for part in parts)
    row_bytes = DECODED * sum(part.size_bytes for part in parts) // max(1, rows)
    return max(1, min(RANGE_ROWS_MAX, RANGE_BYTES // max(1, row_bytes)))


def _size_of(tables: list[pa.Table]) -> int:
    return sum(table.nbytes for table in tables)
