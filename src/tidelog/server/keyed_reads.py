"""Records and keys of a keyed log, no more than an answer has: its rows, and its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from tidelog.http_api.keys import json_bytes
from tidelog.http_api.messages import KeyListed, ScanAnswer, ScanValue
from tidelog.keyed.port import KeyedReads, KeyedScan
from tidelog.keyed.values import KEYED_RECORDS
from tidelog.server.keyed_asks import ScanAsk

_ROW_BYTES: Final = 64  # Of an answer's text, beside a record's key and value.


@dataclass(slots=True)
class RecordsPage:
    """What was read: the records, where to go on, and whether a limit ended it."""

    records: pa.Table
    next_sequence: int
    is_cut: bool


async def scan_page(log: KeyedReads, ask: ScanAsk, bytes_max: int) -> RecordsPage:
    """Read a page of a scan."""
    options: dict[str, Any] = {"rows": ask.rows, "newest_first": ask.newest_first}
    if ask.key is not None:
        scan = log.scan(ask.key, ask.start, ask.limit, **options)
    elif ask.prefix is not None:
        scan = log.scan_prefix(ask.prefix, ask.start, ask.limit, **options)
    else:
        first = ask.first if ask.first is not None else b""
        scan = log.scan_range(first, ask.last, ask.start, ask.limit, **options)
    async with scan:
        found: list[pa.Table] = []
        rows = size = 0
        async for table in scan:
            kept, is_cut = _cut(table, ask.rows - rows, bytes_max - size, least=int(not rows))
            found.append(kept)
            rows, size = rows + kept.num_rows, size + _bytes_in(kept)
            if is_cut or rows >= ask.rows:
                return _ended(found, scan, ask)
        return RecordsPage(_joined(found), scan.next_sequence, is_cut=False)


def _ended(found: list[pa.Table], scan: KeyedScan, ask: ScanAsk) -> RecordsPage:
    """Return what was read up to a limit."""
    records = _joined(found)
    if ask.newest_first:
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
    """Read what there is from the start on, or wait for it, until it is given up, or too long.

    Nothing is asked of the store meanwhile that other followers have not asked already; and what
    waits takes nobody's turn.
    """
    if ask.limit is not None and ask.limit <= ask.start:
        return RecordsPage(KEYED_RECORDS.empty_table(), ask.start, is_cut=False)
    # Who is far behind gets a page, and not as much as a follower reads ahead.
    async with turns:
        page = await scan_page(log, ask, bytes_max)
    is_over = ask.limit is not None and page.next_sequence >= ask.limit
    if page.records.num_rows or is_over:
        return page
    at = max(ask.start, page.next_sequence)
    scan = log.follow(ask.key, prefix=ask.prefix, start=at)
    async with scan:
        found, reached = await _first_of(scan, ask.wait_us, given_up)
    if found is None:
        return RecordsPage(KEYED_RECORDS.empty_table(), max(at, reached), is_cut=False)
    if reached < _after(found):
        if not ask.is_of_one_key:
            # A part of more: what else of these sequences there is has not come yet.
            async with turns:
                return await scan_page(log, replace(ask, start=at), bytes_max)
        reached = _after(found)
    found = found.sort_by("sequence")  # What is cut off must be the newest.
    if ask.limit is not None:
        found = found.filter(pc.less(found["sequence"], pa.scalar(ask.limit, pa.int64())))
        reached = min(reached, ask.limit)
    kept, is_cut = _cut(found, ask.rows, bytes_max)
    return RecordsPage(kept, _after(kept) if is_cut else reached, is_cut=is_cut)


async def _first_of(
    scan: KeyedScan, wait_us: int, given_up: list[Callable[[], Awaitable[Any]]]
) -> tuple[pa.Table | None, int]:
    """Return the first records, None if it takes too long or is given up; and where to go on."""
    coming = asyncio.ensure_future(anext(aiter(scan), None))
    others = [asyncio.ensure_future(one()) for one in given_up]
    try:
        await asyncio.wait(
            [coming, *others], timeout=wait_us / 1e6, return_when=asyncio.FIRST_COMPLETED
        )
        # While it waits it moves on with what others' keys get.
        return (coming.result() if coming.done() else None), scan.next_sequence
    finally:
        for task in (coming, *others):
            task.cancel()
        # Until they have ended, what they read from cannot be closed.
        await asyncio.gather(coming, *others, return_exceptions=True)


async def keys_page(
    log: KeyedReads,
    prefix: bytes,
    *,
    after: bytes | None,
    segments: tuple[int, int | None] | None,
    rows: int,
) -> tuple[list[KeyListed], bool]:
    """Read keys in order; return them, and whether there are others after them."""
    found: list[KeyListed] = []
    pages = log.keys(prefix, after=after, segments=segments)
    async for table in pages:
        listed = table.slice(0, rows + 1 - len(found)).to_pylist()
        found += [KeyListed(**{**row, "key": json_bytes(row["key"])}) for row in listed]
        if len(found) > rows:
            break
    close = getattr(pages, "aclose", None)
    if close is not None:
        await close()
    return found[:rows], len(found) > rows


def answer_of(page: RecordsPage, ask: ScanAsk) -> ScanAnswer:
    """Return a page of a scan as it is answered."""
    columns = [page.records.column(name).to_pylist() for name in KEYED_RECORDS.names]
    values = [
        ScanValue(
            sequence=sequence,
            value=json_bytes(value),
            timestamp_us=timestamp_us,
            key=UNSET if ask.is_of_one_key else json_bytes(key),
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
    """Return the first rows, as many as there is room for; and whether others follow.

    At least so many are returned, be they as large as they are: who asks has to get on.
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
    """Return how many bytes keys and values have."""
    return _bytes_in(table) - _ROW_BYTES * table.num_rows


def _joined(found: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(found) if found else KEYED_RECORDS.empty_table()


def _after(records: pa.Table) -> int:
    return int(pc.max(records["sequence"]).as_py()) + 1
