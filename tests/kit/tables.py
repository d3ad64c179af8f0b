"""Tables in tests: locations in memory, each like that of a separate process, and their rows."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from kit.clocks import SwiftClock
from tidelog.collection.collection import Collection
from tidelog.core.clock import Clock
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store

SCHEMA = "a bigint, b varchar"


async def lake_of(store: Store, clock: Clock | None = None) -> Location:
    """Return the location of a store, opened by a new process."""
    return await open_location("memory:///", create=True, store=store, clock=clock or SwiftClock())


async def new_lake(clock: Clock | None = None) -> Location:
    return await lake_of(MemoryStore(), clock)


def some_rows(*numbers: int) -> pa.Table:
    return pa.table({"a": pa.array(numbers, pa.int64()), "b": [f"row {n}" for n in numbers]})


async def numbers_in(collection: Collection, as_of: int | None = None) -> Counter[int]:
    """Return the numbers of the rows of a table, with their counts."""
    found = await (await collection.snapshot(as_of)).to_arrow()
    return Counter(found.column("a").to_numpy().tolist())
