"""Commits at the next time under faults: inserts, parts of tasks, and transactions that read first.

Committers insert rows without reading, commit parts that they wrote before, or begin transactions
that read some shards. One shard is forgotten and registered again throughout. The model is the
decisions in the transaction shard's records: they state the time of each token. Each shard must
hold exactly the rows of these tokens at these times. A transaction that read first must have read
all that its shards hold before its time. Insertions must never be refused for their time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

import pyarrow as pa

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard, check_all
from sim.checkers.transactions import CommittedTransaction, decided_in
from sim.checkers.watch import Watch
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
from sim.kernel.world import Client, World
from sim.workloads.shard import table_of
from sim.workloads.transactions import (
    FAST,
    LOOSE,
    NAME,
    TransactionReport,
    TransactionScenario,
    maintain,
    persist,
    read_all,
    read_on,
    register_on,
    registration,
)
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    ContentionError,
    LocationError,
    NotRegistered,
    Outcome,
    OutcomeUnknown,
    PartsSwept,
    ReadOvertaken,
    UpperMismatch,
)
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import AppendResult
from tidelog.persist.transactions import applying, committing
from tidelog.persist.transactions.committing import NextTime
from tidelog.persist.transactions.transactions import Transactions
from tidelog.testing.models import Row, Update, accumulate, consolidate, contents_of

UNSURE: Final = (LocationError, ContentionError, OutcomeUnknown)
Attempt = Callable[[], Awaitable[AppendResult]]


@dataclass(slots=True)
class Insertion:
    """The rows of one token by shard, the rows that it read first, and the answers of its calls."""

    token: Token
    rows: dict[str, Row]
    read: dict[str, Counter[Row]] = field(default_factory=dict)
    uppers: set[int] = field(default_factory=set)
    refused: bool = False
    in_doubt: bool = False


@dataclass(slots=True)
class InsertScenario:
    """One run: the world of `TransactionScenario`, and the insertions."""

    base: TransactionScenario
    calls: list[Insertion] = field(default_factory=list)


def simulate_inserts(seed: int) -> TransactionReport:
    """Run one seed, and check everything.

    Raises:
        Violated: a check failed. Any other error: a client failed with an error that it must
            not raise.
    """
    dice = random.Random(f"inserts {seed}")
    mortal = frozenset(["c0", "c1", "m0", "registrar"])
    faults = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, faults, attempts=dice.choice([1, 2, 20]))
    watch = Watch(world.store)
    world.watchers.append(watch)
    scenario = InsertScenario(TransactionScenario(world, dice))
    report = scenario.base.report
    with limited(limits_of(seed)), patch.object(applying, "APPLY_COUNT", dice.choice([1, 3, 64])):
        run(lambda: _play(scenario), seed)
        _check(scenario, watch, check_all(world.store, watch))
    report.trace = world.trace()
    report.requests = world.requests_count
    report.deaths = sum(client.is_dead for client in world.clients.values())
    return report


async def _play(scenario: InsertScenario) -> None:
    base = scenario.base
    world = base.world
    maker = world.client("maker")
    for name in (*FAST, LOOSE):
        await persist(maker, registration(base, maker, name))
    committers = [world.client(f"c{number}") for number in range(base.dice.choice([1, 2, 3]))]
    base.committers_left = len(committers)
    async with asyncio.TaskGroup() as group:
        for client in committers:
            group.create_task(_race(scenario, client), name=client.name)
        for name in ("r0", "r1"):
            group.create_task(read_on(base, world.client(name)), name=name)
        for name in ("m0", "m1"):
            group.create_task(maintain(base, world.client(name)), name=name)
        client = world.client("registrar")
        group.create_task(client.live(register_on(base, client)), name=client.name)
    await asyncio.sleep(3_600)  # By then each late request of a dead client has landed.
    last = world.client("last")
    await persist(last, base.transactions(last).tidy)
    await read_all(base, last)


async def _race(scenario: InsertScenario, client: Client) -> None:
    try:
        await client.live(_commit_on(scenario, client))
    finally:
        scenario.base.committers_left -= 1


async def _commit_on(scenario: InsertScenario, client: Client) -> None:
    """Commit, a few at a time from one handle."""
    dice = scenario.base.dice
    found, number = scenario.base.transactions(client), 0
    for _ in range(dice.randrange(3, 8)):
        await client.clock.sleep(dice.randrange(60_000))
        if dice.random() < 0.2:
            found = scenario.base.transactions(client)
        async with asyncio.TaskGroup() as group:
            for _ in range(dice.choice([1, 1, 1, 3])):
                number += 1
                work = dice.choice([_insert, _insert, _insert_named, _commit_parts, _begin])
                group.create_task(work(scenario, client, found, number))


def _call(scenario: InsertScenario, token: Token) -> Insertion:
    dice = scenario.base.dice
    names = dice.sample([*FAST, LOOSE], dice.choice([1, 2, 2, 3]))
    call = Insertion(token, dict.fromkeys(names, (f"{token[0]}.{token[1]}", 1, None)))
    scenario.calls.append(call)
    scenario.base.history.begun.append((asyncio.get_running_loop().time(), token))
    return call


def _tables(call: Insertion) -> dict[str, pa.Table]:
    tables = {name: table_of([Update(row, 0, 1)]) for name, row in call.rows.items()}
    return {name: table.drop_columns(["_time"]) for name, table in tables.items()}


async def _insert(
    scenario: InsertScenario, client: Client, found: Transactions, number: int
) -> None:
    """Insert with an unnamed token, so that the checker knows it; see `Transactions.insert`."""
    call = _call(scenario, (f"u.{client.name}", number))
    earliest, known = _at(scenario, found), found.state.upper
    time = max(earliest, known)
    updates = {name: committing.rows_at(table, time) for name, table in _tables(call).items()}
    tries = 0

    async def attempt() -> AppendResult:
        nonlocal tries
        tries += 1
        request = NextTime(
            earliest=earliest, token=call.token, known_upper=known, is_retry=tries > 1
        )
        return await committing.commit_rows(found, updates, time, request)

    await _answered(scenario, client, call, attempt)


async def _insert_named(
    scenario: InsertScenario, client: Client, found: Transactions, number: int
) -> None:
    call = _call(scenario, (f"n.{client.name}.{number}", number))
    at = _at(scenario, found)
    await _answered(
        scenario, client, call, lambda: found.insert(_tables(call), at=at, token=call.token)
    )


async def _commit_parts(
    scenario: InsertScenario, client: Client, found: Transactions, number: int
) -> None:
    call = _call(scenario, (f"p.{client.name}.{number}", 0))
    at = _at(scenario, found)
    try:
        written = {
            name: [await found.write_parts(name, table)] for name, table in _tables(call).items()
        }
    except (NotRegistered, *UNSURE):
        call.refused = True
        return
    await client.clock.sleep(scenario.base.dice.choice([0, 0, 900_000]))
    await _answered(
        scenario, client, call, lambda: found.commit_parts(written, at=at, token=call.token)
    )


async def _begin(
    scenario: InsertScenario, client: Client, found: Transactions, number: int
) -> None:
    del number
    dice = scenario.base.dice
    try:
        begun = await found.begin()
        call = _call(scenario, begun.token)
        for name in dice.sample([*FAST, LOOSE], dice.choice([0, 1, 2])) if begun.at else ():
            rows = await (await begun.snapshot(name)).to_arrow(consolidated=True)
            call.read[name] = contents_of(rows)
    except (NotRegistered, AsOfBeforeSince, AsOfNotComplete, ReadOvertaken, *UNSURE):
        return  # A shard that was forgotten is not complete at this time.
    for name, table in _tables(call).items():
        begun.write(name, table)
    await client.clock.sleep(dice.choice([0, 0, 50_000]))
    await _answered(scenario, client, call, begun.commit)


def _at(scenario: InsertScenario, found: Transactions) -> int:
    return max(0, found.state.upper + scenario.base.dice.choice([-3, 0, 0, 0, 2]))


async def _answered(
    scenario: InsertScenario, client: Client, call: Insertion, attempt: Attempt
) -> None:
    """Call until there is an answer, or give up; note what the answers state."""
    dice = scenario.base.dice
    for _ in range(dice.choice([1, 60])):
        was_in_doubt, call.in_doubt = call.in_doubt, True  # The committer may die during the call.
        try:
            done = await attempt()
        except (NotRegistered, PartsSwept, UpperMismatch) as error:
            demand(
                not isinstance(error, NotRegistered) or LOOSE in {*call.rows, *call.read},
                "a shard was refused that is registered",
                error=error,
            )
            demand(
                not isinstance(error, UpperMismatch) or call.token[0][:2] not in ("u.", "n.", "p."),
                "an insertion was refused for its time",
                error=error,
            )
            call.refused, call.in_doubt = not was_in_doubt, was_in_doubt
            return
        except OutcomeUnknown:
            return
        except (LocationError, ContentionError) as error:
            call.in_doubt = was_in_doubt or error.outcome is not Outcome.NOT_APPLIED
            await client.clock.sleep(dice.randrange(200_000))
            continue
        call.in_doubt = was_in_doubt
        call.uppers.add(done.upper.time)
        scenario.base.history.told.append((asyncio.get_running_loop().time(), call.token))
        return


def _check(scenario: InsertScenario, watch: Watch, shards: dict[str, ObservedShard]) -> None:
    decided = decided_in(watch, NAME)
    calls = {call.token: call for call in scenario.calls}
    models: dict[str, list[Update]] = {name: [] for name in shards}
    for one in decided:
        call, time = calls[one.token], one.upper - 1
        demand(set(one.shards) == set(call.rows), "a commit wrote other shards", call=call)
        for name, rows in call.read.items():
            was = accumulate(models[name], time)
            demand(rows == was, "a commit does not follow from its reads", call=call, was=was)
        for name, row in call.rows.items():
            models[name].append(Update(row, time, 1))
    for name, observed in shards.items():
        demand(
            consolidate(observed.updates) == consolidate(models[name]),
            "a shard holds something else than was committed",
            shard=name,
            found=consolidate(observed.updates),
            wanted=consolidate(models[name]),
        )
    _check_answers(calls, decided)
    scenario.base.history.check(decided)
    for name, as_of, found in scenario.base.snapshots:
        was = accumulate(models[name], as_of)
        demand(found == was, "a reader saw what never was", shard=name, as_of=as_of, saw=found)
    scenario.base.report.commits = len(decided)
    scenario.base.report.refused = sum(call.refused for call in scenario.calls)


def _check_answers(calls: dict[Token, Insertion], decided: list[CommittedTransaction]) -> None:
    uppers = {one.token: one.upper for one in decided}
    demand(len(uppers) == len(decided), "a token was committed twice")
    for token, call in calls.items():
        upper = uppers.get(token)
        demand(call.uppers <= {upper}, "an answer names another time", call=call, upper=upper)
        if call.refused:
            demand(upper is None, "a refused commit is stored", call=call)
