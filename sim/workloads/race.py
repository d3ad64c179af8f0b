"""Collectors and cursors on a small log, under no fault but the order of requests.

Each request takes a random time, so all orders of a few clients' requests occur soon. One example:
a collector pauses while another discards its plan and a client makes a cursor.
"""

from __future__ import annotations

import asyncio
import functools
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from sim.checkers.demands import demand
from sim.checkers.watch_log import LogWatch
from sim.kernel.faults import Dice, Request, Script
from sim.kernel.hashed import HashedStore
from sim.kernel.loop import run
from sim.kernel.rates import Rates
from sim.kernel.world import Client, World
from sim.workloads.scenario import Scenario
from sim.workloads.slot import SlotScenario
from sim.workloads.trial import cursors_of
from tidelog.errors import ContentionError, CursorMoved, PositionCollected
from tidelog.wal.format.cursor import INTRINSIC
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.gc.collector import Collector
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.slot_protocol.reader import scan_pinned

FRAGMENTS = 6


@dataclass(slots=True)
class Report:
    """The counts of a run."""

    trace: str = ""
    held: int = 0
    refused: int = 0
    collections: int = 0
    discarded: int = 0
    requests: int = 0


@dataclass(slots=True)
class Sleepy(Dice):
    """No request fails; but requests for the manifest or the plan are often slow."""

    def delay_us(self, request: Request) -> int:
        if request.key in (MANIFEST, GARBAGE) and self.random.random() < 0.25:
            return 1 + self.random.randrange(self.rates.slow_us)
        return 1 + self.random.randrange(self.rates.delay_us)


def simulate_race(seed: int) -> Report:
    """Run one seed, and check that everything promised as held exists.

    Raises:
        Violated: a check failed.
    """
    return _simulate(seed, has_pins=False)


def simulate_pin_race(seed: int) -> Report:
    """Run one seed of a log of slot commits, with pins in place of cursors; see `simulate_race`."""
    return _simulate(seed, has_pins=True)


def _simulate(seed: int, *, has_pins: bool) -> Report:
    race_of = _PinRace if has_pins else _Race
    dice = random.Random(f"race {seed}")
    rates = Rates(
        delay_us=dice.choice([1_000, 50_000]), slow_us=dice.choice([200_000, 500_000, 3_000_000])
    )
    schedule = Sleepy(random.Random(f"dice {seed}"), rates, calm=True)
    world = World(seed, schedule, store=HashedStore())
    report, begun = Report(), _begun(has_pins)
    world.store.objects, world.store.puts_count = dict(begun.store.objects), begun.store.puts_count
    watch = begun.copy_for(world.store)
    world.watchers.append(watch)
    scenario = race_of.scenario_of(world, dice)
    race = race_of(scenario, watch, report, pause_us=dice.choice([300_000, 2_000_000]))
    run(race.play, seed)
    demand(not watch.violations, "; ".join(watch.violations[:3]))
    report.trace, report.requests = world.trace(), world.requests_count
    return report


@functools.cache
def _begun(has_pins: bool) -> LogWatch:
    """Return the log with which every race begins, as its watch saw it."""
    race_of = _PinRace if has_pins else _Race
    world = World("race", Script(), store=HashedStore())
    watch = LogWatch(world.store, grace_us=0)
    world.watchers.append(watch)
    race = race_of(race_of.scenario_of(world, random.Random(0)), watch, Report())
    run(race.make, 0)
    return watch


@dataclass(slots=True, eq=False)
class _Race:
    scenario_of: ClassVar[type[Scenario]] = Scenario

    scenario: Scenario
    watch: LogWatch
    report: Report
    pause_us: int = 2_000_000
    replaced: set[str] = field(default_factory=set)

    async def play(self) -> None:
        world, dice = self.scenario.world, self.scenario.dice
        async with asyncio.TaskGroup() as group:
            for number, records in enumerate(dice.sample([0, 0, 3, 9, 9], dice.choice([2, 3]))):
                group.create_task(self.collect(world.client(f"g{number}"), records))
            for number in range(dice.choice([1, 3, 5])):
                group.create_task(self.create(world.client(f"h{number}")))
            if dice.random() < 0.5:
                group.create_task(self.write(world.client("w")))
            if dice.random() < 0.3:
                for name in ("m0", "m1"):
                    group.create_task(self.move(world.client(name)))

    async def make(self) -> None:
        maker = self.scenario.world.client("maker")
        await self.append(maker, FRAGMENTS)
        await cursors_of(maker).create(INTRINSIC, FRAGMENTS + 1)

    async def append(self, client: Client, count: int) -> None:
        await self.scenario.make(client)
        writer = self.scenario.writer(client)
        for number in range(count):
            await writer.append([f"{client.name} {number}".encode()])
        await writer.close()

    async def write(self, client: Client) -> None:
        await self.pause(client)
        await self.append(client, 2)

    async def collect(self, client: Client, records: int) -> None:
        await self.pause(client)
        keep = Keep(share_max=1, records=records)
        collector = Collector(
            store=client.store, clock=client.clock, writer=client.name, keep=keep, grace_us=0
        )
        with suppress(ContentionError):
            found = await collector.collect()
            self.report.collections += found.fragments > 0
            self.report.discarded += found.discarded

    async def create(self, client: Client) -> None:
        """Make a cursor, or set one back, and keep it."""
        cursors, dice = cursors_of(client), self.scenario.dice
        for name in (f"{client.name}_{number}" for number in range(3)):
            await self.pause(client)
            position = dice.randrange(1, FRAGMENTS + 1)
            try:
                if dice.random() < 0.7:
                    witness = await cursors.create(name, position)
                else:
                    high = await cursors.create(name, FRAGMENTS + 1)
                    await self.pause(client)
                    witness = await cursors.save(high, position, allow_back=True)
            except PositionCollected:
                self.report.refused += 1
            else:
                self.watch.hold(name, witness.position)
                self.report.held += 1
                return

    async def move(self, client: Client) -> None:
        """Write a cursor that another client also writes: no version of it is replaced twice."""
        cursors = cursors_of(client)
        for _ in range(3):
            witness = await cursors.load(INTRINSIC)
            await self.pause(client)
            with suppress(CursorMoved):
                await cursors.save(witness, witness.position)
                demand(witness.e_tag not in self.replaced, "two moved a cursor from one place")
                self.replaced.add(witness.e_tag)

    async def pause(self, client: Client) -> None:
        await client.clock.sleep(self.scenario.dice.randrange(self.pause_us))


@dataclass(slots=True, eq=False)
class _PinRace(_Race):
    """Collectors, and clients that make, read and release pins."""

    scenario_of: ClassVar[type[Scenario]] = SlotScenario

    async def play(self) -> None:
        world, dice = self.scenario.world, self.scenario.dice
        async with asyncio.TaskGroup() as group:
            for number, records in enumerate(dice.sample([0, 0, 2, 3, 4], dice.choice([1, 2, 3]))):
                group.create_task(self.collect(world.client(f"g{number}"), records))
            for number in range(dice.choice([1, 3, 5])):
                group.create_task(self.create(world.client(f"h{number}")))
            if dice.random() < 0.5:
                group.create_task(self.write(world.client("w")))
        client = world.client("last")
        for name in list(self.watch.pinned):
            await self.read(client, name)

    async def create(self, client: Client) -> None:
        """Make a pin that stays, or is released after a while."""
        pins, dice = (
            Pins(store=client.store, clock=client.clock, writer=client.name),
            self.scenario.dice,
        )
        for name in (f"{client.name}_{number}" for number in range(3)):
            await self.pause(client)
            start = dice.randrange(1, FRAGMENTS + 1)
            try:
                await pins.create(name, start=start, limit=dice.randrange(start, FRAGMENTS + 1) + 1)
            except PositionCollected:
                self.report.refused += 1
                continue
            held = (await pins.load(name)).pin
            self.watch.pinned[name] = (held.start, held.limit)
            self.report.held += 1
            await self.pause(client)
            await self.read(client, name)
            if dice.random() < 0.7:
                return
            del self.watch.pinned[name]
            await pins.release(name)

    async def read(self, client: Client, name: str) -> None:
        pins = Pins(store=client.store, clock=client.clock, writer=client.name)
        start, limit = self.watch.pinned[name]
        found = scan_pinned(client.store, client.clock, (await pins.load(name)).pin)
        bodies = [row["body"] async for table in found for row in table.to_pylist()]
        demand(bodies == self.watch.bodies[start - 1 : limit - 1], f"{name} did not hold")
