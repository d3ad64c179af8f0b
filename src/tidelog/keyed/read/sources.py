"""Sources of records: a run or a loose piece, each with its own window of sequences.

The records of a key in a source are in sequence order, or newest first. A reader therefore goes
from source to source, and merges nothing. A loose piece is a part of the wal that is not compacted.
Source: rfc-0001, "Append-Only Scan Optimization".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.keyed.format.part import RunPart
from tidelog.keyed.format.records import (
    KEY_ROWS,
    SinkMark,
    added_up,
    in_range,
    key_rows_of,
    one_chunk,
    reversed_rows,
    with_keys,
)
from tidelog.keyed.read.key_ranges import key_ranges
from tidelog.keyed.read.part_reader import GROUPS_AT_ONCE, RunPartReader
from tidelog.keyed.states.run import Run
from tidelog.keyed.values import KEYED_RECORDS, SEQUENCE_MAX
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.fragment_sets import may_hold

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
        tables: list[pa.Table] = []
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
                tables.append(table)
                if rows is not None:
                    break  # This part may have more of the key, and precedes the other parts.
        return pa.concat_tables(tables) if tables else KEYED_RECORDS.empty_table()

    async def of_range(
        self, first: bytes, last: bytes | None, start: int, limit: int | None, *, newest_first: bool
    ) -> AsyncGenerator[pa.Table, None]:
        tables = (
            self._newest(first, last, start, limit)
            if newest_first
            else self._of_parts(first, last, start, _limit(limit))
        )
        async with aclosing(tables):
            async for table in tables:
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
                    async with aclosing(self._newest_of(begin, start, limit)) as stream:
                        async for table in stream:
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
            tables = self.reader.scan_keys(part, first, last, start, limit)
            async with aclosing(tables):
                async for table in tables:
                    yield table

    async def count(self, key: bytes, start: int, limit: int | None) -> int:
        parts = [part for part in self.run.parts if _holds(part, key)]
        return sum([await self.reader.count_key(part, key, start, _limit(limit)) for part in parts])

    async def bound(self, key: bytes, start: int, limit: int | None) -> tuple[int, int]:
        parts = [part for part in self.run.parts if _holds(part, key)]
        bounds = [await self.reader.bound_key(part, key, start, _limit(limit)) for part in parts]
        return sum(least for least, _ in bounds), sum(most for _, most in bounds)

    async def keys(
        self, first: bytes, last: bytes | None, start: int, limit: int | None
    ) -> AsyncGenerator[pa.Table, None]:
        held = KEY_ROWS.empty_table()
        for part in self.run.parts:
            if part.last_key < first or (last is not None and part.first_key >= last):
                continue
            tables = self.reader.keys(part, first, last)
            async with aclosing(tables):
                async for table in tables:
                    # The last key may continue in the next part, so hold it back.
                    together = pa.concat_tables(
                        [held, table.rename_columns(KEY_ROWS.names).cast(KEY_ROWS)]
                    )
                    together = added_up(together) if held.num_rows else together
                    held = together.slice(max(0, together.num_rows - 1))
                    yield together.slice(0, together.num_rows - held.num_rows)
        yield held

    async def first_at(self, time_us: int) -> int | None:
        sequences = [await self.reader.first_at(part, time_us) for part in self.run.parts]
        return min((sequence for sequence in sequences if sequence is not None), default=None)


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
        records = self.piece.of_key(await self.fetch(self.piece), key)
        records = in_range(records, max(start, self.since), limit)
        if newest_first:
            cut = records if rows is None else records.slice(max(0, records.num_rows - rows))
            return reversed_rows(cut)
        return records if rows is None else records.slice(0, rows)

    async def of_range(
        self, first: bytes, last: bytes | None, start: int, limit: int | None, *, newest_first: bool
    ) -> AsyncGenerator[pa.Table, None]:
        records = in_range(await self.fetch(self.piece), max(start, self.since), limit)
        records = with_keys(records, first, last)
        if records.num_rows:
            yield reversed_rows(records) if newest_first else records

    async def count(self, key: bytes, start: int, limit: int | None) -> int:
        records = await self.of_key(key, start, limit, rows=None, newest_first=False)
        return int(records.num_rows)

    async def bound(self, key: bytes, start: int, limit: int | None) -> tuple[int, int]:
        if self.piece.records is None:
            window = min(limit or self.upper, self.upper) - max(start, self.lower)
            return 0, max(0, window)
        count = await self.count(key, start, limit)
        return count, count

    async def keys(
        self, first: bytes, last: bytes | None, start: int, limit: int | None
    ) -> AsyncGenerator[pa.Table, None]:
        records = in_range(await self.fetch(self.piece), max(start, self.since), limit)
        records = with_keys(records, first, last)
        if records.num_rows:
            yield key_rows_of(records)

    async def first_at(self, time_us: int) -> int | None:
        records = in_range(await self.fetch(self.piece), self.since, None)
        late: Any = pc.greater_equal(records.column("timestamp_us"), pa.scalar(time_us))
        first: int | None = pc.min(records.filter(late).column("sequence")).as_py()
        return first


def _newest_first(records: pa.Table) -> pa.Table:
    return records.sort_by([("key", "ascending"), ("sequence", "descending")])


def _holds(part: RunPart, key: bytes) -> bool:
    return part.first_key <= key <= part.last_key


def _limit(limit: int | None) -> int:
    return SEQUENCE_MAX if limit is None else limit


LOOKUPS: Final = 4  # After this many scans of all keys, an index would have been as cheap.


@dataclass(slots=True, eq=False)
class LoosePiece:
    """The window ``[start, limit)`` of the wal, with its records if they are in memory.

    ``fragment`` is the stored object, if known; it is not known for this process's own appends.
    ``marks`` are known after the records were fetched.
    """

    start: int
    limit: int
    records: pa.Table | None = None
    fragment: Fragment | None = None
    marks: dict[str, SinkMark] = field(default_factory=dict)
    _places: KeyPlaces | None = field(default=None, repr=False)
    _lookups: int = 0

    @property
    def nbytes(self) -> int:
        """The approximate size in bytes: in memory, or as stored."""
        if self.records is not None:
            return int(self.records.nbytes)
        return self.fragment.num_bytes if self.fragment is not None else 0

    def may_hold(self, key: bytes) -> bool:
        """Return False only if no record has this key, so that the piece need not be read."""
        if self.records is None and self.fragment is not None:
            return may_hold(self.fragment.keys, key)
        return True

    def of_key(self, records: pa.Table, key: bytes) -> pa.Table:
        """Return the records of one key; an index is built once it pays."""
        if self._places is None and self._lookups < LOOKUPS:
            self._lookups += 1
            return records.filter(pc.equal(records.column("key"), pa.scalar(key, pa.binary())))
        rows = self.places(records).rows_of(key)
        return records.take(pa.array(rows)) if len(rows) else records.slice(0, 0)

    def forget_records(self) -> None:
        """Drop the records from memory."""
        self.records = self._places = None

    def places(self, records: pa.Table) -> KeyPlaces:
        """Return the index of the keys of all the piece's records; it is built once."""
        if self._places is None:
            self._places = KeyPlaces.of(records.column("key"))
        return self._places


@dataclass(frozen=True, slots=True)
class KeyPlaces(Sequence[bytes]):
    """The distinct keys in order; the nth has the rows ``order[starts[n] : starts[n + 1]]``.

    A dict of all keys would take about 300 bytes of memory per key, and seconds for a million keys.
    """

    keys: pa.BinaryArray
    starts: np.ndarray[Any, Any]
    order: np.ndarray[Any, Any]

    @classmethod
    def of(cls, column: pa.ChunkedArray[Any]) -> KeyPlaces:
        """Return the index of a column of keys."""
        coded = one_chunk(column).dictionary_encode()
        by_key = pc.sort_indices(coded.dictionary)
        ranks = np.empty(len(by_key), np.int64)
        ranks[by_key.to_numpy()] = np.arange(len(by_key))
        ranked = ranks[coded.indices.to_numpy()]
        order = np.argsort(ranked, kind="stable")
        starts = np.searchsorted(ranked[order], np.arange(len(by_key) + 1))
        return cls(coded.dictionary.take(by_key), starts, order)

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            some: Any = self.keys[at].to_pylist()
            return list(some)
        key: bytes = self.keys[at].as_py()
        return key

    def rows_of(self, key: bytes) -> np.ndarray[Any, Any]:
        """Return the rows of a key, in order."""
        at = bisect_left(self, key)
        if at == len(self) or self[at] != key:
            return self.order[:0]
        return self.order[self.starts[at] : self.starts[at + 1]]

    def any_of(self, keys: Collection[bytes]) -> list[bytes]:
        """Return the given keys that occur here, in order; looks up the smaller of the two sets."""
        if len(keys) > len(self):
            return [key for key in self[:] if key in keys]
        return [key for key in sorted(keys) if len(self.rows_of(key))]

    def has_any(self, first: bytes, last: bytes | None) -> bool:
        """Return True if any of the keys ``[first, last)`` occurs here."""
        at = bisect_left(self, first)
        return at < len(self) and (last is None or self[at] < last)
