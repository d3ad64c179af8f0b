"""Sources of records: a run or a loose piece, each with its own window of sequences.

The records of a key in a source are in sequence order, or newest first. A reader therefore goes
from source to source, and merges nothing.
Source: rfc-0001, "Append-Only Scan Optimization".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.keyed.format.part import RunPart
from tidelog.keyed.read.key_ranges import key_ranges
from tidelog.keyed.read.part_reader import GROUPS_AT_ONCE, RunPartReader
from tidelog.keyed.read.piece import LoosePiece, in_range
from tidelog.keyed.states.run import Run
from tidelog.keyed.values import KEYED_RECORDS, SEQUENCE_MAX

_KEY_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary(), nullable=False),
    pa.field("records", pa.int64(), nullable=False),
    pa.field("min_sequence", pa.int64(), nullable=False),
    pa.field("max_sequence", pa.int64(), nullable=False),
]
KEY_ROWS: Final = pa.schema(_KEY_FIELDS)
ROWS_AT_ONCE: Final = 65_536


class Source(Protocol):
    """The records of the sequences ``[lower, upper)``."""

    @property
    def lower(self) -> int: ...
    @property
    def upper(self) -> int: ...
    @property
    def weight(self) -> int:
        """The approximate size in bytes."""
        ...

    @property
    def in_parts(self) -> bool:
        """True if `of_key` may return fewer records than exist and were requested."""
        ...

    def may_hold(self, key: bytes) -> bool: ...

    async def of_key(
        self, key: bytes, start: int, limit: int | None, *, rows: int | None, newest_first: bool
    ) -> pa.Table:
        """Return the first records of a key in a range, at most ``rows``; empty if none remain."""
        ...

    def of_range(
        self, first: bytes, last: bytes | None, start: int, limit: int | None, *, newest_first: bool
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the records of the keys ``[first, last)``, key by key."""
        ...

    async def count(self, key: bytes, start: int, limit: int | None) -> int: ...

    async def bound(self, key: bytes, start: int, limit: int | None) -> tuple[int, int]:
        """Return the least and the greatest possible count, without expensive reads."""
        ...

    def keys(
        self, first: bytes, last: bytes | None, start: int, limit: int | None
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the keys ``[first, last)`` of this source, in order, as `KEY_ROWS`.

        ``[start, limit)`` is a window of whole segments, so no run crosses its ends.
        """
        ...

    async def first_at(self, time_us: int) -> int | None:
        """Return the least sequence whose record has this time or a later one; None without one."""
        ...


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run as a source."""

    run: Run
    reader: RunPartReader

    @property
    def lower(self) -> int:
        return self.run.lower

    @property
    def upper(self) -> int:
        return self.run.upper

    @property
    def weight(self) -> int:
        return 65_536

    @property
    def in_parts(self) -> bool:
        return True

    def may_hold(self, key: bytes) -> bool:
        return any(_holds(part, key) for part in self.run.parts)

    async def of_key(
        self, key: bytes, start: int, limit: int | None, *, rows: int | None, newest_first: bool
    ) -> pa.Table:
        found: list[pa.Table] = []
        parts = [part for part in self.run.parts if _holds(part, key)]
        for part in reversed(parts) if newest_first else parts:
            table = await self.reader.read_key(
                part,
                key,
                start,
                _limit(limit),
                rows_max=rows,
                groups_max=None if rows is None else GROUPS_AT_ONCE,
                newest_first=newest_first,
            )
            if table.num_rows:
                found.append(table)
                if rows is not None:
                    break  # This part may have more of the key, and precedes the other parts.
        return pa.concat_tables(found) if found else KEYED_RECORDS.empty_table()

    async def of_range(
        self, first: bytes, last: bytes | None, start: int, limit: int | None, *, newest_first: bool
    ) -> AsyncGenerator[pa.Table, None]:
        found = (
            self._newest(first, last, start, limit)
            if newest_first
            else self._of_parts(first, last, start, _limit(limit))
        )
        async with aclosing(found):
            async for table in found:
                if table.num_rows:
                    yield table

    async def _newest(
        self, first: bytes, last: bytes | None, start: int, limit: int | None
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield records key by key, newest first, in ranges sized by the directories.

        Small keys are read together; a large key is read alone, a bounded number of rows at a time.
        """
        rows = [await self.reader.rows_at_once(part) for part in self.run.parts]
        at_once = max(1, min([ROWS_AT_ONCE, *rows]))
        ranges = key_ranges(self.keys(first, last, start, limit), first, last, at_once)
        async with aclosing(ranges):
            async for begin, end, is_large in ranges:
                if is_large:
                    async with aclosing(self._newest_of(begin, start, limit)) as found:
                        async for table in found:
                            yield table
                else:
                    async with aclosing(self._of_parts(begin, end, start, _limit(limit))) as some:
                        tables = [table async for table in some]
                    yield _newest_first(pa.concat_tables([KEYED_RECORDS.empty_table(), *tables]))

    async def _newest_of(
        self, key: bytes, start: int, limit: int | None
    ) -> AsyncGenerator[pa.Table, None]:
        while True:
            table = await self.of_key(key, start, limit, rows=ROWS_AT_ONCE, newest_first=True)
            if not table.num_rows:
                return
            yield table
            limit = table.column("sequence")[-1].as_py()

    async def _of_parts(
        self, first: bytes, last: bytes | None, start: int, limit: int
    ) -> AsyncGenerator[pa.Table, None]:
        for part in self.run.parts:
            if part.last_key < first or (last is not None and part.first_key >= last):
                continue
            found = self.reader.scan_keys(part, first, last, start, limit)
            async with aclosing(found):
                async for table in found:
                    yield table

    async def count(self, key: bytes, start: int, limit: int | None) -> int:
        parts = [part for part in self.run.parts if _holds(part, key)]
        return sum([await self.reader.count_key(part, key, start, _limit(limit)) for part in parts])

    async def bound(self, key: bytes, start: int, limit: int | None) -> tuple[int, int]:
        parts = [part for part in self.run.parts if _holds(part, key)]
        found = [await self.reader.bound_key(part, key, start, _limit(limit)) for part in parts]
        return sum(least for least, _ in found), sum(most for _, most in found)

    async def keys(
        self, first: bytes, last: bytes | None, start: int, limit: int | None
    ) -> AsyncGenerator[pa.Table, None]:
        held = KEY_ROWS.empty_table()
        for part in self.run.parts:
            if part.last_key < first or (last is not None and part.first_key >= last):
                continue
            found = self.reader.keys(part, first, last)
            async with aclosing(found):
                async for table in found:
                    # The last key may continue in the next part, so hold it back.
                    together = pa.concat_tables(
                        [held, table.rename_columns(KEY_ROWS.names).cast(KEY_ROWS)]
                    )
                    together = added_up(together) if held.num_rows else together
                    held = together.slice(max(0, together.num_rows - 1))
                    yield together.slice(0, together.num_rows - held.num_rows)
        yield held

    async def first_at(self, time_us: int) -> int | None:
        found = [await self.reader.first_at(part, time_us) for part in self.run.parts]
        return min((at for at in found if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class PieceSource:
    """A loose piece as a source; ``fetch`` returns its records, from memory if possible."""

    piece: LoosePiece
    fetch: Callable[[LoosePiece], Awaitable[pa.Table]]
    since: int  # Earlier records are compacted or retired.

    @property
    def lower(self) -> int:
        return max(self.since, self.piece.start)

    @property
    def upper(self) -> int:
        return self.piece.limit

    @property
    def weight(self) -> int:
        return self.piece.nbytes

    @property
    def in_parts(self) -> bool:
        return False

    def may_hold(self, key: bytes) -> bool:
        return self.piece.may_hold(key)

    async def of_key(
        self, key: bytes, start: int, limit: int | None, *, rows: int | None, newest_first: bool
    ) -> pa.Table:
        found = self.piece.of_key(await self.fetch(self.piece), key)
        found = in_range(found, max(start, self.since), limit)
        if newest_first:
            cut = found if rows is None else found.slice(max(0, found.num_rows - rows))
            return reversed_rows(cut)
        return found if rows is None else found.slice(0, rows)

    async def of_range(
        self, first: bytes, last: bytes | None, start: int, limit: int | None, *, newest_first: bool
    ) -> AsyncGenerator[pa.Table, None]:
        found = in_range(await self.fetch(self.piece), max(start, self.since), limit)
        found = with_keys(found, first, last)
        if found.num_rows:
            yield reversed_rows(found) if newest_first else found

    async def count(self, key: bytes, start: int, limit: int | None) -> int:
        found = await self.of_key(key, start, limit, rows=None, newest_first=False)
        return int(found.num_rows)

    async def bound(self, key: bytes, start: int, limit: int | None) -> tuple[int, int]:
        if self.piece.records is None:
            window = min(limit or self.upper, self.upper) - max(start, self.lower)
            return 0, max(0, window)
        count = await self.count(key, start, limit)
        return count, count

    async def keys(
        self, first: bytes, last: bytes | None, start: int, limit: int | None
    ) -> AsyncGenerator[pa.Table, None]:
        found = in_range(await self.fetch(self.piece), max(start, self.since), limit)
        found = with_keys(found, first, last)
        if found.num_rows:
            yield key_rows_of(found)

    async def first_at(self, time_us: int) -> int | None:
        found = in_range(await self.fetch(self.piece), self.since, None)
        late: Any = pc.greater_equal(found.column("timestamp_us"), pa.scalar(time_us))
        first: int | None = pc.min(found.filter(late).column("sequence")).as_py()
        return first


def key_rows_of(records: pa.Table) -> pa.Table:
    """Return the keys of records, in order, as `KEY_ROWS`."""
    grouped: Any = records.group_by("key").aggregate(
        [("sequence", "count"), ("sequence", "min"), ("sequence", "max")]
    )
    columns = [grouped.column(n) for n in ("key", "sequence_count", "sequence_min", "sequence_max")]
    found = pa.table(columns, names=KEY_ROWS.names)
    return found.sort_by("key").cast(KEY_ROWS)


def added_up(rows: pa.Table) -> pa.Table:
    """Return rows of `KEY_ROWS` with each key once, in order."""
    grouped: Any = rows.group_by("key").aggregate(
        [("records", "sum"), ("min_sequence", "min"), ("max_sequence", "max")]
    )
    names = ("key", "records_sum", "min_sequence_min", "max_sequence_max")
    found = pa.table([grouped.column(name) for name in names], names=KEY_ROWS.names)
    return found.sort_by("key").cast(KEY_ROWS)


def with_keys(records: pa.Table, first: bytes, last: bytes | None) -> pa.Table:
    """Return the records of the keys ``[first, last)``."""
    column: Any = records.column("key")
    kept: Any = None
    if first:
        kept = pc.greater_equal(column, pa.scalar(first, pa.binary()))
    if last is not None:
        below = pc.less(column, pa.scalar(last, pa.binary()))
        kept = below if kept is None else pc.and_(kept, below)
    return records if kept is None else records.filter(kept)


def reversed_rows(records: pa.Table) -> pa.Table:
    """Return records in reverse order."""
    count = records.num_rows
    return records if count < 2 else records.take(pa.array(range(count - 1, -1, -1)))


def _newest_first(records: pa.Table) -> pa.Table:
    return records.sort_by([("key", "ascending"), ("sequence", "descending")])


def _holds(part: RunPart, key: bytes) -> bool:
    return part.first_key <= key <= part.last_key


def _limit(limit: int | None) -> int:
    return SEQUENCE_MAX if limit is None else limit
