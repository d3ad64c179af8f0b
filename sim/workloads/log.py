"""Logs under fire: writers that contend, die and come back, and readers beside them.

What each call was answered is held against the log as it is in the end, by a checker that knows
nothing of how logs work.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import pyarrow as pa

from sim.checkers.invariants import demand
from sim.checkers.linear_log import FOREVER, Append, LogHistory, Read, check_log
from sim.crash.points import VICTIM
from sim.kernel.fates import Dice, Script, rates_of
from sim.kernel.loop import run
from sim.kernel.world import Client, World
from tidelog.errors import Fenced, LocationError, LogSealed, Outcome, TidelogError
from tidelog.store.port import Store
from tidelog.wal.append.queue import Batching
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.manifest_protocol.writer import Wal3Writer
from tidelog.wal.read.tree_reader import Wal3Reader
from tidelog.wal.scrub.report import Scrubbed
from tidelog.wal.scrub.tree_scrub import scrub
from tidelog.wal.slot_protocol.writer import SlotWriter

T = TypeVar("T")
TRIES = 200


@dataclass(slots=True)
class Report:
    """What a run did."""

    trace: str = ""
    appends: int = 0
    acknowledged: int = 0
    unsure: int = 0
    brought_in: int = 0
    records: int = 0
    reads: int = 0
    deaths: int = 0
    requests: int = 0
    takeovers: int = 0


class LogWriter(Protocol):
    """What a scenario asks of writers."""

    async def append(self, records: Sequence[bytes]) -> int: ...

    async def close(self) -> None: ...


class LogReader(Protocol):
    """What a scenario asks of readers."""

    def scan(self, start: int = 0) -> AsyncIterator[pa.Table]: ...


@dataclass(slots=True)
class Plot:
    """One run, of a log in wal3's form."""

    world: World
    dice: random.Random
    history: LogHistory = field(default_factory=LogHistory)
    final: tuple[bytes, ...] = ()
    writers_left: int = 0
    takeovers: int = 0
    opened: dict[str, list[Wal3Writer | SlotWriter]] = field(default_factory=dict)
    has_pins: bool = False

    def writer(self, client: Client) -> Wal3Writer:
        committer = Committer(
            store=client.store,
            clock=client.clock,
            writer=client.name,
            rollover=Rollover(fragments=self.dice.randrange(2, 5), snapshots=2),
        )
        batching = Batching(
            batch_bytes=self.dice.choice([1, 20, 1_000]),
            interval_us=self.dice.choice([0, 20_000]),
            pending_bytes=60,
        )
        writer = Wal3Writer(committer=committer, batching=batching)
        self.opened.setdefault(client.name, []).append(writer)
        return writer

    def reader(self, client: Client, store: Store | None = None) -> LogReader:
        """Return a reader of the log, on another store than the client's if it is given."""
        return Wal3Reader(store=store or client.store, clock=client.clock, reads=2)

    async def make(self, client: Client) -> None:
        """Make the log, unless it is there."""
        await self.writer(client).committer.open(make=True)

    async def settle(self, client: Client, store: Store) -> None:
        """Open the log on a store that is well: from then on, nothing of before is in doubt."""
        writer = self.writer(client)
        writer.committer.store = store
        await writer.committer.open()

    async def scrub(self, client: Client) -> Scrubbed:
        """Check all that is stored."""
        return await scrub(Wal3Reader(store=self.world.store, clock=client.clock))

    async def append(self, client: Client, writer: LogWriter, bodies: list[bytes]) -> None:
        """Append, and note what became of it; see `note`."""
        await self.note(bodies, lambda: writer.append(bodies))

    async def note(
        self,
        bodies: Sequence[bytes],
        call: Callable[[], Awaitable[int]],
        expected: tuple[type[TidelogError], ...] = (LocationError, Fenced, LogSealed),
    ) -> None:
        """Note what became of an append: nothing is known where the client dies over it."""
        begin = self.now()
        note = Append(bodies=tuple(bodies), begin=begin, end=FOREVER)
        index = len(self.history.appends)
        self.history.appends.append(note)
        try:
            position = await call()
        except TidelogError as error:
            never = error.outcome is Outcome.NOT_APPLIED
            self.history.appends[index] = replace(note, end=self.now(), is_never=never)
            if not isinstance(error, expected):
                raise
        else:
            self.history.appends[index] = replace(note, end=self.now(), position=position)

    async def read(self, client: Client, start: int) -> None:
        """Read all there is from a position on."""
        reader, begin = self.reader(client), self.now()
        rows = [row async for table in reader.scan(start) for row in table.to_pylist()]
        demand(
            [row["position"] for row in rows] == list(range(start, start + len(rows))),
            "a read gave positions that do not follow each other",
        )
        bodies = tuple(row["body"] for row in rows)
        self.history.reads.append(Read(start=start, begin=begin, end=self.now(), bodies=bodies))

    def bury(self, client: Client) -> None:
        """End what a dead client left that asks for nothing, and so would not hear of its death."""
        for writer in self.opened.get(client.name, ()) if client.is_dead else ():
            if writer._task is not None:
                writer._task.cancel()

    def others(self, group: asyncio.TaskGroup) -> None:
        """Start whoever else is there, beside writers and readers."""

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()


async def persist(client: Client, call: Callable[[], Awaitable[T]]) -> T:
    """Call again while the store fails, as any caller would."""
    for _ in range(TRIES):
        try:
            return await call()
        except LocationError:
            await client.clock.sleep(10_000)
    raise AssertionError("the store fails for ever")


def simulate_log(seed: int, plot_of: type[Plot] = Plot) -> Report:
    """Run one seed, and check everything.

    Raises:
        NotLinearLog, Violated: something does not hold. Anything else: a client failed as it never
        should.
    """
    dice = random.Random(f"log {seed}")
    mortal = frozenset(["w0", "w1"])
    fates = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    plot = plot_of(World(seed, fates), dice)
    run(lambda: _play(plot), seed)
    check_log(plot.history, plot.final)
    return _report(plot)


async def _play(plot: Plot) -> None:
    writers = [plot.world.client(f"w{n}") for n in range(plot.dice.choice([1, 2, 3]))]
    maker = plot.world.client("maker")
    await persist(maker, lambda: plot.make(maker))
    plot.writers_left = len(writers)
    async with asyncio.TaskGroup() as group:
        for client in writers:
            group.create_task(_write_on(plot, client), name=client.name)
        for name in ("r0", "r1"):
            group.create_task(_read_on(plot, plot.world.client(name)), name=name)
        plot.others(group)
    await finish(plot, plot.world.client("last"))


async def _write_on(plot: Plot, client: Client) -> None:
    try:
        await client.live(_write(plot, client))
    finally:
        plot.writers_left -= 1
        plot.bury(client)


async def _write(plot: Plot, client: Client) -> None:
    number = 0
    for _ in range(plot.dice.choice([1, 2])):
        writer = plot.writer(client)
        for _ in range(plot.dice.randrange(2, 6)):
            await client.clock.sleep(plot.dice.randrange(40_000))
            calls = []
            for _ in range(plot.dice.choice([1, 1, 3])):
                sizes = range(plot.dice.choice([1, 1, 2, 3]))
                bodies = [f"{client.name} {number} {n}".encode() for n in sizes]
                calls.append(plot.append(client, writer, bodies))
                number += 1
            await asyncio.gather(*calls)
        await writer.close()


async def _read_on(plot: Plot, client: Client) -> None:
    while plot.writers_left:
        await client.clock.sleep(plot.dice.randrange(100_000))
        # Where the store fails at every third request, a read of many may never come to its end.
        with suppress(LocationError):
            await plot.read(client, plot.dice.choice([1, 1, 2, 7]))


async def finish(plot: Plot, client: Client) -> None:
    """Read what is there once nothing is in doubt, and hold all that is stored against it."""
    await plot.settle(client, plot.world.store)
    begin = plot.now()
    reader = plot.reader(client, plot.world.store)
    rows = [row async for table in reader.scan() for row in table.to_pylist()]
    plot.final = tuple(row["body"] for row in rows)
    last = Read(start=1, begin=begin, end=plot.now(), bodies=plot.final)
    plot.history.reads.append(last)
    found = await plot.scrub(client)
    demand(found.is_clean, "the log is not whole", problems=found.problems)
    demand(found.records == len(plot.final), "scrub counts other records than a read gives")


def _report(plot: Plot) -> Report:
    appends = plot.history.appends
    there = set(plot.final)
    unsure = [a for a in appends if a.position is None and not a.is_never]
    return Report(
        trace=plot.world.trace(),
        appends=len(appends),
        acknowledged=sum(a.position is not None for a in appends),
        unsure=len(unsure),
        brought_in=sum(a.bodies[0] in there for a in unsure),
        records=len(plot.final),
        reads=len(plot.history.reads),
        deaths=sum(client.is_dead for client in plot.world.clients.values()),
        requests=plot.world.requests_count,
        takeovers=plot.takeovers,
    )


@dataclass(slots=True)
class LogStory:
    """Opens, appends and rollovers, another writer beside; an heir goes on."""

    name: str = "log"
    plot_of: type[Plot] = Plot

    def tell(self, fates: Script, *, seed: int) -> int:
        """See `sim.crash.points.Story`."""
        plot = self.plot_of(World(seed, fates), random.Random(f"log story {seed}"))
        run(lambda: self._play(plot), seed)
        check_log(plot.history, plot.final)
        victim = plot.world.clients[VICTIM]
        return len(victim.store.records)

    async def _play(self, plot: Plot) -> None:
        victim, other = plot.world.client(VICTIM), plot.world.client("other")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._live(plot, other, 4), name="other")
            await victim.live(self._live(plot, victim, 6))
            plot.bury(victim)
            heir = plot.world.client("heir")
            await self._live(plot, heir, 2)
        await finish(plot, plot.world.client("last"))

    @staticmethod
    async def _live(plot: Plot, client: Client, appends: int) -> None:
        await persist(client, lambda: plot.make(client))
        writer = plot.writer(client)
        for number in range(appends):
            bodies = [f"{client.name} {number} {n}".encode() for n in range(2)]
            await plot.append(client, writer, bodies)
        await writer.close()
        with suppress(LocationError):
            await plot.read(client, 1)
