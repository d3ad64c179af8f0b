"""Streams of updates: collected into one table per part, and written as they arrive.

Memory holds the table that is being collected and the tables under upload. A stream that is faster
waits.
Source: persist, "Append" and "Backpressure".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tidelog.core.clock import Clock
from tidelog.errors import UsageError
from tidelog.persist.format.part import Part
from tidelog.persist.write.writer import PartWriter

_END: Final[Any] = object()  # Not None, because a stream may contain None, which is refused.
Rows = pa.Table | pa.RecordBatch
Stream = pa.RecordBatchReader | AsyncIterable[Rows] | Iterable[Rows]


async def gathered(stream: Stream, part_bytes: int, clock: Clock) -> AsyncGenerator[pa.Table, None]:
    """Yield the rows of a stream as tables of about ``part_bytes`` of Arrow data each.

    The last table may be smaller. An empty stream of tables yields none.

    Raises:
        UsageError: an item is neither a table nor a record batch, or schemas differ.
    """
    held: list[pa.Table] = []
    size = 0
    async with aclosing(_each(stream, clock)) as tables:
        async for table in tables:
            held.append(table)
            size += table.nbytes
            if size >= part_bytes:
                yield _joined(held)
                held, size = [], 0
    if held:
        yield _joined(held)


async def write_each(
    writer: PartWriter, tables: AsyncIterator[pa.Table], *, inline: bool
) -> list[Part]:
    """Write tables from `prepare_updates`, at most ``writer.uploads`` at once.

    With ``inline``, a single small table may be stored in its descriptor.

    Raises:
        UsageError: a record is too large. LocationError: the store failed; no state names the
            parts.
    """
    first = await anext(tables, None)
    if first is None:
        return []
    second = await anext(tables, None)
    if second is None:
        return await writer.write(first, inline=inline)
    under_way: deque[asyncio.Task[list[Part]]] = deque()
    parts: list[Part] = []

    async def begin(table: pa.Table) -> None:
        if len(under_way) == writer.uploads:
            parts.extend(await under_way.popleft())
        under_way.append(asyncio.create_task(writer.write(table, inline=False)))

    try:
        await begin(first)
        await begin(second)
        async for table in tables:
            await begin(table)
        while under_way:
            parts.extend(await under_way.popleft())
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    return parts


async def _each(stream: Stream, clock: Clock) -> AsyncGenerator[pa.Table, None]:
    if isinstance(stream, AsyncIterable):
        async for rows in stream:
            yield _table(rows)
        return
    waiting = iter(stream)
    # Producing the next rows may compute or block, so it runs on another thread.
    while (rows := await clock.offload(partial(next, waiting, _END))) is not _END:
        yield _table(rows)


def check_stream(updates: object) -> None:
    """Refuse values that cannot yield tables; mappings and data frames iterate over other things.

    Raises:
        UsageError: the updates are neither tables nor an iterable of them.
    """
    is_one = isinstance(updates, str | bytes | Mapping) or hasattr(updates, "__dataframe__")
    if is_one or not isinstance(updates, AsyncIterable | Iterable):
        raise _no_rows(updates)


def _table(rows: object) -> pa.Table:
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows
    raise _no_rows(rows)


def _no_rows(found: object) -> UsageError:
    return UsageError(
        "updates must be a pyarrow table, a record batch, a RecordBatchReader, or an iterable of "
        "these: pyarrow.table(...) converts a dict of columns or a data frame",
        given=type(found).__name__,
    )


def _joined(held: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(held)
    except pa.ArrowInvalid as error:
        raise UsageError(f"the tables have different schemas: {error}") from error
