"""Stream the result of a SQL query as tables of a given size, computed on another thread.

Source: persist, "Compaction".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

import pyarrow as pa

from tidelog.core.clock import Clock

Opened: TypeAlias = Callable[[], AbstractContextManager[Iterator[pa.RecordBatch]]]


async def tables_of(
    opened: Opened, *, clock: Clock, out_bytes: int, schema: pa.Schema
) -> AsyncGenerator[pa.Table, None]:
    """Yield a query's result as tables of about ``out_bytes`` each, in the types of ``schema``."""
    made = opened()
    batches = await clock.offload(made.__enter__)

    def next_table() -> pa.Table | None:
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= out_bytes:
                break
        return pa.Table.from_batches(held).cast(schema) if held else None

    try:
        while (table := await clock.offload(next_table)) is not None:
            yield table
    finally:
        # Not offloaded: it is quick, and the generator may be closed after a simulated crash.
        made.__exit__(None, None, None)
