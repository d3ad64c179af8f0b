"""A kind of source for tests: rows in this process, by the name of a shelf and a number."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import pyarrow as pa

from tidelog.collection.source.kind import ADDRESS, Frontier, RowRange, SourceKind
from tidelog.collection.source.kinds import register_kind
from tidelog.errors import GoneError

Row = dict[str, Any]
_TYPES: dict[str, pa.DataType] = {
    "k": pa.int64(),
    "at": pa.int64(),
    "gone": pa.bool_(),
    "body": pa.binary(),
}
COLUMNS = pa.schema(_TYPES)


class Shelf(SourceKind):
    """The rows of `Shelf.rows`, by shelf; a row of None does not exist."""

    name = "shelf"
    knows: ClassVar[Mapping[str, str]] = {"wide": "yes, if a row counts for a thousand bytes"}
    rows: ClassVar[dict[str, list[Row | None]]] = {}
    held: ClassVar[list[tuple[dict[str, int], bool]]] = []
    row_bytes = 10

    async def columns(self) -> pa.Schema:
        return COLUMNS

    async def head(self) -> Frontier:
        return {shelf: len(rows) for shelf, rows in self.rows.items()}

    async def proof(self, found: RowRange) -> str:
        rows = self.rows.get(found.path)
        if rows is None:
            raise GoneError(f"the shelf {found.path!r} is gone")
        return json.dumps(rows[found.start : found.limit], default=str)

    async def read(self, found: RowRange) -> AsyncIterator[pa.Table]:
        """Yield the rows of a range, three in each batch; see `SourceKind`."""
        schema = (await self.columns()).append(pa.field(ADDRESS, pa.int64()))
        rows = enumerate(self.rows[found.path])
        there = [
            {**row, ADDRESS: address}
            for address, row in rows
            if row is not None and found.start <= address < found.limit
        ]
        yield schema.empty_table()
        for start in range(0, len(there), 3):
            yield pa.Table.from_pylist(there[start : start + 3], schema=schema)

    async def hold(self, taken: Frontier, *, make: bool) -> None:
        self.held.append((dict(taken), make))


def shelf_row(k: int, at: int, *, gone: bool = False, body: bytes | None = None) -> Row:
    return {"k": k, "at": at, "gone": gone, "body": body}


@contextmanager
def empty_shelves() -> Iterator[None]:
    """Register the kind, and remove all rows at the end."""
    register_kind(Shelf)
    yield
    Shelf.rows.clear()
    Shelf.held.clear()
