"""Shards under fire: writers that contend, readers, listeners, holds, and merges that come between.

Writers have tokens of all kinds. Who merges deletes what that made vanish, at once or later, but
for what a lease holds. The model is the list of updates that each token carried, in the order in
which they were committed. What a call said of itself is held against that: told committed is there
once, told mismatch is not there, told unknown may be either. What readers saw is held against it
too.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from sim.checkers.demands import Violated, demand
from sim.checkers.invariants import Observed, check_all
from sim.checkers.watch import Watch
from sim.kernel.fates import Dice
from sim.kernel.loop import run
from sim.kernel.small import limited, limits_of
from sim.kernel.weather import rates_of
from sim.kernel.world import Client, World
from sim.workloads.leasing import Leases, lease_on
from sim.workloads.merging import Merges, merge_on
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
from tidelog.frontier import Frontier
from tidelog.ids import ShardId
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
    """What one token carried, and all that its calls said of it."""

    token: Token
    lower: int
    upper: int | None
    updates: list[Update]
    said: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What a run did."""

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
class Plot:
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
        Violated: something does not hold. Anything else: a client failed as it never should.
    """
    dice = random.Random(f"shard {seed}")
    mortal = frozenset(["w0", "w1", "p", "q", "holder", "m0", "l0"])
    dice_of_store = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, dice_of_store, attempts=dice.choice([1, 2, 20]))
    watch = Watch(world.store)
    world.watchers.append(watch)
    plot = Plot(world, dice)
    with limited(limits_of(seed)):
        run(lambda: _play(plot), seed)
        _check(plot, check_all(world.store, watch))
    plot.report.trace = world.trace()
    plot.report.requests = world.requests_count
    plot.report.deaths = sum(client.is_dead for client in world.clients.values())
    return plot.report


async def _play(plot: Plot) -> None:
    world = plot.world
    writers = [world.client(f"w{number}") for number in range(plot.dice.choice([1, 2, 3]))]
    sharers = [world.client(name) for name in ("p", "q")]
    plot.writers_left = len(writers)
    async with asyncio.TaskGroup() as group:
        for client in writers:
            group.create_task(_race(plot, client), name=client.name)
        for client in sharers:
            group.create_task(client.live(_share(plot, client)), name=client.name)
        for name in ("r0", "r1"):
            group.create_task(_read_on(plot, world.client(name)), name=name)
        holder = world.client("holder")
        group.create_task(holder.live(_hold_on(plot, holder)), name="holder")
        for name in ("m0", "m1"):
            merger = world.client(name)
            shards = [plot.shard(merger, RACED), plot.shard(merger, SHARED)]
            merging = merge_on(
                merger,
                shards,
                plot.dice,
                is_over=lambda: not plot.writers_left,
                done=plot.report.merged,
            )
            group.create_task(merger.live(merging), name=name)
        for name in ("l0", "l1"):
            lessee = world.client(name)
            leasing = lease_on(
                lessee,
                plot.shard(lessee, RACED),
                random.Random(f"{name} {world.seed}"),
                is_over=lambda: not plot.writers_left,
                done=plot.report.leased,
            )
            group.create_task(lessee.live(leasing), name=name)
        for name in (RACED, SHARED):
            ear = world.client(f"listener of {name}")
            group.create_task(_listen_on(plot, ear, name), name=ear.name)
        group.create_task(_finish(plot, world.client("last")), name="last")


async def _race(plot: Plot, client: Client) -> None:
    try:
        await client.live(_write_on(plot, client))
    finally:
        plot.writers_left -= 1


async def _write_on(plot: Plot, client: Client) -> None:
    """Write with tokens of all kinds, each until its fate is known or provably unknowable."""
    shard = plot.shard(client, RACED)
    named = plot.dice.random() < 0.4
    for number in range(plot.dice.randrange(2, 9)):
        await client.clock.sleep(plot.dice.randrange(30_000))
        # A handle that knows little proposes what is long past.
        known = shard.state.upper
        assert known is not None
        lower = max(0, known - plot.dice.choice([0, 0, 0, 1, 3]))
        upper = lower + plot.dice.choice([0, 1, 1, 2, 5])
        rows = plot.dice.choice([0, 1, 1, 3]) if upper > lower else 0
        updates = [_update(plot.dice, lower, upper) for _ in range(rows)]
        write = Write((f"{client.name}", number), lower, upper, updates)
        plot.writes.append(write)
        plot.report.writes += 1
        await _write(plot, client, shard, write, named=named)


async def _write(plot: Plot, client: Client, shard: Shard, write: Write, *, named: bool) -> None:
    table = table_of(write.updates)
    holds = plot.dice.choice([{}, {}, {f"hold of {client.name}": Frontier.at(write.lower)}])
    for _ in range(plot.dice.choice([1, 60])):
        write.said.append("nothing")  # As it stays where the writer dies over it.
        try:
            done = await shard.try_compare_and_append(
                table, write.lower, write.upper, token=write.token, named=named, holds=holds
            )
        except OutcomeUnknown:
            write.said[-1] = "unknown"
            plot.report.unknown += 1
            return
        except (LocationError, PartsSwept) as error:
            write.said[-1] = error.outcome.value
            await client.clock.sleep(plot.dice.randrange(200_000))
            if plot.dice.random() < 0.2:
                shard = plot.shard(client, RACED)
            continue
        write.said[-1] = done.verdict.value
        plot.report.committed += done.verdict is Verdict.COMMITTED
        plot.report.already += done.verdict is Verdict.ALREADY
        return


async def _share(plot: Plot, client: Client) -> None:
    """Append what the shared shard must hold, cut at times of one's own."""
    shard = plot.shard(client, SHARED)
    lower = 0
    while lower < END:
        upper = min(END, lower + plot.dice.randrange(1, 12))
        updates = [u for u in shared_updates(plot.world.seed) if lower <= u.time < upper]
        try:
            await shard.append(table_of(updates), lower, upper)
        except LocationError:
            await client.clock.sleep(plot.dice.randrange(200_000))
            continue
        except UpperMismatch as error:
            raise Violated("the shared shard has a hole") from error
        lower = upper


async def _read_on(plot: Plot, client: Client) -> None:
    for _ in range(plot.dice.randrange(2, 8)):
        await client.clock.sleep(plot.dice.randrange(300_000))
        name = plot.dice.choice([RACED, SHARED])
        shard = plot.shard(client, name)
        try:
            state = await shard.refresh()
            newest = END + 5 if state.upper is None else state.upper
            as_of = max(0, newest - plot.dice.choice([-3, 1, 1, 2, 5, 30]))
            snapshot = await shard.snapshot(as_of, timeout_us=2_000_000)
            plot.snapshots.append(
                (name, as_of, contents_of(await snapshot.to_arrow(consolidated=True)))
            )
            plot.report.reads += 1
        except AsOfBeforeSince:
            plot.gone.append((name, as_of))
        except (DeadlineExceeded, ReadOvertaken, LocationError):
            continue


async def _listen_on(plot: Plot, client: Client, name: ShardId) -> None:
    """Listen from some time on until the shard is finished, starting again where it broke off."""
    start = reached = plot.dice.choice([0, 0, 1, 4])
    shard = plot.shard(client, name)
    found: list[Update] = []
    while True:
        try:
            async for progress in shard.listen(reached, wait=True):
                demand(progress.lower == Frontier.at(reached + 1), "a listener jumped")
                found.extend(updates_of(progress.updates))
                if progress.upper.is_empty:
                    plot.heard.append((name, start, None, found))
                    return
                reached = progress.upper.time - 1
        except AsOfBeforeSince:
            plot.gone.append((name, reached))
            plot.heard.append((name, start, reached, found))
            return
        except LocationError:
            if plot.dice.random() < 0.3:
                shard = plot.shard(client, name)
            await client.clock.sleep(50_000)


async def _hold_on(plot: Plot, client: Client) -> None:
    """Hold the raced shard at some time, read there, and move up."""
    shard = plot.shard(client, RACED)
    while plot.writers_left:
        await client.clock.sleep(plot.dice.randrange(400_000))
        try:
            at = await shard.hold("held")
            if at.is_empty:
                return
            if shard.state.upper_frontier.passed(at.time):
                snapshot = await shard.snapshot(at.time)
                plot.snapshots.append(
                    (RACED, at.time, contents_of(await snapshot.to_arrow(consolidated=True)))
                )
            state = await shard.refresh()
            if state.upper is None:
                return
            await shard.downgrade_since("held", max(at.time, state.upper - 3))
        except LocationError:
            continue


async def _finish(plot: Plot, client: Client) -> None:
    """When the writers are through, bring the shared shard to its end, and finish both."""
    while plot.writers_left:
        await client.clock.sleep(500_000)
    await _share(plot, client)
    for name in (RACED, SHARED):
        shard = plot.shard(client, name)
        number = 0
        while (await _through(client, shard)) is not None:
            upper = shard.state.upper
            assert upper is not None
            write = Write((f"last of {name}", number), upper, None, [])
            if name == RACED:
                plot.writes.append(write)
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
    """Return what the shared shard of a seed holds in the end."""
    dice = random.Random(f"shared {seed}")
    return [
        _update(dice, time, time + 1)
        for time in range(END)
        for _ in range(dice.choice([0, 0, 1, 2]))
    ]


def table_of(updates: list[Update]) -> pa.Table:
    """Return updates as a table that a shard takes."""
    rows = [
        {**dict(zip(SCHEMA.names, u.row, strict=True)), TIME: u.time, DIFF: u.diff} for u in updates
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA.updates)


def _check(plot: Plot, shards: dict[str, Observed]) -> None:
    models = {
        RACED: _check_raced(plot, shards[RACED]),
        SHARED: _check_shared(plot, shards[SHARED]),
    }
    plot.snapshots += [(RACED, as_of, found) for as_of, found in plot.report.leased.seen]
    for name, as_of, found in plot.snapshots:
        was = models[name].contents(as_of)
        demand(found == was, "a reader saw what never was", as_of=as_of, saw=found, was=was)
    for name, start, reached, heard in plot.heard:
        was_heard = models[name].changes(start, reached)
        demand(
            consolidate(heard) == was_heard,
            "a listener heard other changes than there were",
            shard=name,
            after=start,
            heard=consolidate(heard),
            were=was_heard,
        )
    for name, as_of in plot.gone:
        since = shards[name].state.since
        demand(since is None or as_of < since, "a time was refused that is kept", as_of=as_of)


def _check_raced(plot: Plot, raced: Observed) -> ShardModel:
    """Hold what the calls said against what was decided, and return the model of that."""
    by_token = {write.token: write for write in plot.writes}
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
    for write in plot.writes:
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


def _check_shared(plot: Plot, shared: Observed) -> ShardModel:
    model = ShardModel(None, sorted(shared_updates(plot.world.seed), key=lambda u: u.time))
    demand(
        consolidate(shared.updates) == model.changes(-1),
        "two writers of one thing did not make it once",
        found=consolidate(shared.updates),
        wanted=model.changes(-1),
    )
    return model
