"""Renditions under faults: ingesters, handovers, drops, merges, holds and readers of one source.

The clients use the code of the commands. Renditions differ in their rows, so a read of the wrong
one is found. The checker computes the rows of each rendition from the bindings and the input. The
marks in the states of shards then say what a read at any time must give.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from sim.checkers.demands import demand
from sim.checkers.invariants import check_all
from sim.checkers.renditions import Truth, truth_of
from sim.checkers.watch import Watch
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
from sim.kernel.world import Client, World
from sim.workloads.stack import (
    SCHEMA,
    Stack,
    StackRow,
    drawn_options,
    drawn_row,
    put_rows,
    replayed,
)
from sim.workloads.tables import UNSURE, persist
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.collection import Collection
from tidelog.collection.collections import Collections
from tidelog.collection.maintenance import Maintenance
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.renditions import Renditions
from tidelog.collection.source.kinds import register_kind
from tidelog.collection.sources import Sources
from tidelog.collection.spec_types import SourceSpec
from tidelog.collection.tables import table_transactions
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    DeadlineExceeded,
    HandoverRefused,
    NameTaken,
    NoSuchCollection,
    NoSuchHold,
    RenditionSucceeded,
    SchemaEvolved,
    SourceDropped,
    UsageError,
)
from tidelog.persist.handle.port import Progress
from tidelog.testing.models import Row, contents_of, updates_of

NAME: Final = "c"
OTHERS: Final = ("x", "y", "z")  # The names of later renditions; each may come again.
HOLD: Final = "mine"
LIVES: Final = 3
REQUESTS: Final = 2_500
REQUESTS_SHORT: Final = 450  # In a third of the time, enough for a handover in some seeds.
ROWS_MAX: Final = 60
ROUNDS_MAX: Final = 100
LONG_S: Final = 600
STORMS: Final = (0.0, 0.01, 0.03, 0.08)
Changes = Counter[tuple[Row, int]]


@dataclass(slots=True)
class RenditionsReport:
    """The counts of a run; equal seeds give equal reports."""

    trace: str = ""
    ticks: int = 0
    created: int = 0
    handovers: int = 0
    refused: int = 0
    dropped: int = 0
    kept: int = 0
    reads: int = 0
    across: int = 0
    lone: int = 0
    steps: int = 0
    held: int = 0
    too_old: int = 0
    maintained: int = 0
    deaths: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """The namespaces of a location, as one process has them."""

    controller: Controller
    collections: Collections
    maintenance: Maintenance
    sources: Sources
    renditions: Renditions


@dataclass(slots=True)
class RenditionsScenario:
    """One run. Shape: ``snapshots`` have the id of a rendition, or None for the collection."""

    world: World
    dice: random.Random
    retain: str
    keeps: bool
    requests: int  # After so many, the clients end.
    report: RenditionsReport = field(default_factory=RenditionsReport)
    rows: list[StackRow] = field(default_factory=list)
    snapshots: list[tuple[str | None, int, Counter[Row]]] = field(default_factory=list)
    changes: list[tuple[int, int, Changes]] = field(default_factory=list)
    made: list[tuple[str, int]] = field(default_factory=list)  # Handovers that were answered.
    gone: list[int] = field(default_factory=list)  # Times that were too old for a read.
    first: str = ""
    is_over: bool = False
    follows: int = 0

    def opened(self, client: Client) -> Parts:
        """Return the namespaces as a new process opens them."""
        ports: dict[str, Any] = {
            "store": client.store,
            "consensus": client.consensus,
            "clock": client.clock,
        }
        controller = Controller(**ports)
        tables = table_transactions(client.store, client.consensus, client.clock)
        own = ports | {"controller": controller}
        collections = Collections(**own, transactions=tables)
        maintenance = Maintenance(**own, fresh=client.store, tables=tables)
        sources = Sources(
            **own, maintenance=maintenance, url="memory://", ingest_store=client.store
        )
        renditions = Renditions(**own, collections=collections, maintenance=maintenance)
        return Parts(controller, collections, maintenance, sources, renditions)


def settings_of(dice: random.Random) -> tuple[int, str, bool]:
    """Return the attempts of a request, the retention, and True if bindings are kept."""
    attempts, retain = dice.choice([2, 20]), dice.choice(["forever", "forever", "1s"])
    return attempts, retain, dice.random() < 0.75


def has_retention(seed: int) -> bool:
    """Return True if retention makes times of a seed's collection unreadable."""
    return settings_of(random.Random(f"renditions {seed}"))[1] != "forever"


def simulate_renditions(seed: int, *, requests: int = REQUESTS) -> RenditionsReport:
    """Run one seed, and check everything; the clients end after some number of requests.

    Raises:
        Violated: a check failed. Any other error: a client failed with an error that it must
            not raise.
    """
    register_kind(Stack)
    dice = random.Random(f"renditions {seed}")
    mortal = frozenset(f"{role}{life}" for role in ROLES for life in range(LIVES - 1))
    faults = Dice(random.Random(f"dice {seed}"), rates_of(seed, storms=STORMS), mortal)
    attempts, retain, keeps = settings_of(dice)
    world = World(seed, faults, attempts=attempts)
    watch = Watch(world.store)
    world.watchers.append(watch)
    scenario = RenditionsScenario(world, dice, retain, keeps, requests)
    with limited(limits_of(seed)):
        run(lambda: _play(scenario, watch), seed)
    scenario.report.trace = world.trace()
    scenario.report.requests = world.requests_count
    scenario.report.deaths = sum(client.is_dead for client in world.clients.values())
    return scenario.report


async def _play(scenario: RenditionsScenario, watch: Watch) -> None:
    world = scenario.world
    assert isinstance(world.schedule, Dice)
    scenario.rows += [drawn_row(scenario.dice) for _ in range(4)]
    await put_rows(world.store, scenario.rows)
    world.schedule.calm = True
    await _create_two(scenario, world.client("maker"))
    world.schedule.calm = False
    async with asyncio.TaskGroup() as group:
        for role, work in ROLES.items():
            group.create_task(_live(scenario, role, work), name=role)
        group.create_task(_grow(scenario), name="grow")
        group.create_task(_advance_on(scenario, world.client("last")), name="last")
    await asyncio.sleep(3_600)  # By then each late request of a dead client has landed.
    world.schedule.calm = True
    await _end(scenario, world.client("end"), watch)


async def _create_two(scenario: RenditionsScenario, client: Client) -> None:
    """Create the source and a second rendition, each with the first rows."""
    parts, upsert = scenario.opened(client), scenario.dice.random() < 0.5
    spec = SourceSpec(
        name=NAME,
        kind=Stack.name,
        schema=SCHEMA,
        envelope="upsert" if upsert else "none",
        key=("k",) if upsert else (),
        delete_when="gone" if upsert else None,
        shards=scenario.dice.choice([1, 2]),
        keep_bindings=scenario.keeps,
        retain=scenario.retain,
    )
    scenario.first = (await parts.sources.create(spec)).rendition
    first = RenditionSpec(name=OTHERS[0], **drawn_options(scenario.dice))
    await parts.renditions.create(first, of=NAME)
    for name in (NAME, OTHERS[0]):
        await parts.sources.ingest(name)


Work = Callable[[RenditionsScenario, Client], Coroutine[Any, Any, None]]


async def _live(scenario: RenditionsScenario, role: str, work: Work) -> None:
    """Do the work of a role, and after each death again as a new client."""
    for life in range(LIVES):
        skew_us = scenario.dice.choice([0, 0, -300_000, 300_000])
        client = scenario.world.client(f"{role}{life}", skew_us=skew_us)
        await client.live(work(scenario, client))
        if not client.is_dead:
            return


async def _grow(scenario: RenditionsScenario) -> None:
    """Put rows on the stack, until the clients have sent enough requests."""
    world, dice = scenario.world, scenario.dice
    begun = asyncio.get_running_loop().time()
    most, ends = scenario.requests, begun + LONG_S
    while world.requests_count < most and asyncio.get_running_loop().time() < ends:
        await asyncio.sleep(dice.random() * 3)
        if len(scenario.rows) < ROWS_MAX:
            scenario.rows += [drawn_row(dice) for _ in range(dice.randrange(1, 5))]
            await put_rows(world.store, scenario.rows)
    scenario.is_over = True


async def _pause(scenario: RenditionsScenario, client: Client, most_s: float) -> None:
    await client.clock.sleep(scenario.dice.randrange(round(most_s * 1e6)))


async def _ingest_on(scenario: RenditionsScenario, client: Client) -> None:
    """Ingest a rendition that is listed up to its head, with the code of the command."""
    parts = scenario.opened(client)
    while not scenario.is_over:
        await _pause(scenario, client, 0.6)
        if scenario.dice.random() < 0.2:
            parts = scenario.opened(client)
        with suppress(*UNSURE, NoSuchCollection, SourceDropped, RenditionSucceeded):
            name = scenario.dice.choice([NAME, *await _others(parts)])
            done = await parts.sources.ingest(name, bytes_max=scenario.dice.choice([20, 40, 100]))
            scenario.report.ticks += done.ticks


async def _create_on(scenario: RenditionsScenario, client: Client) -> None:
    while not scenario.is_over:
        await _pause(scenario, client, 6.0)
        parts = scenario.opened(client)
        try:
            catalog = await parts.controller.catalog()
            taken = {one.called for one in catalog.renditions.values()}
            left = [name for name in OTHERS if name not in taken]
            if not left:
                continue
            spec = RenditionSpec(name=scenario.dice.choice(left), **drawn_options(scenario.dice))
            facts = await parts.renditions.create(spec, of=NAME)
        except (*UNSURE, NameTaken, SchemaEvolved, NoSuchCollection):
            continue
        own = catalog.collection(NAME).renditions
        demand(facts.id not in own, "a new rendition has the id of another one")
        scenario.report.created += 1


async def _hand_over_on(scenario: RenditionsScenario, client: Client) -> None:
    """Hand over to any other rendition, now or later, and with or without a wait."""
    dice = scenario.dice
    while not scenario.is_over:
        await _pause(scenario, client, 4.0)
        parts = scenario.opened(client)
        options: dict[str, Any] = dice.choice(
            [{}, {"wait": True, "timeout_us": 10_000_000}, {"timeout_us": 2_000_000}]
        )
        if dice.random() < 0.4:
            options["at"] = client.clock.now_us() // 1_000 + dice.choice([-500, 0, 300, 1_500])
        try:
            name = dice.choice(await _others(parts))
            time = await parts.renditions.handover(NAME, to=name, **options)
        except (HandoverRefused, DeadlineExceeded):
            scenario.report.refused += 1
        except (*UNSURE, IndexError, NoSuchCollection):
            continue
        else:
            scenario.made.append((name, time))


async def _others(parts: Parts) -> list[str]:
    """Return the names of the renditions that are not the active one, by the catalog."""
    catalog = await parts.controller.catalog()
    active = catalog.active(NAME).id
    return sorted(one.called for one in catalog.renditions.values() if one.id != active)


async def _drop_on(scenario: RenditionsScenario, client: Client) -> None:
    while not scenario.is_over:
        await _pause(scenario, client, 40.0)
        parts = scenario.opened(client)
        try:
            await parts.renditions.drop(scenario.dice.choice(await _others(parts)))
            scenario.report.dropped += 1
        except HandoverRefused as error:
            demand("holds keep times" in str(error), "a wrong refusal", error=error)
            scenario.report.kept += 1
        except UsageError as error:
            known = ("readers read", "was first", "would become unreadable", "of 'c' read")
            demand(any(words in str(error) for words in known), "a wrong refusal", error=error)
            scenario.report.kept += 1
        except (*UNSURE, IndexError, NoSuchCollection):
            continue


async def _maintain_on(scenario: RenditionsScenario, client: Client) -> None:
    """Merge, collect and sweep."""
    dice, report = scenario.dice, scenario.report
    while not scenario.is_over:
        await _pause(scenario, client, 2.5)
        maintenance = scenario.opened(client).maintenance
        try:
            groups = await maintenance.groups(dropped=True)
            # The checker of shards sums all rows, so expired bad rows stay.
            living = [replace(group, expiries={}) for group in groups if not group.is_dropped]
            async for _ in maintenance.compact(living, full=dice.random() < 0.5):
                report.maintained += 1
            if dice.random() < 0.5:
                sweeps = dice.random() < 0.5
                after_us = dice.choice([0, 500_000])
                async for _ in maintenance.collect(groups, after_us=after_us, sweeps=sweeps):
                    report.maintained += 1
        except (*UNSURE, NoSuchCollection):
            continue


async def _read_on(scenario: RenditionsScenario, client: Client) -> None:
    """Read the collection at random times, with a handle that may be old; or one rendition."""
    handle: Collection | None = None
    dice = scenario.dice
    while not scenario.is_over:
        await _pause(scenario, client, 2.5)
        with suppress(*UNSURE, AsOfNotComplete):
            if handle is None or dice.random() < 0.15:
                handle = await scenario.opened(client).collections.open(NAME)
            await _read(scenario, handle)
        if dice.random() < 0.3:
            with suppress(*UNSURE, AsOfNotComplete, NoSuchCollection):
                await _read_alone(scenario, client)


async def _read(scenario: RenditionsScenario, handle: Collection) -> None:
    """Read the collection at a time, and the changes up to it."""
    newest = await handle.resolve_as_of(None)
    time = max(0, newest - scenario.dice.choice([0, 0, 1, 100, 1_000, 5_000, 20_000]))
    try:
        found = contents_of(await handle.consolidated(time))
        scenario.snapshots.append((None, time, found))
        scenario.report.reads += 1
        since = max(0, time - scenario.dice.choice([0, 1, 300, 2_000, 8_000]))
        await _read_changes(scenario, handle, since, time)
    except AsOfBeforeSince:
        scenario.report.too_old += 1
        scenario.gone.append(time)


async def _read_changes(
    scenario: RenditionsScenario, handle: Collection, since: int, until: int
) -> None:
    try:
        found = _summed(await handle.changes(since, until))
    except AsOfBeforeSince:
        scenario.gone.append(since)
        return
    scenario.changes.append((since, until, found))


async def _read_alone(scenario: RenditionsScenario, client: Client) -> None:
    """Read one rendition, whether readers of the collection read it or not."""
    parts = scenario.opened(client)
    catalog = await parts.controller.catalog()
    chosen = scenario.dice.choice(list(catalog.renditions.values()))
    handle = parts.collections.of_rendition(catalog, chosen)
    try:
        time = await handle.resolve_as_of(None)
        found = contents_of(await handle.consolidated(time))
    except AsOfBeforeSince:
        return  # It was dropped, or retention was faster.
    scenario.snapshots.append((chosen.id, time, found))
    scenario.report.lone += 1


async def _follow_on(scenario: RenditionsScenario, client: Client) -> None:
    """Follow the collection from a snapshot on; begin again if retention was faster."""
    scenario.follows += 1
    try:
        while not scenario.is_over:
            with suppress(*UNSURE, AsOfNotComplete, AsOfBeforeSince):
                await _follow(scenario, client)
            await client.clock.sleep(20_000)
    finally:
        scenario.follows -= 1


async def _follow(scenario: RenditionsScenario, client: Client) -> None:
    handle = await scenario.opened(client).collections.open(NAME)
    reached = await handle.resolve_as_of(None)
    rows = contents_of(await handle.consolidated(reached))
    scenario.snapshots.append((None, reached, Counter(rows)))
    while True:
        try:
            async for step in handle.listen(reached):
                reached = _step(scenario, step, rows, reached)
                if scenario.is_over:
                    return
        except UNSURE:
            await client.clock.sleep(20_000)


def _step(scenario: RenditionsScenario, step: Progress, rows: Counter[Row], reached: int) -> int:
    """Add one step of a follower to its rows; return the time that it has reached."""
    demand(step.lower.time == reached + 1, "a step does not begin where the last one ended")
    until = step.upper.time - 1
    found = _summed(step.updates)
    for (row, _), diff in found.items():
        rows[row] += diff
    scenario.changes.append((reached, until, found))
    scenario.snapshots.append((None, until, Counter({r: n for r, n in rows.items() if n})))
    scenario.report.steps += 1
    return until


def _summed(table: Any) -> Changes:
    """Return updates by row and time; they must be consolidated."""
    found: Changes = Counter()
    for update in updates_of(table):
        demand((update.row, update.time) not in found, "updates are not consolidated", row=update)
        found[update.row, update.time] = update.diff
    return found


async def _hold_on(scenario: RenditionsScenario, client: Client) -> None:
    """Hold times of the collection; each of them must stay readable until the hold moves."""
    while not scenario.is_over:
        await _pause(scenario, client, 2.0)
        try:
            await _hold(scenario, client)
        except (*UNSURE, AsOfNotComplete, AsOfBeforeSince, NoSuchHold):
            continue
        except UsageError as error:  # Retention was faster than the hold.
            demand("before the shard's since" in str(error), "a wrong refusal", error=error)


async def _hold(scenario: RenditionsScenario, client: Client) -> None:
    """Take over the hold, read its times several times, and move or release it."""
    dice = scenario.dice
    handle = await scenario.opened(client).collections.open(NAME)
    await handle.hold(HOLD)
    at = await handle.resolve_as_of(None)
    await handle.move_hold(HOLD, at)
    for _ in range(dice.randrange(1, 6)):
        await _pause(scenario, client, 2.0)
        if dice.random() < 0.3:
            handle = await scenario.opened(client).collections.open(NAME)
        newest = await handle.resolve_as_of(None)
        time = dice.randrange(at, newest + 1)
        try:
            found = contents_of(await handle.consolidated(time))
            changes = _summed(await handle.changes(at, time))
        except AsOfBeforeSince as error:
            raise AssertionError(f"the hold at {at} did not hold {time}: {error}") from error
        scenario.snapshots.append((None, time, found))
        scenario.changes.append((at, time, changes))
        scenario.report.held += 1
        if dice.random() < 0.3:
            await handle.move_hold(HOLD, time)
            at = time
    if dice.random() < 0.5:
        await handle.drop_hold(HOLD)


async def _advance_on(scenario: RenditionsScenario, client: Client) -> None:
    """After the end, ingest until each follower has ended: only a tick moves upper."""
    parts, rounds = scenario.opened(client), 0
    schedule = scenario.world.schedule
    assert isinstance(schedule, Dice)
    while not scenario.is_over or scenario.follows:
        await client.clock.sleep(200_000)
        if scenario.is_over:
            rounds += 1
            demand(rounds < ROUNDS_MAX, "a follower waits for ever")
            # In a storm, a run of forty requests hardly ever succeeds.
            schedule.calm |= rounds > ROUNDS_MAX // 2
            with suppress(*UNSURE, RenditionSucceeded):
                await parts.sources.ingest(NAME)


ROLES: Final[dict[str, Work]] = {
    "i": _ingest_on,
    "j": _ingest_on,
    "creator": _create_on,
    "h": _hand_over_on,
    "g": _hand_over_on,
    "dropper": _drop_on,
    "m": _maintain_on,
    "r": _read_on,
    "q": _read_on,
    "follower": _follow_on,
    "holder": _hold_on,
}


async def _end(scenario: RenditionsScenario, client: Client, watch: Watch) -> None:
    """Ingest the rest without faults, read it, and check everything."""
    parts = scenario.opened(client)
    await persist(client, partial(_ingest_rest, parts))
    handle = await parts.collections.open(NAME)
    newest = await handle.resolve_as_of(None)
    for time in {newest, *(at + d for _, at in scenario.made for d in (-1, 0) if at <= newest)}:
        with suppress(AsOfBeforeSince):
            scenario.snapshots.append((None, time, contents_of(await handle.consolidated(time))))
    history, upper = await parts.renditions.history(NAME)
    facts = await parts.renditions.list(NAME)
    shards = check_all(scenario.world.store, watch)
    truth = truth_of(shards, scenario.first, lambda s, b: replayed(s, b, scenario.rows))
    found = [(one.rendition, one.time, one.diff) for one in history]
    demand(found == truth.history(), "the history differs", found=found, was=truth.history())
    demand(upper == truth.upper, "the upper of the history differs")
    active = [one.id for one in facts if one.active]
    demand(active == [truth.newest.rendition.id], "another rendition is active", found=active)
    _check(scenario, truth)


async def _ingest_rest(parts: Parts) -> None:
    """Ingest all that readers need: perhaps of several renditions, one after another."""
    for _ in range(len(OTHERS) * 4):
        try:
            done = await parts.sources.ingest(NAME)
        except RenditionSucceeded:
            continue
        if done.ticks:
            return


def _check(scenario: RenditionsScenario, truth: Truth) -> None:
    for rendition, time, found in scenario.snapshots:
        was = truth.contents(time, rendition)
        demand(
            found == was,
            "a reader saw what never was",
            at=time,
            rendition=rendition,
            eras=truth.told,
            saw=found,
            was=was,
        )
    for after, until, changes in scenario.changes:
        expected = truth.changes(after, until)
        demand(
            changes == expected,
            "a reader saw changes that never were",
            after=after,
            until=until,
            eras=truth.told,
            saw=changes,
            was=expected,
        )
        scenario.report.across += any(after < era.begins <= until for era in truth.eras[1:])
    begun = {(era.rendition.called, era.begins) for era in truth.eras}
    for name, time in scenario.made:
        demand((name, time) in begun, "an acknowledged handover is not there", to=name, at=time)
    scenario.report.handovers = len(truth.eras) - 1
    for time in scenario.gone if scenario.retain == "forever" else ():
        dropped = truth.is_dropped(truth.era_at(time).rendition)
        demand(dropped, "a time was unreadable, and its rendition stands", at=time)
