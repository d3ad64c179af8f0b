"""The interfaces of a keyed log: one for reading, and one for reading and writing.

Shape: records are read as tables of ``key`` (binary), ``sequence`` and ``timestamp_us`` (int64) and
    ``value`` (binary), never null. The records of a key are in sequence order, or in reverse order
    with newest first. Records of different keys are in no defined order.
Units: a sequence is a position in the log, from 1; it rises, and the sequences of a key have gaps.
    ``start`` and ``limit`` are sequences ``[start, limit)``; start 0 is the oldest kept record.
Source: rfc-0001, "Write API", "Scan API", "Count API"; design page 5.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from tidelog.core.frames import duckdb_relation, pandas_frame, polars_frame
from tidelog.keyed.values import (
    KEYED_RECORDS,
    CheckpointInfo,
    Count,
    KeyedInfo,
    Keys,
    Retention,
    Sealing,
    Segment,
)
from tidelog.wal.append.closing import ClosingHandle

if TYPE_CHECKING:
    import duckdb


class KeyedScan(abc.ABC):
    """Records, read on demand; unless it is read to the end, close it or use ``async with``."""

    @property
    @abc.abstractmethod
    def next_sequence(self) -> int:
        """The sequence from which to resume: all matching records before it were returned.

        After a complete scan, it is the frontier to which the scan is complete, so that the cursor
        of an idle key advances. After a scan stopped by ``rows``, it is the sequence after the last
        record. With newest first, it is the frontier as soon as the scan has begun.
        """

    @abc.abstractmethod
    def __aiter__(self) -> AsyncIterator[pa.Table]: ...

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End the scan."""

    async def to_arrow(self) -> pa.Table:
        """Return all records as one table."""
        tables = [table async for table in self]
        return pa.concat_tables(tables) if tables else KEYED_RECORDS.empty_table()

    async def to_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield all records in batches, as they are read."""
        async for table in self:
            for batch in table.to_batches():
                yield batch

    async def to_pandas(self) -> Any:
        """Return all records as a pandas DataFrame.

        Raises:
            UsageError: pandas is not installed.
        """
        return pandas_frame(await self.to_arrow())

    async def to_polars(self) -> Any:
        """Return all records as a Polars DataFrame.

        Raises:
            UsageError: Polars is not installed.
        """
        return polars_frame(await self.to_arrow())

    async def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return all records as a DuckDB relation, by default on the default connection.

        The relation keeps the records, and can be used for as long as its connection is open.

        Raises:
            UsageError: ``connection`` is not one of DuckDB.
        """
        return duckdb_relation(await self.to_arrow(), connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class KeyedReads(ClosingHandle):
    """A keyed log for reading. It shows the records known at its last refresh."""

    name: str

    @abc.abstractmethod
    def scan(
        self,
        keys: Keys | bytes,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> KeyedScan:
        """Read the records of some keys, at most ``rows`` of them; bytes are one key.

        Raises:
            UsageError: a key or the range is invalid. SequenceRetired: records from ``start``
                were retired. CorruptionError: an object is missing or was changed. LocationError:
                the store failed. All but UsageError are raised during the read.
        """

    @abc.abstractmethod
    def follow(self, keys: Keys | bytes | None = None, *, start: int | None = None) -> KeyedScan:
        """Read the records of some keys, or of all, and new records as they arrive.

        Without ``start``, only new records are read. All followers of a handle share their store
        requests. ``next_sequence`` also advances past records of other keys.
        """

    @abc.abstractmethod
    async def count(self, key: bytes, start: int = 0, limit: int | None = None) -> int:
        """Return the number of records of a key in a range; whole runs are counted by directory.

        Raises:
            See `scan`.
        """

    @abc.abstractmethod
    async def count_approximate(
        self, key: bytes, start: int = 0, limit: int | None = None
    ) -> Count:
        """Return an approximate number with bounds, from directories alone; see `count`."""

    @abc.abstractmethod
    def keys(
        self,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        segments: tuple[int, int | None] | None = None,
    ) -> AsyncIterator[pa.Table]:
        """Yield the keys that begin with a prefix, in byte order, a page at a time.

        ``after`` resumes after the last key of a page. ``segments`` selects keys that have records
        in the segments with ids ``[first, last)``.

        Shape: ``key`` (binary), ``records``, ``min_sequence`` and ``max_sequence`` (int64) of the
            readable records; each key once.
        """

    @abc.abstractmethod
    async def segments(self, start: int = 0, limit: int | None = None) -> list[Segment]:
        """Return the segments that overlap a range of sequences, in order."""

    @abc.abstractmethod
    async def sequence_at(self, when: int | datetime) -> int:
        """Return the first sequence whose record has this time or a later one; else the next one.

        The time is in microseconds since 1970, or a datetime; one without a zone is in UTC.
        """

    @abc.abstractmethod
    async def next_sequence(self) -> int:
        """Return the next sequence to be assigned, after the records that this handle shows."""

    @abc.abstractmethod
    async def refresh(self) -> int:
        """Read the commits of other processes; return the next sequence."""

    @abc.abstractmethod
    async def checkpoints(self) -> list[CheckpointInfo]:
        """Return the checkpoints, by name."""

    @abc.abstractmethod
    async def describe(self) -> KeyedInfo:
        """Return a description of the log."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop the background work of this handle; all appends are settled first.

        Raises:
            LocationError: an append that the caller did not await may be missing from the log.
        """


class KeyedWrites(KeyedReads):
    """A keyed log for reading and writing; one process writes at a time, and the newest wins."""

    @abc.abstractmethod
    async def append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        """Append records (key, value), contiguously; return the sequence of the first.

        With ``durable=False``, the call returns once the queue accepts the records; the first call
        of a handle returns once the log is open. Until a record is durable, its sequence may be
        assigned to another record: if this process dies, another process takes over the log, or the
        store refuses it.

        The call waits for room; ``timeout_us`` limits that wait.

        Raises:
            UsageError: no records, a record is not a pair of bytes, or it is too large. Nothing was
                sent. LogFull: no room within ``timeout_us``; the error has the records. Fenced:
                another process took over. OutcomeUnknown: the records were sent, and their outcome
                is unknown. LocationError: the store refused them. All but OutcomeUnknown are
                NOT_APPLIED.
        """

    @abc.abstractmethod
    async def append_arrow(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        """Append a table of ``key`` and ``value`` (binary, no nulls), in its order; see `append`.

        A large table is written as several batches; after a failure, the first batches may be
        stored.
        """

    @abc.abstractmethod
    async def try_append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
    ) -> int:
        """Append records if there is room for them now; see `append`.

        Raises:
            LogFull: there is no room; ``records`` are the given ones. Otherwise see `append`.
        """

    @abc.abstractmethod
    async def flush(self) -> int:
        """Wait until all records ordered so far are durable; return `durable_sequence`.

        Raises:
            the error of the first record since the last flush that is not in the log.
        """

    @abc.abstractmethod
    async def durable_sequence(self) -> int:
        """Return the sequence below which all records are durable, as far as this handle knows."""

    @abc.abstractmethod
    def on_durable(self, told: Callable[[int], None]) -> Callable[[], None]:
        """Call a function with each new `durable_sequence`; return a function that ends this.

        It is called in the event loop, with rising values.
        """

    @abc.abstractmethod
    async def seal(self) -> Segment | None:
        """Seal the active segment, so that the next record begins another; None if it is empty."""

    @abc.abstractmethod
    async def compact(self, *, full: bool = False) -> int:
        """Compact loose fragments into runs, and each sealed segment into one run.

        Return the number of runs written. Without ``full``, only due work is done. Any
        process may call this at any time.
        """

    @abc.abstractmethod
    async def retire(self, retention: Retention | None = None) -> int:
        """Retire the sealed segments past the retention; return their number."""

    @abc.abstractmethod
    async def configure(self, sealing: Sealing) -> None:
        """Set when segments are sealed, for all processes."""

    @abc.abstractmethod
    async def retain(self, retention: Retention) -> None:
        """Set how much history the log keeps, for all processes; `retire` applies it."""

    @abc.abstractmethod
    async def collect(self) -> int:
        """Delete objects that no state names; return their number."""

    @abc.abstractmethod
    async def create_checkpoint(self, name: str) -> CheckpointInfo:
        """Keep all records readable now under a name, until it is dropped.

        Raises:
            NameTaken: the checkpoint exists.
        """

    @abc.abstractmethod
    async def drop_checkpoint(self, name: str) -> None:
        """Drop a checkpoint. Raises: NoSuchCheckpoint: no such checkpoint."""
