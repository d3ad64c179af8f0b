"""What keeps a log in bounds: cursors and pins, which hold, and collection, which erases.

Source: wal3, "Garbage Collection" and "Cursoring"; design page 3, "Manifest tree, setsum, cursors,
collection".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pyarrow as pa

from tidelog.clock import Clock
from tidelog.store.port import Store
from tidelog.store.within import Within
from tidelog.wal.closing import Closing
from tidelog.wal.collection import Keep
from tidelog.wal.collector import GRACE_US, Collected, Collector
from tidelog.wal.cursors import Cursors, Listed, Witness
from tidelog.wal.fork import let_go_of_origin
from tidelog.wal.pin import Pin
from tidelog.wal.pins import Pins, PinWitness
from tidelog.wal.roller import roll_up_tail
from tidelog.wal.selection import select
from tidelog.wal.slot_reader import scan_pinned
from tidelog.wal.sweep import Swept, sweep


@dataclass(slots=True, kw_only=True)
class Upkeep(Closing):
    """The part of a log's face that needs neither its writer nor its reader."""

    name: str
    store: Store
    clock: Clock
    writer: str

    async def load_cursor(self, name: str) -> Witness:
        """Read a cursor; see `Cursors.load`."""
        return await self._cursors().load(name)

    async def create_cursor(self, name: str, position: int) -> Witness:
        """Make a cursor that holds ``position`` and all after it; see `Cursors.create`."""
        return await self._cursors().create(name, position)

    async def save_cursor(
        self, witness: Witness, position: int, *, allow_back: bool = False
    ) -> Witness:
        """Move a cursor, provided that nobody has since it was read; see `Cursors.save`."""
        return await self._cursors().save(witness, position, allow_back=allow_back)

    async def delete_cursor(self, name: str) -> None:
        """Delete a cursor; see `Cursors.delete`."""
        await self._cursors().delete(name)

    async def cursors(self) -> Listed:
        """Read all cursors."""
        return await self._cursors().list()

    async def create_pin(
        self, name: str, *, start: int = 0, limit: int | None = None
    ) -> PinWitness:
        """Keep records readable, all that there are now unless it is said; see `Pins.create`."""
        return await self._pins().create(name, start=start, limit=limit)

    async def release_pin(self, name: str, *, force: bool = False) -> None:
        """Let go of what a pin holds; see `Pins.release`.

        With ``force`` also what a fork reads: only where whoever began the fork died over it.
        """
        await self._pins().release(name, force=force)

    async def pins(self) -> dict[str, Pin]:
        """Read all pins, by name."""
        return await self._pins().list()

    async def scan_pin(
        self, name: str, *, stream: bytes | None = None, control: bool = False
    ) -> AsyncIterator[pa.Table]:
        """Give the records that a pin holds, in order, whatever was collected since.

        ``stream`` asks for those of one stream alone; control records are left out unless asked
        for.

        Raises:
            UsageError: no stream can have the id. NoSuchPin, BusyError: see `Pins.load`.
            CorruptionError: an object is missing, or is not what was written.
        """
        pin = (await self._pins().load(name)).pin
        selection = select(stream, control=control)
        async for records in scan_pinned(self.store, self.clock, pin, selection=selection):
            yield records

    async def collect(
        self, *, keep: Keep | None = None, grace_us: int = GRACE_US, force: bool = False
    ) -> Collected:
        """Erase what no cursor needs, once; see `Collector`.

        Units: ``grace_us`` microseconds pass before anything is deleted.
        """
        await roll_up_tail(self.store, clock=self.clock, writer=self.writer)
        collector = Collector(
            store=self.store,
            clock=self.clock,
            writer=self.writer,
            keep=keep or Keep(),
            grace_us=grace_us,
        )
        found = await collector.collect(force=force)
        if isinstance(self.store, Within):
            await let_go_of_origin(self.store, clock=self.clock, writer=self.writer)
        return found

    async def sweep(self, *, grace_us: int = GRACE_US) -> Swept:
        """Delete what the dead left behind; see `tidelog.wal.sweep`."""
        return await sweep(self.store, clock=self.clock, grace_us=grace_us)

    def _cursors(self) -> Cursors:
        return Cursors(store=self.store, clock=self.clock, writer=self.writer)

    def _pins(self) -> Pins:
        return Pins(store=self.store, clock=self.clock, writer=self.writer)
