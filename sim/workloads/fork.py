"""Forks under fire: logs that share objects, are collected, pinned and destroyed, by many at once.

What holds: a fork reads exactly its source's records from its start on, and then its own, whatever
is collected or destroyed; nothing that a log or a pin holds is deleted; a log that was destroyed
acknowledges nothing; and once all are destroyed, fences and tombstones are left.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field

from sim.checkers.demands import demand
from sim.checkers.linear_log import Read, check_log
from sim.checkers.liveness import Deadline
from sim.checkers.watch_shelf import ShelfWatch
from sim.kernel.fates import Dice
from sim.kernel.hashed import HashedStore
from sim.kernel.loop import run
from sim.kernel.world import Client, World
from sim.workloads.log import fates_of
from sim.workloads.plot import LONG_S, STEPS_MAX, persist
from sim.workloads.slot import SlotPlot
from tidelog.clock import Clock
from tidelog.errors import (
    BusyError,
    ContentionError,
    LogSealed,
    NameTaken,
    NoSuchCursor,
    NoSuchLog,
    NoSuchPin,
    PositionCollected,
    TidelogError,
    UsageError,
)
from tidelog.store.memory import MemoryStore
from tidelog.store.within import Within
from tidelog.wal.admin.destroy import Destroyed
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.gc.collector import Collected
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.logs import Logs, log_folder
from tidelog.wal.read.stream_selection import Selection
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.chain import chain_of
from tidelog.wal.slot_protocol.reader import SlotReader

LOGS_MAX = 6
EVERYTHING = Selection(control=True)


@dataclass(slots=True)
class Report:
    """What a run did."""

    trace: str = ""
    acknowledged: int = 0
    reads: int = 0
    refused: int = 0
    forks: int = 0
    of_forks: int = 0
    pins: int = 0
    collections: int = 0
    shared_deleted: int = 0
    destroyed: int = 0
    has_forks: int = 0
    deaths: int = 0
    requests: int = 0
    rebuilt: int = 0
    rebuilds_refused: int = 0
    struck: Counter[str] = field(default_factory=Counter)


class ClientIn:
    """A client, as the log in one folder sees it."""

    def __init__(self, client: Client, log: str) -> None:
        self.name = client.name
        self.clock: Clock = client.clock
        self.store = Within(client.store, log_folder(log))
        self._client = client

    @property
    def is_dead(self) -> bool:
        return self._client.is_dead

    @property
    def stopped_seconds(self) -> float:
        return self._client.stopped_seconds


@dataclass(slots=True)
class Game:
    """One run; ``plots`` has the history of each log."""

    world: World
    dice: random.Random
    watch: ShelfWatch
    grace_us: int
    plots: dict[str, SlotPlot] = field(default_factory=dict)
    writing: set[Client] = field(default_factory=set)
    report: Report = field(default_factory=Report)

    @property
    def is_over(self) -> bool:
        """Say whether no writer is left but such as stand still for long."""
        return all(client.stopped_for > LONG_S for client in self.writing)

    def plot(self, name: str) -> SlotPlot:
        """Return the plot of a log, which knows what was called, and what came of it."""
        if name not in self.plots:
            self.plots[name] = SlotPlot(self.world, self.dice, truth=self.watch.slots(name))
        return self.plots[name]

    def trouble(self, *others: type[TidelogError]) -> AbstractContextManager[None]:
        """Pass over failures of the store, and ``others``; see `Plot.trouble`."""
        return self.plot("a").trouble(*others)

    @contextmanager
    def unless_gone(self, name: str) -> Iterator[None]:
        """Pass over it if a log says that it was destroyed, which then must be so."""
        try:
            yield
        except NoSuchLog:
            demand(not self.watch.logs[name].is_live, f"{name} said that it was destroyed, and is")
            self.report.refused += 1

    def shelf(self, client: Client) -> Logs:
        return Logs(store=client.store, clock=client.clock, writer=client.name)

    def log(self, client: Client, name: str) -> SlotLog:
        within = ClientIn(client, name)
        return SlotLog(name=name, store=within.store, clock=within.clock, writer=client.name)

    def any_log(self) -> str:
        """Return the name of a log that is there, or, now and then, of one that was."""
        names = list(self.watch.logs) if self.dice.random() < 0.1 else self.watch.live()
        return self.dice.choice(names or list(self.watch.logs))

    def bury(self, client: Client) -> None:
        for plot in self.plots.values():
            plot.bury(client)

    async def read(self, client: Client, name: str, start: int) -> None:
        """Read from a position on: first what it shares, which is known, then its own."""
        folder, plot = self.watch.logs[name], self.plot(name)
        begin = plot.now()
        within = ClientIn(client, name)
        reader = SlotReader(store=within.store, clock=within.clock, reads=2)
        try:
            async with Deadline(client, f"a read of {name} from {start}"):
                rows = [
                    row
                    async for table in reader.scan(start, selection=EVERYTHING)
                    for row in table.to_pylist()
                ]
        except PositionCollected:
            self.report.refused += 1
            demand(start < folder.manifest.oldest, f"{name} refused {start}, and has it")
            return
        places = [row["position"] for row in rows]
        demand(places == list(range(start, start + len(rows))), "positions do not follow")
        shared = [row["body"] for row in rows if row["position"] < folder.first]
        wanted = [folder.bodies.get(place) for place in range(start, folder.first)]
        demand(shared == wanted, f"{name} does not read as its source", start=start)
        bodies = tuple(row["body"] for row in rows[len(shared) :])
        read = Read(start=max(start, folder.first), begin=begin, end=plot.now(), bodies=bodies)
        plot.history.reads.append(read)

    async def append(self, client: Client, name: str) -> None:
        """Append a few records to a log, by a writer of its own."""
        plot, within = self.plot(name), ClientIn(client, name)
        writer = plot.writer(within)
        for number in range(self.dice.randrange(1, 4)):
            await client.clock.sleep(self.dice.randrange(60_000))
            bodies = [
                f"{client.name} {client.requests_count} {number} {n}".encode()
                for n in range(self.dice.choice([1, 1, 2]))
            ]
            appending = plot.append(within, writer, bodies)
            await plot.is_cancelled("append", appending)
        await plot.close(within, writer)

    async def collect(self, client: Client, name: str, *, is_all: bool = False) -> None:
        """Move the log's cursor on, and collect; others may do so at the same time."""
        async with Deadline(client, f"a collection of {name}"):
            await self._collect(client, name, is_all=is_all)

    async def _collect(self, client: Client, name: str, *, is_all: bool) -> None:
        log = self.log(client, name)
        try:
            bounds = await log.bounds()
            try:
                witness = await log.load_cursor("c")
            except NoSuchCursor:
                witness = await log.create_cursor("c", bounds.oldest)
            last = max(bounds.next, witness.position)
            place = last if is_all else self.dice.randrange(witness.position, last + 1)
            await log.save_cursor(witness, place)
        except PositionCollected:
            pass
        keep = Keep(share_max=1, records=self.dice.choice([0, 0, 2]))
        found: Collected = await log.collect(keep=keep, grace_us=self.grace_us)
        self.report.collections += found.fragments > 0
        demand(not found.spared, "a plan would have erased what the log names")

    async def fork(self, client: Client, source: str, name: str) -> None:
        """Fork a log, from anywhere; what came about has all that its source had from there on."""
        folder = self.watch.logs[source]
        places = range(folder.manifest.oldest, folder.manifest.next)
        start = self.dice.choice([0, *places[-6:]])
        async with Deadline(client, f"a fork of {source}"):
            await self.shelf(client).fork(source, name, start=start)
        fork = self.watch.logs[name]
        demand(min(fork.bodies, default=fork.first) <= (start or fork.first), "it begins too late")
        self.report.forks += 1
        self.report.of_forks += source != "a"

    async def pin(self, client: Client, name: str, pin: str) -> None:
        """Pin what a log has, read it, maybe after a while, and let go of it."""
        log = self.log(client, name)
        async with Deadline(client, f"the making of a pin of {name}"):
            held = (await log.create_pin(pin)).pin
        self.report.pins += 1
        await client.clock.sleep(self.dice.randrange(200_000))
        folder = self.watch.logs[name]
        wanted = [folder.bodies[place] for place in range(held.start, held.limit)]
        try:
            rows = [
                row async for table in log.scan_pin(pin, control=True) for row in table.to_pylist()
            ]
        except Exception:
            if folder.is_live:
                raise
            return  # Whoever destroys a log lets go of its pins.
        demand([row["body"] for row in rows] == wanted, f"{pin} did not hold")
        await log.drop_pin(pin)

    async def destroy(self, client: Client, name: str) -> Destroyed | None:
        """Destroy a log; None if it has forks."""
        try:
            async with Deadline(client, f"the destruction of {name}"):
                found = await self.shelf(client).drop(name, grace_us=self.grace_us)
        except UsageError:
            self.report.has_forks += 1
            return None
        self.report.destroyed += 1
        return found


def simulate_fork(seed: int) -> Report:
    """Run one seed, and check everything.

    Raises:
        NotLinearLog, Violated, AssertionError: something does not hold. Anything else: a client
        failed as it never should.
    """
    dice = random.Random(f"fork {seed}")
    fates = fates_of(seed, "w0", "w1", "f0", "f1", "g0", "d0")
    world = World(seed, fates, store=dice.choice([MemoryStore(), HashedStore()]))
    game = game_of(world, dice, grace_us=dice.choice([0, 30_000, 300_000]))
    run(lambda: _play(game), seed, steps_max=STEPS_MAX)
    return checked(game)


def game_of(world: World, dice: random.Random, *, grace_us: int) -> Game:
    watch = ShelfWatch(world.store)
    world.watchers.append(watch)
    return Game(world, dice, watch, grace_us)


def checked(game: Game) -> Report:
    """Check what was seen of a run, and return what it did."""
    watch, report = game.watch, game.report
    demand(not watch.violations, "; ".join(watch.violations[:3]))
    for name, folder in watch.logs.items():
        history = game.plot(name).history
        check_log(history, folder.own(), first=folder.first)
        truth = watch.slots(name)
        truth.check()
        demand(folder.own() == truth.bodies(), f"manifests of {name} say otherwise than its slots")
        demand(folder.destroyed_at is not None, f"{name} was not destroyed in the end")
        for append in history.appends:
            late = append.position is not None and append.begin > (folder.destroyed_at or 0)
            demand(not late, f"{name} was destroyed, and took {append.bodies}")
        report.acknowledged += sum(a.position is not None for a in history.appends)
        report.reads += len(history.reads)
        report.rebuilt += game.plot(name).rebuilt[True]
        report.rebuilds_refused += game.plot(name).rebuilt[False]
    report.shared_deleted, report.struck = watch.shared_deleted, game.world.struck
    report.trace, report.requests = game.world.trace(), game.world.requests_count
    report.deaths = sum(client.is_dead for client in game.world.clients.values())
    return report


async def _play(game: Game) -> None:
    world, dice = game.world, game.dice
    maker = world.client("maker")
    await persist(maker, lambda: make(game, maker))
    for _ in range(3):
        await game.append(maker, "a")
    writers = [world.client(f"w{number}") for number in range(dice.choice([1, 2]))]
    game.writing.update(writers)
    async with asyncio.TaskGroup() as group:

        def start(name: str, live: Callable[[Game, Client], Awaitable[None]]) -> None:
            client = world.client(name)
            client.start(group, _live(game, client, live))

        for client in writers:
            client.start(group, _live(game, client, _write_on))
        for number in range(dice.choice([1, 2])):
            start(f"g{number}", _collect_on)
        for number in range(dice.choice([1, 2])):
            start(f"f{number}", _fork_on)
        start("p", _pin_on)
        start("r", _read_on)
        if dice.random() < 0.7:
            start("d0", _destroy_on)
    await finish(game)


async def make(game: Game, client: Client) -> None:
    """Make the log with which all begins."""
    with suppress(NameTaken):
        await game.shelf(client).create("a")


async def _live(
    game: Game, client: Client, live: Callable[[Game, Client], Awaitable[None]]
) -> None:
    async def living() -> None:
        await live(game, client)

    try:
        await client.live(living())
    finally:
        game.writing.discard(client)
        game.bury(client)


async def _write_on(game: Game, client: Client) -> None:
    for _ in range(game.dice.randrange(4, 10)):
        await client.clock.sleep(game.dice.randrange(100_000))
        with suppress(LogSealed):
            await game.append(client, game.any_log())


async def _collect_on(game: Game, client: Client) -> None:
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(100_000))
        name = game.any_log()
        with game.trouble(ContentionError, BusyError), game.unless_gone(name):
            await game.collect(client, name)


async def _fork_on(game: Game, client: Client) -> None:
    number = 0
    while not game.is_over and len(game.watch.logs) < LOGS_MAX:
        await client.clock.sleep(game.dice.randrange(200_000))
        name, number = f"{client.name}_{number}", number + 1
        with game.trouble(ContentionError, BusyError, PositionCollected, NoSuchLog, UsageError):
            newest = game.watch.live()[-1:] if game.dice.random() < 0.5 else []
            await game.fork(client, [*newest, game.any_log()][0], name)


async def _pin_on(game: Game, client: Client) -> None:
    number = 0
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(200_000))
        number += 1
        name = game.any_log()
        trouble = game.trouble(ContentionError, BusyError, PositionCollected, NoSuchPin, UsageError)
        with trouble, game.unless_gone(name):
            await game.pin(client, name, f"p{number}")


async def _read_on(game: Game, client: Client) -> None:
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(80_000))
        name = game.any_log()
        manifest = game.watch.logs[name].manifest
        with game.trouble(), game.unless_gone(name):
            place = game.dice.randrange(max(1, manifest.oldest - 1), manifest.next + 1)
            await game.read(client, name, place)


async def _destroy_on(game: Game, client: Client) -> None:
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(400_000))
        with game.trouble(ContentionError, BusyError):
            await game.destroy(client, game.any_log())


async def finish(game: Game) -> None:
    """See that all is well, then destroy everything, and look at what is left."""
    client = game.world.client("last")
    if isinstance(game.world.fates, Dice):
        game.world.fates.calm = True
    await _check(game, client)
    await game.world.until_all_has_landed()
    await _check(game, client)
    await _lose_manifests(game, client)
    for name in game.watch.live():
        with suppress(LogSealed):  # Whoever was to destroy it died over it.
            await game.append(client, name)
    await _check(game, client)
    # What one has no use for any more is collected, of half of them; then its source may go on.
    names = game.watch.live()
    for name in [*game.dice.sample(names, len(names) // 2), *names[:1]]:
        await game.collect(client, name, is_all=True)
    await _check(game, client)
    await _fork_again(game, client)
    await _destroy_all(game, client)


async def _check(game: Game, client: Client) -> None:
    """See that each log is whole, and reads as it should."""
    for name in game.watch.live():
        found = await game.log(client, name).scrub()
        demand(found.is_clean, f"{name} is not whole", problems=found.problems)
        await game.read(client, name, game.watch.logs[name].manifest.oldest)


async def _lose_manifests(game: Game, client: Client) -> None:
    """Rebuild each log that begins by itself on a copy, with all that is pinned, shared or left."""
    for name in game.watch.live():
        manifest = game.watch.logs[name].manifest
        if chain_of(manifest).origin is None:
            await game.plot(name).lose_manifest(client, oldest=manifest.oldest)


async def _fork_again(game: Game, client: Client) -> None:
    """Make the forks that were begun by clients who died: their names can be used again."""
    for name in list(game.watch.logs):
        within = ClientIn(client, name)
        pins = Pins(store=within.store, clock=within.clock, writer=client.name)
        for pin, held in (await pins.list()).items():
            if held.holder and held.holder not in game.watch.logs:
                await pins.release(pin)
                if not game.watch.logs[name].is_live:
                    continue  # Whoever destroyed the source was a little quicker.
                await game.log(client, name).collect(keep=Keep(share_max=1), grace_us=0)
                await game.shelf(client).fork(name, held.holder)


async def _destroy_all(game: Game, client: Client) -> None:
    """Forks first; and once more, since a destroyed fork may have been forked just before.

    Then what forks left that were begun and never came to be: snapshots that nothing names.
    """
    for _ in range(2):
        for name in reversed(list(game.watch.logs)):
            while await game.destroy(client, name) is None:
                demand(False, f"{name} has forks, and all were destroyed")
    fences = {path for folder in game.watch.logs.values() for path in folder.fences()}
    names = game.watch.logs
    for begun in sorted({key.split("/")[1] for key in game.world.store.objects} - set(names)):
        await game.shelf(client).drop(begun, grace_us=0)
    tombs = {f"{log_folder(name)}/{key}" for name in names for key in (MANIFEST, GARBAGE)}
    left = set(game.world.store.objects)
    demand(not left - fences - tombs, "something is left", keys=sorted(left - fences - tombs))
    demand(not fences - left, "a fence is gone", keys=sorted(fences - left))
