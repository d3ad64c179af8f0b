"""A custom kind of source: the rows of an SQLite table, by their rowid.

    python examples/sqlite_rows.py app.db orders ./lake

Run it again when the table has more rows: each row is in the collection once. `tidelog ingest` and
Spark's workers find a kind if its package names it in pyproject.toml:

    [project.entry-points."tidelog.sources"]
    sqlite = "my_package.sqlite_rows:SqliteRows"
"""

import hashlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

import tidelog
from tidelog.collection.source.kind import ADDRESS, Frontier, OpenedWith, RowRange, SourceKind
from tidelog.collection.source.kinds import register_kind

TYPES = {"INTEGER": pa.int64(), "REAL": pa.float64(), "BLOB": pa.binary()}
BATCH_ROWS = 10_000


@register_kind
class SqliteRows(SourceKind):
    """The rows of a table that only grows, with rising rowids."""

    name = "sqlite"
    knows: ClassVar[Mapping[str, str]] = {"database": "the file", "table": "the table"}

    def __init__(self, opening: OpenedWith) -> None:
        super().__init__(opening)
        self.database = Path(opening.text("database")).absolute().as_uri()
        self.table = opening.text("table")
        self.quoted = '"' + self.table.replace('"', '""') + '"'

    def query(self, sql: str, *values: int) -> list[tuple[Any, ...]]:
        """Run a query, without writing and without creating a database."""
        with closing(sqlite3.connect(f"{self.database}?mode=ro", uri=True)) as connection:
            return connection.execute(sql, values).fetchall()

    async def columns(self) -> pa.Schema:
        """Return the table's columns; a type that is neither a number nor bytes becomes text."""
        found = self.query(f"PRAGMA table_info({self.quoted})")
        fields = [(name, TYPES.get(kind.upper(), pa.string())) for _, name, kind, *_ in found]
        return pa.schema(fields)

    async def head(self) -> Frontier:
        """Return the first rowid after all rows."""
        ((most,),) = self.query(f"SELECT coalesce(max(rowid), -1) + 1 FROM {self.quoted}")
        return {self.table: most}

    async def proof(self, found: RowRange) -> str:
        """Return a hash of the rows, which detects a row that changed after it was bound."""
        rows = self.rows(found.start, found.limit)
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    async def read(self, found: RowRange) -> AsyncIterator[pa.Table]:
        """Yield the rows of a range, with their rowids as addresses."""
        schema = (await self.columns()).insert(0, pa.field(ADDRESS, pa.int64()))
        yield schema.empty_table()
        for start in range(found.start, found.limit, BATCH_ROWS):
            rows = self.rows(start, min(start + BATCH_ROWS, found.limit))
            if rows:
                yield pa.table(list(map(list, zip(*rows, strict=True))), schema=schema)

    def rows(self, start: int, limit: int) -> list[tuple[Any, ...]]:
        """Return the rows in a range of rowids, each with its rowid first."""
        sql = f"SELECT rowid, * FROM {self.quoted} WHERE rowid >= ? AND rowid < ? ORDER BY rowid"
        return self.query(sql, start, limit)


def main(database: str, table: str, lake: str) -> None:
    """Ingest a table's new rows into the collection of its name."""
    with tidelog.connect(lake, create=True) as location:
        if table not in location.collections.list():
            settings = {"database": str(Path(database).absolute()), "table": table}
            spec = tidelog.SourceSpec(name=table, kind=SqliteRows.name, settings=settings)
            location.sources.create(spec)
        done = location.sources.ingest(table)
        rows = location.collection(table).snapshot().to_arrow().num_rows
        print(f"{done.rows} new rows; {rows} in all")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/sqlite_rows.py DATABASE TABLE LAKE")
    main(*sys.argv[1:])
