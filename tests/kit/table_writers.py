"""Writers of tables in tests: handles as in separate processes, over the shards alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kit.clocks import OneThread
from kit.shards import Place
from tidelog.collection.table.reader import TableReader
from tidelog.collection.table.writes import TableWriter
from tidelog.core.ids import ShardId
from tidelog.persist.format.schema import ShardSchema, shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore, Request

TYPES: dict[str, pa.DataType] = {"id": pa.int64(), "place": pa.string(), "n": pa.int64()}
KEYED = shard_schema(pa.schema(TYPES), key=["id"])
LOOSE = replace(shard_schema(pa.schema(TYPES)), key_columns=0)
NAMES = list(TYPES)
Row = tuple[Any, ...]


def dicts(*rows: Row) -> list[dict[str, Any]]:
    return [dict(zip(NAMES, row, strict=True)) for row in rows]


def writer(
    place: Place, *, shards: int = 1, schema: ShardSchema = KEYED, store: Store | None = None
) -> TableWriter:
    """Return a new handle of a table, like that of a separate process."""
    within = store or place.store
    transactions = Transactions(
        name="t", store=within, consensus=place.consensus(within), clock=OneThread()
    )
    names = [f"{'k' if schema.key else 'l'}{number}" for number in range(shards)]
    stored = schema if schema.key else shard_schema(schema.data)
    reader = TableReader(
        name="t", schema=schema, stored=stored, shards=names, transactions=transactions
    )
    return TableWriter(reader=reader)


async def created(place: Place, *, shards: int = 1, schema: ShardSchema = KEYED) -> TableWriter:
    """Register the shards of a new table; return a handle of it."""
    made = writer(place, shards=shards, schema=schema)
    stored, transactions = made.reader.stored, transactions_of(made)
    for name in made.reader.shards:
        await transactions.register(
            Shard(
                id=ShardId(name),
                store=place.store,
                consensus=place.consensus(),
                clock=transactions.clock,
                schema=stored,
            )
        )
    await transactions.insert({})
    return made


def transactions_of(one: TableWriter) -> Transactions:
    found = one.reader.transactions
    assert isinstance(found, Transactions)
    return found


async def contents(place: Place, shards: Sequence[str], as_of: int | None = None) -> Counter[Row]:
    """Return the counted rows of some shards, read by another process."""
    reader = Transactions(
        name="t", store=place.store, consensus=place.consensus(), clock=OneThread()
    )
    time = (await reader.upper()).time - 1 if as_of is None else as_of
    found: Counter[Row] = Counter()
    for name in shards:
        table = await (await reader.snapshot(name, time)).to_arrow()
        for row in table.select(NAMES).to_pylist():
            found[tuple(row.values())] += 1
    return found


class CountedStore(FaultyStore):
    """A store that records its requests, and gives the faults that are set for the next ones."""

    def __init__(self, store: Store) -> None:
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        super().__init__(store, toss=self._record)

    def _record(self, request: Request) -> Fault:
        self.requests.append(request)
        return self.faults.pop(0) if self.faults else Fault()

    def taken(self) -> list[str]:
        """Return the requests since the last call, without their keys."""
        found = [request.op for request in self.requests]
        self.requests.clear()
        return found
