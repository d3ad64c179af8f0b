"""The synchronous API of collections; see `tidelog.collection.collection`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidelog.collection import collection as aio_collection
from tidelog.collection.formats.times import When, format_time
from tidelog.frontier import Frontier
from tidelog.persist.read.selection import RowSelection, repeated
from tidelog.portal import Blocking, documented_as


@dataclass(frozen=True, slots=True)
class Contents:
    """A snapshot: the rows at one time, with duplicates. No later commit changes it."""

    table: pa.Table
    as_of: int

    def __repr__(self) -> str:
        shape = f"{self.table.num_rows} rows, {self.table.num_columns} columns"
        return f"<tidelog contents: {shape} as of {format_time(self.as_of)}>"

    def __len__(self) -> int:
        return self.table.num_rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        # pandas, Polars, DuckDB and PyArrow read the rows by this, without a conversion.
        stream: object = self.table.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]
        return stream

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.table

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame; pandas must be installed."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a polars DataFrame; polars must be installed."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def to_spark(self, spark: Any) -> Any:
        """Return the rows as a DataFrame of a Spark session."""
        return spark.createDataFrame(self.to_arrow())


@documented_as(aio_collection.Collection)
class Collection(Blocking[aio_collection.Collection]):
    """One collection.

    A time is ISO 8601 text, a datetime, a date (midnight UTC) or milliseconds since 1970.
    """

    def __repr__(self) -> str:
        return repr(self._inner)

    def snapshot(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> Contents:
        """Return the rows at a time; by default, at the newest complete time.

        ``where`` is a condition in DuckDB's dialect. ``columns``, ``where`` and ``limit`` are
        pushed down to Parquet statistics.
        """

        async def read() -> Contents:
            selection = RowSelection(columns=columns, where=where, limit=limit)
            reading = self._inner.reading(selection)
            time = await self._inner.resolve_as_of(as_of)
            pieces = self._inner.contents(reading, time)
            found = [rows async for piece in pieces for rows in repeated(piece)]
            return Contents(pa.concat_tables([reading.narrow.data.empty_table(), *found]), time)

        return self._portal.run(read())

    def scan(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows at a time, some thousands per table; see `snapshot`."""
        stream = self._inner.scan(as_of, columns=columns, where=where, limit=limit)
        return self._portal.iterate(stream)

    def changes(
        self,
        since: When,
        until: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the updates after ``since`` up to ``until``, with ``_time`` and ``_diff``."""
        return self._portal.run(
            self._inner.changes(since, until, columns=columns, where=where, limit=limit)
        )

    def hold(self, name: str, at: When | None = None, *, token: int | None = None) -> Frontier:
        """Keep ``at`` and all later times readable; see the asynchronous method."""
        return self._portal.run(self._inner.hold(name, at, token=token))

    def downgrade_since(self, name: str, at: When, *, token: int | None = None) -> Frontier:
        """Move a hold forward to ``at``; return the earliest readable time of the collection."""
        return self._portal.run(self._inner.downgrade_since(name, at, token=token))

    def release(self, name: str, *, token: int | None = None) -> bool:
        """Release a hold; return True if it existed."""
        return self._portal.run(self._inner.release(name, token=token))

    def describe(self) -> dict[str, Any]:
        return self._portal.run(self._inner.describe())
