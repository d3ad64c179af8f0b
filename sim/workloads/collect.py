"""Logs that are collected under faults: collectors die; cursors appear, move and go back.

Writers, readers and the checker are those of `sim.workloads.log`. The checker gets all that the log
ever held, from a watch, because the log's beginning is collected in the end.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass

from sim.checkers.demands import demand
from sim.checkers.linear_log import Read, check_log
from sim.checkers.watch_log import LogWatch
from sim.crash.points import VICTIM
from sim.kernel.faults import Dice, Script
from sim.kernel.hashed import HashedStore
from sim.kernel.loop import run
from sim.kernel.world import Client, World
from sim.workloads.log import schedule_of
from sim.workloads.scenario import STEPS_MAX, Scenario, persist
from sim.workloads.slot import SlotScenario
from sim.workloads.trial import Live, Report, Trial, cursors_of, pins_of
from tidelog.errors import (
    BusyError,
    ContentionError,
    CursorMoved,
    NameTaken,
    NoSuchCursor,
    NoSuchPin,
    PositionCollected,
    TidelogError,
)
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.cursor import INTRINSIC
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.gc_plan import GARBAGE, decode_garbage
from tidelog.wal.gc.cursors import Witness
from tidelog.wal.gc.orphans import sweep
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail


def simulate_collect_slots(seed: int) -> Report:
    """Run one seed of a log of slot commits; see `simulate_collect`."""
    return simulate_collect(seed, SlotScenario)


def simulate_collect(seed: int, scenario_of: type[Scenario] = Scenario) -> Report:
    """Run one seed, and check everything.

    Raises:
        NotLinearLog, Violated, AssertionError: a check failed. Any other error: a client failed
            with an
        error that it must not raise.
    """
    dice = random.Random(f"collect {seed}")
    schedule = schedule_of(seed, "w0", "w1", "h0", "h1", "g0", "p0", "cutter")
    store = dice.choice([MemoryStore(), HashedStore()])
    world = World(seed, schedule, store=store)
    trial = _trial(world, dice, scenario_of, grace_us=dice.choice([0, 30_000, 300_000]))
    run(lambda: _play(trial), seed, steps_max=STEPS_MAX)
    return _checked(trial)


def _trial(
    world: World, dice: random.Random, scenario_of: type[Scenario], *, grace_us: int
) -> Trial:
    watch = LogWatch(world.store, grace_us)
    world.watchers.append(watch)
    return Trial(scenario_of(world, dice), watch, pace_us=dice.choice([20_000, 60_000, 600_000]))


def _checked(trial: Trial) -> Report:
    scenario, report = trial.scenario, trial.report
    demand(not trial.watch.violations, "; ".join(trial.watch.violations[:3]))
    check_log(scenario.history, trial.watch.bodies)
    if isinstance(scenario, SlotScenario):
        scenario.truth.check()
        demand(trial.watch.bodies == scenario.truth.bodies(), "manifests say otherwise than slots")
    report.trace = scenario.world.trace()
    report.acknowledged = sum(a.position is not None for a in scenario.history.appends)
    report.reads = len(scenario.history.reads)
    report.fragments = sum(not key.startswith("snapshot/") for key in trial.watch.deleted)
    report.records = len(trial.watch.bodies)
    report.deaths = sum(client.is_dead for client in scenario.world.clients.values())
    report.requests = scenario.world.requests_count
    report.rebuilt, report.rebuilds_refused = scenario.rebuilt[True], scenario.rebuilt[False]
    report.struck = scenario.world.struck
    return report


async def _play(trial: Trial) -> None:
    scenario = trial.scenario
    writers = [scenario.world.client(f"w{n}") for n in range(trial.dice.choice([1, 2]))]
    maker = scenario.world.client("maker")
    await persist(maker, lambda: scenario.make(maker))
    scenario.writing.update(writers)
    async with asyncio.TaskGroup() as group:

        def start(name: str, live: Live) -> None:
            client = scenario.world.client(name)
            client.start(group, _live(trial, client, live))

        for client in writers:
            client.start(group, _write_on(trial, client))
        for number in range(trial.dice.choice([1, 2, 3])):
            start(f"g{number}", _collect_on)
        for number in range(trial.dice.choice([0, 1, 2])):
            start(f"h{number}", _hold_on)
        for number in range(trial.dice.choice([0, 1, 2]) if scenario.has_pins else 0):
            start(f"p{number}", _pin_on)
        start("consumer", _consume_on)
        start("reader", _read_on)
        start("loser", _lose_on)
    await _finish(trial)


async def _live(trial: Trial, client: Client, live: Live) -> None:
    async def living() -> None:
        await live(trial, client)

    await client.live(living())
    trial.scenario.bury(client)


async def _write_on(trial: Trial, client: Client) -> None:
    try:
        await _live(trial, client, _write)
    finally:
        trial.scenario.writing.discard(client)


async def _write(trial: Trial, client: Client) -> None:
    writer = trial.scenario.writer(client)
    for number in range(trial.dice.randrange(6, 14)):
        await client.clock.sleep(trial.dice.randrange(trial.pace_us))
        sizes = range(trial.dice.choice([1, 1, 2, 3]))
        bodies = [f"{client.name} {number} {n}".encode() for n in sizes]
        appending = trial.scenario.append(client, writer, bodies)
        await trial.scenario.is_cancelled("append", appending)
    await trial.scenario.close(client, writer)


async def _lose_on(trial: Trial, client: Client) -> None:
    """Simulate the loss of the manifest at one moment, and rebuild the log."""
    dice = trial.scenario.cancel_dice
    await client.clock.sleep(dice.randrange(1, 10 * trial.pace_us))
    if not trial.is_over and dice.random() < 0.3:
        await trial.lose_manifest(client)


async def _collect_on(trial: Trial, client: Client) -> None:
    while not trial.is_over:
        await client.clock.sleep(trial.dice.randrange(60_000))
        await trial.collect(client)


async def _read_on(trial: Trial, client: Client) -> None:
    while not trial.is_over:
        await client.clock.sleep(trial.dice.randrange(80_000))
        with trial.scenario.trouble():
            await trial.read(client, trial.dice.choice([1, 3, 9, await trial.place(client)]))


async def _consume_on(trial: Trial, client: Client) -> None:
    """Read the log from its beginning, and move the log's intrinsic cursor behind the reads."""
    cursors = cursors_of(client)

    async def take() -> Witness | None:
        try:
            return await trial.loaded(client, INTRINSIC)
        except NoSuchCursor:
            with suppress(CursorMoved, PositionCollected):
                oldest = (await load_head(client.store)).manifest.oldest
                return await cursors.create(INTRINSIC, oldest)
            return None
        except PositionCollected:
            # A collection passed it while it was made, and it could not be moved forward.
            return None

    witness = await persist(client, take) or await persist(client, take)
    if witness is None:
        return
    trial.watch.hold(INTRINSIC, witness.position)
    while not trial.is_over:
        await client.clock.sleep(trial.dice.randrange(60_000))
        try:
            await trial.read_held(client, witness)
            place = max(witness.position, await trial.place(client))
            witness = await trial.forward(client, witness, place)
        except TidelogError as error:
            if not trial.scenario.is_failure(error):
                raise
            witness = await persist(client, lambda: trial.retaken(client))
            trial.watch.hold(INTRINSIC, witness.position)


async def _hold_on(trial: Trial, client: Client) -> None:
    """Make a cursor, move it both ways, read from it and delete it; repeat."""
    cursors, number = cursors_of(client), 0
    while not trial.is_over:
        await client.clock.sleep(trial.dice.randrange(40_000))
        name = f"{client.name}_{number}"
        number += 1
        try:
            witness = await cursors.create(name, await trial.place(client))
            trial.watch.hold(name, witness.position)
            trial.report.holds += 1
            for _ in range(trial.dice.randrange(4)):
                await client.clock.sleep(trial.dice.randrange(80_000))
                await trial.read_held(client, witness)
                place = await trial.place(client)
                move = trial.back if place < witness.position else trial.forward
                witness = await move(client, witness, place)
        except PositionCollected:
            trial.report.refused += 1
        except TidelogError as error:
            # The cursor's position is unknown, so no client relies on it.
            if not trial.scenario.is_failure(error):
                raise
        trial.watch.held.pop(name, None)
        await persist(client, lambda name=name: cursors.delete(name))  # type: ignore[misc]


async def _pin_on(trial: Trial, client: Client) -> None:
    """Pin a range, read it and release it; repeat under names that are used again."""
    number = 0
    while not trial.is_over:
        await client.clock.sleep(trial.dice.randrange(60_000))
        name, number = f"{client.name}_{number % 2}", number + 1
        try:
            manifest = (await load_head(client.store)).manifest
            if manifest.next == 1:
                continue
            start = trial.dice.randrange(1, manifest.next)
            limit = trial.dice.randrange(start + 1, manifest.next + 1)
            await trial.pin(client, name, start, limit)
            for _ in range(trial.dice.randrange(3)):
                await client.clock.sleep(trial.dice.randrange(200_000))
                await trial.read_pinned(client, name)
        except PositionCollected:
            trial.report.refused += 1
        except (NameTaken, BusyError, ContentionError):
            pass  # An earlier pin of the name was not swept yet.
        except TidelogError as error:
            # The pin is not made, or its outcome is unknown.
            if not trial.scenario.is_failure(error):
                raise
        trial.watch.pinned.pop(name, None)
        await _let_go(client, name)


async def _let_go(client: Client, name: str) -> None:
    async def let_go() -> None:
        with suppress(NoSuchPin, ContentionError):
            await pins_of(client).release(name)

    await persist(client, let_go)


async def _finish(trial: Trial) -> None:
    """Check the log, and check it again once no change is under way."""
    world = trial.scenario.world
    last, cutter = world.client("last"), world.client("cutter")
    # Collect once more with the faults of the day: no cursor holds anything, so much is deleted.
    with trial.scenario.trouble(ContentionError, BusyError, PositionCollected):
        await cutter.live(_collect_all(trial, cutter))
    await trial.lose_manifest(last)
    if isinstance(world.schedule, Dice):
        world.schedule.calm = True
    await _tidy(trial, last)
    await world.until_all_has_landed()
    again = world.client("again")
    await _look(trial, again)
    await trial.lose_manifest(again)
    await _tidy(trial, again)


async def _collect_all(trial: Trial, client: Client) -> None:
    await _close_cursors(trial, client)
    await trial.collect(client)


async def _tidy(trial: Trial, client: Client) -> None:
    """Open the log as the next writer would, collect, and read the rest."""
    scenario = trial.scenario
    await scenario.settle(client, client.store)
    await trial.lose_manifest(client)
    await roll_up_tail(client.store, clock=client.clock, writer=client.name)
    await _close_cursors(trial, client)
    for name in await pins_of(client).list() if scenario.has_pins else ():
        trial.watch.pinned.pop(name, None)
        await pins_of(client).release(name)
    found = await trial.collector(client).collect()
    demand(not found.spared, "a plan would have erased what the log names")
    await _look(trial, client)
    swept = await sweep(client.store, clock=client.clock, grace_us=0)
    demand(not swept.foreign, "an object is none of a log's", keys=swept.foreign)
    # A put of a writer that gave up may land only now; the next opener adds it to the log.
    next_path = fragment_path((await load_head(client.store)).manifest.next_seq_no)
    left = [key for key in swept.unproven if key[:4] in ("log/", "epoc") and key != next_path]
    demand(not left, "a fragment was left that the log does not name", keys=left)
    try:
        plan = decode_garbage((await scenario.world.store.get(GARBAGE)).data)
    except LookupError:
        return
    demand(plan.is_empty, "a plan was left")


async def _look(trial: Trial, client: Client) -> None:
    """Read and scrub all that is left of the log."""
    scenario = trial.scenario
    reader = scenario.reader(client, scenario.world.store)
    oldest = (await load_head(client.store)).manifest.oldest
    begin = scenario.now()
    rows = [row async for table in reader.scan() for row in table.to_pylist()]
    scenario.final = tuple(row["body"] for row in rows)
    last = Read(start=oldest, begin=begin, end=scenario.now(), bodies=scenario.final)
    scenario.history.reads.append(last)
    whole = await scenario.scrub(client)
    demand(whole.is_clean, "the log is not whole", problems=whole.problems)
    demand(whole.records == len(scenario.final), "scrub counts other records than a read gives")
    trial.report.left = sum(key.startswith(("log/", "snapshot/")) for key in whole.unnamed)


async def _close_cursors(trial: Trial, client: Client) -> None:
    """Delete the cursors of dead clients, so that the last collection has work to do."""
    cursors = cursors_of(client)
    for name in (await cursors.list()).cursors:
        if name != INTRINSIC:
            trial.watch.held.pop(name, None)
            await cursors.delete(name)
    try:
        witness = await trial.loaded(client, INTRINSIC)
    except NoSuchCursor:
        return
    except PositionCollected:
        await cursors.delete(INTRINSIC)  # Its maker got an error, and could not delete it.
        return
    place = max(witness.position, await trial.place(client))
    await trial.forward(client, witness, place)


@dataclass(slots=True)
class CollectStory:
    """A collection and cursors that move both ways, with another collector and a writer."""

    name: str = "collect"
    scenario_of: type[Scenario] = Scenario

    def tell(self, schedule: Script, *, seed: int) -> int:
        """Run the story; see `sim.crash.points.Story`."""
        world = World(seed, schedule)
        dice = random.Random(f"collect story {seed}")
        trial = _trial(world, dice, self.scenario_of, grace_us=20_000)
        run(lambda: self._play(trial), seed)
        _checked(trial)
        return len(world.clients[VICTIM].store.records)

    async def _play(self, trial: Trial) -> None:
        world = trial.scenario.world
        victim, other, holder = (world.client(name) for name in (VICTIM, "other", "holder"))
        await self._append(trial, other, 9)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beside(trial, other), name="other")
            group.create_task(self._hold(trial, holder), name="holder")
            await victim.live(self._live(trial, victim))
            trial.scenario.bury(victim)
        await self._live(trial, world.client("heir"))
        await _finish(trial)

    @staticmethod
    async def _append(trial: Trial, client: Client, count: int) -> None:
        await persist(client, lambda: trial.scenario.make(client))
        writer = trial.scenario.writer(client)
        for number in range(count):
            body = f"{client.name} {trial.scenario.now()} {number}".encode()
            await trial.scenario.append(client, writer, [body])
        await trial.scenario.close(client, writer)

    async def _beside(self, trial: Trial, client: Client) -> None:
        await trial.collect(client)
        await self._append(trial, client, 3)

    @staticmethod
    async def _hold(trial: Trial, client: Client) -> None:
        cursors = cursors_of(client)
        for number in range(4):
            with suppress(PositionCollected):
                witness = await cursors.create(f"holder_{number}", 1 + number)
                trial.watch.hold(witness.name, witness.position)
                await trial.read_held(client, witness)
                await trial.forward(client, witness, 4 + number)
            trial.watch.held.pop(f"holder_{number}", None)
            await cursors.delete(f"holder_{number}")

    async def _live(self, trial: Trial, client: Client) -> None:
        cursors = cursors_of(client)

        async def taken() -> Witness:
            try:
                return await trial.loaded(client, INTRINSIC)
            except NoSuchCursor:
                return await cursors.create(INTRINSIC, 3)

        with trial.scenario.trouble(CursorMoved, PositionCollected):
            witness = await persist(client, taken)
            trial.watch.hold(INTRINSIC, witness.position)
            witness = await trial.forward(client, witness, max(witness.position, 7))
            await self._pin(trial, client)
            await trial.collect(client)
            witness = await trial.back(client, witness, 6)
            await trial.read_held(client, witness)
            await trial.forward(client, witness, 9)
        trial.watch.pinned.pop(client.name, None)
        await _let_go(client, client.name)
        await trial.collect(client)

    @staticmethod
    async def _pin(trial: Trial, client: Client) -> None:
        if trial.scenario.has_pins:
            with suppress(PositionCollected, BusyError):
                await pins_of(client).create(client.name, start=2, limit=6)
                trial.watch.pinned[client.name] = (2, 6)
                await trial.read_pinned(client, client.name)
