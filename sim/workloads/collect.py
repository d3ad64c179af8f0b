"""Logs that are collected under fire: collectors that die, cursors that come, move and go back.

Writers and readers are those of `sim.workloads.log`, and so is the checker: it is given all that
the log ever held, as a watch has seen it, for the beginning is gone in the end.
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
from sim.kernel.fates import Dice, Script
from sim.kernel.hashed import HashedStore
from sim.kernel.loop import run
from sim.kernel.world import Client, World
from sim.workloads.game import Game, Live, Report, cursors_of, pins_of
from sim.workloads.log import fates_of
from sim.workloads.plot import STEPS_MAX, Plot, persist
from sim.workloads.slot import SlotPlot
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
    return simulate_collect(seed, SlotPlot)


def simulate_collect(seed: int, plot_of: type[Plot] = Plot) -> Report:
    """Run one seed, and check everything.

    Raises:
        NotLinearLog, Violated, AssertionError: something does not hold. Anything else: a client
        failed as it never should.
    """
    dice = random.Random(f"collect {seed}")
    fates = fates_of(seed, "w0", "w1", "h0", "h1", "g0", "p0", "cutter")
    store = dice.choice([MemoryStore(), HashedStore()])
    world = World(seed, fates, store=store)
    game = _game(world, dice, plot_of, grace_us=dice.choice([0, 30_000, 300_000]))
    run(lambda: _play(game), seed, steps_max=STEPS_MAX)
    return _checked(game)


def _game(world: World, dice: random.Random, plot_of: type[Plot], *, grace_us: int) -> Game:
    watch = LogWatch(world.store, grace_us)
    world.watchers.append(watch)
    return Game(plot_of(world, dice), watch, pace_us=dice.choice([20_000, 60_000, 600_000]))


def _checked(game: Game) -> Report:
    plot, report = game.plot, game.report
    demand(not game.watch.violations, "; ".join(game.watch.violations[:3]))
    check_log(plot.history, game.watch.bodies)
    if isinstance(plot, SlotPlot):
        plot.truth.check()
        demand(game.watch.bodies == plot.truth.bodies(), "manifests say otherwise than slots")
    report.trace = plot.world.trace()
    report.acknowledged = sum(a.position is not None for a in plot.history.appends)
    report.reads = len(plot.history.reads)
    report.fragments = sum(not key.startswith("snapshot/") for key in game.watch.deleted)
    report.records = len(game.watch.bodies)
    report.deaths = sum(client.is_dead for client in plot.world.clients.values())
    report.requests = plot.world.requests_count
    report.rebuilt, report.rebuilds_refused = plot.rebuilt[True], plot.rebuilt[False]
    report.struck = plot.world.struck
    return report


async def _play(game: Game) -> None:
    plot = game.plot
    writers = [plot.world.client(f"w{n}") for n in range(game.dice.choice([1, 2]))]
    maker = plot.world.client("maker")
    await persist(maker, lambda: plot.make(maker))
    plot.writing.update(writers)
    async with asyncio.TaskGroup() as group:

        def start(name: str, live: Live) -> None:
            client = plot.world.client(name)
            client.start(group, _live(game, client, live))

        for client in writers:
            client.start(group, _write_on(game, client))
        for number in range(game.dice.choice([1, 2, 3])):
            start(f"g{number}", _collect_on)
        for number in range(game.dice.choice([0, 1, 2])):
            start(f"h{number}", _hold_on)
        for number in range(game.dice.choice([0, 1, 2]) if plot.has_pins else 0):
            start(f"p{number}", _pin_on)
        start("consumer", _consume_on)
        start("reader", _read_on)
        start("loser", _lose_on)
    await _finish(game)


async def _live(game: Game, client: Client, live: Live) -> None:
    async def living() -> None:
        await live(game, client)

    await client.live(living())
    game.plot.bury(client)


async def _write_on(game: Game, client: Client) -> None:
    try:
        await _live(game, client, _write)
    finally:
        game.plot.writing.discard(client)


async def _write(game: Game, client: Client) -> None:
    writer = game.plot.writer(client)
    for number in range(game.dice.randrange(6, 14)):
        await client.clock.sleep(game.dice.randrange(game.pace_us))
        sizes = range(game.dice.choice([1, 1, 2, 3]))
        bodies = [f"{client.name} {number} {n}".encode() for n in sizes]
        appending = game.plot.append(client, writer, bodies)
        await game.plot.is_cancelled("append", appending)
    await game.plot.close(client, writer)


async def _lose_on(game: Game, client: Client) -> None:
    """See at some moment what could be made of the log, if its manifest were lost then."""
    dice = game.plot.cancel_dice
    await client.clock.sleep(dice.randrange(1, 10 * game.pace_us))
    if not game.is_over and dice.random() < 0.3:
        await game.lose_manifest(client)


async def _collect_on(game: Game, client: Client) -> None:
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(60_000))
        await game.collect(client)


async def _read_on(game: Game, client: Client) -> None:
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(80_000))
        with game.plot.trouble():
            await game.read(client, game.dice.choice([1, 3, 9, await game.place(client)]))


async def _consume_on(game: Game, client: Client) -> None:
    """Read the log from its beginning on, and move the cursor that every log has behind it."""
    cursors = cursors_of(client)

    async def take() -> Witness | None:
        try:
            return await game.loaded(client, INTRINSIC)
        except NoSuchCursor:
            with suppress(CursorMoved, PositionCollected):
                oldest = (await load_head(client.store)).manifest.oldest
                return await cursors.create(INTRINSIC, oldest)
            return None
        except PositionCollected:
            return None  # It was made while a collection went past, and could not be set forward.

    witness = await persist(client, take) or await persist(client, take)
    if witness is None:
        return
    game.watch.hold(INTRINSIC, witness.position)
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(60_000))
        try:
            await game.read_held(client, witness)
            place = max(witness.position, await game.place(client))
            witness = await game.forward(client, witness, place)
        except TidelogError as error:
            if not game.plot.is_failure(error):
                raise
            witness = await persist(client, lambda: game.retaken(client))
            game.watch.hold(INTRINSIC, witness.position)


async def _hold_on(game: Game, client: Client) -> None:
    """Make a cursor, set it to and fro, read from it, delete it; and again."""
    cursors, number = cursors_of(client), 0
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(40_000))
        name = f"{client.name}_{number}"
        number += 1
        try:
            witness = await cursors.create(name, await game.place(client))
            game.watch.hold(name, witness.position)
            game.report.holds += 1
            for _ in range(game.dice.randrange(4)):
                await client.clock.sleep(game.dice.randrange(80_000))
                await game.read_held(client, witness)
                place = await game.place(client)
                move = game.back if place < witness.position else game.forward
                witness = await move(client, witness, place)
        except PositionCollected:
            game.report.refused += 1
        except TidelogError as error:
            # It is not known where the cursor stands: nobody relies on it any more.
            if not game.plot.is_failure(error):
                raise
        game.watch.held.pop(name, None)
        await persist(client, lambda name=name: cursors.delete(name))  # type: ignore[misc]


async def _pin_on(game: Game, client: Client) -> None:
    """Pin a range, read it, let go of it; and again, under names that come back."""
    number = 0
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(60_000))
        name, number = f"{client.name}_{number % 2}", number + 1
        try:
            manifest = (await load_head(client.store)).manifest
            if manifest.next == 1:
                continue
            start = game.dice.randrange(1, manifest.next)
            limit = game.dice.randrange(start + 1, manifest.next + 1)
            await game.pin(client, name, start, limit)
            for _ in range(game.dice.randrange(3)):
                await client.clock.sleep(game.dice.randrange(200_000))
                await game.read_pinned(client, name)
        except PositionCollected:
            game.report.refused += 1
        except (NameTaken, BusyError, ContentionError):
            pass  # An earlier one was not swept yet.
        except TidelogError as error:
            # Not made, or not known to be.
            if not game.plot.is_failure(error):
                raise
        game.watch.pinned.pop(name, None)
        await _let_go(client, name)


async def _let_go(client: Client, name: str) -> None:
    async def let_go() -> None:
        with suppress(NoSuchPin, ContentionError):
            await pins_of(client).release(name)

    await persist(client, let_go)


async def _finish(game: Game) -> None:
    """See that all is well; and again once nothing is under way any more."""
    world = game.plot.world
    last, cutter = world.client("last"), world.client("cutter")
    # Once more in the weather of the day: nothing is held any more, so much is deleted at once.
    with game.plot.trouble(ContentionError, BusyError, PositionCollected):
        await cutter.live(_collect_all(game, cutter))
    await game.lose_manifest(last)
    if isinstance(world.fates, Dice):
        world.fates.calm = True
    await _tidy(game, last)
    await world.until_all_has_landed()
    again = world.client("again")
    await _look(game, again)
    await game.lose_manifest(again)
    await _tidy(game, again)


async def _collect_all(game: Game, client: Client) -> None:
    await _close_cursors(game, client)
    await game.collect(client)


async def _tidy(game: Game, client: Client) -> None:
    """Open the log as the next writer would, collect, and read what is there."""
    plot = game.plot
    await plot.settle(client, client.store)
    await game.lose_manifest(client)
    await roll_up_tail(client.store, clock=client.clock, writer=client.name)
    await _close_cursors(game, client)
    for name in await pins_of(client).list() if plot.has_pins else ():
        game.watch.pinned.pop(name, None)
        await pins_of(client).release(name)
    found = await game.collector(client).collect()
    demand(not found.spared, "a plan would have erased what the log names")
    await _look(game, client)
    swept = await sweep(client.store, clock=client.clock, grace_us=0)
    demand(not swept.foreign, "an object is none of a log's", keys=swept.foreign)
    # A put of a writer who has given up may arrive only now: the next to open the log brings it in.
    next_path = fragment_path((await load_head(client.store)).manifest.next_seq_no)
    left = [key for key in swept.unproven if key[:4] in ("log/", "epoc") and key != next_path]
    demand(not left, "a fragment was left that the log does not name", keys=left)
    try:
        plan = decode_garbage((await plot.world.store.get(GARBAGE)).data)
    except LookupError:
        return
    demand(plan.is_empty, "a plan was left")


async def _look(game: Game, client: Client) -> None:
    """Read and scrub all that is left of the log."""
    plot = game.plot
    reader = plot.reader(client, plot.world.store)
    oldest = (await load_head(client.store)).manifest.oldest
    begin = plot.now()
    rows = [row async for table in reader.scan() for row in table.to_pylist()]
    plot.final = tuple(row["body"] for row in rows)
    last = Read(start=oldest, begin=begin, end=plot.now(), bodies=plot.final)
    plot.history.reads.append(last)
    whole = await plot.scrub(client)
    demand(whole.is_clean, "the log is not whole", problems=whole.problems)
    demand(whole.records == len(plot.final), "scrub counts other records than a read gives")
    game.report.left = sum(key.startswith(("log/", "snapshot/")) for key in whole.unnamed)


async def _close_cursors(game: Game, client: Client) -> None:
    """Delete what dead clients left, so that the last collection has something to do."""
    cursors = cursors_of(client)
    for name in (await cursors.list()).cursors:
        if name != INTRINSIC:
            game.watch.held.pop(name, None)
            await cursors.delete(name)
    try:
        witness = await game.loaded(client, INTRINSIC)
    except NoSuchCursor:
        return
    except PositionCollected:
        await cursors.delete(INTRINSIC)  # Whoever made it was told so, and could not undo it.
        return
    place = max(witness.position, await game.place(client))
    await game.forward(client, witness, place)


@dataclass(slots=True)
class CollectStory:
    """A collection, cursors that come and go back, another collector and a writer beside."""

    name: str = "collect"
    plot_of: type[Plot] = Plot

    def tell(self, fates: Script, *, seed: int) -> int:
        """See `sim.crash.points.Story`."""
        world = World(seed, fates)
        dice = random.Random(f"collect story {seed}")
        game = _game(world, dice, self.plot_of, grace_us=20_000)
        run(lambda: self._play(game), seed)
        _checked(game)
        return len(world.clients[VICTIM].store.records)

    async def _play(self, game: Game) -> None:
        world = game.plot.world
        victim, other, holder = (world.client(name) for name in (VICTIM, "other", "holder"))
        await self._append(game, other, 9)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beside(game, other), name="other")
            group.create_task(self._hold(game, holder), name="holder")
            await victim.live(self._live(game, victim))
            game.plot.bury(victim)
        await self._live(game, world.client("heir"))
        await _finish(game)

    @staticmethod
    async def _append(game: Game, client: Client, count: int) -> None:
        await persist(client, lambda: game.plot.make(client))
        writer = game.plot.writer(client)
        for number in range(count):
            body = f"{client.name} {game.plot.now()} {number}".encode()
            await game.plot.append(client, writer, [body])
        await game.plot.close(client, writer)

    async def _beside(self, game: Game, client: Client) -> None:
        await game.collect(client)
        await self._append(game, client, 3)

    @staticmethod
    async def _hold(game: Game, client: Client) -> None:
        cursors = cursors_of(client)
        for number in range(4):
            with suppress(PositionCollected):
                witness = await cursors.create(f"holder_{number}", 1 + number)
                game.watch.hold(witness.name, witness.position)
                await game.read_held(client, witness)
                await game.forward(client, witness, 4 + number)
            game.watch.held.pop(f"holder_{number}", None)
            await cursors.delete(f"holder_{number}")

    async def _live(self, game: Game, client: Client) -> None:
        cursors = cursors_of(client)

        async def taken() -> Witness:
            try:
                return await game.loaded(client, INTRINSIC)
            except NoSuchCursor:
                return await cursors.create(INTRINSIC, 3)

        with game.plot.trouble(CursorMoved, PositionCollected):
            witness = await persist(client, taken)
            game.watch.hold(INTRINSIC, witness.position)
            witness = await game.forward(client, witness, max(witness.position, 7))
            await self._pin(game, client)
            await game.collect(client)
            witness = await game.back(client, witness, 6)
            await game.read_held(client, witness)
            await game.forward(client, witness, 9)
        game.watch.pinned.pop(client.name, None)
        await _let_go(client, client.name)
        await game.collect(client)

    @staticmethod
    async def _pin(game: Game, client: Client) -> None:
        if game.plot.has_pins:
            with suppress(PositionCollected, BusyError):
                await pins_of(client).create(client.name, start=2, limit=6)
                game.watch.pinned[client.name] = (2, 6)
                await game.read_pinned(client, client.name)
