"""Ingestion under faults: ingesters of one source, two output shards, and readers next to them.

At every time, the shards must hold the result of a replay in plain Python, and no reader may ever
see another result.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard, check_all
from sim.checkers.watch import Watch
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
from sim.kernel.world import Client, World
from sim.workloads.files import Input, Shape, generate
from sim.workloads.merging import Merges, merge_on
from sim.workloads.sources import (
    SimSource,
    bindings_of,
    check_bindings,
    check_errors,
    check_placed,
    errors_expected,
    newest_alone,
    replay,
    replay_alone,
)
from tidelog.errors import AsOfBeforeSince, AsOfNotComplete, LocationError, ReadOvertaken
from tidelog.testing.models import Row, Update, accumulate, consolidate, contents_of, updates_of

TRIES_MAX = 200
STORMS = (0.0, 0.01, 0.03, 0.08)


@dataclass(slots=True)
class Report:
    """The counts of a run; equal seeds give equal reports."""

    trace: str
    ticks: int = 0
    deaths: int = 0
    failures: int = 0
    reads: int = 0
    merged: Merges = field(default_factory=Merges)
    requests: int = 0
    winners: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Scenario:
    """One run: the source, its input, and the state of the clients."""

    world: World
    dice: random.Random
    source: SimSource
    given: Input
    report: Report
    sorted_input: bool
    grows: bool
    snapshots: list[tuple[int, Counter[Row]]] = field(default_factory=list)
    changes: list[tuple[int, int, list[Update]]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    upper_seen: int = 0
    is_over: bool = False


def simulate_ingest(seed: int) -> Report:
    """Run one seed, and check everything.

    Raises:
        Violated: a check failed. Any other error: a client failed with an error that it must
            not raise.
    """
    dice = random.Random(f"ingest {seed}")
    envelope = dice.choice(["upsert", "upsert", "none"])
    source = SimSource(
        envelope=envelope,
        timed=dice.random() < 0.7,
        delete_when=dice.choice(["gone", None]),
        bytes_max=dice.choice([200, 400, 800]),
    )
    disorder = dice.choice([0.0, 0.0, 0.2])
    shape = Shape(
        files=dice.randrange(1, 4),
        lines=dice.randrange(3, 14),
        keys=dice.choice([1, 2, 5]),
        disorder=disorder,
        bad=dice.choice([0.0, 0.2]),
        required=source.required,
    )
    given = generate(dice, shape)
    mortal = frozenset({"a", "b", "a1", "b1", "merger"})
    schedule = Dice(random.Random(f"dice {seed}"), rates_of(seed, storms=STORMS), mortal)
    world = World(seed, schedule)
    watch = Watch(world.store)
    world.watchers.append(watch)
    is_sorted, grows = disorder == 0.0, dice.random() < 0.3
    # A file that never grows can be bound by its version alone.
    retain_ms = dice.choice([None, None, 0, 5, 40])
    source = replace(source, is_versioned=not grows and seed % 2 == 0, retain_ms=retain_ms)
    source = replace(source, is_grouped=seed % 2 == 1)
    scenario = Scenario(world, dice, source, given, Report(""), is_sorted, grows)
    with limited(limits_of(seed)):
        run(lambda: _play(scenario), seed)
        _check(scenario, watch)
    scenario.report.trace = world.trace()
    scenario.report.requests = world.requests_count
    return scenario.report


async def _play(scenario: Scenario) -> None:
    world, given = scenario.world, scenario.given
    assert isinstance(world.schedule, Dice)
    for path in sorted(given.files):
        data = given.bytes_of(path)
        await world.store.put(
            path, data[: scenario.dice.randrange(len(data) + 1)] if scenario.grows else data
        )
    world.schedule.calm = True
    await scenario.source.create(world.client("maker"))
    world.schedule.calm = False
    async with asyncio.TaskGroup() as group:
        group.create_task(_ingest_on(scenario, "a"), name="a")
        group.create_task(_ingest_on(scenario, "b"), name="b")
        group.create_task(_read_on(scenario), name="reader")
        merger = world.client("merger")
        own = scenario.source.ingester(merger)
        merging = merge_on(
            merger,
            [*own.written, own.remap],
            scenario.dice,
            is_over=lambda: scenario.is_over,
            done=scenario.report.merged,
        )
        group.create_task(merger.live(merging), name="merger")
        if scenario.grows:
            group.create_task(_grow(scenario), name="grow")
    world.schedule.calm = True
    await _ingest(scenario, world.client("last"), final=True)
    await _read(scenario, scenario.world.client("last reader"))


async def _grow(scenario: Scenario) -> None:
    """Grow the files, by any number of bytes at a time."""
    store, given = scenario.world.store, scenario.given
    for _ in range(200):
        await asyncio.sleep(scenario.dice.random())
        path = scenario.dice.choice(sorted(given.files))
        there, whole = len(store.objects[path].data), given.bytes_of(path)
        await store.put(path, whole[: there + scenario.dice.randrange(60)])
        if scenario.is_over:
            break
    for path in sorted(given.files):
        await store.put(path, given.bytes_of(path))


async def _ingest_on(scenario: Scenario, name: str) -> None:
    """Ingest as ``name``, and after each death as a new client."""
    for life in range(4):
        client = scenario.world.client(name if not life else f"{name}{life}")
        await client.live(_ingest(scenario, client))
        if not client.is_dead:
            break
        scenario.report.deaths += 1
    scenario.is_over = True


async def _ingest(scenario: Scenario, client: Client, *, final: bool = False) -> None:
    """Ingest up to the head seen first, as ``ingest --once`` does, through all failures."""
    ingester = scenario.source.ingester(client)
    head = None
    idle = 0
    for _ in range(TRIES_MAX):
        try:
            if head is None:
                await ingester.refresh()
                head = await ingester.source.head()
            tick = await ingester.tick(head)
        except LocationError:
            scenario.report.failures += 1
            if scenario.dice.random() < 0.3:
                ingester, head = scenario.source.ingester(client), None
            await client.clock.sleep(scenario.dice.randrange(100_000))
            continue
        if tick is not None:
            scenario.report.ticks += 1
            scenario.report.winners[client.name] += tick.won
            demand(scenario.upper_seen <= tick.upper or not final, "the last tick went back")
            scenario.upper_seen = max(scenario.upper_seen, tick.upper)
        if tick is None or (not scenario.source.timed and not tick.left_bytes):
            idle += 1
            if idle > 2 or scenario.source.timed:
                return
        await client.clock.sleep(scenario.dice.randrange(20_000))
    # An ingester may give up in a long storm, but not the last one.
    demand(not final, "there is no end to it", client=client.name)


async def _read_on(scenario: Scenario) -> None:
    """Read as of complete times, repeatedly, and keep the results."""
    client = scenario.world.client("reader")
    while not scenario.is_over:
        await client.clock.sleep(scenario.dice.randrange(1_000_000))
        try:
            await _read(scenario, client)
        except (LocationError, ReadOvertaken):
            scenario.report.failures += 1


async def _read(scenario: Scenario, client: Client) -> None:
    collection = scenario.source.collection(client)
    try:
        upper = (await collection.resolve_as_of(None)) + 1
    except AsOfNotComplete:
        return
    as_of = max(0, upper - 1 - scenario.dice.choice([0, 0, 1, 2, 10, 50]))
    try:
        found = contents_of(await collection.consolidated(as_of))
        after = max(0, as_of - scenario.dice.randrange(20))
        changes = updates_of(await collection.changes(after, as_of))
    except AsOfBeforeSince as error:
        if scenario.source.retain_ms is None:
            raise AssertionError("the history hold does not hold") from error
        scenario.gone.append(as_of)
        return
    scenario.snapshots.append((as_of, found))
    scenario.changes.append((after, as_of, changes))
    scenario.report.reads += 1


def _check(scenario: Scenario, watch: Watch) -> None:
    source, given = scenario.source, scenario.given
    shards = check_all(scenario.world.store, watch)
    rendition = source.rendition
    outputs = [shards[name] for name in rendition.shards if name in shards]
    if not outputs:
        demand(not any(given.files.values()), "nothing was ingested")
        return
    bindings = bindings_of(shards[rendition.remap or ""])
    check_bindings(bindings, given)
    updates = [u for shard in outputs for u in shard.updates]
    expected = replay(source, bindings, given)
    demand_same(updates, expected, "the output is not what the bindings make of the files")
    if source.timed and source.envelope == "upsert":
        kept = [u for name in rendition.deletions for u in shards[name].updates]
        _check_newest(source, given, updates, kept)
    check_placed(source, outputs)
    check_errors(shards[rendition.errors or ""], errors_expected(bindings, given))
    if source.timed and scenario.sorted_input and not scenario.grows:
        demand_same(updates, replay_alone(source, given), "times are not the rows' own")
        _check_uppers(scenario, [*outputs, shards[rendition.errors or ""]])
    for as_of, found in scenario.snapshots:
        wanted = accumulate(expected, as_of)
        demand(found == wanted, "a reader saw what never was", as_of=as_of, saw=found, was=wanted)
    for after, until, changes in scenario.changes:
        demand(
            consolidate(changes) == consolidate(expected, after=after, until=until),
            "a reader saw changes that never were",
            after=after,
            until=until,
        )
    for observed in shards.values():
        is_fed_back = observed.id in (rendition.remap, "catalog", *rendition.deletions)
        since, upper = observed.state.since or 0, observed.state.upper or 0
        retain_ms = upper if source.retain_ms is None else source.retain_ms
        is_kept = since <= max(0, upper - 1 - retain_ms)
        demand(is_kept or is_fed_back, "since moved by itself", since=since, upper=upper)


def _check_newest(
    source: SimSource, given: Input, updates: list[Update], kept: list[Update]
) -> None:
    """Check that the output holds each key's newest row by event time, for any ticks.

    If that row is a deletion, the deletions shard keeps it; it keeps no other row.
    """
    last = max((update.time for update in (*updates, *kept)), default=0)
    there = {row[0]: row for row in accumulate(updates, last)}
    gone = [row[0] for row in accumulate(kept, last)]
    demand(len(gone) == len(set(gone)) and not there.keys() & gone, "a deletion is kept in vain")
    for key, row in newest_alone(source, given).items():
        demand(there.get(key) == row, "another row than the newest is there", key=key, newest=row)
        demand(not kept or (key in gone) == (row is None), "a deletion is not kept", key=key)


def _check_uppers(scenario: Scenario, shards: list[ObservedShard]) -> None:
    greatest = max(
        (line.at for line in scenario.given.lines() if line.row is not None), default=None
    )
    if greatest is not None:
        uppers = {shard.upper for shard in shards}
        demand(min(u or 0 for u in uppers) >= greatest + 1, "upper is not past the last time")


def demand_same(found: list[Update], wanted: list[Update], sentence: str) -> None:
    """Demand that two lists of updates are the same at every time."""
    have, need = consolidate(found), consolidate(wanted)
    demand(
        have == need,
        sentence,
        missing=[(k, v) for k, v in need.items() if have.get(k) != v][:8],
        surplus=[(k, v) for k, v in have.items() if need.get(k) != v][:8],
    )
