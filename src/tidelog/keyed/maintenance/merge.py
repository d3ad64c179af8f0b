"""Merging runs by key ranges: each range is read, sorted and written as a whole.

The directories give the number of records of each key, so ranges are sized to be sorted in memory.
A key with more records is a range of its own and is read run by run, which is already in order. The
size of records is known only after they are read, so a range that turns out too large is divided
again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.core.clock import Clock
from tidelog.keyed.format.records import sort_records
from tidelog.keyed.read.key_ranges import key_ranges
from tidelog.keyed.read.listing import merged_keys
from tidelog.keyed.read.part_reader import RunPartReader
from tidelog.keyed.read.sources import RunSource
from tidelog.keyed.states.run import Run

RANGE_ROWS: Final = 500_000
RANGE_BYTES: Final = 96 * 1024 * 1024
# A range of more than four times `RANGE_BYTES` is divided into this many, and read again.
CUTS: Final = 8


async def merged_records(
    parts: RunPartReader,
    clock: Clock,
    runs: Sequence[Run],
    *,
    first: bytes = b"",
    last: bytes | None = None,
) -> AsyncGenerator[pa.Table, None]:
    """Yield the records of runs with the keys ``[first, last)``, by key and sequence."""
    sources = [RunSource(run, parts) for run in runs]
    rows = sum(run.records for run in runs)
    size = sum(part.num_bytes for run in runs for part in run.parts)
    # Stored values are compressed, to a fraction of their size in memory.
    at_once = min(RANGE_ROWS, max(1, RANGE_BYTES * max(1, rows) // max(1, 8 * size)))
    stream = _by_ranges(sources, clock, first, last, at_once)
    async with aclosing(stream):
        async for table in stream:
            yield table


async def _by_ranges(
    sources: Sequence[RunSource], clock: Clock, first: bytes, last: bytes | None, rows: int
) -> AsyncGenerator[pa.Table, None]:
    """Yield the records of the keys ``[first, last)``, about ``rows`` at once."""
    ranges = key_ranges(merged_keys(sources, first, last, 0, None), first, last, rows)
    async with aclosing(ranges):
        async for begin, end, is_large in ranges:
            # The records of one key in a run precede those in the next run.
            stream = (
                _in_turn(sources, begin, end)
                if is_large
                else _sorted(sources, clock, begin, end, rows)
            )
            async with aclosing(stream):
                async for table in stream:
                    yield table


async def _sorted(
    sources: Sequence[RunSource], clock: Clock, begin: bytes, end: bytes | None, rows: int
) -> AsyncGenerator[pa.Table, None]:
    """Yield the records of a range in order, as one table unless they are too large."""
    tables: list[pa.Table] = []
    size = 0
    stream = _in_turn(sources, begin, end)
    async with aclosing(stream):
        async for table in stream:
            tables.append(table)
            size += table.nbytes
            if size > 4 * RANGE_BYTES and rows > 1:
                break
        else:
            if tables:
                together = pa.concat_tables(tables)
                yield await clock.offload(partial(sort_records, together))
            return
    tables.clear()
    cut = _by_ranges(sources, clock, begin, end, max(1, rows // CUTS))
    async with aclosing(cut):
        async for table in cut:
            yield table


async def _in_turn(
    sources: Sequence[RunSource], begin: bytes, end: bytes | None
) -> AsyncGenerator[pa.Table, None]:
    """Yield the records of the keys ``[begin, end)``, run by run."""
    for source in sources:
        stream = source.of_range(begin, end, 0, None, newest_first=False)
        async with aclosing(stream):
            async for table in stream:
                yield table
