"""What a log of either protocol can do; see `tidelog.wal.logs`, which opens one.

Shape: records are read as a table of ``position`` and ``timestamp_us`` (int64), ``stream`` (binary,
    null where there is none, empty in control records) and ``body`` (binary), in the order of
    positions, from 1.
Source: wal3 and wal3-draft, "Interface"; design page 3.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import ClassVar, Final

import pyarrow as pa

from tidelog.arguments import check_kind
from tidelog.clock import Clock
from tidelog.errors import UsageError
from tidelog.store.port import Store
from tidelog.store.within import Within
from tidelog.wal.admin.origin import let_go_of_origin
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.bodies import array_of
from tidelog.wal.append.closing import Closing
from tidelog.wal.describe import LogInfo, describe_log
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.pin import Pin
from tidelog.wal.format.slot_object import SLOT_RECORDS
from tidelog.wal.format.streams import CLOSE, META, OPEN, Control, StreamInfo
from tidelog.wal.gc.collector import GRACE_US, Collected, Collector
from tidelog.wal.gc.cursors import Cursors, Listed, Witness
from tidelog.wal.gc.deletion import AT_ONCE, Pace, check_deletion
from tidelog.wal.gc.orphans import Swept, sweep
from tidelog.wal.gc.pin_objects import PinWitness
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.read.bounds import Bounds, check_position
from tidelog.wal.read.head import load_head, load_living
from tidelog.wal.read.limits import Limits
from tidelog.wal.read.stream_selection import select
from tidelog.wal.scrub.report import Scrubbed
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail
from tidelog.wal.slot_protocol.reader import scan_pinned
from tidelog.wal.slot_protocol.shape import Shape

LOG_RECORDS: Final = SLOT_RECORDS


@dataclass(slots=True, weakref_slot=True, kw_only=True)
class Log(Closing):
    """A log that was opened; what it costs to have one is its manifest, read once.

    ``writer`` is a name for people, in what is written. The log is opened for writing by its first
    append. A handle that is dropped ends as one that is closed does, but nobody is told what came
    to nothing.
    """

    protocol: ClassVar[str]

    name: str
    store: Store
    clock: Clock
    writer: str
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
        """Append records; return the position of the first once all are durable.

        The records of one call stand together, in their order, in one stream or in none. Their time
        is now unless given.

        Raises:
            UsageError: they are no list of bytes, there are none, one is over 64 MiB or all are
            over 1 GiB, or the protocol has no such option. NoSuchStream: the stream is not open.
            BusyError: ``wait`` is False, and too much is waiting already.
            HandleError: the log is closed. Fenced: another writer took over. LogSealed: the log
            takes no more.
            OutcomeUnknown: the records were sent, and the store cannot be reached any more: whether
            they are in the log shows when it is opened again.
            LocationError: the store refused them, or nothing was acknowledged for
            `Batching.patience_us`. All but OutcomeUnknown are NOT_APPLIED, unless ``outcome`` says
            otherwise.
        """
        bodies = array_of(records)
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
        control: bool = False,
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the records of the positions ``[start, limit)`` that there are now.

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
    async def position_at(self, time_us: int) -> int:
        """Return the first position whose record has a time or a later one; else the next.

        Raises:
            UsageError: it is no time. CorruptionError, LocationError: as `scan`.
        """

    @abc.abstractmethod
    async def bounds(self) -> Bounds:
        """Return the oldest position that is left, and the next one to come."""

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

    async def load_cursor(self, name: str) -> Witness:
        """Read a cursor: where it stands, and what proves it to `save_cursor`.

        Raises:
            NoSuchCursor: there is none. PositionCollected: the log has been collected past it: its
            writer died before it could look. Until it is deleted it holds back all further
            collection. BusyError: a plan that goes past it stands, and nobody works on it: collect,
            and load again. CorruptionError: it cannot be read.
        """
        return await self._cursors().load(name)

    async def create_cursor(self, name: str, position: int) -> Witness:
        """Make a cursor that holds ``position`` and all after it.

        Raises:
            UsageError: the log does not reach that far, or no cursor can have the name.
            CursorMoved: there is a cursor of the name. NOT_APPLIED.
            PositionCollected: the records are gone, or a collection is about to erase them. If it
            came up only now, a cursor was made, and stands where the log begins.
            OutcomeUnknown: the store failed after the cursor was made, or may have been: load it.
        """
        check_position(position)
        return await self._cursors().create(name, position)

    async def save_cursor(
        self, witness: Witness, position: int, *, allow_back: bool = False
    ) -> Witness:
        """Move a cursor, provided that nobody has since ``witness`` was read; return the new one.

        Raises:
            UsageError: the log does not reach that far; or the cursor would go back, and that was
            not asked for by ``allow_back``.
            CursorMoved: another process moved or deleted it; load it and decide again. NOT_APPLIED.
            PositionCollected: the records to go back to are gone, or a collection is about to erase
            them: the cursor stands where it stood.
            OutcomeUnknown: the store failed after the cursor was moved, or may have been: load it.
        """
        check_kind(witness, Witness, "witness is a tidelog.Witness, as load_cursor returns it")
        check_position(position)
        return await self._cursors().save(witness, position, allow_back=allow_back)

    async def delete_cursor(self, name: str) -> None:
        """Delete a cursor: it holds nothing back any more.

        A delete has no condition: whoever deletes must know that nobody makes the cursor anew.

        Raises:
            NoSuchCursor: there is none.
        """
        cursors = self._cursors()
        await cursors.refuse_missing(name)
        await cursors.delete(name)

    async def cursors(self) -> Listed:
        """Read all cursors."""
        found = await self._cursors().list()
        if not found.cursors:
            await load_living(self.store)
        return found

    async def create_pin(
        self, name: str, *, start: int = 0, limit: int | None = None
    ) -> PinWitness:
        """Keep the records ``[start, limit)`` readable: all that there are now, unless it is said.

        Raises:
            UsageError: the log has no such range, or no pins, or no pin can have the name.
            NameTaken: there is a pin of the name, or another makes one. PositionCollected: the
            records are gone, or went meanwhile; nothing is held. ContentionError: another let go of
            the pin while it was made. OutcomeUnknown: the store failed after the pin was written,
            or may have been: release it.
        """
        return await self._pins().create(name, start=start, limit=limit)

    async def release_pin(self, name: str, *, force: bool = False) -> None:
        """Let go of what a pin holds; the next collection deletes what the log does not need.

        With ``force`` also what a fork reads: only where whoever began the fork died over it.

        Raises:
            NoSuchPin: there is none. UsageError: it is held for a fork, and ``force`` is False.
            ContentionError: others changed it at every try. OutcomeUnknown, LocationError: the
            store failed; see ``outcome``.
        """
        await self._pins().release(name, force=force)

    async def pins(self) -> dict[str, Pin]:
        """Read all pins, by name."""
        found = await self._pins().list()
        if not found:
            await load_living(self.store)
        return found

    async def scan_pin(
        self, name: str, *, stream: bytes | None = None, control: bool = False
    ) -> AsyncIterator[pa.Table]:
        """Yield the records that a pin holds, in order, whatever was collected since.

        ``stream`` asks for those of one stream alone; control records are left out unless asked
        for.

        Raises:
            UsageError: no stream can have the id. NoSuchPin: there is none of the name. BusyError:
            the pin is being made, or whoever made it died before it was sure. CorruptionError: an
            object is missing, or is not what was written.
        """
        pin = (await self._pins().load(name)).pin
        selection = select(stream, control=control)
        async for records in scan_pinned(self.store, self.clock, pin, selection=selection):
            yield records

    async def collect(
        self,
        *,
        keep: Keep | None = None,
        grace_us: int = GRACE_US,
        pace: Pace = AT_ONCE,
        force: bool = False,
    ) -> Collected:
        """Erase what no cursor needs, once; first finish what another left unfinished.

        Units: ``grace_us`` microseconds pass before anything is deleted; ``pace`` is how fast
            objects are, then.

        Raises:
            UsageError: the log does not come to where ``keep`` starts. VerificationError: more
            would be erased at once than ``keep`` allows, and ``force`` is False; nothing was.
            CorruptionError: the log does not add up, or names what is not there; nothing more was
            deleted. ContentionError: others were ahead at every try. LocationError: the store
            failed; the next collection goes on from there.
        """
        keep = Keep() if keep is None else keep
        check_kind(keep, Keep, "keep is a tidelog.Keep")
        check_deletion(grace_us, pace)
        await self._refuse_beyond(keep.start or 0)
        await roll_up_tail(self.store, clock=self.clock, writer=self.writer)
        collector = Collector(
            store=self.store,
            clock=self.clock,
            writer=self.writer,
            keep=keep,
            grace_us=grace_us,
            pace=pace,
        )
        found = await collector.collect(force=force)
        if isinstance(self.store, Within):
            await let_go_of_origin(self.store, clock=self.clock, writer=self.writer)
        return found

    async def sweep(self, *, grace_us: int = GRACE_US, pace: Pace = AT_ONCE) -> Swept:
        """Delete objects that crashed writers and collectors left, and that nothing names.

        Raises:
            CorruptionError: the log names what is not there; nothing was deleted. LocationError:
            the store failed; some may have been deleted.
        """
        check_deletion(grace_us, pace)
        return await sweep(self.store, clock=self.clock, grace_us=grace_us, pace=pace)

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

    async def _refuse_beyond(self, start: int) -> None:
        """Refuse a position that the log has not come to.

        Raises:
            UsageError: so it is.
        """
        if start and start > (following := (await self.bounds()).next):
            raise UsageError(
                "the log has not come to that position: follow it, or start at the next",
                start=start,
                next=following,
            )

    def _cursors(self) -> Cursors:
        return Cursors(store=self.store, clock=self.clock, writer=self.writer)

    def _pins(self) -> Pins:
        return Pins(store=self.store, clock=self.clock, writer=self.writer)
