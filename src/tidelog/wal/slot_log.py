"""The public interface of a log of slot commits, over its writer and its reader.

Source: wal3-draft, "Interface"; design page 3, "Slot commit".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

import pyarrow as pa

from tidelog.errors import ObjectNotFound
from tidelog.store.wrappers.read_only import refuses_writes
from tidelog.wal.append.work import PlacedRecords
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.streams import Control, StreamInfo
from tidelog.wal.log import Log
from tidelog.wal.read.bounds import Bounds, check_fragment, check_range
from tidelog.wal.read.head import load_living
from tidelog.wal.read.limits import Limits, check_limits, time_us_of
from tidelog.wal.read.record_reader import limited
from tidelog.wal.read.stream_selection import select
from tidelog.wal.scrub.report import ScrubReport
from tidelog.wal.scrub.slot_scrub import scrub_slots
from tidelog.wal.slot_protocol.fencing import Fencer
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.seek import position_at
from tidelog.wal.slot_protocol.writer import SlotWriter


@refuses_writes()
@dataclass(slots=True, kw_only=True, repr=False)
class SlotLog(Log):
    """A log of slot commits: one round trip per append, several in flight, one writer at a time."""

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
        self._writer.end_with(self)
        self._reader = SlotReader(store=self.store, clock=self.clock)

    async def place(
        self,
        bodies: pa.BinaryArray,
        *,
        key: bytes | pa.BinaryArray | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> PlacedRecords:
        """Append the values of an array, and return once the queue accepts them: not durable yet.

        Until they are durable, their position may still change: see `PlacedRecords`.

        Raises:
            As `append`, if the values failed before the queue accepted them. `Placed.durable`,
            `flush` and `close` raise later errors.
        """
        return await self._written(
            self._writer.place(bodies, key=key, timestamp_us=timestamp_us, wait=wait)
        )

    async def flush(self) -> int:
        """Wait until all records placed so far are durable; return `durable_position`.

        Raises:
            As `append`: the error of the first append since the last flush that failed or has an
            unknown outcome. The next flush reports only later appends.
        """
        return await self._written(self._writer.flush())

    def durable_position(self) -> int:
        """Return the position below which all records are durable, as far as this handle knows.

        It never falls. 1 means that this handle has not written yet.
        """
        return self._writer.durable_position()

    def slots(self) -> int:
        """Return how many slots the log has had, by all writers; 0 if this handle has not written.

        Each slot is one object: a batch, or the fence of another writer.
        """
        return self._writer.slots

    @property
    def taken_from(self) -> str:
        """Return the name of the writer before this one; "" if that writer had closed."""
        return self._writer.taken_from

    def on_durable(self, told: Callable[[int], object]) -> Callable[[], None]:
        """Call ``told`` with each new `durable_position`; return a function that ends this.

        The calls run in the event loop, each with a greater position than before.
        """
        return self._writer.on_durable(told)

    async def streams(self) -> list[StreamInfo]:
        """See `Log`."""
        return list((await self._reader.end()).tail.streams)

    async def _control(self, control: Control) -> int:
        return await self._written(self._writer.control(control))

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
        """See `Log`."""
        check_range(start, limit)
        check_limits(limits)
        selection = select(stream, key, control=control)
        found = self._reader.scan(start, limit=limit, selection=selection)
        return self._in_range(found if limits is None else limited(found, limits), start)

    def follow(
        self,
        start: int = 0,
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> AsyncIterator[pa.Table]:
        """See `Log`."""
        check_range(start)
        return self._reader.follow(start, selection=select(stream, key, control=control))

    async def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        """See `Log`; also returns fragments past the manifest."""
        check_range(start, limit)
        found = await self._reader.fragments(start, limit=limit)
        if not found:
            await self._refuse_beyond(start)
        return found

    async def fetch(self, fragment: Fragment) -> pa.Table:
        """See `Log`."""
        check_fragment(fragment)
        try:
            return await self._reader.records.fetch(fragment)
        except ObjectNotFound:
            await load_living(self.store)
            raise

    async def position_at(self, when: int | datetime) -> int:
        """See `Log`; this takes a request for each level of the manifest's tree, and a few more."""
        return await position_at(self._reader, time_us_of(when))

    async def bounds(self) -> Bounds:
        """See `Log`."""
        return await self._reader.bounds()

    async def scrub(self, start: int = 0, *, limit: int | None = None) -> ScrubReport:
        """See `Log`."""
        return await self._scrubbed(scrub_slots(self._reader, start, limit), start)

    async def seal(self, *, successor: str = "") -> Seal:
        """See `Log`."""
        opener = Fencer(store=self.store, clock=self.clock, writer=self.writer)
        return await self._written(opener.seal(successor=successor))
