"""What a log of either protocol can do; see `tidelog.wal.logs`, which opens one.

Shape: records are read as a table of ``position`` and ``timestamp_us`` (int64), ``stream`` (binary,
    null where there is none, empty in control records), ``key`` (binary, null where there is none)
    and ``body`` (binary), in the order of positions, from 1.
Source: wal3 and wal3-draft, "Interface"; design page 3.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Final

import pyarrow as pa

from tidelog.wal.append.batching import Batching
from tidelog.wal.append.bodies import array_of
from tidelog.wal.describe import LogInfo, describe_log
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.slot_object import SLOT_RECORDS
from tidelog.wal.format.streams import CLOSE, META, OPEN, Control, StreamInfo
from tidelog.wal.keeping import Keeping
from tidelog.wal.read.head import load_head
from tidelog.wal.read.limits import Limits
from tidelog.wal.scrub.report import Scrubbed
from tidelog.wal.slot_protocol.shape import Shape

LOG_RECORDS: Final = SLOT_RECORDS


@dataclass(slots=True, kw_only=True, repr=False)
class Log(Keeping):
    """A log that was opened; what it costs to have one is its manifest, read once.

    ``writer`` is a name for people, in what is written. The log is opened for writing by its first
    append. A handle that is dropped ends as one that is closed does, but nobody is told what came
    to nothing.
    """

    protocol: ClassVar[str]

    shape: Shape = field(default_factory=Shape)
    batching: Batching = field(default_factory=Batching)

    def __repr__(self) -> str:
        return f"<tidelog log {self.name!r}: {self.protocol}>"

    async def append(
        self,
        records: Sequence[bytes],
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append records; return the position of the first once all are durable.

        The records of one call stand together, in their order, in one stream or in none. Their time
        is now unless given. ``key`` is bytes that they are found by; the empty key is one, too.

        Raises:
            UsageError: they are no list of bytes, there are none, one is over 64 MiB or all are
            over 1 GiB, the key is over 16,384 bytes, or the protocol has no such option.
            NoSuchStream: the stream is not open.
            BusyError: ``wait`` is False, and too much is waiting already.
            HandleError: the log is closed. Fenced: another writer took over. LogSealed: the log
            takes no more.
            OutcomeUnknown: the records were sent, and the store cannot be reached any more: whether
            they are in the log shows once one more append was acknowledged, or another process
            has taken over.
            LocationError: the store refused them, or nothing was acknowledged for
            `Batching.patience_us`. All but OutcomeUnknown are NOT_APPLIED, unless ``outcome`` says
            otherwise.
        """
        return await self.append_arrow(
            array_of(records), stream=stream, key=key, timestamp_us=timestamp_us, wait=wait
        )

    @abc.abstractmethod
    async def append_arrow(
        self,
        bodies: pa.BinaryArray,
        *,
        stream: bytes | None = None,
        key: bytes | pa.BinaryArray | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append the values of an array, none of which is null; see `append`.

        ``key`` may be an array, too, with the key of each record, or null where it has none.
        """

    async def open_stream(self, stream: bytes, meta: bytes = b"") -> int:
        """Open a stream, so that records can be appended to it; return the position where it opens.

        Raises:
            NameTaken: it is open. UsageError: its id is not from 1 to 1,024 bytes, ``meta`` is over
            1,024, 10,000 streams are open, or the protocol has none. Otherwise see `append`.
        """
        return await self._control(Control(op=OPEN, stream=stream, meta=meta))

    async def close_stream(self, stream: bytes) -> int:
        """Close a stream, which takes no more records then; return the position where it closes.

        Raises:
            NoSuchStream: it is not open. Otherwise see `open_stream`.
        """
        return await self._control(Control(op=CLOSE, stream=stream))

    async def meta_stream(self, stream: bytes, meta: bytes) -> int:
        """Set an open stream's meta; return the position from which on it holds.

        Raises:
            NoSuchStream: it is not open. Otherwise see `open_stream`.
        """
        return await self._control(Control(op=META, stream=stream, meta=meta))

    @abc.abstractmethod
    async def streams(self) -> list[StreamInfo]:
        """Return the streams that are open, in the order in which they were opened."""

    @abc.abstractmethod
    async def _control(self, control: Control) -> int:
        """Append a control record."""

    @abc.abstractmethod
    def scan(
        self,
        start: int = 0,
        *,
        limit: int | None = None,
        limits: Limits | None = None,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the records of the positions ``[start, limit)`` that there are now.

        Start 0 is the oldest that is left. ``stream`` asks for the records of one stream alone, and
        ``key`` for those with one key: what holds none of them is not read where that is known.
        Control records have positions, and are left out unless asked for.

        Raises:
            UsageError: the log has not come to ``start``. PositionCollected: records from ``start``
            on were collected. CorruptionError: an object is missing, or is not what was written.
            LocationError: the store failed.
        """

    @abc.abstractmethod
    def follow(
        self,
        start: int = 0,
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> AsyncIterator[pa.Table]:
        """Yield records as `scan` does, and those to come as they come, until the log is sealed."""

    @abc.abstractmethod
    async def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        """Return the fragments that hold any of the positions ``[start, limit)``, in order.

        Raises:
            UsageError: the log has not come to ``start``. CorruptionError: the manifest's tree is
            not what was written. LocationError: the store failed.
        """

    @abc.abstractmethod
    async def fetch(self, fragment: Fragment) -> pa.Table:
        """Return all records of a fragment, control records too.

        Raises:
            UsageError: it is no fragment. ObjectNotFound: it was collected. CorruptionError: it is
            not what was written.
        """

    @abc.abstractmethod
    async def position_at(self, when: int | datetime) -> int:
        """Return the first position whose record has a time or a later one; else the next.

        The time is in microseconds since 1970, or a datetime: one without a zone is in UTC.

        Raises:
            UsageError: it is no time. CorruptionError, LocationError: as `scan`.
        """

    @abc.abstractmethod
    async def scrub(self, start: int = 0, *, limit: int | None = None) -> Scrubbed:
        """Read all that is stored, or the positions ``[start, limit)`` of it, and check it.

        Raises:
            UsageError: the log has not come to ``start``, or there is no position in the range.
            PositionCollected: ``start`` was collected. CorruptionError: the manifest cannot be
            read. LocationError: the store failed.
        """

    @abc.abstractmethod
    async def seal(self, *, successor: str = "") -> Seal:
        """End the log: from then on it takes no record, in any process.

        Raises:
            LogSealed: it is sealed already. UsageError: its protocol has no seal.
        """

    async def describe(self) -> LogInfo:
        """Return what there is to know of the log."""
        bounds, head = await self.bounds(), await load_head(self.store)
        return describe_log(self.name, self.protocol, bounds, head.manifest)

    async def _in_range(
        self, found: AsyncGenerator[pa.Table, None], start: int
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield what a scan gives, and refuse a start that the log has not come to."""
        is_empty = True
        async with aclosing(found):
            async for records in found:
                is_empty = False
                yield records
        if is_empty:
            await self._refuse_beyond(start)

    async def _scrubbed(self, work: Awaitable[Scrubbed], start: int) -> Scrubbed:
        """Return what a scrub found, and refuse a start that the log has not come to."""
        found = await work
        if found.is_clean and not found.fragments:
            await self._refuse_beyond(start)
        return found
