"""The interface of a log of either protocol; `tidelog.wal.logs` opens one.

Shape: records are read as a table of ``position`` and ``timestamp_us`` (int64), ``stream`` (binary,
null for no stream, empty in control records), ``key`` (binary, null for no key) and ``body``
(binary), sorted by position, from 1.
Source: wal3 and wal3-draft, "Interface"; design page 3.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Final, TypeVar

import pyarrow as pa

from tidelog.errors import CorruptionError, LocationError, LogSealed, NoSuchLog
from tidelog.wal.append.batch_writer import BatchWriter
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.bodies import array_of
from tidelog.wal.describe import LogInfo, describe_log
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.slot_object import SLOT_RECORDS
from tidelog.wal.format.streams import CLOSE, META, OPEN, Control, StreamInfo
from tidelog.wal.read.head import load_head, load_living
from tidelog.wal.read.limits import Limits
from tidelog.wal.retention import LogRetention
from tidelog.wal.scrub.report import ScrubReport
from tidelog.wal.slot_protocol.shape import Shape

T = TypeVar("T")
LOG_RECORDS: Final = SLOT_RECORDS


@dataclass(slots=True, kw_only=True, repr=False)
class Log(LogRetention):
    """An open log. Opening it reads only the manifest.

    ``writer`` is a name for people; stored objects carry it. The first append opens the log for
    writing. A handle without references ends like a closed one, but failed appends are not
    reported.
    """

    protocol: ClassVar[str]

    shape: Shape = field(default_factory=Shape)
    batching: Batching = field(default_factory=Batching)
    _writer: BatchWriter = field(init=False)

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

        The records of one call are contiguous and keep their order, in one stream or in none.
        ``timestamp_us`` is their time; the default is the time of the append. ``key`` is bytes by
        which readers find them; the empty key is valid too.

        Raises:
            UsageError: ``records`` is empty or not a list of bytes, one is over 64 MiB or all are
            over 1 GiB, the key is over 16,384 bytes, or the protocol lacks the option.
            NoSuchStream: the stream is not open.
            BusyError: ``wait`` is False and the queue is full.
            HandleError: the log is closed.
            Fenced: another writer took over.
            LogSealed: the log is sealed.
            OutcomeUnknown: the records were sent, and the store cannot be reached any longer.
            Whether they are in the log is known once one more append is acknowledged, or another
            process has taken over.
            LocationError: the store refused them, or nothing was acknowledged for
            `Batching.patience_us`. All but OutcomeUnknown are NOT_APPLIED, unless ``outcome``
            states otherwise.
        """
        return await self.append_arrow(
            array_of(records), stream=stream, key=key, timestamp_us=timestamp_us, wait=wait
        )

    async def append_arrow(
        self,
        bodies: pa.BinaryArray,
        *,
        stream: bytes | None = None,
        key: bytes | pa.BinaryArray | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append the values of an array without nulls; see `append`.

        ``key`` may also be an array with the key of each record, or null for no key.
        """
        self._refuse_options(stream, key, timestamp_us)
        return await self._written(
            self._writer.append_arrow(
                bodies, stream=stream, key=key, timestamp_us=timestamp_us, wait=wait
            )
        )

    def _refuse_options(self, stream: bytes | None, key: object, timestamp_us: int | None) -> None:
        """Refuse the options of an append that the protocol lacks."""

    async def open_stream(self, stream: bytes, meta: bytes = b"") -> int:
        """Open a stream, so that records can be appended to it; return the position where it opens.

        Raises:
            NameTaken: the stream is open.
            UsageError: its id is not from 1 to 1,024 bytes, ``meta`` is over 1,024 bytes, 10,000
            streams are open, or the protocol has no streams.
            Otherwise see `append`.
        """
        return await self._control(Control(op=OPEN, stream=stream, meta=meta))

    async def close_stream(self, stream: bytes) -> int:
        """Close a stream, which then accepts no records; return the position where it closes.

        Raises:
            NoSuchStream: the stream is not open.
            Otherwise see `open_stream`.
        """
        return await self._control(Control(op=CLOSE, stream=stream))

    async def meta_stream(self, stream: bytes, meta: bytes) -> int:
        """Set an open stream's meta; return the position from which it holds.

        Raises:
            NoSuchStream: the stream is not open.
            Otherwise see `open_stream`.
        """
        return await self._control(Control(op=META, stream=stream, meta=meta))

    @abc.abstractmethod
    async def streams(self) -> list[StreamInfo]:
        """Return the open streams, in the order in which they were opened."""

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
        """Yield the records of the positions ``[start, limit)`` that exist now.

        Start 0 is the oldest retained record. ``stream`` selects one stream and ``key`` one key;
        fragments known to hold no such record are not read. Control records have positions, and are
        returned only with ``control``.

        Raises:
            UsageError: ``start`` is past the log's end.
            PositionCollected: records at or after ``start`` were collected.
            CorruptionError: an object is missing or changed.
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
        """Yield records as `scan` does, then new ones as they arrive, until the log is sealed."""

    @abc.abstractmethod
    async def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        """Return the fragments that overlap the positions ``[start, limit)``, in order.

        Raises:
            UsageError: ``start`` is past the log's end.
            CorruptionError: the manifest's tree is broken.
            LocationError: the store failed.
        """

    @abc.abstractmethod
    async def fetch(self, fragment: Fragment) -> pa.Table:
        """Return all records of a fragment, also control records.

        Raises:
            UsageError: the value is not a fragment.
            ObjectNotFound: the fragment was collected.
            CorruptionError: the fragment is changed.
        """

    @abc.abstractmethod
    async def position_at(self, when: int | datetime) -> int:
        """Return the first position whose record's time is at least ``when``, or the next position.

        ``when`` is in microseconds since 1970, or a datetime; without a zone it is in UTC.

        Raises:
            UsageError: ``when`` is not a time.
            CorruptionError: see `scan`.
            LocationError: see `scan`.
        """

    @abc.abstractmethod
    async def scrub(self, start: int = 0, *, limit: int | None = None) -> ScrubReport:
        """Read all stored objects, or those of the positions ``[start, limit)``, and check them.

        Raises:
            UsageError: ``start`` is past the log's end, or the range is empty.
            PositionCollected: ``start`` was collected.
            CorruptionError: the manifest cannot be read.
            LocationError: the store failed.
        """

    @abc.abstractmethod
    async def seal(self, *, successor: str = "") -> Seal:
        """End the log: no process can append to it afterwards.

        Raises:
            LogSealed: the log is sealed already.
            UsageError: its protocol has no seal.
        """

    async def describe(self) -> LogInfo:
        """Return a description of the log."""
        bounds, head = await self.bounds(), await load_head(self.store)
        return describe_log(self.name, self.protocol, bounds, head.manifest)

    async def _in_range(
        self, found: AsyncGenerator[pa.Table, None], start: int
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the tables of a scan; if it yields nothing, refuse a start past the log's end."""
        is_empty = True
        async with aclosing(found):
            async for records in found:
                is_empty = False
                yield records
        if is_empty:
            await self._refuse_beyond(start)

    async def _scrubbed(self, work: Awaitable[ScrubReport], start: int) -> ScrubReport:
        """Return the report of a scrub; if it is empty, refuse a start past the log's end."""
        found = await work
        if found.is_clean and not found.fragments:
            await self._refuse_beyond(start)
        return found

    async def close(self) -> None:
        """Wait until every append has its answer, and refuse further ones."""
        await self._writer.close()

    async def _written(self, work: Awaitable[T]) -> T:
        """Await a write; if it meets a seal, raise NoSuchLog if the log was dropped.

        Raises:
            NoSuchLog: the log was dropped; ``outcome`` is that of the write.
        """
        try:
            return await work
        except LogSealed as error:
            try:
                await load_living(self.store)
            except NoSuchLog as gone:
                raise NoSuchLog(gone.sentence, outcome=error.outcome) from error
            except (CorruptionError, LocationError):
                pass  # Only the seal is certain.
            raise
