"""The retention of a log: its cursors and pins, and its collection.

Source: wal3, "Cursors" and "Garbage Collection"; design page 3.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa

from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock
from tidelog.errors import UsageError
from tidelog.store.keys import Within
from tidelog.store.port import Store
from tidelog.wal.admin.origin import let_go_of_origin
from tidelog.wal.append.closing import ClosingHandle
from tidelog.wal.format.pin import Pin
from tidelog.wal.gc.collector import GRACE_US, Collector, CollectReport
from tidelog.wal.gc.cursors import CursorList, Cursors, Witness
from tidelog.wal.gc.deletion import AT_ONCE, Pace, check_deletion
from tidelog.wal.gc.orphans import OrphanReport, sweep
from tidelog.wal.gc.pin_objects import PinWitness
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.read.bounds import Bounds, check_position
from tidelog.wal.read.head import load_living
from tidelog.wal.read.stream_selection import select
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail
from tidelog.wal.slot_protocol.reader import scan_pinned


@dataclass(slots=True, weakref_slot=True, kw_only=True)
class LogRetention(ClosingHandle):
    """The part of `tidelog.wal.log.Log` that is the same in both protocols."""

    name: str
    store: Store
    clock: Clock
    writer: str

    @abc.abstractmethod
    async def bounds(self) -> Bounds:
        """Return the oldest retained position, the next position, and the seal."""

    async def load_cursor(self, name: str) -> Witness:
        """Read a cursor: its position, and the witness for `move_cursor`.

        Raises:
            NoSuchCursor: the cursor does not exist.
            PositionCollected: the log was collected past the cursor, because its creator died
            before its check. The cursor holds back all further collection until it is deleted.
            BusyError: a plan past the cursor exists, and no collector works on it: collect, and
            load again.
            CorruptionError: the cursor cannot be read.
        """
        return await self._cursors().load(name)

    async def create_cursor(self, name: str, position: int) -> Witness:
        """Create a cursor that holds ``position`` and all later records.

        Raises:
            UsageError: the position is beyond the log's end, or the name is invalid.
            CursorMoved: the cursor exists. NOT_APPLIED.
            PositionCollected: the records were collected, or a collection is about to delete them.
            If the collection was concurrent, the cursor exists at the log's start.
            OutcomeUnknown: the store failed after the cursor was or may have been written: load it.
        """
        check_position(position)
        return await self._cursors().create(name, position)

    async def move_cursor(
        self, witness: Witness, position: int, *, allow_back: bool = False
    ) -> Witness:
        """Move a cursor if no other process has moved it since; return the new witness.

        Raises:
            UsageError: the position is beyond the log's end, or it is lower than the cursor's and
            ``allow_back`` is False.
            CursorMoved: another process moved or deleted it; load it and decide again. NOT_APPLIED.
            PositionCollected: the records to go back to were collected, or a collection is about to
            delete them. The cursor is at its old position.
            OutcomeUnknown: the store failed after the cursor was or may have been moved: load it.
        """
        check_kind(witness, Witness, "witness must be a tidelog.Witness, as load_cursor returns it")
        check_position(position)
        return await self._cursors().save(witness, position, allow_back=allow_back)

    async def drop_cursor(self, name: str) -> None:
        """Drop a cursor, so that it holds back nothing.

        A drop has no condition, so the caller must know that no process creates the cursor again.

        Raises:
            NoSuchCursor: the cursor does not exist.
        """
        cursors = self._cursors()
        await cursors.refuse_missing(name)
        await cursors.delete(name)

    async def cursors(self) -> CursorList:
        """Read all cursors."""
        found = await self._cursors().list()
        if not found.cursors:
            await load_living(self.store)
        return found

    async def create_pin(
        self, name: str, *, start: int = 0, limit: int | None = None
    ) -> PinWitness:
        """Keep the records ``[start, limit)`` readable, by default all current records.

        Raises:
            UsageError: the log has no such range or no pins, or the name is invalid.
            NameTaken: a pin has the name, or another process is creating one.
            PositionCollected: the records were collected, maybe concurrently; nothing is held.
            ContentionError: another process released the pin during its creation.
            OutcomeUnknown: the store failed after the pin was or may have been written: release it.
        """
        return await self._pins().create(name, start=start, limit=limit)

    async def drop_pin(self, name: str, *, force: bool = False) -> None:
        """Release a pin; the next collection deletes the records that the log no longer needs.

        With ``force`` also records that a fork reads, which the fork then lacks.

        Raises:
            NoSuchPin: no pin has the name.
            UsageError: a fork reads its records, and ``force`` is False.
            ContentionError: other processes changed it at every try, or its fork became a log
            concurrently.
            OutcomeUnknown: the store failed after the release was sent.
            LocationError: the store failed; see ``outcome``.
        """
        await self._pins().release(name, force=force)

    async def pins(self) -> dict[str, Pin]:
        """Read all pins, by name."""
        found = await self._pins().list()
        if not found:
            await load_living(self.store)
        return found

    async def scan_pin(
        self,
        name: str,
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> AsyncIterator[pa.Table]:
        """Yield the records that a pin holds, in order, even if the log was collected past them.

        ``stream`` selects one stream and ``key`` one key. Control records are returned only with
        ``control``.

        Raises:
            UsageError: the stream's id or the key is invalid.
            NoSuchPin: no pin has the name.
            BusyError: a process is creating the pin, or died before the pin was sure.
            CorruptionError: an object is missing or changed.
        """
        selection = select(stream, key, control=control)
        pin = (await self._pins().load(name)).pin
        found = scan_pinned(self.store, self.clock, pin, selection=selection)
        async with aclosing(found):
            async for records in found:
                yield records

    async def collect(
        self,
        *,
        keep: Keep | None = None,
        grace_us: int = GRACE_US,
        pace: Pace = AT_ONCE,
        force: bool = False,
    ) -> CollectReport:
        """Delete all records that no cursor needs, once; first finish another collector's plan.

        Units:
            grace_us: microseconds before the deletion, for running readers.
            pace: rate of deletion.

        Raises:
            UsageError: ``keep`` starts past the log's end.
            VerificationError: the share is above ``keep.share_max``, and ``force`` is False.
            NOT_APPLIED.
            CorruptionError: the log does not add up, or names a missing object; nothing more was
            deleted.
            ContentionError: other processes were first at every try.
            LocationError: the store failed; the next collection continues.
        """
        keep = Keep() if keep is None else keep
        check_kind(keep, Keep, "keep must be a tidelog.Keep")
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

    async def sweep(self, *, grace_us: int = GRACE_US, pace: Pace = AT_ONCE) -> OrphanReport:
        """Delete objects that crashed writers and collectors left, and that nothing names.

        Raises:
            CorruptionError: the log names a missing object; nothing was deleted.
            LocationError: the store failed; some objects may have been deleted.
        """
        check_deletion(grace_us, pace)
        return await sweep(self.store, clock=self.clock, grace_us=grace_us, pace=pace)

    async def _refuse_beyond(self, start: int) -> None:
        """Refuse a position past the log's end.

        Raises:
            UsageError: the position is past the end.
        """
        if start and start > (following := (await self.bounds()).next):
            raise UsageError(
                "the log has not reached that position: follow the log, or start at its next "
                "position",
                start=start,
                next=following,
            )

    def _cursors(self) -> Cursors:
        return Cursors(store=self.store, clock=self.clock, writer=self.writer)

    def _pins(self) -> Pins:
        return Pins(store=self.store, clock=self.clock, writer=self.writer)
