"""A stack: one path of rows in the simulated store, as a kind of source; and renditions of it.

The rows of the stack grow while ingesters read it. A rendition replays them in its own way: with
other keys, other deletions, and rows that it refuses. The replay here is plain Python.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import pyarrow as pa

from sim.workloads.sources import Bound
from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.source.kind import ADDRESS, Frontier, RowRange, SourceKind
from tidelog.store.memory import MemoryStore
from tidelog.testing.models import Message, Update, replay_none, replay_upsert

PATH: Final = "stack"
KEY: Final = "stack.json"  # The object with all rows.
SCHEMA: Final = "k bigint, n bigint, gone boolean"
_TYPES: Final[dict[str, pa.DataType]] = {"k": pa.int64(), "n": pa.int64(), "gone": pa.bool_()}
COLUMNS: Final = pa.schema(_TYPES)
StackRow = tuple[int | None, int, bool]


class Stack(SourceKind):
    """The rows of one object in the store of the location; each read is one request."""

    name = "stack"
    row_bytes = 10

    async def columns(self) -> pa.Schema:
        return COLUMNS

    async def head(self) -> Frontier:
        return {PATH: len(await self._rows())}

    async def read(self, found: RowRange) -> AsyncIterator[pa.Table]:
        """Yield the rows of a range; see `SourceKind`."""
        schema = COLUMNS.append(pa.field(ADDRESS, pa.int64()))
        rows = (await self._rows())[found.start : found.limit]
        there = [
            dict(zip(schema.names, (*row, address), strict=True))
            for address, row in enumerate(rows, found.start)
        ]
        yield pa.Table.from_pylist(there, schema=schema)

    async def _rows(self) -> list[StackRow]:
        return rows_in((await self.opening.store.get(KEY)).data)


def rows_in(data: bytes) -> list[StackRow]:
    return [tuple(row) for row in json.loads(data)]


async def put_rows(store: MemoryStore, rows: list[StackRow]) -> None:
    """Replace the stack; the earlier rows must be the same."""
    await store.put(KEY, json.dumps(rows).encode())


def drawn_row(dice: random.Random) -> StackRow:
    """Return a row of few keys; some have no key, and some delete theirs."""
    key = None if dice.random() < 0.1 else dice.randrange(4)
    return key, dice.randrange(3), dice.random() < 0.25


def replayed(info: SourceInfo, bindings: Iterable[Bound], rows: list[StackRow]) -> list[Update]:
    """Return the output of a source with times from the clock, in plain Python."""
    upsert = info.envelope == "upsert"
    messages: list[Message] = []
    for bound in bindings:
        for address in (a for taken in bound.ranges for a in range(taken.start, taken.limit)):
            row = rows[address]
            key, _, gone = row
            if upsert and key is None:
                continue  # A bad row.
            deletes = upsert and info.delete_when is not None and gone
            messages.append(Message(bound.upper - 1, (key,), None if deletes else row))
    return list((replay_upsert if upsert else replay_none)(messages))


def drawn_options(dice: random.Random) -> dict[str, Any]:
    """Return the options of a rendition: each may give other rows, or another placement."""
    kind = dice.choice(["none", "keyed", "deleting", "same"])
    options: dict[str, Any] = {"shards": dice.choice([None, 1, 2])}
    if kind == "none":
        options |= {"envelope": "none"}
    elif kind == "keyed":
        options |= {"envelope": "upsert", "key": ("k",), "delete_when": ""}
    elif kind == "deleting":
        options |= {"envelope": "upsert", "key": ("k",), "delete_when": "gone"}
    return options
