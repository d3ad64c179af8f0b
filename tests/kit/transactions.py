"""Transactions in tests: handles as in separate processes, and rows to write."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from kit.clocks import SwiftClock
from kit.shards import Place, rows
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.port import Store
from tidelog.testing.models import Row, contents_of


def transactions(place: Place, *, name: str = "t", store: Store | None = None) -> Transactions:
    """Return a new handle, like that of a separate process."""
    shard = place.shard(store=store)
    return Transactions(name=name, store=shard.store, consensus=shard.consensus, clock=SwiftClock())


async def registered(place: Place, *names: str) -> Transactions:
    """Return a handle of transactions over new shards without rows."""
    found = transactions(place)
    for name in names:
        await found.register(place.shard(name=name))
    return found


def row(key: str, value: int, time: int, diff: int = 1) -> pa.Table:
    """Return one update."""
    return rows((key, value, time, diff))


async def held(found: Transactions, name: str, as_of: int) -> Counter[Row]:
    """Return the contents of a shard as of a time, read by its transactions."""
    return contents_of(await (await found.snapshot(name, as_of)).to_arrow(consolidated=True))
