"""Transactions under faults: committers that contend and die, readers, sweeps and merges.

Each transaction writes one unique row to each of its shards, so a row identifies its transaction.
One shard is forgotten and registered again throughout, and a client without knowledge of
transactions writes to it. The model is the decisions in the transaction shard's records. Each shard
must hold exactly these, plus the accepted writes of outsiders. The answers of calls and the results
of reads are checked against the model, as of their times and in real time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from sim.checkers.demands import Violated, demand
from sim.checkers.invariants import ObservedShard, check_all
from sim.checkers.transactions import CommittedTransaction, History, decided_in
from sim.checkers.watch import Watch
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
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
    """The updates of one token, and all answers of its calls."""

    token: Token
    lower: int
    upper: int
    updates: dict[str, list[Update]]
    said: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TransactionReport:
    """The counts of a run."""

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
class TransactionScenario:
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
        Violated: a check failed. Any other error: a client failed with an error that it must
            not raise.
    """
    dice = random.Random(f"transactions {seed}")
    mortal = frozenset(["c0", "c1", "m0", "registrar", "outsider"])
    dice_of_store = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, dice_of_store, attempts=dice.choice([1, 2, 20]))
    watch = Watch(world.store)
    world.watchers.append(watch)
    scenario = TransactionScenario(world, dice)
    with limited(limits_of(seed)):
        run(lambda: _play(scenario), seed)
        check_transactions(scenario, watch, check_all(world.store, watch))
    scenario.report.trace = world.trace()
    scenario.report.requests = world.requests_count
    scenario.report.deaths = sum(client.is_dead for client in world.clients.values())
    return scenario.report


async def _play(scenario: TransactionScenario) -> None:
    world = scenario.world
    maker = world.client("maker")
    for name in (*FAST, LOOSE):
        await persist(maker, registration(scenario, maker, name))
    committers = [world.client(f"c{number}") for number in range(scenario.dice.choice([1, 2, 3]))]
    scenario.committers_left = len(committers)
    async with asyncio.TaskGroup() as group:
        for client in committers:
            group.create_task(_race(scenario, client), name=client.name)
        for name in ("r0", "r1"):
            group.create_task(read_on(scenario, world.client(name)), name=name)
        for name in ("m0", "m1"):
            group.create_task(maintain(scenario, world.client(name)), name=name)
        for name, work in (("registrar", register_on), ("outsider", _write_outside)):
            client = world.client(name)
            group.create_task(client.live(work(scenario, client)), name=name)
    await asyncio.sleep(3_600)  # By then each late request of a dead client has landed.
    last = world.client("last")
    await persist(last, scenario.transactions(last).tidy)
    await read_all(scenario, last)


def registration(
    scenario: TransactionScenario, client: Client, name: str
) -> Callable[[], Awaitable[object]]:
    return lambda: scenario.transactions(client).register(scenario.shard(client, name))


async def persist(client: Client, call: Callable[[], Awaitable[object]]) -> None:
    for _ in range(TRIES):
        try:
            await call()
        except UNSURE:
            await client.clock.sleep(100_000)
        else:
            return
    raise Violated("what was committed cannot be applied, for ever")


async def _race(scenario: TransactionScenario, client: Client) -> None:
    try:
        await client.live(_commit_on(scenario, client))
    finally:
        scenario.committers_left -= 1


async def _commit_on(scenario: TransactionScenario, client: Client) -> None:
    found = scenario.transactions(client)
    for number in range(scenario.dice.randrange(3, 10)):
        await client.clock.sleep(scenario.dice.randrange(60_000))
        if scenario.dice.random() < 0.3:
            found = scenario.transactions(client)
        lower = max(0, found.state.upper - scenario.dice.choice([0, 0, 0, 0, 1]))
        upper = lower + scenario.dice.choice([1, 1, 2, 5])
        names = scenario.dice.sample([*FAST, LOOSE], scenario.dice.choice([0, 1, 2, 2, 3, 3]))
        updates = {
            name: [Update((f"{client.name}.{number}", len(names), None), upper - 1, 1)]
            for name in names
        }
        call = Call((client.name, number), lower, upper, updates)
        scenario.calls.append(call)
        await _commit(scenario, client, found, call)


async def _commit(
    scenario: TransactionScenario, client: Client, found: Transactions, call: Call
) -> None:
    tables = {name: table_of(updates) for name, updates in call.updates.items()}
    begin = asyncio.get_running_loop().time()
    scenario.history.begun.append((begin, call.token))
    for _ in range(scenario.dice.choice([1, 60])):
        call.said.append("nothing")  # This answer stays if the committer dies during the call.
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
            await client.clock.sleep(scenario.dice.randrange(200_000))
            if scenario.dice.random() < 0.2:
                found = scenario.transactions(client)
            continue
        call.said[-1] = done.verdict.value
        if done.verdict is not Verdict.MISMATCH:
            scenario.history.told.append((asyncio.get_running_loop().time(), call.token))
        return


async def read_on(scenario: TransactionScenario, client: Client) -> None:
    for _ in range(scenario.dice.randrange(2, 7)):
        await client.clock.sleep(scenario.dice.randrange(300_000))
        await read_all(scenario, client)


async def read_all(scenario: TransactionScenario, client: Client) -> None:
    """Read all shards as of one time."""
    found = scenario.transactions(client)
    begin = asyncio.get_running_loop().time()
    try:
        upper = (await found.upper()).time
    except LocationError:
        return
    scenario.history.reads.append((begin, asyncio.get_running_loop().time(), upper))
    as_of = upper - scenario.dice.choice([1, 1, 2, 4])
    if as_of < 0:
        return
    for name in (*FAST, LOOSE):
        # A client that knows only the shard must read the same.
        through: Transactions | None = found if scenario.dice.random() < 0.7 else None
        try:
            if through is not None:
                snapshot = await through.snapshot(name, as_of, timeout_us=2_000_000)
            else:
                shard = scenario.shard(client, name)
                snapshot = await shard.snapshot(as_of, timeout_us=2_000_000)
            scenario.snapshots.append(
                (name, as_of, contents_of(await snapshot.to_arrow(consolidated=True)))
            )
            scenario.report.reads += 1
        except (DeadlineExceeded, NotRegistered):
            demand(name == LOOSE, "a time is not complete that was", shard=name, as_of=as_of)
        except (AsOfBeforeSince, ReadOvertaken, *UNSURE):
            continue


async def maintain(scenario: TransactionScenario, client: Client) -> None:
    """Merge, delete and sweep; advance since; tidy."""
    shards = [scenario.shard(client, name) for name in (*FAST, LOOSE)]
    merging = merge_on(
        client,
        shards,
        scenario.dice,
        is_over=lambda: not scenario.committers_left,
        done=scenario.report.merged,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(client.live(merging), name=client.name)
        group.create_task(client.live(_tidy_on(scenario, client)), name=client.name)


async def _tidy_on(scenario: TransactionScenario, client: Client) -> None:
    while scenario.committers_left:
        await client.clock.sleep(scenario.dice.randrange(600_000))
        try:
            if scenario.dice.random() < 0.5:
                await scenario.transactions(client).tidy()
            shard = scenario.shard(client, scenario.dice.choice(FAST))
            upper = (await shard.refresh()).upper or 0
            await shard.hold("h")
            await shard.move_hold("h", max(0, upper - scenario.dice.choice([1, 3, 6])))
        except (UsageError, *UNSURE):
            continue


async def register_on(scenario: TransactionScenario, client: Client) -> None:
    """Forget the loose shard, and register it again."""
    while scenario.committers_left:
        await client.clock.sleep(scenario.dice.randrange(700_000))
        found = scenario.transactions(client)
        try:
            if scenario.dice.random() < 0.5:
                await found.forget(LOOSE)
                scenario.report.forgotten += 1
            else:
                await found.register(scenario.shard(client, LOOSE))
        except UNSURE:
            continue


async def _write_outside(scenario: TransactionScenario, client: Client) -> None:
    """Write to shards without knowledge of transactions."""
    number = 0
    while scenario.committers_left:
        await client.clock.sleep(scenario.dice.randrange(300_000))
        name = scenario.dice.choice([LOOSE, LOOSE, "a"])
        shard = scenario.shard(client, name)
        number += 1
        token = ("outsider", number)
        said: list[str] = ["nothing"]
        try:
            lower = (await shard.refresh()).upper or 0
            upper = lower + scenario.dice.choice([1, 1, 9])  # Past all transactions, or not.
            update = Update((f"outsider.{number}", 0, None), lower, 1)
            scenario.outside[token] = update, said
            done = await shard.try_compare_and_append(table_of([update]), lower, upper, token=token)
            said.append(done.verdict.value)
            demand(name == LOOSE, "an outsider wrote a registered shard", shard=name)
        except ShardRegistered:
            said.append("refused")
            scenario.report.refused += 1
        except UNSURE:
            said.append("unsure")


def check_transactions(
    scenario: TransactionScenario, watch: Watch, shards: dict[str, ObservedShard]
) -> None:
    """Check everything against the decisions."""
    decided = decided_in(watch, NAME)
    calls = {call.token: call for call in scenario.calls}
    outside = _check_outside(scenario, shards)
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
    _check_said(scenario, decided)
    scenario.history.check(decided)
    for name, as_of, found in scenario.snapshots:
        was = accumulate(models[name], as_of)
        demand(
            found == was, "a reader saw what never was", shard=name, as_of=as_of, saw=found, was=was
        )
    scenario.report.commits = len(decided)


def _check_said(scenario: TransactionScenario, decided: list[CommittedTransaction]) -> None:
    there = {one.token for one in decided}
    demand(len(there) == len(decided), "a token was committed twice")
    for call in scenario.calls:
        said = set(call.said)
        if said & {"committed", "already"}:
            demand(call.token in there, "an acknowledged transaction is not there", call=call)
        if "mismatch" in said or said == {Outcome.NOT_APPLIED.value}:
            demand(call.token not in there, "a refused transaction is there", call=call)


def _check_outside(
    scenario: TransactionScenario, shards: dict[str, ObservedShard]
) -> dict[str, list[Update]]:
    """Return the outsiders' writes by shard; each must match its answer."""
    found: dict[str, list[Update]] = {name: [] for name in shards}
    for name, observed in shards.items():
        for _, _, writer, number in observed.intervals:
            if writer == "outsider":
                demand(name == LOOSE, "an outsider wrote a registered shard", shard=name)
                update, said = scenario.outside[writer, number]
                demand(said[-1] != "refused", "a refused write is there", update=update)
                found[name].append(update)
                scenario.report.outside += 1
    there = {u.row for updates in found.values() for u in updates}
    for update, said in scenario.outside.values():
        if said[-1] == "committed":
            demand(update.row in there, "an acknowledged write is not there", update=update)
    return found
