"""What a log of either protocol can do; see `tidelog.wal.protocols`, which opens one.

Shape: records are read as a table of ``position`` and ``timestamp_us`` (int64), ``stream`` (binary,
    null where there is none, empty in control records) and ``body`` (binary), in the order of
    positions, from 1.
Source: wal3 and wal3-draft, "Interface"; design page 3.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import pyarrow as pa

from tidelog.errors import UsageError
from tidelog.wal.batching import Batching
from tidelog.wal.epoch import Seal
from tidelog.wal.head import load_head
from tidelog.wal.limits import Limits
from tidelog.wal.manifest import Manifest
from tidelog.wal.scrub import Scrubbed
from tidelog.wal.slot import SLOT_RECORDS
from tidelog.wal.slot_reader import Bounds
from tidelog.wal.slot_writer import Shape
from tidelog.wal.snapshot import Fragment
from tidelog.wal.streams import CLOSE, META, OPEN, Control, StreamInfo
from tidelog.wal.upkeep import Upkeep

LOG_RECORDS: Final = SLOT_RECORDS


@dataclass(slots=True, kw_only=True)
class Log(Upkeep):
    """A log that was opened; what it costs to have one is its manifest, read once.

    ``writer`` is a name for people, in what is written. The log is opened for writing by its first
    append.
    """

    protocol: ClassVar[str]

    shape: Shape = field(default_factory=Shape)
    batching: Batching = field(default_factory=Batching)

    async def append(
        self,
        records: Sequence[bytes],
        *,
        stream: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append records; give the position of the first once all are durable.

        The records of one call stand together, in their order, in one stream or in none. Their time
        is now unless given.

        Raises:
            UsageError: there are none, or one is over 64 MiB, or the protocol has no such option.
            NoSuchStream: the stream is not open. Otherwise see `SlotWriter.append` and
            `Wal3Writer.append`.
        """
        bodies = pa.array(records, pa.binary())
        return await self.append_arrow(bodies, stream=stream, timestamp_us=timestamp_us, wait=wait)

    @abc.abstractmethod
    async def append_arrow(
        self,
        bodies: pa.BinaryArray,
        *,
        stream: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append the values of an array, none of which is null; see `append`."""

    async def open_stream(self, stream: bytes, meta: bytes = b"") -> int:
        """Open a stream, so that records can be appended to it; give the position where it opens.

        Raises:
            NameTaken: it is open. UsageError: its id is not from 1 to 1,024 bytes, ``meta`` is over
            1,024, 10,000 streams are open, or the protocol has none. Otherwise see `append`.
        """
        return await self._control(Control(op=OPEN, stream=stream, meta=meta))

    async def close_stream(self, stream: bytes) -> int:
        """Close a stream, which takes no more records then; give the position where it closes.

        Raises:
            NoSuchStream: it is not open. Otherwise see `open_stream`.
        """
        return await self._control(Control(op=CLOSE, stream=stream))

    async def meta_stream(self, stream: bytes, meta: bytes) -> int:
        """Give an open stream another meta; give the position from which on it has it.

        Raises:
            NoSuchStream: it is not open. Otherwise see `open_stream`.
        """
        return await self._control(Control(op=META, stream=stream, meta=meta))

    @abc.abstractmethod
    async def streams(self) -> list[StreamInfo]:
        """Give the streams that are open, in the order in which they were opened."""

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
        control: bool = False,
    ) -> AsyncIterator[pa.Table]:
        """Give the records of the positions ``[start, limit)`` that there are now.

        Start 0 is the oldest that is left. ``stream`` asks for the records of one stream alone.
        Control records have positions, and are left out unless asked for.

        Raises:
            UsageError: the log has not come to ``start``. PositionCollected: records from ``start``
            on were collected. CorruptionError: an object is missing, or is not what was written.
            LocationError: the store failed.
        """

    @abc.abstractmethod
    def follow(
        self, start: int = 0, *, stream: bytes | None = None, control: bool = False
    ) -> AsyncIterator[pa.Table]:
        """Give records as `scan` does, and those to come as they come, until the log is sealed."""

    @abc.abstractmethod
    async def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        """Give the fragments that hold any of the positions ``[start, limit)``, in order."""

    @abc.abstractmethod
    async def fetch(self, fragment: Fragment) -> pa.Table:
        """Give all records of a fragment, control records too.

        Raises:
            ObjectNotFound: it was collected. CorruptionError: it is not what was written.
        """

    @abc.abstractmethod
    async def position_at(self, time_us: int) -> int:
        """Give the first position whose record has a time or a later one; the next one if none has.

        Raises:
            UsageError: it is no time. CorruptionError, LocationError: as `scan`.
        """

    @abc.abstractmethod
    async def bounds(self) -> Bounds:
        """Give the oldest position that is left, and the next one to come."""

    @abc.abstractmethod
    async def scrub(self, start: int = 0, *, limit: int | None = None) -> Scrubbed:
        """Read all that is stored, or the positions ``[start, limit)`` of it, and check it.

        Raises:
            UsageError: there is no position in the range. PositionCollected: ``start`` was
            collected. CorruptionError: the manifest cannot be read. LocationError: the store
            failed.
        """

    @abc.abstractmethod
    async def seal(self, *, successor: str = "") -> Seal:
        """End the log: from then on it takes no record, in any process.

        Raises:
            LogSealed: it is sealed already. UsageError: its protocol has no seal.
        """

    async def _in_range(
        self, found: AsyncIterator[pa.Table], start: int
    ) -> AsyncIterator[pa.Table]:
        """Give what a scan gives, and refuse a start that the log has not come to."""
        is_empty = True
        async for records in found:
            is_empty = False
            yield records
        if is_empty and start and start > (following := (await self.bounds()).next):
            raise UsageError(
                "the log has not come to that position: follow it, or start at the next",
                start=start,
                next=following,
            )

    async def describe(self) -> dict[str, Any]:
        """Give what there is to know of the log, as plain values."""
        bounds, head = await self.bounds(), await load_head(self.store)
        return describe_log(self, bounds, head.manifest)


def describe_log(log: Log, bounds: Bounds, manifest: Manifest) -> dict[str, Any]:
    """Give what there is to know of a log, as plain values.

    Units: ``bytes`` are those of all fragments there ever were, as far as the manifest knows.
    """
    chain = manifest.chain
    found: dict[str, Any] = {
        "name": log.name,
        "protocol": log.protocol,
        "oldest": bounds.oldest,
        "next": bounds.next,
        "records": bounds.next - bounds.oldest,
        "bytes": manifest.acc_bytes,
        "manifest": {
            "next": manifest.next,
            "fragments": len(manifest.fragments),
            "snapshots": [
                {"depth": p.depth, "start": p.start, "limit": p.limit} for p in manifest.snapshots
            ],
            "setsum": manifest.setsum.hex(),
        },
    }
    if chain is not None:
        found["epoch"] = {
            "number": chain.last.number,
            "opener": chain.last.opener,
            "lanes": chain.last.lanes,
            "alpha": chain.last.alpha,
        }
        found["sealed"] = bounds.seal is not None
        found["successor"] = (bounds.seal.successor or None) if bounds.seal else None
    return found
