"""A log that is collected, as a run of it is told: what was held, by whom, and what was done."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from sim.checkers.demands import demand
from sim.checkers.liveness import Deadline
from sim.checkers.watch_log import LogWatch
from sim.kernel.world import Client
from sim.workloads.plot import TRIES, Plot
from sim.workloads.slot import SlotPlot
from tidelog.errors import (
    BusyError,
    ContentionError,
    CursorMoved,
    LocationError,
    NameTaken,
    NoSuchPin,
    Outcome,
    PositionCollected,
    TidelogError,
)
from tidelog.wal.format.cursor import INTRINSIC
from tidelog.wal.gc.collector import Collector
from tidelog.wal.gc.cursors import Cursors, Witness
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.read.head import load_head
from tidelog.wal.read.stream_selection import Selection
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail
from tidelog.wal.slot_protocol.reader import scan_pinned


@dataclass(slots=True)
class Report:
    """What a run did; ``struck`` counts what befell it."""

    trace: str = ""
    acknowledged: int = 0
    reads: int = 0
    refused: int = 0
    holds: int = 0
    pins: int = 0
    backs: int = 0
    collections: int = 0
    fragments: int = 0
    discarded: int = 0
    left: int = 0
    records: int = 0
    deaths: int = 0
    requests: int = 0
    rebuilt: int = 0
    rebuilds_refused: int = 0
    struck: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Game:
    """One run: a plot of writers and readers, and what collectors and cursors add to it."""

    plot: Plot
    watch: LogWatch
    pace_us: int = 60_000
    report: Report = field(default_factory=Report)

    @property
    def dice(self) -> random.Random:
        return self.plot.dice

    @property
    def is_over(self) -> bool:
        return self.plot.is_over

    def collector(self, client: Client) -> Collector:
        keep = Keep(share_max=1, records=self.dice.choice([0, 0, 3, 7]))
        return Collector(
            store=client.store,
            clock=client.clock,
            writer=client.name,
            keep=keep,
            grace_us=self.watch.grace_us,
        )

    async def collect(self, client: Client) -> None:
        """Collect once; the store may fail over it, and others may be ahead for ever."""
        with self.plot.trouble(ContentionError):
            async with Deadline(client, "a collection"):
                await roll_up_tail(client.store, clock=client.clock, writer=client.name)
                found = await self.collector(client).collect()
            self.report.collections += found.fragments > 0
            self.report.discarded += found.discarded
            demand(not found.spared, "a plan would have erased what the log names")

    async def read(self, client: Client, start: int) -> None:
        """Read from a position that may be gone."""
        try:
            await self.plot.read(client, start)
        except PositionCollected:
            self.report.refused += 1

    async def read_held(self, client: Client, witness: Witness) -> None:
        """Read from a cursor: what it holds is there, whatever happens meanwhile."""
        try:
            await self.plot.read(client, witness.position)
        except PositionCollected as error:
            raise AssertionError(f"{witness.name} did not hold {witness.position}") from error

    async def place(self, client: Client) -> int:
        """Return a position that the log has now, or has had."""
        manifest = (await load_head(client.store)).manifest
        return self.dice.randrange(max(1, manifest.oldest - 2), manifest.next + 1)

    async def read_pinned(self, client: Client, name: str) -> None:
        """Read what a pin holds: all of it is there, whatever was collected since."""
        start, limit = self.watch.pinned[name]
        async with Deadline(client, f"a read of the pin {name}"):
            pin = (await pins_of(client).load(name)).pin
            found = scan_pinned(client.store, client.clock, pin, selection=Selection(control=True))
            bodies = [row["body"] async for table in found for row in table.to_pylist()]
        demand(bodies == self.watch.bodies[start - 1 : limit - 1], f"{name} did not hold")

    async def pin(self, client: Client, name: str, start: int, limit: int) -> None:
        """Pin a range; what is said to have come to nothing holds nothing, then or later."""
        try:
            async with Deadline(client, f"the making of the pin {name}"):
                held = await pins_of(client).create(name, start=start, limit=limit)
        except TidelogError as error:
            if self.plot.is_failure(error) and error.outcome is Outcome.NOT_APPLIED:
                await self._demand_no_pin(client, name)
            raise
        self.watch.pinned[name] = (held.pin.start, held.pin.limit)
        self.report.pins += 1

    async def _demand_no_pin(self, client: Client, name: str) -> None:
        with self.plot.trouble(NoSuchPin, BusyError):
            await pins_of(client).load(name)
            demand(False, f"the pin {name} was said not to have been made, and holds")

    async def forward(self, client: Client, witness: Witness, position: int) -> Witness:
        """Move a cursor on; from the moment it is asked, nobody relies on what is before."""
        self.watch.held[witness.name] = position
        return await self._moved(client, witness, position, allow_back=False)

    async def back(self, client: Client, witness: Witness, position: int) -> Witness:
        """Set a cursor back, if what it would hold is there."""
        try:
            moved = await self._moved(client, witness, position, allow_back=True)
        except PositionCollected:
            self.report.refused += 1
            return await self.loaded(client, witness.name)
        self.watch.hold(witness.name, position)
        self.report.backs += 1
        return moved

    async def _moved(
        self, client: Client, witness: Witness, position: int, *, allow_back: bool
    ) -> Witness:
        """Move a cursor that is one client's alone: where the move is denied, it did not happen."""
        cursors = cursors_of(client)
        try:
            async with Deadline(client, f"a move of the cursor {witness.name}"):
                return await cursors.save(witness, position, allow_back=allow_back)
        except TidelogError as error:
            is_said = self.plot.is_failure(error) and error.outcome is Outcome.NOT_APPLIED
            if is_said and position != witness.position:
                with self.plot.trouble(BusyError, PositionCollected):
                    found = await cursors.load(witness.name)
                    demand(found.position == witness.position, "a move was denied, and stands")
            raise

    async def loaded(self, client: Client, name: str) -> Witness:
        """Load a cursor; a plan that nobody works on may stand in the way: then collect.

        In bad weather the many looks that it takes to know this may never all get through.
        """
        for attempt in range(TRIES):
            try:
                return await cursors_of(client).load(name)
            except TidelogError as error:
                if not (isinstance(error, BusyError) or self.plot.is_failure(error)):
                    raise
            await client.clock.sleep(min(10_000 << min(attempt, 10), 1_000_000))
            await self.collect(client)
        raise AssertionError(f"the cursor {name} can never be read")

    async def retaken(self, client: Client) -> Witness:
        """Load the cursor after a move in doubt, and write it, lest that move come about later."""
        while True:
            witness = await self.loaded(client, INTRINSIC)
            with suppress(CursorMoved):
                return await cursors_of(client).save(witness, witness.position)

    async def lose_manifest(self, client: Client) -> None:
        """Rebuild a copy of the log, as it is now, if it is of slots."""
        manifest = self.watch.manifest
        if isinstance(self.plot, SlotPlot) and manifest is not None:
            await self.plot.lose_manifest(client, oldest=manifest.oldest)


def cursors_of(client: Client) -> Cursors:
    return Cursors(store=client.store, clock=client.clock, writer=client.name)


def pins_of(client: Client) -> Pins:
    return Pins(store=client.store, clock=client.clock, writer=client.name)


Live = Callable[[Game, Client], Awaitable[None]]
GONE = (LocationError, NameTaken, BusyError, ContentionError)
