"""Transactions under fire: committers that contend and die, readers, sweeps, merges, and outsiders.

Each transaction writes one row of its own to each of some shards, so that a row says to whom it
belongs. One shard is registered and forgotten again and again, and somebody writes it who knows
nothing of transactions. The model is what was decided in the transaction shard, as its records say:
each shard holds exactly that, and what outsiders were let to write. What a call said of itself is
held against it, and what readers saw, at the time that they asked for and by the clock on the wall.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from sim.checkers.demands import Violated, demand
from sim.checkers.invariants import Observed, check_all
from sim.checkers.transactions import Decided, History, decided_in
from sim.checkers.watch import Watch
from sim.kernel.fates import Dice
from sim.kernel.loop import run
from sim.kernel.small import limited, limits_of
from sim.kernel.weather import rates_of
from sim.kernel.world import Client, World
from sim.workloads.merging import Merges, merge_on
from sim.workloads.shard import shard_of, table_of
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    DeadlineExceeded,
    LocationError,
    NotRegistered,
    Outcome,
    OutcomeUnknown,
    ReadOvertaken,
    ShardRegistered,
    UsageError,
)
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import Verdict
from tidelog.persist.transactions.transactions import Transactions
from tidelog.testing.models import Row, Update, accumulate, consolidate, contents_of

NAME: Final = "t"
FAST: Final = ("a", "b")
LOOSE: Final = "loose"
TRIES: Final = 500
UNSURE: Final = (LocationError, ContentionError, OutcomeUnknown)


@dataclass(slots=True)
class Call:
    """What one token carried, and all that was said of it."""

    token: Token
    lower: int
    upper: int
    updates: dict[str, list[Update]]
    said: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TransactionReport:
    """What a run did."""

    trace: str = ""
    commits: int = 0
    outside: int = 0
    refused: int = 0
    reads: int = 0
    forgotten: int = 0
    merged: Merges = field(default_factory=Merges)
    deaths: int = 0
    requests: int = 0


@dataclass(slots=True)
class TransactionPlot:
    """One run."""

    world: World
    dice: random.Random
    report: TransactionReport = field(default_factory=TransactionReport)
    calls: list[Call] = field(default_factory=list)
    history: History = field(default_factory=History)
    snapshots: list[tuple[str, int, Counter[Row]]] = field(default_factory=list)
    outside: dict[Token, tuple[Update, list[str]]] = field(default_factory=dict)
    committers_left: int = 0

    def transactions(self, client: Client) -> Transactions:
        return Transactions(
            name=NAME, store=client.store, consensus=client.consensus, clock=client.clock
        )

    def shard(self, client: Client, name: str) -> Shard:
        return shard_of(client, name)


def simulate_transactions(seed: int) -> TransactionReport:
    """Run one seed, and check everything.

    Raises:
        Violated: something does not hold. Anything else: a client failed as it never should.
    """
    dice = random.Random(f"transactions {seed}")
    mortal = frozenset(["c0", "c1", "m0", "registrar", "outsider"])
    dice_of_store = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, dice_of_store, attempts=dice.choice([1, 2, 20]))
    watch = Watch(world.store)
    world.watchers.append(watch)
    plot = TransactionPlot(world, dice)
    with limited(limits_of(seed)):
        run(lambda: _play(plot), seed)
        check_transactions(plot, watch, check_all(world.store, watch))
    plot.report.trace = world.trace()
    plot.report.requests = world.requests_count
    plot.report.deaths = sum(client.is_dead for client in world.clients.values())
    return plot.report


async def _play(plot: TransactionPlot) -> None:
    world = plot.world
    maker = world.client("maker")
    for name in (*FAST, LOOSE):
        await persist(maker, registration(plot, maker, name))
    committers = [world.client(f"c{number}") for number in range(plot.dice.choice([1, 2, 3]))]
    plot.committers_left = len(committers)
    async with asyncio.TaskGroup() as group:
        for client in committers:
            group.create_task(_race(plot, client), name=client.name)
        for name in ("r0", "r1"):
            group.create_task(_read_on(plot, world.client(name)), name=name)
        for name in ("m0", "m1"):
            group.create_task(upkeep(plot, world.client(name)), name=name)
        for name, work in (("registrar", register_on), ("outsider", _write_outside)):
            client = world.client(name)
            group.create_task(client.live(work(plot, client)), name=name)
    await asyncio.sleep(3_600)  # By then each late request of a dead client has landed.
    last = world.client("last")
    await persist(last, plot.transactions(last).tidy)
    await _read_all(plot, last)


def registration(
    plot: TransactionPlot, client: Client, name: str
) -> Callable[[], Awaitable[object]]:
    return lambda: plot.transactions(client).register(plot.shard(client, name))


async def persist(client: Client, call: Callable[[], Awaitable[object]]) -> None:
    for _ in range(TRIES):
        try:
            await call()
        except UNSURE:
            await client.clock.sleep(100_000)
        else:
            return
    raise Violated("what was committed cannot be applied, for ever")


async def _race(plot: TransactionPlot, client: Client) -> None:
    try:
        await client.live(_commit_on(plot, client))
    finally:
        plot.committers_left -= 1


async def _commit_on(plot: TransactionPlot, client: Client) -> None:
    found = plot.transactions(client)
    for number in range(plot.dice.randrange(3, 10)):
        await client.clock.sleep(plot.dice.randrange(60_000))
        if plot.dice.random() < 0.3:
            found = plot.transactions(client)
        lower = max(0, found.state.upper - plot.dice.choice([0, 0, 0, 0, 1]))
        upper = lower + plot.dice.choice([1, 1, 2, 5])
        names = plot.dice.sample([*FAST, LOOSE], plot.dice.choice([0, 1, 2, 2, 3, 3]))
        updates = {
            name: [Update((f"{client.name}.{number}", len(names), None), upper - 1, 1)]
            for name in names
        }
        call = Call((client.name, number), lower, upper, updates)
        plot.calls.append(call)
        await _commit(plot, client, found, call)


async def _commit(plot: TransactionPlot, client: Client, found: Transactions, call: Call) -> None:
    tables = {name: table_of(updates) for name, updates in call.updates.items()}
    begin = asyncio.get_running_loop().time()
    plot.history.begun.append((begin, call.token))
    for _ in range(plot.dice.choice([1, 60])):
        call.said.append("nothing")  # As it stays where the committer dies over it.
        try:
            span = call.lower, call.upper
            done = await found.try_compare_and_append(tables, *span, token=call.token)
        except OutcomeUnknown:
            call.said[-1] = "unknown"
            return
        except NotRegistered as error:
            demand(LOOSE in call.updates, "a shard was refused that is registered", error=error)
            call.said[-1] = Outcome.NOT_APPLIED.value
            return
        except (LocationError, ContentionError) as error:
            call.said[-1] = error.outcome.value
            await client.clock.sleep(plot.dice.randrange(200_000))
            if plot.dice.random() < 0.2:
                found = plot.transactions(client)
            continue
        call.said[-1] = done.verdict.value
        if done.verdict is not Verdict.MISMATCH:
            plot.history.told.append((asyncio.get_running_loop().time(), call.token))
        return


async def _read_on(plot: TransactionPlot, client: Client) -> None:
    for _ in range(plot.dice.randrange(2, 7)):
        await client.clock.sleep(plot.dice.randrange(300_000))
        await _read_all(plot, client)


async def _read_all(plot: TransactionPlot, client: Client) -> None:
    """Read all shards as of one time."""
    found = plot.transactions(client)
    begin = asyncio.get_running_loop().time()
    try:
        upper = (await found.upper()).time
    except LocationError:
        return
    plot.history.reads.append((begin, asyncio.get_running_loop().time(), upper))
    as_of = upper - plot.dice.choice([1, 1, 2, 4])
    if as_of < 0:
        return
    for name in (*FAST, LOOSE):
        # Whoever knows the shard alone reads the same.
        through: Transactions | None = found if plot.dice.random() < 0.7 else None
        try:
            if through is not None:
                snapshot = await through.snapshot(name, as_of, timeout_us=2_000_000)
            else:
                shard = plot.shard(client, name)
                snapshot = await shard.snapshot(as_of, timeout_us=2_000_000)
            plot.snapshots.append(
                (name, as_of, contents_of(await snapshot.to_arrow(consolidated=True)))
            )
            plot.report.reads += 1
        except (DeadlineExceeded, NotRegistered):
            demand(name == LOOSE, "a time is not complete that was", shard=name, as_of=as_of)
        except (AsOfBeforeSince, ReadOvertaken, *UNSURE):
            continue


async def upkeep(plot: TransactionPlot, client: Client) -> None:
    """Merge, delete, sweep; move since; tidy."""
    shards = [plot.shard(client, name) for name in (*FAST, LOOSE)]
    merging = merge_on(
        client,
        shards,
        plot.dice,
        is_over=lambda: not plot.committers_left,
        done=plot.report.merged,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(client.live(merging), name=client.name)
        group.create_task(client.live(_tidy_on(plot, client)), name=client.name)


async def _tidy_on(plot: TransactionPlot, client: Client) -> None:
    while plot.committers_left:
        await client.clock.sleep(plot.dice.randrange(600_000))
        try:
            if plot.dice.random() < 0.5:
                await plot.transactions(client).tidy()
            shard = plot.shard(client, plot.dice.choice(FAST))
            upper = (await shard.refresh()).upper or 0
            await shard.hold("h")
            await shard.downgrade_since("h", max(0, upper - plot.dice.choice([1, 3, 6])))
        except (UsageError, *UNSURE):
            continue


async def register_on(plot: TransactionPlot, client: Client) -> None:
    """Forget the loose shard, and register it again."""
    while plot.committers_left:
        await client.clock.sleep(plot.dice.randrange(700_000))
        found = plot.transactions(client)
        try:
            if plot.dice.random() < 0.5:
                await found.forget(LOOSE)
                plot.report.forgotten += 1
            else:
                await found.register(plot.shard(client, LOOSE))
        except UNSURE:
            continue


async def _write_outside(plot: TransactionPlot, client: Client) -> None:
    """Write shards as who knows nothing of transactions."""
    number = 0
    while plot.committers_left:
        await client.clock.sleep(plot.dice.randrange(300_000))
        name = plot.dice.choice([LOOSE, LOOSE, "a"])
        shard = plot.shard(client, name)
        number += 1
        token = ("outsider", number)
        said: list[str] = ["nothing"]
        try:
            lower = (await shard.refresh()).upper or 0
            upper = lower + plot.dice.choice([1, 1, 9])  # Past all transactions, or not.
            update = Update((f"outsider.{number}", 0, None), lower, 1)
            plot.outside[token] = update, said
            done = await shard.try_compare_and_append(table_of([update]), lower, upper, token=token)
            said.append(done.verdict.value)
            demand(name == LOOSE, "an outsider wrote a registered shard", shard=name)
        except ShardRegistered:
            said.append("refused")
            plot.report.refused += 1
        except UNSURE:
            said.append("unsure")


def check_transactions(plot: TransactionPlot, watch: Watch, shards: dict[str, Observed]) -> None:
    """Hold everything against what was decided."""
    decided = decided_in(watch, NAME)
    calls = {call.token: call for call in plot.calls}
    outside = _check_outside(plot, shards)
    models: dict[str, list[Update]] = {name: list(outside[name]) for name in shards}
    for one in decided:
        call = calls[one.token]
        demand((one.lower, one.upper) == (call.lower, call.upper), "another interval", call=call)
        written = {name for name, updates in call.updates.items() if updates}
        demand(set(one.shards) == written, "a transaction wrote other shards", call=call)
        for name in written:
            models[name] += call.updates[name]
    for name, observed in shards.items():
        demand(
            consolidate(observed.updates) == consolidate(models[name]),
            "a shard holds something else than was committed",
            shard=name,
            found=consolidate(observed.updates),
            wanted=consolidate(models[name]),
        )
    _check_said(plot, decided)
    plot.history.check(decided)
    for name, as_of, found in plot.snapshots:
        was = accumulate(models[name], as_of)
        demand(
            found == was, "a reader saw what never was", shard=name, as_of=as_of, saw=found, was=was
        )
    plot.report.commits = len(decided)


def _check_said(plot: TransactionPlot, decided: list[Decided]) -> None:
    there = {one.token for one in decided}
    demand(len(there) == len(decided), "a token was committed twice")
    for call in plot.calls:
        said = set(call.said)
        if said & {"committed", "already"}:
            demand(call.token in there, "an acknowledged transaction is not there", call=call)
        if "mismatch" in said or said == {Outcome.NOT_APPLIED.value}:
            demand(call.token not in there, "a refused transaction is there", call=call)


def _check_outside(plot: TransactionPlot, shards: dict[str, Observed]) -> dict[str, list[Update]]:
    """Return what outsiders wrote, by shard: nothing but what they were told."""
    found: dict[str, list[Update]] = {name: [] for name in shards}
    for name, observed in shards.items():
        for _, _, writer, number in observed.intervals:
            if writer == "outsider":
                demand(name == LOOSE, "an outsider wrote a registered shard", shard=name)
                update, said = plot.outside[writer, number]
                demand(said[-1] != "refused", "a refused write is there", update=update)
                found[name].append(update)
                plot.report.outside += 1
    there = {u.row for updates in found.values() for u in updates}
    for update, said in plot.outside.values():
        if said[-1] == "committed":
            demand(update.row in there, "an acknowledged write is not there", update=update)
    return found
