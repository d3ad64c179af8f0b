"""One log, of either protocol, behind one face.

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

from tidelog.clock import Clock
from tidelog.errors import NameTaken, NoSuchLog, UsageError
from tidelog.store.port import Store
from tidelog.wal.batching import Batching
from tidelog.wal.committer import Committer
from tidelog.wal.epoch import Seal
from tidelog.wal.head import Head, load_head
from tidelog.wal.limits import Limits, check_time_us
from tidelog.wal.manifest import MANIFEST, Fragment, Manifest
from tidelog.wal.opener import Opener, make_log
from tidelog.wal.position import first_at, position_at
from tidelog.wal.reader import Wal3Reader, limited
from tidelog.wal.scrub import Scrubbed, scrub
from tidelog.wal.selection import Selection
from tidelog.wal.slot import SLOT_RECORDS
from tidelog.wal.slot_reader import POLL_FIRST_US, POLL_MOST_US, Bounds, SlotReader
from tidelog.wal.slot_scrub import scrub_slots
from tidelog.wal.slot_writer import Shape, SlotWriter
from tidelog.wal.streams import CLOSE, META, OPEN, Control, StreamInfo, check_stream
from tidelog.wal.upkeep import Upkeep
from tidelog.wal.writer import Wal3Writer

PROTOCOLS: Final = ("slot", "manifest")
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
            PositionCollected: records from ``start`` on were collected. CorruptionError: an object
            is missing, or is not what was written. LocationError: the store failed.
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

    async def describe(self) -> dict[str, Any]:
        """Give what there is to know of the log, as plain values."""
        bounds, head = await self.bounds(), await load_head(self.store)
        return describe_log(self, bounds, head.manifest)


@dataclass(slots=True, kw_only=True)
class SlotLog(Log):
    """A log of slot commits: one round trip an append, several under way, one writer at a time."""

    protocol: ClassVar[str] = "slot"

    _writer: SlotWriter = field(init=False)
    _reader: SlotReader = field(init=False)

    def __post_init__(self) -> None:
        self._writer = SlotWriter(
            store=self.store,
            clock=self.clock,
            writer=self.writer,
            shape=self.shape,
            batching=self.batching,
        )
        self._reader = SlotReader(store=self.store, clock=self.clock)

    async def append_arrow(
        self,
        bodies: pa.BinaryArray,
        *,
        stream: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append the values of an array, none of which is null; see `append`."""
        return await self._writer.append_arrow(
            bodies, stream=stream, timestamp_us=timestamp_us, wait=wait
        )

    async def streams(self) -> list[StreamInfo]:
        """See `Log`."""
        return list((await self._reader.end()).tail.streams)

    async def _control(self, control: Control) -> int:
        return await self._writer.control(control)

    def scan(
        self,
        start: int = 0,
        *,
        limit: int | None = None,
        limits: Limits | None = None,
        stream: bytes | None = None,
        control: bool = False,
    ) -> AsyncIterator[pa.Table]:
        """See `Log`. What holds none of a stream's records is not read."""
        selection = _selection(stream, control=control)
        found = self._reader.scan(start, limit=limit, selection=selection, eager=limits is None)
        return found if limits is None else limited(found, limits)

    def follow(
        self, start: int = 0, *, stream: bytes | None = None, control: bool = False
    ) -> AsyncIterator[pa.Table]:
        """See `Log`."""
        return self._reader.follow(start, selection=_selection(stream, control=control))

    async def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        """See `Log`; those past the manifest, too."""
        return await self._reader.fragments(start, limit=limit)

    async def fetch(self, fragment: Fragment) -> pa.Table:
        """See `Log`."""
        return await self._reader.tree.fetch(fragment)

    async def position_at(self, time_us: int) -> int:
        """See `Log`; takes a request for each level of the manifest's tree, and a few more."""
        return await position_at(self._reader, time_us)

    async def bounds(self) -> Bounds:
        """See `Log`."""
        return await self._reader.bounds()

    async def scrub(self, start: int = 0, *, limit: int | None = None) -> Scrubbed:
        """See `Log`."""
        return await scrub_slots(self._reader, start, limit)

    async def seal(self, *, successor: str = "") -> Seal:
        """See `Log`."""
        opener = Opener(store=self.store, clock=self.clock, writer=self.writer)
        return await opener.seal(successor=successor)

    async def close(self) -> None:
        """See `Log`."""
        await self._writer.close()


@dataclass(slots=True, kw_only=True)
class ManifestLog(Log):
    """A log of manifest commits, to the byte as Chroma's wal3 writes it."""

    protocol: ClassVar[str] = "manifest"

    _writer: Wal3Writer = field(init=False)
    _reader: Wal3Reader = field(init=False)

    def __post_init__(self) -> None:
        committer = Committer(
            store=self.store, clock=self.clock, writer=self.writer, rollover=self.shape.rollover
        )
        self._writer = Wal3Writer(committer=committer, batching=self.batching)
        self._reader = Wal3Reader(store=self.store, clock=self.clock)

    async def append_arrow(
        self,
        bodies: pa.BinaryArray,
        *,
        stream: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append the values of an array, none of which is null; see `append`."""
        if stream is not None:
            raise self._no_streams()
        if timestamp_us is not None:
            raise UsageError(
                "in a log of the manifest protocol the time of a record is that of its writing: "
                "leave timestamp_us out, or use a log of the slot protocol"
            )
        return await self._writer.append_arrow(bodies, wait=wait)

    async def streams(self) -> list[StreamInfo]:
        """See `Log`."""
        raise self._no_streams()

    async def _control(self, control: Control) -> int:
        raise self._no_streams()

    def scan(
        self,
        start: int = 0,
        *,
        limit: int | None = None,
        limits: Limits | None = None,
        stream: bytes | None = None,
        control: bool = False,
    ) -> AsyncIterator[pa.Table]:
        """See `Log`; there are no streams, and no control records."""
        if stream is not None:
            raise self._no_streams()
        found = _all_as_log_records(self._reader.scan(start, limit=limit, eager=limits is None))
        return found if limits is None else limited(found, limits)

    def follow(
        self, start: int = 0, *, stream: bytes | None = None, control: bool = False
    ) -> AsyncIterator[pa.Table]:
        """See `Log`; there are no streams, and no control records."""
        if stream is not None:
            raise self._no_streams()
        return self._follow(start)

    async def _follow(self, start: int) -> AsyncIterator[pa.Table]:
        head = await load_head(self.store)
        reached, wait_us = start or head.manifest.oldest, POLL_FIRST_US
        while True:
            async for records in self._reader.scan_of(head.manifest, reached):
                reached += records.num_rows
                wait_us = POLL_FIRST_US
                yield as_log_records(records)
            head = await self._newer(head)
            if head.manifest.next <= reached:
                await self.clock.sleep(wait_us)
                wait_us = min(2 * wait_us, POLL_MOST_US)

    async def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        """See `Log`."""
        return await self._reader.fragments(start=start, limit=limit)

    async def fetch(self, fragment: Fragment) -> pa.Table:
        """See `Log`."""
        return as_log_records(await self._reader.fetch(fragment))

    async def position_at(self, time_us: int) -> int:
        """See `Log`; wal3's manifests have no times, so fragment after fragment is read."""
        check_time_us(time_us)
        manifest = await self._reader.manifest()
        async for records in self._reader.scan_of(manifest):
            if (found := first_at(records, time_us)) is not None:
                return found
        return manifest.next

    async def bounds(self) -> Bounds:
        """See `Log`."""
        manifest = await self._reader.manifest()
        return Bounds(oldest=manifest.oldest, next=manifest.next, seal=None)

    async def scrub(self, start: int = 0, *, limit: int | None = None) -> Scrubbed:
        """See `Log`."""
        return await scrub(self._reader, start, limit)

    async def seal(self, *, successor: str = "") -> Seal:
        """See `Log`."""
        raise UsageError(
            "a log of the manifest protocol cannot be sealed: wal3's bytes have no place for it",
            log=self.name,
            successor=successor,
        )

    async def close(self) -> None:
        """See `Log`."""
        await self._writer.close()

    def _no_streams(self) -> UsageError:
        return UsageError(
            "a log of the manifest protocol has no streams, for wal3's bytes have no place for "
            "them: use a log of the slot protocol",
            log=self.name,
        )

    async def _newer(self, head: Head) -> Head:
        # A manifest that is still the same is not sent again.
        if await self.store.refresh(MANIFEST, head.e_tag) is None:
            return head
        return await load_head(self.store)


async def create_log(
    store: Store, *, name: str, clock: Clock, writer: str, protocol: str = "slot", **options: Any
) -> Log:
    """Make a log at the root of a store, and open it; ``options`` are those of `Log`.

    Raises:
        UsageError: there is no such protocol. NameTaken: there is a log already.
    """
    if protocol not in PROTOCOLS:
        raise UsageError(f"there is no protocol {protocol!r}: it is one of {', '.join(PROTOCOLS)}")
    made = False
    if protocol == "slot":
        made = await make_log(store, clock=clock, writer=writer)
    else:
        committer = Committer(store=store, clock=clock, writer=writer)
        made = await committer.make()
    if not made:
        manifest = (await load_head(store)).manifest
        if manifest.chain is not None and manifest.chain.is_destroyed:
            raise NameTaken(
                f"a log {name!r} was destroyed, and its name stays taken, for writers who have not "
                "heard of it yet: choose another"
            )
        raise NameTaken(f"there is a log {name!r} already: open it, or choose another name")
    return await open_log(store, name=name, clock=clock, writer=writer, **options)


async def open_log(store: Store, *, name: str, clock: Clock, writer: str, **options: Any) -> Log:
    """Open the log at the root of a store, of whichever protocol it is.

    Raises:
        NoSuchLog: there is none, or it was destroyed. CorruptionError: its manifest cannot be read.
    """
    manifest = (await load_head(store)).manifest
    if manifest.chain is not None and manifest.chain.is_destroyed:
        raise NoSuchLog(f"the log {name!r} was destroyed")
    kind = ManifestLog if manifest.chain is None else SlotLog
    return kind(name=name, store=store, clock=clock, writer=writer, **options)


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


def _selection(stream: bytes | None, *, control: bool) -> Selection:
    if stream is not None:
        check_stream(stream)
    return Selection(stream=stream, control=control)


async def _all_as_log_records(tables: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
    async for records in tables:
        yield as_log_records(records)


def as_log_records(records: pa.Table) -> pa.Table:
    """Give the records of a fragment of wal3's as those of any log."""
    streams: Any = pa.nulls(records.num_rows, pa.binary())
    columns = [
        records.column("position").cast(pa.int64()),
        records.column("timestamp_us").cast(pa.int64()),
        streams,
        records.column("body"),
    ]
    return pa.table(columns, schema=LOG_RECORDS)
