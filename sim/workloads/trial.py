"""A run of a log that is collected: its cursors, its pins and their holders, and its counts."""

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
from sim.workloads.scenario import TRIES, Scenario
from sim.workloads.slot import SlotScenario
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
    """The counts of a run; ``struck`` counts the faults that took effect."""

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
class Trial:
    """One run: a scenario of writers and readers, with collectors and cursors."""

    scenario: Scenario
    watch: LogWatch
    pace_us: int = 60_000
    report: Report = field(default_factory=Report)

    @property
    def dice(self) -> random.Random:
        return self.scenario.dice

    @property
    def is_over(self) -> bool:
        return self.scenario.is_over

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
        """Collect once; the store may fail, or other clients may win every race."""
        with self.scenario.trouble(ContentionError):
            async with Deadline(client, "a collection"):
                await roll_up_tail(client.store, clock=client.clock, writer=client.name)
                found = await self.collector(client).collect()
            self.report.collections += found.fragments > 0
            self.report.discarded += found.discarded
            demand(not found.spared, "a plan would have erased what the log names")

    async def read(self, client: Client, start: int) -> None:
        """Read from a position that may be collected."""
        try:
            await self.scenario.read(client, start)
        except PositionCollected:
            self.report.refused += 1

    async def read_held(self, client: Client, witness: Witness) -> None:
        """Read from a cursor: the records that it holds must exist."""
        try:
            await self.scenario.read(client, witness.position)
        except PositionCollected as error:
            raise AssertionError(f"{witness.name} did not hold {witness.position}") from error

    async def place(self, client: Client) -> int:
        """Return a position that the log has now, or had recently."""
        manifest = (await load_head(client.store)).manifest
        return self.dice.randrange(max(1, manifest.oldest - 2), manifest.next + 1)

    async def read_pinned(self, client: Client, name: str) -> None:
        """Read a pin: all of its records must exist, whatever was collected since."""
        start, limit = self.watch.pinned[name]
        async with Deadline(client, f"a read of the pin {name}"):
            pin = (await pins_of(client).load(name)).pin
            found = scan_pinned(client.store, client.clock, pin, selection=Selection(control=True))
            bodies = [row["body"] async for table in found for row in table.to_pylist()]
        demand(bodies == self.watch.bodies[start - 1 : limit - 1], f"{name} did not hold")

    async def pin(self, client: Client, name: str, start: int, limit: int) -> None:
        """Pin a range; a pin reported as not applied must never hold anything."""
        try:
            async with Deadline(client, f"the making of the pin {name}"):
                held = await pins_of(client).create(name, start=start, limit=limit)
        except TidelogError as error:
            if self.scenario.is_failure(error) and error.outcome is Outcome.NOT_APPLIED:
                await self._demand_no_pin(client, name)
            raise
        self.watch.pinned[name] = (held.pin.start, held.pin.limit)
        self.report.pins += 1

    async def _demand_no_pin(self, client: Client, name: str) -> None:
        with self.scenario.trouble(NoSuchPin, BusyError):
            await pins_of(client).load(name)
            demand(False, f"the pin {name} was said not to have been made, and holds")

    async def forward(self, client: Client, witness: Witness, position: int) -> Witness:
        """Move a cursor forward; from the request on, no client relies on earlier records."""
        self.watch.held[witness.name] = position
        return await self._moved(client, witness, position, allow_back=False)

    async def back(self, client: Client, witness: Witness, position: int) -> Witness:
        """Set a cursor back, if the records that it would hold exist."""
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
        """Move a cursor of one client; a move reported as not applied must not have happened."""
        cursors = cursors_of(client)
        try:
            async with Deadline(client, f"a move of the cursor {witness.name}"):
                return await cursors.save(witness, position, allow_back=allow_back)
        except TidelogError as error:
            is_said = self.scenario.is_failure(error) and error.outcome is Outcome.NOT_APPLIED
            if is_said and position != witness.position:
                with self.scenario.trouble(BusyError, PositionCollected):
                    found = await cursors.load(witness.name)
                    demand(found.position == witness.position, "a move was denied, and stands")
            raise

    async def loaded(self, client: Client, name: str) -> Witness:
        """Load a cursor; an abandoned plan may block it: then collect.

        Under many faults, the requests needed to learn this may never all succeed.
        """
        for attempt in range(TRIES):
            try:
                return await cursors_of(client).load(name)
            except TidelogError as error:
                if not (isinstance(error, BusyError) or self.scenario.is_failure(error)):
                    raise
            await client.clock.sleep(min(10_000 << min(attempt, 10), 1_000_000))
            await self.collect(client)
        raise AssertionError(f"the cursor {name} can never be read")

    async def retaken(self, client: Client) -> Witness:
        """Load the cursor after a move in doubt, and write it, so that the move cannot land."""
        while True:
            witness = await self.loaded(client, INTRINSIC)
            with suppress(CursorMoved):
                return await cursors_of(client).save(witness, witness.position)

    async def lose_manifest(self, client: Client) -> None:
        """Rebuild a copy of a slot log as it is now."""
        manifest = self.watch.manifest
        if isinstance(self.scenario, SlotScenario) and manifest is not None:
            await self.scenario.lose_manifest(client, oldest=manifest.oldest)


def cursors_of(client: Client) -> Cursors:
    return Cursors(store=client.store, clock=client.clock, writer=client.name)


def pins_of(client: Client) -> Pins:
    return Pins(store=client.store, clock=client.clock, writer=client.name)


Live = Callable[[Trial, Client], Awaitable[None]]
GONE = (LocationError, NameTaken, BusyError, ContentionError)
