"""Results of SQL as they come: tables of a certain size, made by a thread while others work.

Source: persist, "Compaction".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

import pyarrow as pa

from tidelog.clock import Clock

Opened: TypeAlias = Callable[[], AbstractContextManager[Iterator[pa.RecordBatch]]]


async def tables_of(
    opened: Opened, *, clock: Clock, out_bytes: int, schema: pa.Schema
) -> AsyncGenerator[pa.Table, None]:
    """Yield what SQL made, as tables of about ``out_bytes`` each, in the types of ``schema``."""
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
        made.__exit__(None, None, None)  # Which takes no time, and may come after a crash.
