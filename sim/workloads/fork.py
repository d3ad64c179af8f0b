"""Forks under faults: many clients share, collect, pin and destroy logs at once.

Rules: a fork reads exactly its source's records from its start on, and then its own, whatever is
collected or destroyed. No object that a log or a pin holds is deleted. A destroyed log acknowledges
nothing. After all logs are destroyed, only fences and tombstones are left.
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
from sim.kernel.faults import Dice
from sim.kernel.hashed import HashedStore
from sim.kernel.loop import run
from sim.kernel.world import Client, World
from sim.workloads.log import schedule_of
from sim.workloads.scenario import LONG_S, STEPS_MAX, persist
from sim.workloads.slot import SlotScenario
from tidelog.core.clock import Clock
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
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.wal.admin.destroy import DropReport
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST, chain_of
from tidelog.wal.gc.collector import CollectReport
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.logs import Logs, log_folder
from tidelog.wal.read.stream_selection import Selection
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.reader import SlotReader

LOGS_MAX = 6
EVERYTHING = Selection(control=True)


@dataclass(slots=True)
class Report:
    """The counts of a run."""

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
    """A client, as seen by the log in one folder."""

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
class ForkTrial:
    """One run; ``scenarios`` holds the history of each log."""

    world: World
    dice: random.Random
    watch: ShelfWatch
    grace_us: int
    scenarios: dict[str, SlotScenario] = field(default_factory=dict)
    writing: set[Client] = field(default_factory=set)
    report: Report = field(default_factory=Report)

    @property
    def is_over(self) -> bool:
        """Return True if every writer left is paused for long."""
        return all(client.stopped_for > LONG_S for client in self.writing)

    def scenario(self, name: str) -> SlotScenario:
        """Return the scenario of a log, which records calls and answers."""
        if name not in self.scenarios:
            self.scenarios[name] = SlotScenario(self.world, self.dice, truth=self.watch.slots(name))
        return self.scenarios[name]

    def trouble(self, *others: type[TidelogError]) -> AbstractContextManager[None]:
        """Ignore failures of the store, and ``others``; see `Scenario.trouble`."""
        return self.scenario("a").trouble(*others)

    @contextmanager
    def unless_gone(self, name: str) -> Iterator[None]:
        """Ignore NoSuchLog, which a log may raise only if it was dropped."""
        try:
            yield
        except NoSuchLog:
            demand(not self.watch.logs[name].is_live, f"{name} said that it was dropped, and is")
            self.report.refused += 1

    def shelf(self, client: Client) -> Logs:
        return Logs(store=client.store, clock=client.clock, writer=client.name)

    def log(self, client: Client, name: str) -> SlotLog:
        within = ClientIn(client, name)
        return SlotLog(name=name, store=within.store, clock=within.clock, writer=client.name)

    def any_log(self) -> str:
        """Return the name of a log that exists, or now and then of a destroyed one."""
        names = list(self.watch.logs) if self.dice.random() < 0.1 else self.watch.live()
        return self.dice.choice(names or list(self.watch.logs))

    def bury(self, client: Client) -> None:
        for scenario in self.scenarios.values():
            scenario.bury(client)

    async def read(self, client: Client, name: str, start: int) -> None:
        """Read from a position: shared records, which are known, and then the log's own."""
        folder, scenario = self.watch.logs[name], self.scenario(name)
        begin = scenario.now()
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
        read = Read(start=max(start, folder.first), begin=begin, end=scenario.now(), bodies=bodies)
        scenario.history.reads.append(read)

    async def append(self, client: Client, name: str) -> None:
        """Append a few records to a log with a new writer."""
        scenario, within = self.scenario(name), ClientIn(client, name)
        writer = scenario.writer(within)
        for number in range(self.dice.randrange(1, 4)):
            await client.clock.sleep(self.dice.randrange(60_000))
            bodies = [
                f"{client.name} {client.requests_count} {number} {n}".encode()
                for n in range(self.dice.choice([1, 1, 2]))
            ]
            appending = scenario.append(within, writer, bodies)
            await scenario.is_cancelled("append", appending)
        await scenario.close(within, writer)

    async def collect(self, client: Client, name: str, *, is_all: bool = False) -> None:
        """Move the log's cursor and collect; other clients may do so concurrently."""
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
            await log.move_cursor(witness, place)
        except PositionCollected:
            pass
        keep = Keep(share_max=1, records=self.dice.choice([0, 0, 2]))
        found: CollectReport = await log.collect(keep=keep, grace_us=self.grace_us)
        self.report.collections += found.fragments > 0
        demand(not found.spared, "a plan would have erased what the log names")

    async def fork(self, client: Client, source: str, name: str) -> None:
        """Fork a log at any start; the fork must have all of its source's records from there."""
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
        """Pin a log, read the pin, perhaps after a delay, and release it."""
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
            return  # The destroyer of a log releases its pins.
        demand([row["body"] for row in rows] == wanted, f"{pin} did not hold")
        await log.drop_pin(pin)

    async def destroy(self, client: Client, name: str) -> DropReport | None:
        """Destroy a log; return None if it has forks."""
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
        NotLinearLog, Violated, AssertionError: a check failed. Any other error: a client failed
            with an
        error that it must not raise.
    """
    dice = random.Random(f"fork {seed}")
    schedule = schedule_of(seed, "w0", "w1", "f0", "f1", "g0", "d0")
    world = World(seed, schedule, store=dice.choice([MemoryStore(), HashedStore()]))
    trial = trial_of(world, dice, grace_us=dice.choice([0, 30_000, 300_000]))
    run(lambda: _play(trial), seed, steps_max=STEPS_MAX)
    return checked(trial)


def trial_of(world: World, dice: random.Random, *, grace_us: int) -> ForkTrial:
    watch = ShelfWatch(world.store)
    world.watchers.append(watch)
    return ForkTrial(world, dice, watch, grace_us)


def checked(trial: ForkTrial) -> Report:
    """Check the observations of a run, and return its counts."""
    watch, report = trial.watch, trial.report
    demand(not watch.violations, "; ".join(watch.violations[:3]))
    for name, folder in watch.logs.items():
        history = trial.scenario(name).history
        check_log(history, folder.own(), first=folder.first)
        truth = watch.slots(name)
        truth.check()
        demand(folder.own() == truth.bodies(), f"manifests of {name} say otherwise than its slots")
        demand(folder.destroyed_at is not None, f"{name} was not destroyed in the end")
        for append in history.appends:
            late = append.position is not None and append.begin > (folder.destroyed_at or 0)
            demand(not late, f"{name} was dropped, and took {append.bodies}")
        report.acknowledged += sum(a.position is not None for a in history.appends)
        report.reads += len(history.reads)
        report.rebuilt += trial.scenario(name).rebuilt[True]
        report.rebuilds_refused += trial.scenario(name).rebuilt[False]
    report.shared_deleted, report.struck = watch.shared_deleted, trial.world.struck
    report.trace, report.requests = trial.world.trace(), trial.world.requests_count
    report.deaths = sum(client.is_dead for client in trial.world.clients.values())
    return report


async def _play(trial: ForkTrial) -> None:
    world, dice = trial.world, trial.dice
    maker = world.client("maker")
    await persist(maker, lambda: make(trial, maker))
    for _ in range(3):
        await trial.append(maker, "a")
    writers = [world.client(f"w{number}") for number in range(dice.choice([1, 2]))]
    trial.writing.update(writers)
    async with asyncio.TaskGroup() as group:

        def start(name: str, live: Callable[[ForkTrial, Client], Awaitable[None]]) -> None:
            client = world.client(name)
            client.start(group, _live(trial, client, live))

        for client in writers:
            client.start(group, _live(trial, client, _write_on))
        for number in range(dice.choice([1, 2])):
            start(f"g{number}", _collect_on)
        for number in range(dice.choice([1, 2])):
            start(f"f{number}", _fork_on)
        start("p", _pin_on)
        start("r", _read_on)
        if dice.random() < 0.7:
            start("d0", _destroy_on)
    await finish(trial)


async def make(trial: ForkTrial, client: Client) -> None:
    """Make the first log."""
    with suppress(NameTaken):
        await trial.shelf(client).create("a")


async def _live(
    trial: ForkTrial, client: Client, live: Callable[[ForkTrial, Client], Awaitable[None]]
) -> None:
    async def living() -> None:
        await live(trial, client)

    try:
        await client.live(living())
    finally:
        trial.writing.discard(client)
        trial.bury(client)


async def _write_on(trial: ForkTrial, client: Client) -> None:
    for _ in range(trial.dice.randrange(4, 10)):
        await client.clock.sleep(trial.dice.randrange(100_000))
        with suppress(LogSealed):
            await trial.append(client, trial.any_log())


async def _collect_on(trial: ForkTrial, client: Client) -> None:
    while not trial.is_over:
        await client.clock.sleep(trial.dice.randrange(100_000))
        name = trial.any_log()
        with trial.trouble(ContentionError, BusyError), trial.unless_gone(name):
            await trial.collect(client, name)


async def _fork_on(trial: ForkTrial, client: Client) -> None:
    number = 0
    while not trial.is_over and len(trial.watch.logs) < LOGS_MAX:
        await client.clock.sleep(trial.dice.randrange(200_000))
        name, number = f"{client.name}_{number}", number + 1
        with trial.trouble(ContentionError, BusyError, PositionCollected, NoSuchLog, UsageError):
            newest = trial.watch.live()[-1:] if trial.dice.random() < 0.5 else []
            await trial.fork(client, [*newest, trial.any_log()][0], name)


async def _pin_on(trial: ForkTrial, client: Client) -> None:
    number = 0
    while not trial.is_over:
        await client.clock.sleep(trial.dice.randrange(200_000))
        number += 1
        name = trial.any_log()
        trouble = trial.trouble(
            ContentionError, BusyError, PositionCollected, NoSuchPin, UsageError
        )
        with trouble, trial.unless_gone(name):
            await trial.pin(client, name, f"p{number}")


async def _read_on(trial: ForkTrial, client: Client) -> None:
    while not trial.is_over:
        await client.clock.sleep(trial.dice.randrange(80_000))
        name = trial.any_log()
        manifest = trial.watch.logs[name].manifest
        with trial.trouble(), trial.unless_gone(name):
            place = trial.dice.randrange(max(1, manifest.oldest - 1), manifest.next + 1)
            await trial.read(client, name, place)


async def _destroy_on(trial: ForkTrial, client: Client) -> None:
    while not trial.is_over:
        await client.clock.sleep(trial.dice.randrange(400_000))
        with trial.trouble(ContentionError, BusyError):
            await trial.destroy(client, trial.any_log())


async def finish(trial: ForkTrial) -> None:
    """Check all logs, destroy them, and check the objects that remain."""
    client = trial.world.client("last")
    if isinstance(trial.world.schedule, Dice):
        trial.world.schedule.calm = True
    await _check(trial, client)
    await trial.world.until_all_has_landed()
    await _check(trial, client)
    await _lose_manifests(trial, client)
    for name in trial.watch.live():
        with suppress(LogSealed):  # Its destroyer died after the seal.
            await trial.append(client, name)
    await _check(trial, client)
    # Collect half of the logs completely; then their sources may collect shared objects.
    names = trial.watch.live()
    for name in [*trial.dice.sample(names, len(names) // 2), *names[:1]]:
        await trial.collect(client, name, is_all=True)
    await _check(trial, client)
    await _fork_again(trial, client)
    await _destroy_all(trial, client)


async def _check(trial: ForkTrial, client: Client) -> None:
    """Check that each log is intact, and reads correctly."""
    for name in trial.watch.live():
        found = await trial.log(client, name).scrub()
        demand(found.is_clean, f"{name} is not whole", problems=found.problems)
        await trial.read(client, name, trial.watch.logs[name].manifest.oldest)


async def _lose_manifests(trial: ForkTrial, client: Client) -> None:
    """Rebuild each log that is no fork on a copy, with its pinned, shared and left-over objects."""
    for name in trial.watch.live():
        manifest = trial.watch.logs[name].manifest
        if chain_of(manifest).origin is None:
            await trial.scenario(name).lose_manifest(client, oldest=manifest.oldest)


async def _fork_again(trial: ForkTrial, client: Client) -> None:
    """Make the forks that dead clients began: their names can be used again."""
    for name in list(trial.watch.logs):
        within = ClientIn(client, name)
        pins = Pins(store=within.store, clock=within.clock, writer=client.name)
        for pin, held in (await pins.list()).items():
            if held.holder and held.holder not in trial.watch.logs:
                await pins.release(pin)
                if not trial.watch.logs[name].is_live:
                    continue  # The source's destroyer was faster.
                await trial.log(client, name).collect(keep=Keep(share_max=1), grace_us=0)
                await trial.shelf(client).fork(name, held.holder)


async def _destroy_all(trial: ForkTrial, client: Client) -> None:
    """Destroy forks before sources, twice: a destroyed fork may have been forked just before.

    Then delete the snapshots of forks that were begun and never made.
    """
    for _ in range(2):
        for name in reversed(list(trial.watch.logs)):
            while await trial.destroy(client, name) is None:
                demand(False, f"{name} has forks, and all were destroyed")
    fences = {path for folder in trial.watch.logs.values() for path in folder.fences()}
    names = trial.watch.logs
    for begun in sorted({key.split("/")[1] for key in trial.world.store.objects} - set(names)):
        await trial.shelf(client).drop(begun, grace_us=0)
    tombs = {f"{log_folder(name)}/{key}" for name in names for key in (MANIFEST, GARBAGE)}
    left = set(trial.world.store.objects)
    demand(not left - fences - tombs, "something is left", keys=sorted(left - fences - tombs))
    demand(not fences - left, "a fence is gone", keys=sorted(fences - left))
