"""Read a few rows of a part by page: two requests for a key of a hundred records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.core.clock import Clock
from tidelog.errors import CorruptionError
from tidelog.keyed.format.key_plan import PartRows
from tidelog.keyed.format.layout import PAGED, PagePlace, PartLayout, Span
from tidelog.keyed.format.page_index import decode_page, integers_of, values_of
from tidelog.keyed.format.part import RunPart
from tidelog.keyed.format.records import (
    KEY,
    KEYED_RECORDS,
    SEQUENCE,
    TIMESTAMP,
    VALUE,
    Numbers,
    int64_array,
    repeated,
)
from tidelog.keyed.read.ranges import get_spans, told_as_damage
from tidelog.store.port import Store
from tidelog.store.wrappers.cached import Cached

T = TypeVar("T")

_WHAT: Final = "a page of a run"
_INLINE_BYTES: Final = 128 * 1024  # Decoding this much takes less time than starting a thread.
_TIMESTAMPS, _SEQUENCES, _VALUES = (PAGED.index(name) for name in (TIMESTAMP, SEQUENCE, VALUE))


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Fetched bytes of a part, with their places."""

    spans: Sequence[tuple[Span, bytes]]

    def page(self, place: PagePlace) -> bytes:
        """Return the decompressed contents of a page."""
        for span, data in self.spans:
            if span.start <= place.span.start and place.span.limit <= span.limit:
                at = place.span.start - span.start
                stored = memoryview(data)[at : place.span.limit - span.start]
                return decode_page(stored, place.rows)
        raise ValueError("a page was not read")


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

        def decode(fetched: _Fetched) -> Numbers:
            return _integers(fetched, _SEQUENCES, layout, rows)

        return await self._with_pages(part, layout, rows, [_SEQUENCES], decode)

    async def times(
        self, part: RunPart, layout: PartLayout, rows: PartRows
    ) -> tuple[Numbers, Numbers]:
        """Return the timestamps and the sequences of rows of a part. Raises: see `read`."""

        def decode(fetched: _Fetched) -> tuple[Numbers, Numbers]:
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
        decode: Callable[[_Fetched], T],
    ) -> T:
        """Return the result of ``decode``; if a cached copy is damaged, read the pages again."""
        spans = [
            place.span
            for column in columns
            for place in layout.pages(column, rows.first, rows.limit)
        ]
        try:
            return await self._tried(part, spans, decode)
        except CorruptionError:
            if not isinstance(self._store, Cached):
                raise
            await self._store.forget([part.path])
            return await self._tried(part, spans, decode)

    async def _tried(
        self, part: RunPart, spans: Sequence[Span], decode: Callable[[_Fetched], T]
    ) -> T:
        fetched = _Fetched(await get_spans(self._store, part.path, spans))

        def work() -> T:
            with told_as_damage(part.path, _WHAT):
                return decode(fetched)

        if sum(len(data) for _, data in fetched.spans) <= _INLINE_BYTES:
            return work()
        return await self._clock.offload(work)


def _records(fetched: _Fetched, *, layout: PartLayout, rows: PartRows, key: bytes) -> pa.Table:
    values: list[bytes] = []
    for place in layout.pages(_VALUES, rows.first, rows.limit):
        start = max(rows.first - place.first_row, 0)
        limit = min(rows.limit - place.first_row, place.rows)
        values += values_of(fetched.page(place), start, limit)
    columns = {
        SEQUENCE: int64_array(_integers(fetched, _SEQUENCES, layout, rows)),
        TIMESTAMP: int64_array(_integers(fetched, _TIMESTAMPS, layout, rows)),
        VALUE: pa.array(values, pa.binary()),
    }
    return pa.table({KEY: repeated(key, rows.rows), **columns}, schema=KEYED_RECORDS)


def _integers(fetched: _Fetched, column: int, layout: PartLayout, rows: PartRows) -> Numbers:
    found = [np.empty(0, np.int64)]
    for place in layout.pages(column, rows.first, rows.limit):
        start = max(rows.first - place.first_row, 0)
        limit = min(rows.limit - place.first_row, place.rows)
        found.append(integers_of(fetched.page(place), place.rows)[start:limit])
    return np.concatenate(found)
