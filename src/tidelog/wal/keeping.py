"""What a log keeps and what it lets go of: its cursors and pins, and its collection.

Source: wal3, "Cursors" and "Garbage Collection"; design page 3.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa

from tidelog.arguments import check_kind
from tidelog.clock import Clock
from tidelog.errors import UsageError
from tidelog.store.port import Store
from tidelog.store.within import Within
from tidelog.wal.admin.origin import let_go_of_origin
from tidelog.wal.append.closing import Closing
from tidelog.wal.format.pin import Pin
from tidelog.wal.gc.collector import GRACE_US, Collected, Collector
from tidelog.wal.gc.cursors import Cursors, Listed, Witness
from tidelog.wal.gc.deletion import AT_ONCE, Pace, check_deletion
from tidelog.wal.gc.orphans import Swept, sweep
from tidelog.wal.gc.pin_objects import PinWitness
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.read.bounds import Bounds, check_position
from tidelog.wal.read.head import load_living
from tidelog.wal.read.stream_selection import select
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail
from tidelog.wal.slot_protocol.reader import scan_pinned


@dataclass(slots=True, weakref_slot=True, kw_only=True)
class Keeping(Closing):
    """The part of a `tidelog.wal.log.Log` that is the same in both protocols."""

    name: str
    store: Store
    clock: Clock
    writer: str

    @abc.abstractmethod
    async def bounds(self) -> Bounds:
        """Return the oldest position that is left, and the next one to come."""

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
        """Release a pin; the next collection deletes the records that the log no longer needs.

        With ``force`` also records that a fork reads, which the fork then lacks.

        Raises:
            NoSuchPin: no pin has the name. UsageError: a fork reads its records, and ``force`` is
            False. ContentionError: others changed it at every try, or its fork became a log
            concurrently. OutcomeUnknown, LocationError: the store failed; see ``outcome``.
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
        """Yield the records that a pin holds, in order, whatever was collected since.

        ``stream`` asks for those of one stream alone, ``key`` for those with one key; control
        records are left out unless asked for.

        Raises:
            UsageError: no stream can have the id, or no record the key. NoSuchPin: there is none of
            the name. BusyError: the pin is being made, or whoever made it died before it was sure.
            CorruptionError: an object is missing, or is not what was written.
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
