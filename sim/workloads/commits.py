"""Transactions that contend, lose answers and are read, with a checker of calls and answers.

Each transaction covers one time and writes its name to each of its shards, so its times are the
records that `sim.checkers.linear` knows. One shard is forgotten and registered again throughout;
all are merged, swept and collected. Only clients read the store.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from sim.checkers.linear import FOREVER, LANDED, LOST, NEVER, UNSURE, NotLinear
from sim.checkers.linear_transactions import Commit, Look, check_transactions_outside
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
from sim.kernel.world import Client, World
from sim.workloads.shard import table_of
from sim.workloads.transactions import (
    FAST,
    LOOSE,
    TransactionScenario,
    maintain,
    persist,
    register_on,
    registration,
)
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    DeadlineExceeded,
    LocationError,
    NotRegistered,
    Outcome,
    OutcomeUnknown,
    ReadOvertaken,
)
from tidelog.persist.states.transition import Verdict
from tidelog.persist.transactions.transactions import Transactions
from tidelog.testing.models import Update, contents_of

HOUR_S = 3_600


@dataclass(slots=True)
class CommitReport:
    """The counts of a run."""

    trace: str = ""
    commits: int = 0
    landed: int = 0
    lost: int = 0
    unsure: int = 0
    looks: int = 0
    deaths: int = 0
    requests: int = 0


@dataclass(slots=True)
class CallHistory:
    """The calls of clients, and the answers."""

    commits: list[Commit] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)


def simulate_commits(seed: int) -> CommitReport:
    """Run one seed, and check its history.

    Raises:
        NotLinear: the history is not linearizable. Any other error: a client failed with an
            error
        that it must not raise.
    """
    dice = random.Random(f"commits {seed}")
    names = [f"c{number}" for number in range(dice.choice([2, 3, 4]))]
    mortal = frozenset([*names, "m0", "registrar"])
    schedule = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, schedule, attempts=dice.choice([1, 2, 20]))
    scenario, told = TransactionScenario(world, dice), CallHistory()
    with limited(limits_of(seed)):
        run(lambda: _play(scenario, told, names), seed)
    check_transactions_outside(told.commits, told.looks)
    answers = [commit.answer for commit in told.commits]
    return CommitReport(
        trace=world.trace(),
        commits=len(answers),
        landed=answers.count(LANDED),
        lost=answers.count(LOST),
        unsure=answers.count(UNSURE),
        looks=len(told.looks),
        deaths=sum(client.is_dead for client in world.clients.values()),
        requests=world.requests_count,
    )


async def _play(scenario: TransactionScenario, told: CallHistory, names: list[str]) -> None:
    world = scenario.world
    maker = world.client("maker")
    for name in (*FAST, LOOSE):
        await persist(maker, registration(scenario, maker, name))
    scenario.committers_left = len(names)
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(_race(scenario, told, world.client(name)), name=name)
        for name in ("r0", "r1"):
            reading = _look_on(scenario, told, world.client(name))
            group.create_task(reading, name=name)
        for name in ("m0", "m1"):
            group.create_task(maintain(scenario, world.client(name)), name=name)
        registrar = world.client("registrar")
        group.create_task(registrar.live(register_on(scenario, registrar)), name="registrar")
    # All requests land within this time, so the last look comes after them.
    await asyncio.sleep(HOUR_S)
    assert isinstance(world.schedule, Dice)
    world.schedule.calm = True
    last = world.client("last")
    await persist(last, lambda: scenario.transactions(last).register(scenario.shard(last, LOOSE)))
    looks = len(told.looks)
    await _look(scenario, told, last)
    if len(told.looks) == looks:
        raise NotLinear("what is complete could not be read in the end")


async def _race(scenario: TransactionScenario, told: CallHistory, client: Client) -> None:
    try:
        await client.live(_commit_on(scenario, told, client))
    finally:
        scenario.committers_left -= 1


async def _commit_on(scenario: TransactionScenario, told: CallHistory, client: Client) -> None:
    dice, found = scenario.dice, scenario.transactions(client)
    for number in range(dice.randrange(4, 14)):
        await client.clock.sleep(dice.randrange(60_000))
        if dice.random() < 0.2:
            found = scenario.transactions(client)
        # Mostly a call that can win, as far as the client knows; sometimes one that cannot.
        lower = max(0, found.state.upper + dice.choice([0, 0, 0, 0, -1, 1]))
        shards = {*dice.sample(FAST, dice.choice([1, 2])), *dice.choice([(), (LOOSE,)])}
        await _commit(scenario, told, client, found, (f"{client.name}.{number}", lower, shards))


async def _commit(
    scenario: TransactionScenario,
    told: CallHistory,
    client: Client,
    found: Transactions,
    what: tuple[str, int, set[str]],
) -> None:
    name, lower, shards = what
    tables = {shard: table_of([Update((name, lower, None), lower, 1)]) for shard in sorted(shards)}
    begin, end, answer, in_doubt = _now(), FOREVER, UNSURE, False
    try:
        for _ in range(scenario.dice.choice([1, 60])):
            answer = UNSURE  # This answer stays if the client dies during the call.
            try:
                done = await found.try_compare_and_append(tables, lower, lower + 1, token=(name, 0))
            except NotRegistered:
                # A committed token would be reported instead.
                answer = NEVER
                break
            except (LocationError, ContentionError) as error:
                # One of several tries may have landed, whatever the last one's outcome.
                in_doubt |= error.outcome is not Outcome.NOT_APPLIED
                answer = UNSURE if in_doubt else NEVER
                if isinstance(error, OutcomeUnknown):
                    break
                await client.clock.sleep(scenario.dice.randrange(200_000))
                continue
            answer = LOST if done.verdict is Verdict.MISMATCH else LANDED
            break
        end = FOREVER if answer == UNSURE else _now()
    finally:
        told.commits.append(
            Commit(
                client=client.name,
                name=name,
                lower=lower,
                shards=frozenset(shards),
                begin=begin,
                end=end,
                answer=answer,
            )
        )


async def _look_on(scenario: TransactionScenario, told: CallHistory, client: Client) -> None:
    while scenario.committers_left:
        await client.clock.sleep(scenario.dice.randrange(300_000))
        await _look(scenario, told, client)


async def _look(scenario: TransactionScenario, told: CallHistory, client: Client) -> None:
    """Read all shards as of the newest complete time."""
    found = scenario.transactions(client)
    begin = _now()
    seen: dict[str, tuple[tuple[int, str], ...]] = {}
    try:
        upper = (await found.upper()).time
        for name in (*FAST, LOOSE) if upper else ():
            through: Transactions | None = found if scenario.dice.random() < 0.7 else None
            try:
                if through is not None:
                    snapshot = await through.snapshot(name, upper - 1, timeout_us=2_000_000)
                else:
                    shard = scenario.shard(client, name)
                    snapshot = await shard.snapshot(upper - 1, timeout_us=2_000_000)
                rows = contents_of(await snapshot.to_arrow(consolidated=True))
            except (DeadlineExceeded, NotRegistered):
                if name in FAST:
                    raise
                continue
            seen[name] = tuple((int(str(row[1])), str(row[0])) for row in rows.elements())
    except (AsOfBeforeSince, ReadOvertaken, OutcomeUnknown, LocationError, ContentionError):
        return
    told.looks.append(Look(client=client.name, begin=begin, end=_now(), seen=seen))


def _now() -> float:
    return asyncio.get_running_loop().time()
