"""Streams of updates: collected into one table per part, and written as they arrive.

Memory holds the table that is being collected and the tables under upload. A stream that is faster
waits.
Source: persist, "Append" and "Backpressure".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tidelog.core.clock import Clock, offload_waiting
from tidelog.persist.format.inputs import arrow_table, joined_tables
from tidelog.persist.format.part import Part
from tidelog.persist.write.writer import PartWriter

_END: Final[Any] = object()  # Not None, because a stream may contain None, which is refused.
Stream = AsyncIterable[object] | Iterable[object]


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
                whole, held, size = joined_tables(held), [], 0
                yield whole
    if held:
        yield joined_tables(held)


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
            yield arrow_table(rows)
        return
    waiting = iter(stream)
    # Producing the next rows may compute or block, so it runs on another thread.
    while (rows := await offload_waiting(partial(next, waiting, _END), clock)) is not _END:
        yield arrow_table(rows)
