"""The interface of runs for readers of keyed logs: keys and sequences of one part.

A few rows are read by pages and many by row groups, with the same result.
Invariants: every byte is checked before use. Records come in the order of (key, sequence), or with
    newest first in reverse order.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, Literal, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.core.clock import Clock
from tidelog.core.lookahead import in_order
from tidelog.errors import CorruptionError
from tidelog.keyed.format.directory import (
    MAX_SEQUENCE,
    MIN_SEQUENCE,
    ROWS,
    KeyPiece,
    groups_of,
)
from tidelog.keyed.format.pages import decode_page, integers_of, values_of
from tidelog.keyed.format.part import (
    PAGED,
    Edges,
    KeyRows,
    PagePlace,
    PartLayout,
    PartRows,
    RunPart,
    edges_of,
    rows_to_read,
)
from tidelog.keyed.format.records import (
    KEY,
    KEYED_RECORDS,
    SEQUENCE,
    TIMESTAMP,
    VALUE,
    Numbers,
    int64_array,
    int64_of,
    repeated,
)
from tidelog.keyed.read.group_reader import GroupReader
from tidelog.keyed.read.run_objects import (
    DirectoryCache,
    DirectoryReader,
    Fetched,
    get_spans,
    told_as_damage,
)
from tidelog.store.port import Store

ReaderChoice = Literal["auto", "pages", "groups"]

# For more rows, decoding a row group is faster than decoding its pages.
PAGED_ROWS_MAX: Final = 2_048
GROUPS_AT_ONCE: Final = 8  # The row groups of one key: at most 64 MiB, unless values are larger.
_TIMES_AHEAD: Final = 8


class RunPartReader:
    """Reads parts of runs; see `RunPart`. Directories are cached.

    All reads raise:
        ObjectNotFound: an object is missing. CorruptionError: an object was changed.
        LocationError: the store failed.
    """

    def __init__(self, store: Store, clock: Clock, cache: DirectoryCache) -> None:
        self._directories = DirectoryReader(store, clock, cache)
        self._pages = PageReader(store, clock)
        self._groups = GroupReader(store, clock, cache)

    async def find(self, part: RunPart, key: bytes) -> KeyRows | None:
        """Return the place of a key's records in a part; None if the part does not have the key."""
        return await self._directories.find(part, key)

    async def read_key(
        self,
        part: RunPart,
        key: bytes,
        start: int,
        limit: int,
        *,
        rows_max: int | None = None,
        groups_max: int | None = None,
        newest_first: bool = False,
        reader: ReaderChoice = "auto",
    ) -> pa.Table:
        """Return a key's records of the sequences ``[start, limit)``, at most ``rows_max``.

        With ``groups_max``, the records are limited to that many row groups; there is at least one
        if the key has any.
        Shape: `KEYED_RECORDS`, in sequence order, or with ``newest_first`` in reverse order.
        """
        key_rows = await self._key_rows(part, key, start, limit)
        if key_rows is None or rows_max == 0:
            return KEYED_RECORDS.empty_table()
        head = (await self._directories.open(part)).head
        rows = rows_to_read(
            head.layout, key_rows, start, limit, rows_max=rows_max, newest_first=newest_first
        )
        if groups_max is not None:
            rows = _first_groups(head.layout, rows, groups_max, newest_first=newest_first)
        if reader == "pages" or (reader == "auto" and rows.rows <= PAGED_ROWS_MAX):
            table = await self._pages.read(part, head.layout, rows, key)
        else:
            async with aclosing(self._groups.read(part, head, rows)) as tables:
                pieces = [piece async for piece in tables]
            table = pa.concat_tables([KEYED_RECORDS.empty_table(), *pieces])
            _check_keys(table, key, part)
        table = _of_sequences(table, start, limit)
        if newest_first:
            table = table.take(int64_array(np.arange(table.num_rows - 1, -1, -1)))
        return table if rows_max is None else table.slice(0, rows_max)

    async def rows_at_once(self, part: RunPart) -> int:
        """Return the approximate number of rows of a key that are read at once."""
        return GROUPS_AT_ONCE * part.rows // (await self._directories.layout(part)).groups

    async def scan_keys(
        self, part: RunPart, first: bytes, last: bytes | None, start: int, limit: int
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the records of the keys ``[first, last)`` and the sequences ``[start, limit)``.

        Units: a table has at most 65,536 rows, and about 8 MiB, or it is one row group.
        """
        if not part.may_hold(start, limit) or (last is not None and last <= part.first_key):
            return
        begin = await self._directories.rows_from(part, first)
        end = await self._directories.rows_from(part, last)
        if end <= begin:
            return
        head = (await self._directories.open(part)).head
        is_whole = start <= part.min_sequence and part.max_sequence < limit
        async with aclosing(self._groups.read(part, head, PartRows(begin, end))) as tables:
            async for table in tables:
                records = table if is_whole else _filtered(table, start, limit)
                if records.num_rows:
                    yield records

    async def count_key(self, part: RunPart, key: bytes, start: int, limit: int) -> int:
        """Return the number of records of a key with the sequences ``[start, limit)``.

        If these are all of the key's records, the directory alone gives the number. Otherwise, one
        page of sequences is read at each end.
        """
        key_rows = await self._key_rows(part, key, start, limit)
        if key_rows is None:
            return 0
        layout = await self._directories.layout(part)
        edges = edges_of(layout, key_rows, start, limit)
        first = await self._exact(part, layout, edges.first_least, edges.first_most, start)
        last = await self._exact(part, layout, edges.limit_least, edges.limit_most, limit)
        return max(last - first, 0)

    async def bound_key(self, part: RunPart, key: bytes, start: int, limit: int) -> tuple[int, int]:
        """Return the least and the greatest possible number, by the directory alone."""
        key_rows = await self._key_rows(part, key, start, limit)
        if key_rows is None:
            return 0, 0
        edges = edges_of(await self._directories.layout(part), key_rows, start, limit)
        return _bounds(edges, key_rows, start, limit)

    async def first_at(self, part: RunPart, time_us: int) -> int | None:
        """Return the least sequence whose record has this time or a later one; None without one.

        Both columns are read completely, unless the descriptor's times decide.
        """
        if time_us > part.last_us:
            return None
        if time_us <= part.first_us:
            return part.min_sequence
        layout = await self._directories.layout(part)

        async def groups() -> AsyncGenerator[PartRows, None]:
            for group in range(layout.groups):
                yield PartRows(int(layout.group_rows[group]), int(layout.group_rows[group + 1]))

        async def least(rows: PartRows) -> int | None:
            times, sequences = await self._pages.times(part, layout, rows)
            later = sequences[times >= time_us]
            return int(later.min()) if len(later) else None

        ahead = in_order(groups(), least, size_of=lambda _: 0, at_once=_TIMES_AHEAD)
        async with aclosing(ahead) as results:
            return min(
                [sequence async for _, sequence in results if sequence is not None], default=None
            )

    async def keys(
        self, part: RunPart, first: bytes, last: bytes | None, *, after: bytes | None = None
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the keys ``[first, last)`` and past ``after``, in order, by the directory alone.

        Shape: ``key`` (binary), ``rows``, ``min_sequence``, ``max_sequence`` (int64).
        """
        if after is not None and after >= first:
            first = after + b"\0"  # The smallest possible key after it.
        if first > part.last_key or (last is not None and last <= max(first, part.first_key)):
            return
        async with aclosing(self._directories.pieces(part, first, last)) as pieces:
            async for piece in pieces:
                for table in _listed(piece, first, last):
                    yield table

    async def _key_rows(self, part: RunPart, key: bytes, start: int, limit: int) -> KeyRows | None:
        """Return the place of a key's rows, if some may have the sequences ``[start, limit)``."""
        if not part.may_hold(start, limit):
            return None
        key_rows = await self._directories.find(part, key)
        if key_rows is None or key_rows.max_sequence < start or limit <= key_rows.min_sequence:
            return None
        return key_rows

    async def _exact(
        self, part: RunPart, layout: PartLayout, least: int, most: int, sequence: int
    ) -> int:
        """Return the first row at or after a sequence; it is between ``least`` and ``most``."""
        if least == most:
            return least
        sequences = await self._pages.sequences(part, layout, PartRows(least, most))
        _check_rising(sequences, part)
        return least + int(np.searchsorted(sequences, sequence, side="left"))


def _first_groups(
    layout: PartLayout, rows: PartRows, groups: int, *, newest_first: bool
) -> PartRows:
    """Return the first rows, or the last with ``newest_first``, within ``groups`` row groups."""
    places = layout.group_rows
    if newest_first:
        last = int(np.searchsorted(places, rows.limit, side="left"))
        return PartRows(max(rows.first, int(places[max(last - groups, 0)])), rows.limit)
    first = int(np.searchsorted(places, rows.first, side="right")) - 1
    limit = int(places[min(first + groups, layout.groups)])
    return PartRows(rows.first, max(rows.first, min(rows.limit, limit)))


def _bounds(edges: Edges, key_rows: KeyRows, start: int, limit: int) -> tuple[int, int]:
    # The directory has the sequences of the key's first and last record. Each that is in the range
    # proves one record.
    known = {key_rows.min_sequence, key_rows.max_sequence}
    least = max(
        edges.limit_least - edges.first_most, sum(start <= sequence < limit for sequence in known)
    )
    most = min(edges.limit_most - edges.first_least, limit - start)
    return least, max(most, least)


def _listed(piece: KeyPiece, first: bytes, last: bytes | None) -> list[pa.Table]:
    begin = piece.index_of(first)
    limit = len(piece) if last is None else piece.index_of(last)
    table = piece.table.select([KEY, ROWS, MIN_SEQUENCE, MAX_SEQUENCE])
    # A small directory that is read as a whole may still have many keys.
    return [group for group in groups_of(table.slice(begin, limit - begin)) if group.num_rows]


def _of_sequences(table: pa.Table, start: int, limit: int) -> pa.Table:
    """Return the records of one key with the sequences ``[start, limit)``."""
    first, end = np.searchsorted(int64_of(table.column(SEQUENCE)), [start, limit]).tolist()
    return table.slice(first, max(end - first, 0))


def _filtered(table: pa.Table, start: int, limit: int) -> pa.Table:
    sequences = int64_of(table.column(SEQUENCE))
    wanted = (sequences >= start) & (sequences < limit)
    return table if wanted.all() else table.filter(pa.array(wanted))


def _check_keys(table: pa.Table, key: bytes, part: RunPart) -> None:
    """Check that the part has the key's records at the place in its directory."""
    if table.num_rows and {table.column(KEY)[row].as_py() for row in (0, -1)} != {key}:
        raise CorruptionError(
            "a part's keys differ from its directory: restore both", path=part.path
        )


def _check_rising(sequences: Numbers, part: RunPart) -> None:
    if not (np.diff(sequences) > 0).all():
        raise CorruptionError(
            "a key's sequences are not ascending: restore the object", path=part.path
        )


T = TypeVar("T")

_WHAT: Final = "a page of a run"
_INLINE_BYTES: Final = 128 * 1024  # Decoding this much takes less time than starting a thread.
_TIMESTAMPS, _SEQUENCES, _VALUES = (PAGED.index(name) for name in (TIMESTAMP, SEQUENCE, VALUE))


class PageReader:
    """Reads pages of parts; each page's header and checksum are checked."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def read(self, part: RunPart, layout: PartLayout, rows: PartRows, key: bytes) -> pa.Table:
        """Return rows of a part that all have the same key.

        Raises:
            ObjectNotFound: the part is missing. CorruptionError: a page was changed. LocationError:
                the store failed.
        """
        decode = partial(_records, layout=layout, rows=rows, key=key)
        return await self._with_pages(part, layout, rows, range(len(PAGED)), decode)

    async def sequences(self, part: RunPart, layout: PartLayout, rows: PartRows) -> Numbers:
        """Return the sequences of rows of a part. Raises: see `read`."""

        def decode(fetched: Fetched) -> Numbers:
            return _integers(fetched, _SEQUENCES, layout, rows)

        return await self._with_pages(part, layout, rows, [_SEQUENCES], decode)

    async def times(
        self, part: RunPart, layout: PartLayout, rows: PartRows
    ) -> tuple[Numbers, Numbers]:
        """Return the timestamps and the sequences of rows of a part. Raises: see `read`."""

        def decode(fetched: Fetched) -> tuple[Numbers, Numbers]:
            return (
                _integers(fetched, _TIMESTAMPS, layout, rows),
                _integers(fetched, _SEQUENCES, layout, rows),
            )

        return await self._with_pages(part, layout, rows, [_TIMESTAMPS, _SEQUENCES], decode)

    async def _with_pages(
        self,
        part: RunPart,
        layout: PartLayout,
        rows: PartRows,
        columns: Sequence[int],
        decode: Callable[[Fetched], T],
    ) -> T:
        """Return the result of ``decode`` on the pages of some columns; see `get_spans`."""
        spans = [
            place.span
            for column in columns
            for place in layout.pages(column, rows.first, rows.limit)
        ]

        async def check(fetched: Fetched) -> T:
            def work() -> T:
                with told_as_damage(part.path, _WHAT):
                    return decode(fetched)

            if sum(len(data) for _, data in fetched) <= _INLINE_BYTES:
                return work()
            return await self._clock.offload(work)

        return await get_spans(self._store, part.path, spans, check)


def _records(fetched: Fetched, *, layout: PartLayout, rows: PartRows, key: bytes) -> pa.Table:
    values: list[bytes] = []
    for place in layout.pages(_VALUES, rows.first, rows.limit):
        start = max(rows.first - place.first_row, 0)
        limit = min(rows.limit - place.first_row, place.rows)
        values += values_of(_page(fetched, place), start, limit)
    columns = {
        SEQUENCE: int64_array(_integers(fetched, _SEQUENCES, layout, rows)),
        TIMESTAMP: int64_array(_integers(fetched, _TIMESTAMPS, layout, rows)),
        VALUE: pa.array(values, pa.binary()),
    }
    return pa.table({KEY: repeated(key, rows.rows), **columns}, schema=KEYED_RECORDS)


def _integers(fetched: Fetched, column: int, layout: PartLayout, rows: PartRows) -> Numbers:
    arrays = [np.empty(0, np.int64)]
    for place in layout.pages(column, rows.first, rows.limit):
        start = max(rows.first - place.first_row, 0)
        limit = min(rows.limit - place.first_row, place.rows)
        arrays.append(integers_of(_page(fetched, place), place.rows)[start:limit])
    return np.concatenate(arrays)


def _page(fetched: Fetched, place: PagePlace) -> bytes:
    """Return the decompressed contents of a page."""
    for span, data in fetched:
        if span.start <= place.span.start and place.span.limit <= span.limit:
            at = place.span.start - span.start
            stored = memoryview(data)[at : place.span.limit - span.start]
            return decode_page(stored, place.rows)
    raise ValueError("a page was not read")
