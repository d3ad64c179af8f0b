"""The reads of the model of keyed logs: pages of records, and pages of keys."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Protocol

import pyarrow as pa

from kit.keyed_history import KeyedHistory, KeyedRecord
from tidelog.keyed.port import KeyedScan
from tidelog.keyed.values import KEYED_RECORDS, KeyedQuery

Wanted = Callable[[bytes], bool]


class ShownView(Protocol):
    """The view of a handle of the model."""

    history: KeyedHistory
    page_rows: int
    is_closed: bool

    @property
    def oldest(self) -> int: ...
    @property
    def frontier(self) -> int: ...


class ModelScan(KeyedScan):
    """The wanted records of ``[start, limit)``; with ``is_endless``, also later records."""

    def __init__(
        self,
        shown: ShownView,
        query: KeyedQuery,
        *,
        is_endless: bool = False,
    ) -> None:
        self._shown, self._query, self._is_endless = shown, query, is_endless
        self._next = query.start
        self._tables: AsyncGenerator[pa.Table, None] | None = None

    @property
    def next_sequence(self) -> int:
        return self._next

    def __aiter__(self) -> AsyncIterator[pa.Table]:
        if self._tables is None:
            self._tables = self._followed() if self._is_endless else self._scanned()
        return self._tables

    async def aclose(self) -> None:
        if self._tables is not None:
            await self._tables.aclose()

    async def _scanned(self) -> AsyncGenerator[pa.Table, None]:
        shown, query = self._shown, self._query
        shown.history.check_start(query.start, shown.oldest)
        frontier = shown.frontier if query.limit is None else min(query.limit, shown.frontier)
        found = shown.history.records(query.start, frontier, query.keys.contains)
        done = max(query.start, frontier)
        if query.newest_first:
            found.reverse()
            self._next = done
        is_cut = query.rows is not None and len(found) >= query.rows
        found = found[: query.rows]
        for start in range(0, len(found), shown.page_rows):
            page = found[start : start + shown.page_rows]
            if not query.newest_first:
                self._next = page[-1].sequence + 1
            yield records_of(page)
        if not is_cut:
            self._next = done

    async def _followed(self) -> AsyncGenerator[pa.Table, None]:
        shown, history, keys = self._shown, self._shown.history, self._query.keys
        while not shown.is_closed:
            history.check_start(self._next, shown.oldest)
            changed, frontier = history.changed, shown.frontier
            found = history.records(self._next, frontier, keys.contains)[: shown.page_rows]
            if found:
                self._next = found[-1].sequence + 1
                yield records_of(found)
                continue
            self._next = max(self._next, frontier)
            await changed.wait()


async def pages_of_keys(
    shown: ShownView, wanted: Wanted, *, start: int, limit: int | None
) -> AsyncGenerator[pa.Table, None]:
    """Yield keys and their figures in key order, a page at a time."""
    upper = shown.frontier if limit is None else min(limit, shown.frontier)
    found: dict[bytes, list[int]] = {}
    for record in shown.history.records(start, upper, wanted):
        found.setdefault(record.key, []).append(record.sequence)
    keys = sorted(found)
    for first in range(0, len(keys), shown.page_rows):
        page = keys[first : first + shown.page_rows]
        yield pa.table(
            {
                "key": pa.array(page, pa.binary()),
                "records": pa.array([len(found[key]) for key in page], pa.int64()),
                "min_sequence": pa.array([found[key][0] for key in page], pa.int64()),
                "max_sequence": pa.array([found[key][-1] for key in page], pa.int64()),
            }
        )


def records_of(records: Sequence[KeyedRecord]) -> pa.Table:
    """Return records as a table with the columns of a keyed log."""
    columns = {
        "key": [one.key for one in records],
        "sequence": [one.sequence for one in records],
        "timestamp_us": [one.timestamp_us for one in records],
        "value": [one.value for one in records],
    }
    return pa.table(columns, schema=KEYED_RECORDS)
