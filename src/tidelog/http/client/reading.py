"""Scans over HTTP, one answer at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import UNSET

from tidelog.core.frames import duckdb_relation, pandas_frame, polars_frame
from tidelog.http.api.keys import plain_bytes
from tidelog.http.api.messages import KeySummary, ScanAnswer
from tidelog.keyed.values import KEYED_RECORDS, KeyedQuery

if TYPE_CHECKING:
    import duckdb

PAGE_ROWS: Final = 1_000
_KEYS: Final = ("records", "min_sequence", "max_sequence")

# Requests the records of ``[start, limit)``, at most a number of rows.
FailedRequest = Callable[[int, int | None, int], ScanAnswer]


class HttpScan:
    """A scan that yields one table per answer."""

    def __init__(
        self,
        asked: FailedRequest,
        query: KeyedQuery,
        page_rows: int = PAGE_ROWS,
    ) -> None:
        self._asked = asked
        self._query = query
        self._page_rows = page_rows
        self._next = query.start

    @property
    def next_sequence(self) -> int:
        """Return a sequence from which no later record is missed, as far as the scan was read."""
        return self._next

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield tables until the end of the scan."""
        query = self._query
        start, limit, left = query.start, query.limit, query.rows
        is_first = True
        while left is None or left > 0:
            rows = self._page_rows if left is None else min(left, self._page_rows)
            answer = self._asked(start, limit, rows)
            if is_first or not query.newest_first:
                self._next = answer.next_sequence
            is_first = False
            if answer.values:
                yield records_of(answer)
                left = None if left is None else left - len(answer.values)
            if not answer.more:
                return
            if query.newest_first:
                limit = min(value.sequence for value in answer.values)
            else:
                start = answer.next_sequence

    def to_arrow(self) -> pa.Table:
        """Return all records as one table."""
        tables = list(self)
        return pa.concat_tables(tables) if tables else KEYED_RECORDS.empty_table()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all records in batches, one answer at a time."""
        for table in self:
            yield from table.to_batches()

    def to_pandas(self) -> Any:
        """Return all records as a pandas DataFrame, which must be installed."""
        return pandas_frame(self.to_arrow())

    def to_polars(self) -> Any:
        """Return all records as a Polars DataFrame, which must be installed."""
        return polars_frame(self.to_arrow())

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return all records as a DuckDB relation, by default on the default connection."""
        return duckdb_relation(self.to_arrow(), connection)


def records_of(answer: ScanAnswer) -> pa.Table:
    """Return the records of an answer in the schema of a keyed log."""
    values = answer.values
    known = UNSET if answer.key is UNSET else plain_bytes(answer.key)
    keys = [known if value.key is UNSET else plain_bytes(value.key) for value in values]
    columns = {
        "key": pa.array(keys, pa.binary()),
        "sequence": pa.array([value.sequence for value in values], pa.int64()),
        "timestamp_us": pa.array([value.timestamp_us for value in values], pa.int64()),
        "value": pa.array([plain_bytes(value.value) for value in values], pa.binary()),
    }
    return pa.table(columns, schema=KEYED_RECORDS)


def keys_table(found: list[KeySummary]) -> pa.Table:
    """Return keys in the schema of a keyed log's listing."""
    keys = {"key": pa.array([plain_bytes(summary.key) for summary in found], pa.binary())}
    return pa.table(
        keys
        | {
            name: pa.array([getattr(summary, name) for summary in found], pa.int64())
            for name in _KEYS
        }
    )
