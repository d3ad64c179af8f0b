"""Shards under faults: writers that contend, readers, listeners, holds and concurrent merges.

Writers have tokens of all kinds. Mergers delete vanished parts, at once or later, except those that
a lease holds. The model is the list of updates that each token carried, in the order of commits.
The answers of calls are checked against it: a COMMITTED write is there once, a MISMATCH is not
there, and an unknown outcome may be either. Readers' results are checked against it too.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from sim.checkers.demands import Violated, demand
from sim.checkers.invariants import ObservedShard, check_all
from sim.checkers.watch import Watch
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
from sim.kernel.world import Client, World
from sim.workloads.leasing import Leases, lease_on
from sim.workloads.merging import Merges, merge_on
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.errors import (
    AsOfBeforeSince,
    DeadlineExceeded,
    LocationError,
    Outcome,
    OutcomeUnknown,
    PartsSwept,
    ReadOvertaken,
    UpperMismatch,
)
from tidelog.persist.format.schema import DIFF, TIME, shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import Verdict
from tidelog.testing.models import (
    Row,
    ShardModel,
    Update,
    consolidate,
    contents_of,
    updates_of,
)

_COLUMNS: Final[dict[str, pa.DataType]] = {"k": pa.string(), "v": pa.int64(), "x": pa.float64()}
SCHEMA: Final = shard_schema(pa.schema(_COLUMNS), key=["k"])
RACED: Final = ShardId("raced")
SHARED: Final = ShardId("shared")
END: Final = 40  # The time at which the shared shard is finished.


def shard_of(client: Client, name: str, *, cache_bytes: int = 0) -> Shard:
    """Return a client's own handle of a shard."""
    return Shard(
        id=ShardId(name),
        store=client.store,
        consensus=client.consensus,
        clock=client.clock,
        schema=SCHEMA,
        cache_bytes=cache_bytes,
    )


@dataclass(slots=True)
class Write:
    """The updates of one token, and all answers of its calls."""

    token: Token
    lower: int
    upper: int | None
    updates: list[Update]
    said: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The counts of a run."""

    trace: str = ""
    writes: int = 0
    committed: int = 0
    already: int = 0
    unknown: int = 0
    reads: int = 0
    merged: Merges = field(default_factory=Merges)
    leased: Leases = field(default_factory=Leases)
    deaths: int = 0
    requests: int = 0


@dataclass(slots=True)
class Scenario:
    """One run."""

    world: World
    dice: random.Random
    report: Report = field(default_factory=Report)
    writes: list[Write] = field(default_factory=list)
    snapshots: list[tuple[ShardId, int, Counter[Row]]] = field(default_factory=list)
    heard: list[tuple[ShardId, int, int | None, list[Update]]] = field(default_factory=list)
    gone: list[tuple[ShardId, int]] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    writers_left: int = 0

    def shard(self, client: Client, name: ShardId) -> Shard:
        return shard_of(client, name, cache_bytes=self.dice.choice([0, 1 << 20]))


def simulate_shard(seed: int) -> Report:
    """Run one seed, and check everything.

    Raises:
        Violated: a check failed. Any other error: a client failed with an error that it must
            not raise.
    """
    dice = random.Random(f"shard {seed}")
    mortal = frozenset(["w0", "w1", "p", "q", "holder", "m0", "l0"])
    dice_of_store = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, dice_of_store, attempts=dice.choice([1, 2, 20]))
    watch = Watch(world.store)
    world.watchers.append(watch)
    scenario = Scenario(world, dice)
    with limited(limits_of(seed)):
        run(lambda: _play(scenario), seed)
        _check(scenario, check_all(world.store, watch))
    scenario.report.trace = world.trace()
    scenario.report.requests = world.requests_count
    scenario.report.deaths = sum(client.is_dead for client in world.clients.values())
    return scenario.report


async def _play(scenario: Scenario) -> None:
    world = scenario.world
    writers = [world.client(f"w{number}") for number in range(scenario.dice.choice([1, 2, 3]))]
    sharers = [world.client(name) for name in ("p", "q")]
    scenario.writers_left = len(writers)
    async with asyncio.TaskGroup() as group:
        for client in writers:
            group.create_task(_race(scenario, client), name=client.name)
        for client in sharers:
            group.create_task(client.live(_share(scenario, client)), name=client.name)
        for name in ("r0", "r1"):
            group.create_task(_read_on(scenario, world.client(name)), name=name)
        holder = world.client("holder")
        group.create_task(holder.live(_hold_on(scenario, holder)), name="holder")
        for name in ("m0", "m1"):
            merger = world.client(name)
            shards = [scenario.shard(merger, RACED), scenario.shard(merger, SHARED)]
            merging = merge_on(
                merger,
                shards,
                scenario.dice,
                is_over=lambda: not scenario.writers_left,
                done=scenario.report.merged,
            )
            group.create_task(merger.live(merging), name=name)
        for name in ("l0", "l1"):
            lessee = world.client(name)
            leasing = lease_on(
                lessee,
                scenario.shard(lessee, RACED),
                random.Random(f"{name} {world.seed}"),
                is_over=lambda: not scenario.writers_left,
                done=scenario.report.leased,
            )
            group.create_task(lessee.live(leasing), name=name)
        for name in (RACED, SHARED):
            ear = world.client(f"listener of {name}")
            group.create_task(_listen_on(scenario, ear, name), name=ear.name)
        group.create_task(_finish(scenario, world.client("last")), name="last")


async def _race(scenario: Scenario, client: Client) -> None:
    try:
        await client.live(_write_on(scenario, client))
    finally:
        scenario.writers_left -= 1


async def _write_on(scenario: Scenario, client: Client) -> None:
    """Write with tokens of all kinds; retry each write until its outcome is known or cannot be."""
    shard = scenario.shard(client, RACED)
    named = scenario.dice.random() < 0.4
    for number in range(scenario.dice.randrange(2, 9)):
        await client.clock.sleep(scenario.dice.randrange(30_000))
        # A handle with an old state proposes an interval that is long past.
        known = shard.state.upper
        assert known is not None
        lower = max(0, known - scenario.dice.choice([0, 0, 0, 1, 3]))
        upper = lower + scenario.dice.choice([0, 1, 1, 2, 5])
        rows = scenario.dice.choice([0, 1, 1, 3]) if upper > lower else 0
        updates = [_update(scenario.dice, lower, upper) for _ in range(rows)]
        write = Write((f"{client.name}", number), lower, upper, updates)
        scenario.writes.append(write)
        scenario.report.writes += 1
        await _write(scenario, client, shard, write, named=named)


async def _write(
    scenario: Scenario, client: Client, shard: Shard, write: Write, *, named: bool
) -> None:
    table = table_of(write.updates)
    holds = scenario.dice.choice([{}, {}, {f"hold of {client.name}": Frontier.at(write.lower)}])
    for _ in range(scenario.dice.choice([1, 60])):
        write.said.append("nothing")  # This answer stays if the writer dies during the call.
        try:
            done = await shard.try_compare_and_append(
                table, write.lower, write.upper, token=write.token, named=named, holds=holds
            )
        except OutcomeUnknown:
            write.said[-1] = "unknown"
            scenario.report.unknown += 1
            return
        except (LocationError, PartsSwept) as error:
            write.said[-1] = error.outcome.value
            await client.clock.sleep(scenario.dice.randrange(200_000))
            if scenario.dice.random() < 0.2:
                shard = scenario.shard(client, RACED)
            continue
        write.said[-1] = done.verdict.value
        scenario.report.committed += done.verdict is Verdict.COMMITTED
        scenario.report.already += done.verdict is Verdict.ALREADY
        return


async def _share(scenario: Scenario, client: Client) -> None:
    """Append the updates that the shared shard must hold, cut at random times."""
    shard = scenario.shard(client, SHARED)
    lower = 0
    while lower < END:
        upper = min(END, lower + scenario.dice.randrange(1, 12))
        updates = [u for u in shared_updates(scenario.world.seed) if lower <= u.time < upper]
        try:
            await shard.append(table_of(updates), lower, upper)
        except LocationError:
            await client.clock.sleep(scenario.dice.randrange(200_000))
            continue
        except UpperMismatch as error:
            raise Violated("the shared shard has a hole") from error
        lower = upper


async def _read_on(scenario: Scenario, client: Client) -> None:
    for _ in range(scenario.dice.randrange(2, 8)):
        await client.clock.sleep(scenario.dice.randrange(300_000))
        name = scenario.dice.choice([RACED, SHARED])
        shard = scenario.shard(client, name)
        try:
            state = await shard.refresh()
            newest = END + 5 if state.upper is None else state.upper
            as_of = max(0, newest - scenario.dice.choice([-3, 1, 1, 2, 5, 30]))
            snapshot = await shard.snapshot(as_of, timeout_us=2_000_000)
            scenario.snapshots.append(
                (name, as_of, contents_of(await snapshot.to_arrow(consolidated=True)))
            )
            scenario.report.reads += 1
        except AsOfBeforeSince:
            scenario.gone.append((name, as_of))
        except (DeadlineExceeded, ReadOvertaken, LocationError):
            continue


async def _listen_on(scenario: Scenario, client: Client, name: ShardId) -> None:
    """Listen from some time until the shard is finished; resume after each failure."""
    start = reached = scenario.dice.choice([0, 0, 1, 4])
    shard = scenario.shard(client, name)
    found: list[Update] = []
    while True:
        try:
            async for progress in shard.listen(reached, wait=True):
                demand(progress.lower == Frontier.at(reached + 1), "a listener jumped")
                found.extend(updates_of(progress.updates))
                if progress.upper.is_empty:
                    scenario.heard.append((name, start, None, found))
                    return
                reached = progress.upper.time - 1
        except AsOfBeforeSince:
            scenario.gone.append((name, reached))
            scenario.heard.append((name, start, reached, found))
            return
        except LocationError:
            if scenario.dice.random() < 0.3:
                shard = scenario.shard(client, name)
            await client.clock.sleep(50_000)


async def _hold_on(scenario: Scenario, client: Client) -> None:
    """Hold the raced shard at some time, read there, and move the hold."""
    shard = scenario.shard(client, RACED)
    while scenario.writers_left:
        await client.clock.sleep(scenario.dice.randrange(400_000))
        try:
            at = await shard.hold("held")
            if at.is_empty:
                return
            if shard.state.upper_frontier.passed(at.time):
                snapshot = await shard.snapshot(at.time)
                scenario.snapshots.append(
                    (RACED, at.time, contents_of(await snapshot.to_arrow(consolidated=True)))
                )
            state = await shard.refresh()
            if state.upper is None:
                return
            await shard.move_hold("held", max(at.time, state.upper - 3))
        except LocationError:
            continue


async def _finish(scenario: Scenario, client: Client) -> None:
    """After all writers have finished, complete the shared shard, and finish both."""
    while scenario.writers_left:
        await client.clock.sleep(500_000)
    await _share(scenario, client)
    for name in (RACED, SHARED):
        shard = scenario.shard(client, name)
        number = 0
        while (await _through(client, shard)) is not None:
            upper = shard.state.upper
            assert upper is not None
            write = Write((f"last of {name}", number), upper, None, [])
            if name == RACED:
                scenario.writes.append(write)
            await _write_whole(client, shard, write)
            number += 1


async def _through(client: Client, shard: Shard) -> int | None:
    while True:
        try:
            return (await shard.refresh()).upper
        except LocationError:
            await client.clock.sleep(100_000)


async def _write_whole(client: Client, shard: Shard, write: Write) -> None:
    while True:
        try:
            finish = write.lower, write.upper
            done = await shard.try_compare_and_append(None, *finish, token=write.token)
        except OutcomeUnknown:
            write.said.append("unknown")
            return
        except LocationError as error:
            write.said.append(error.outcome.value)
            await client.clock.sleep(100_000)
            continue
        write.said.append(done.verdict.value)
        return


def _update(dice: random.Random, lower: int, upper: int) -> Update:
    row: Row = (
        dice.choice(["a", "b", "c"]),
        dice.choice([None, 0, 1]),
        dice.choice([None, 0.0, 1.5]),
    )
    return Update(row, dice.randrange(lower, upper), dice.choice([1, 1, 2, -1]))


def shared_updates(seed: int | str) -> list[Update]:
    """Return the final updates of a seed's shared shard."""
    dice = random.Random(f"shared {seed}")
    return [
        _update(dice, time, time + 1)
        for time in range(END)
        for _ in range(dice.choice([0, 0, 1, 2]))
    ]


def table_of(updates: list[Update]) -> pa.Table:
    """Return updates as a table that a shard accepts."""
    rows = [
        {**dict(zip(SCHEMA.names, u.row, strict=True)), TIME: u.time, DIFF: u.diff} for u in updates
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA.updates)


def _check(scenario: Scenario, shards: dict[str, ObservedShard]) -> None:
    models = {
        RACED: _check_raced(scenario, shards[RACED]),
        SHARED: _check_shared(scenario, shards[SHARED]),
    }
    scenario.snapshots += [(RACED, as_of, found) for as_of, found in scenario.report.leased.seen]
    for name, as_of, found in scenario.snapshots:
        was = models[name].contents(as_of)
        demand(found == was, "a reader saw what never was", as_of=as_of, saw=found, was=was)
    for name, start, reached, heard in scenario.heard:
        was_heard = models[name].changes(start, reached)
        demand(
            consolidate(heard) == was_heard,
            "a listener heard other changes than there were",
            shard=name,
            after=start,
            heard=consolidate(heard),
            were=was_heard,
        )
    for name, as_of in scenario.gone:
        since = shards[name].state.since
        demand(since is None or as_of < since, "a time was refused that is kept", as_of=as_of)


def _check_raced(scenario: Scenario, raced: ObservedShard) -> ShardModel:
    """Check the calls' answers against the decisions, and return their model."""
    by_token = {write.token: write for write in scenario.writes}
    model = ShardModel()
    committed: set[Token] = set()
    for lower, upper, writer, number in raced.intervals:
        write = by_token[writer, number]
        committed.add(write.token)
        demand((lower, upper) == (write.lower, write.upper), "another interval", write=write)
        demand(
            model.compare_and_append(write.updates, lower, upper),
            "a commit did not begin at upper",
            write=write,
        )
    for write in scenario.writes:
        said = set(write.said)
        there = write.token in committed
        empty = write.lower == write.upper
        if said & {"committed", "already"} and not empty:
            demand(there, "an acknowledged write is not there", write=write)
        if "mismatch" in said or said == {Outcome.NOT_APPLIED.value}:
            demand(not there, "a refused write is there", write=write)
    demand(
        consolidate(raced.updates) == model.changes(-1),
        "the shard holds other updates than were committed",
    )
    demand(raced.upper is None, "the shard was not finished")
    return model


def _check_shared(scenario: Scenario, shared: ObservedShard) -> ShardModel:
    model = ShardModel(None, sorted(shared_updates(scenario.world.seed), key=lambda u: u.time))
    demand(
        consolidate(shared.updates) == model.changes(-1),
        "two writers of one thing did not make it once",
        found=consolidate(shared.updates),
        wanted=model.changes(-1),
    )
    return model
