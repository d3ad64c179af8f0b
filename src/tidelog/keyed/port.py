"""What a keyed log can do: the faces of one that is read, and of one that is written, too.

Shape: records are read as tables of ``key`` (binary), ``sequence`` and ``timestamp_us`` (int64) and
    ``value`` (binary), none empty. The records of a key come in the order of sequences (or in the
    opposite one, newest first); those of different keys in no order that is promised.
Units: a sequence is a position in the log that feeds it, from 1: it rises, and a key's have gaps.
    ``start`` and ``limit`` are sequences ``[start, limit)``; start 0 is the oldest that is left.
Source: rfc-0001, "Write API", "Scan API", "Count API"; design page 5.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Self

import pyarrow as pa

from tidelog.keyed.values import (
    KEYED_RECORDS,
    CheckpointInfo,
    Count,
    KeyedInfo,
    Retention,
    Sealing,
    Segment,
)


class KeyedScan(abc.ABC):
    """Records as they are read; close it, or use it in ``async with``, if it is not drained."""

    @property
    @abc.abstractmethod
    def next_sequence(self) -> int:
        """Return where to go on: all before it was given, or is not of what was asked for.

        Of a scan that was drained it is the frontier that the scan is complete to, so that the
        cursor of an idle key moves on; of one that was stopped (``rows``), the one after the last.
        Newest first, it is the frontier as soon as the scan has begun.
        """

    @abc.abstractmethod
    def __aiter__(self) -> AsyncIterator[pa.Table]: ...

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End it."""

    async def to_arrow(self) -> pa.Table:
        """Return all of it as one table."""
        found = [table async for table in self]
        return pa.concat_tables(found) if found else KEYED_RECORDS.empty_table()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class KeyedReads(abc.ABC):
    """A keyed log that is read. What it shows is what there was when it was refreshed last."""

    name: str

    @abc.abstractmethod
    def scan(
        self,
        key: bytes,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> KeyedScan:
        """Read the records of a key; at most ``rows`` of them.

        Raises:
            UsageError: it is no key, or no range. SequenceRetired: records from ``start`` on were
            retired. CorruptionError: an object is missing, or is not what was written.
            LocationError: the store failed. All but UsageError while it is read.
        """

    @abc.abstractmethod
    def scan_prefix(
        self,
        prefix: bytes,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> KeyedScan:
        """Read the records of all keys that begin with a prefix (b"": all keys); see `scan`."""

    @abc.abstractmethod
    def scan_range(
        self,
        first: bytes,
        last: bytes | None,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> KeyedScan:
        """Read the records of the keys ``[first, last)``; see `scan`."""

    @abc.abstractmethod
    def follow(
        self,
        key: bytes | None = None,
        *,
        prefix: bytes | None = None,
        start: int | None = None,
    ) -> KeyedScan:
        """Read the records of a key, of a prefix, or of all keys, and those to come as they come.

        Without ``start``, only those to come. All followers of a handle share what they ask the
        store. Its ``next_sequence`` moves on with what others' keys get.
        """

    @abc.abstractmethod
    async def count(self, key: bytes, start: int = 0, limit: int | None = None) -> int:
        """Return how many records a key has in a range; whole runs are counted without their data.

        Raises:
            See `scan`.
        """

    @abc.abstractmethod
    async def count_approximate(
        self, key: bytes, start: int = 0, limit: int | None = None
    ) -> Count:
        """Return about how many, with bounds, from directories alone; see `count`."""

    @abc.abstractmethod
    def keys(
        self,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        segments: tuple[int, int | None] | None = None,
    ) -> AsyncIterator[pa.Table]:
        """Yield the keys that begin with a prefix, in order of their bytes, a page at a time.

        ``after`` goes on where a page ended. ``segments`` asks for the keys that have records in
        the segments of these ids, ``[first, last)``.

        Shape: ``key`` (binary), ``records``, ``min_sequence`` and ``max_sequence`` (int64): of what
            is readable; each key once.
        """

    @abc.abstractmethod
    async def segments(self, start: int = 0, limit: int | None = None) -> list[Segment]:
        """Return the segments that have any of a range of sequences, in order."""

    @abc.abstractmethod
    async def sequence_at(self, when: int | datetime) -> int:
        """Return the first sequence whose record has a time or a later one; else the next one.

        The time is in microseconds since 1970, or a datetime: one without a zone is in UTC.
        """

    @abc.abstractmethod
    async def next_sequence(self) -> int:
        """Return the sequence to come, as far as this handle shows: what is ordered, or durable."""

    @abc.abstractmethod
    async def refresh(self) -> int:
        """Read what others have committed; return the sequence to come."""

    @abc.abstractmethod
    async def checkpoints(self) -> list[CheckpointInfo]:
        """Return the checkpoints, by name."""

    @abc.abstractmethod
    async def describe(self) -> KeyedInfo:
        """Return what there is to know of it."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End what runs for this handle; all that was appended is answered first.

        Raises:
            LocationError: something that nobody waited for is not known to be in the log.
        """


class KeyedWrites(KeyedReads):
    """A keyed log that is written, too: by one process at a time, and the newest one wins."""

    @abc.abstractmethod
    async def append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        """Append records (key, value), which stand together; return the sequence of the first.

        With ``durable=False`` it returns once the queue accepts them (the first call of a handle,
        once the log is open). Until it is durable, a sequence may be given again to other records,
        if this process dies, or another takes the log over, or the store refuses records.
        It waits for room, with ``timeout_us`` no longer than that.

        Raises:
            UsageError: there are none, or one is no pair of bytes, or is too large. Nothing was
            sent. LogFull: there was no room for ``timeout_us``; it has the records. Fenced: another
            process took over. OutcomeUnknown: they were sent, and it is not known what became of
            them. LocationError: the store refused them. All but OutcomeUnknown are NOT_APPLIED.
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

        A large one is written as several batches, of which a failure may leave the first ones.
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
            LogFull: there is none; ``records`` are those that were given. Otherwise see `append`.
        """

    @abc.abstractmethod
    async def flush(self) -> int:
        """Wait until all that was ordered so far is durable; return `durable_sequence`.

        Raises:
            Whatever became of what was ordered since the last flush, and is not in the log.
        """

    @abc.abstractmethod
    async def durable_sequence(self) -> int:
        """Return the sequence below which all is durable, as far as this handle knows."""

    @abc.abstractmethod
    def on_durable(self, told: Callable[[int], None]) -> Callable[[], None]:
        """Have a function called with each new `durable_sequence`; return what ends that.

        It is called in the event loop, never with a lower one than before.
        """

    @abc.abstractmethod
    async def seal(self) -> Segment | None:
        """Seal the active segment, so that the next record begins another; None if it is empty."""

    @abc.abstractmethod
    async def compact(self, *, everything: bool = False) -> int:
        """Bring loose fragments into runs, and each sealed segment into one; return runs written.

        Without ``everything``, only what is due. Any process may do it, at any time.
        """

    @abc.abstractmethod
    async def retire(self, retention: Retention | None = None) -> int:
        """Let go of the sealed segments that the retention does not keep; return how many."""

    @abc.abstractmethod
    async def configure(
        self, *, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> None:
        """Set when segments are sealed, or what is kept, for all processes from now on."""

    @abc.abstractmethod
    async def collect(self) -> int:
        """Delete what nothing names any more; return how many objects that were."""

    @abc.abstractmethod
    async def checkpoint(self, name: str) -> CheckpointInfo:
        """Keep all that is readable now readable under a name, until it is dropped.

        Raises:
            NameTaken: there is such a checkpoint.
        """

    @abc.abstractmethod
    async def drop_checkpoint(self, name: str) -> None:
        """Drop a checkpoint. Raises: NoSuchCheckpoint: there is none."""
