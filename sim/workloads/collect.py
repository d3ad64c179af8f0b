"""Logs that are collected under fire: collectors that die, cursors that come, move and go back.

Writers and readers are those of `sim.workloads.log`, and so is the checker: it is given all that
the log ever held, as a watch has seen it, for the beginning is gone in the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from sim.checkers.invariants import demand
from sim.checkers.linear_log import Read, check_log
from sim.checkers.watch_log import LogWatch
from sim.crash.points import VICTIM
from sim.kernel.fates import Dice, Script, rates_of
from sim.kernel.hashed import HashedStore
from sim.kernel.loop import run
from sim.kernel.world import Client, World
from sim.workloads.log import Plot, persist
from sim.workloads.slot import SlotPlot
from tidelog.errors import (
    BusyError,
    ContentionError,
    CursorMoved,
    LocationError,
    NameTaken,
    NoSuchCursor,
    NoSuchPin,
    PositionCollected,
)
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.cursor import INTRINSIC
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.gc_plan import GARBAGE, decode_garbage
from tidelog.wal.gc.collector import Collected, Collector
from tidelog.wal.gc.cursors import Cursors, Witness
from tidelog.wal.gc.orphans import sweep
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.read.head import load_head
from tidelog.wal.read.stream_selection import Selection
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail
from tidelog.wal.slot_protocol.reader import scan_pinned


@dataclass(slots=True)
class Report:
    """What a run did."""

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
        return not self.plot.writers_left

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
        with suppress(LocationError, ContentionError):
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
        pin = (await pins_of(client).load(name)).pin
        found = scan_pinned(client.store, client.clock, pin, selection=Selection(control=True))
        bodies = [row["body"] async for table in found for row in table.to_pylist()]
        demand(bodies == self.watch.bodies[start - 1 : limit - 1], f"{name} did not hold")

    async def forward(self, client: Client, witness: Witness, position: int) -> Witness:
        """Move a cursor on; from the moment it is asked, nobody relies on what is before."""
        self.watch.held[witness.name] = position
        return await cursors_of(client).save(witness, position)

    async def back(self, client: Client, witness: Witness, position: int) -> Witness:
        """Set a cursor back, if what it would hold is there."""
        try:
            cursors = cursors_of(client)
            moved = await cursors.save(witness, position, allow_back=True)
        except PositionCollected:
            self.report.refused += 1
            return await _loaded(self, client, witness.name)
        self.watch.hold(witness.name, position)
        self.report.backs += 1
        return moved


def cursors_of(client: Client) -> Cursors:
    return Cursors(store=client.store, clock=client.clock, writer=client.name)


def pins_of(client: Client) -> Pins:
    return Pins(store=client.store, clock=client.clock, writer=client.name)


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
    mortal = frozenset(["w0", "w1", "h0", "h1", "g0", "p0"])
    fates = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    store = dice.choice([MemoryStore(), HashedStore()])
    world = World(seed, fates, store=store)
    game = _game(world, dice, plot_of, grace_us=dice.choice([0, 30_000, 300_000]))
    run(lambda: _play(game), seed)
    return _checked(game)


def _game(world: World, dice: random.Random, plot_of: type[Plot], *, grace_us: int) -> Game:
    watch = LogWatch(world.store, grace_us)
    world.watchers.append(watch)
    return Game(plot_of(world, dice), watch, pace_us=dice.choice([20_000, 60_000, 600_000]))


def _checked(game: Game) -> Report:
    plot, report = game.plot, game.report
    demand(not game.watch.violations, "; ".join(game.watch.violations[:3]))
    check_log(plot.history, game.watch.bodies)
    report.trace = plot.world.trace()
    report.acknowledged = sum(a.position is not None for a in plot.history.appends)
    report.reads = len(plot.history.reads)
    report.fragments = sum(not key.startswith("snapshot/") for key in game.watch.deleted)
    report.records = len(game.watch.bodies)
    report.deaths = sum(client.is_dead for client in plot.world.clients.values())
    report.requests = plot.world.requests_count
    return report


async def _play(game: Game) -> None:
    plot = game.plot
    writers = [plot.world.client(f"w{n}") for n in range(game.dice.choice([1, 2]))]
    maker = plot.world.client("maker")
    await persist(maker, lambda: plot.make(maker))
    plot.writers_left = len(writers)
    async with asyncio.TaskGroup() as group:

        def start(name: str, live: Callable[[Game, Client], Awaitable[None]]) -> None:
            group.create_task(_live(game, plot.world.client(name), live), name=name)

        for client in writers:
            group.create_task(_write_on(game, client), name=client.name)
        for number in range(game.dice.choice([1, 2, 3])):
            start(f"g{number}", _collect_on)
        for number in range(game.dice.choice([0, 1, 2])):
            start(f"h{number}", _hold_on)
        for number in range(game.dice.choice([0, 1, 2]) if plot.has_pins else 0):
            start(f"p{number}", _pin_on)
        start("consumer", _consume_on)
        start("reader", _read_on)
    await _finish(game)


async def _live(
    game: Game, client: Client, live: Callable[[Game, Client], Awaitable[None]]
) -> None:
    async def living() -> None:
        await live(game, client)

    await client.live(living())
    game.plot.bury(client)


async def _write_on(game: Game, client: Client) -> None:
    try:
        await _live(game, client, _write)
    finally:
        game.plot.writers_left -= 1


async def _write(game: Game, client: Client) -> None:
    writer = game.plot.writer(client)
    for number in range(game.dice.randrange(6, 14)):
        await client.clock.sleep(game.dice.randrange(game.pace_us))
        sizes = range(game.dice.choice([1, 1, 2, 3]))
        bodies = [f"{client.name} {number} {n}".encode() for n in sizes]
        await game.plot.append(client, writer, bodies)
    await writer.close()


async def _collect_on(game: Game, client: Client) -> None:
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(60_000))
        await game.collect(client)


async def _read_on(game: Game, client: Client) -> None:
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(80_000))
        with suppress(LocationError):
            await game.read(client, game.dice.choice([1, 3, 9, await game.place(client)]))


async def _consume_on(game: Game, client: Client) -> None:
    """Read the log from its beginning on, and move the cursor that every log has behind it."""
    cursors = cursors_of(client)

    async def take() -> Witness | None:
        try:
            return await _loaded(game, client, INTRINSIC)
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
        except LocationError:
            witness = await persist(client, lambda: _retaken(game, client))
            game.watch.hold(INTRINSIC, witness.position)


async def _loaded(game: Game, client: Client, name: str) -> Witness:
    """Load a cursor; a plan that nobody works on may stand in the way: then collect.

    In bad weather the many looks that it takes to know this may never all get through.
    """
    while True:
        try:
            return await cursors_of(client).load(name)
        except (BusyError, LocationError):
            await game.collect(client)


async def _retaken(game: Game, client: Client) -> Witness:
    """Load the cursor after a move in doubt, and write it, lest that move come about later."""
    while True:
        witness = await _loaded(game, client, INTRINSIC)
        with suppress(CursorMoved):
            return await cursors_of(client).save(witness, witness.position)


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
        except LocationError:
            pass  # It is not known where the cursor stands: nobody relies on it any more.
        game.watch.held.pop(name, None)
        await persist(client, lambda name=name: cursors.delete(name))  # type: ignore[misc]


async def _pin_on(game: Game, client: Client) -> None:
    """Pin a range, read it, let go of it; and again, under names that come back."""
    pins, number = pins_of(client), 0
    while not game.is_over:
        await client.clock.sleep(game.dice.randrange(60_000))
        name, number = f"{client.name}_{number % 2}", number + 1
        try:
            manifest = (await load_head(client.store)).manifest
            if manifest.next == 1:
                continue
            start = game.dice.randrange(1, manifest.next)
            limit = game.dice.randrange(start + 1, manifest.next + 1)
            held = await pins.create(name, start=start, limit=limit)
            game.watch.pinned[name] = (held.pin.start, held.pin.limit)
            game.report.pins += 1
            for _ in range(game.dice.randrange(3)):
                await client.clock.sleep(game.dice.randrange(200_000))
                await game.read_pinned(client, name)
        except PositionCollected:
            game.report.refused += 1
        except (LocationError, NameTaken, BusyError, ContentionError):
            pass  # Not made, or not known to be; or an earlier one was not swept yet.
        game.watch.pinned.pop(name, None)
        await _let_go(client, name)


async def _let_go(client: Client, name: str) -> None:
    async def let_go() -> None:
        with suppress(NoSuchPin, ContentionError):
            await pins_of(client).release(name)

    await persist(client, let_go)


async def _finish(game: Game) -> None:
    """Open the log as the next writer would, collect, and read what is there: all is well now."""
    plot = game.plot
    client = plot.world.client("last")
    if isinstance(plot.world.fates, Dice):
        plot.world.fates.calm = True
    await plot.settle(client, client.store)
    await roll_up_tail(client.store, clock=client.clock, writer=client.name)
    await _close_cursors(game, client)
    for name in await pins_of(client).list() if plot.has_pins else ():
        game.watch.pinned.pop(name, None)
        await pins_of(client).release(name)
    found: Collected = await game.collector(client).collect()
    demand(not found.spared, "a plan would have erased what the log names")
    reader = plot.reader(client, plot.world.store)
    oldest = (await load_head(client.store)).manifest.oldest
    begin = plot.now()
    rows = [row async for table in reader.scan() for row in table.to_pylist()]
    bodies = tuple(row["body"] for row in rows)
    plot.history.reads.append(Read(start=oldest, begin=begin, end=plot.now(), bodies=bodies))
    plot.final = bodies
    whole = await plot.scrub(client)
    demand(whole.is_clean, "the log is not whole", problems=whole.problems)
    demand(whole.records == len(bodies), "scrub counts other records than a read gives")
    game.report.left = sum(key.startswith(("log/", "snapshot/")) for key in whole.unnamed)
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


async def _close_cursors(game: Game, client: Client) -> None:
    """Delete what dead clients left, so that the last collection has something to do."""
    cursors = cursors_of(client)
    for name in (await cursors.list()).cursors:
        if name != INTRINSIC:
            game.watch.held.pop(name, None)
            await cursors.delete(name)
    try:
        witness = await _loaded(game, client, INTRINSIC)
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
        await writer.close()

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
                return await _loaded(game, client, INTRINSIC)
            except NoSuchCursor:
                return await cursors.create(INTRINSIC, 3)

        with suppress(LocationError, CursorMoved, PositionCollected):
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
