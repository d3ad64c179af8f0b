"""Pages of records and keys of a keyed log, limited in rows and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from tidelog.http.api.keys import json_bytes
from tidelog.http.api.messages import KeySummary, ScanAnswer, ScanValue
from tidelog.keyed.port import KeyedReads, KeyedScan
from tidelog.keyed.values import KEYED_RECORDS
from tidelog.server.keyed_asks import ScanAsk

_ROW_BYTES: Final = 64  # Bytes of an answer per record, without its key and value.


@dataclass(slots=True)
class RecordsPage:
    """A page: the records, the sequence to resume from, and whether a limit ended it."""

    records: pa.Table
    next_sequence: int
    is_cut: bool


async def scan_page(log: KeyedReads, ask: ScanAsk, bytes_max: int) -> RecordsPage:
    """Read one page of a scan."""
    query = ask.query
    async with log.scan(
        query.keys, query.start, query.limit, rows=ask.rows, newest_first=query.newest_first
    ) as scan:
        tables: list[pa.Table] = []
        rows = size = 0
        async for table in scan:
            kept, is_cut = _cut(table, ask.rows - rows, bytes_max - size, least=int(not rows))
            tables.append(kept)
            rows, size = rows + kept.num_rows, size + _bytes_in(kept)
            if is_cut or rows >= ask.rows:
                return _ended(tables, scan, ask)
        return RecordsPage(_joined(tables), scan.next_sequence, is_cut=False)


def _ended(tables: list[pa.Table], scan: KeyedScan, ask: ScanAsk) -> RecordsPage:
    """Return the page of a scan that reached a limit."""
    records = _joined(tables)
    if ask.query.newest_first:
        return RecordsPage(records, scan.next_sequence, is_cut=True)
    return RecordsPage(records, _after(records), is_cut=True)


async def follow_page(
    log: KeyedReads,
    ask: ScanAsk,
    bytes_max: int,
    *,
    turns: asyncio.Semaphore,
    given_up: list[Callable[[], Awaitable[Any]]],
) -> RecordsPage:
    """Read the records from the start, or wait for some until the time is over or it is given up.

    While it waits, it makes no request to the store that other followers do not share. It also
    holds none of the ``turns``.
    """
    query = ask.query
    start, limit = query.start, query.limit
    if limit is not None and limit <= start:
        return RecordsPage(KEYED_RECORDS.empty_table(), start, is_cut=False)
    # A follower that is far behind gets one page now; `follow` would read much further ahead.
    async with turns:
        page = await scan_page(log, ask, bytes_max)
    is_over = limit is not None and page.next_sequence >= limit
    if page.records.num_rows or is_over:
        return page
    at = max(start, page.next_sequence)
    scan = log.follow(query.keys, start=at)
    async with scan:
        records, reached = await _first_of(scan, ask.wait_us, given_up)
    if records is None:
        return RecordsPage(KEYED_RECORDS.empty_table(), max(at, reached), is_cut=False)
    if reached < _after(records):
        if ask.key is None:
            # One table of several: more records of these sequences have not arrived yet.
            async with turns:
                rest = replace(ask, query=replace(query, start=at))
                return await scan_page(log, rest, bytes_max)
        reached = _after(records)
    records = records.sort_by("sequence")  # The cut must remove the newest records.
    if limit is not None:
        records = records.filter(pc.less(records["sequence"], pa.scalar(limit, pa.int64())))
        reached = min(reached, limit)
    kept, is_cut = _cut(records, ask.rows, bytes_max)
    return RecordsPage(kept, _after(kept) if is_cut else reached, is_cut=is_cut)


async def _first_of(
    scan: KeyedScan, wait_us: int, given_up: list[Callable[[], Awaitable[Any]]]
) -> tuple[pa.Table | None, int]:
    """Return the first records, or None if the time is over; and the sequence to resume from."""
    coming = asyncio.ensure_future(anext(aiter(scan), None))
    others = [asyncio.ensure_future(wait()) for wait in given_up]
    try:
        await asyncio.wait(
            [coming, *others], timeout=wait_us / 1e6, return_when=asyncio.FIRST_COMPLETED
        )
        # While it waits, its sequence advances with records of other keys.
        return (coming.result() if coming.done() else None), scan.next_sequence
    finally:
        for task in (coming, *others):
            task.cancel()
        # The handle cannot be closed until these tasks, which read from it, have ended.
        await asyncio.gather(coming, *others, return_exceptions=True)


async def keys_page(
    log: KeyedReads,
    prefix: bytes,
    *,
    after: bytes | None,
    segments: tuple[int, int | None] | None,
    rows: int,
) -> tuple[list[KeySummary], bool]:
    """Read keys in order; return them, and True if more keys follow."""
    summaries: list[KeySummary] = []
    pages = log.keys(prefix, after=after, segments=segments)
    async for table in pages:
        listed = table.slice(0, rows + 1 - len(summaries)).to_pylist()
        summaries += [KeySummary(**{**row, "key": json_bytes(row["key"])}) for row in listed]
        if len(summaries) > rows:
            break
    close = getattr(pages, "aclose", None)
    if close is not None:
        await close()
    return summaries[:rows], len(summaries) > rows


def answer_of(page: RecordsPage, ask: ScanAsk) -> ScanAnswer:
    """Return the answer for a page of a scan."""
    columns = [page.records.column(name).to_pylist() for name in KEYED_RECORDS.names]
    values = [
        ScanValue(
            sequence=sequence,
            value=json_bytes(value),
            timestamp_us=timestamp_us,
            key=json_bytes(key) if ask.key is None else UNSET,
        )
        for key, sequence, timestamp_us, value in zip(*columns, strict=True)
    ]
    return ScanAnswer(
        key=UNSET if ask.key is None else json_bytes(ask.key),
        values=values,
        next_sequence=page.next_sequence,
        more=page.is_cut,
    )


def _cut(table: pa.Table, rows: int, bytes_max: int, *, least: int = 1) -> tuple[pa.Table, bool]:
    """Return the first rows that fit into the limits; and True if rows were cut off.

    It returns at least ``least`` rows, of any size, so that a client always advances.
    """
    kept = min(rows, table.num_rows)
    if kept and _bytes_in(table) > bytes_max:
        total = np.cumsum(_sizes(table).to_numpy())
        kept = min(kept, max(least, int(np.searchsorted(total, bytes_max, side="right"))))
    return table.slice(0, kept), kept < table.num_rows


def _sizes(table: pa.Table) -> pa.ChunkedArray[Any]:
    keys, values = (pc.binary_length(table[name]).cast(pa.int64()) for name in ("key", "value"))
    sizes: pa.ChunkedArray[Any] = pc.add(pc.add(keys, values), pa.scalar(_ROW_BYTES, pa.int64()))
    return sizes


def _bytes_in(table: pa.Table) -> int:
    return int(pc.sum(_sizes(table)).as_py() or 0)


def content_bytes(table: pa.Table) -> int:
    """Return the number of bytes in keys and values."""
    return _bytes_in(table) - _ROW_BYTES * table.num_rows


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables) if tables else KEYED_RECORDS.empty_table()


def _after(records: pa.Table) -> int:
    return int(pc.max(records["sequence"]).as_py()) + 1
