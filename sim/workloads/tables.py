"""Tables under faults: all writes, transactions, drops, retention, readers and a follower.

Writers change a table, or several in one transaction, with calls that they repeat after a lost
answer. They may die or lose their handles. One table is dropped and created again throughout, and
columns come and go. The model is the decisions in the transaction shard's records: these calls,
applied to counted rows in the order of their times, give the contents of each table at each time.
The results of reads, the steps of a follower and the updates in the shards must equal the model. A
transaction must follow from its own reads.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from unittest.mock import patch

from sim.checkers.demands import Violated, demand
from sim.checkers.invariants import ObservedShard, check_all
from sim.checkers.transactions import CommittedTransaction, decided_in
from sim.checkers.watch import Watch
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
from sim.kernel.world import Client, World
from sim.workloads.table_writes import Rows, Write, drawn_write
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.maintenance import Maintenance
from tidelog.collection.table_handle import Table, scoped_token
from tidelog.collection.tables import Tables, table_transactions
from tidelog.collection.transaction import TableTransaction
from tidelog.core.ids import TABLES
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    ContentionError,
    KeyExists,
    LocationError,
    NameTaken,
    NoSuchCollection,
    OutcomeUnknown,
    ReadOvertaken,
    SchemaEvolved,
    UpperMismatch,
    UsageError,
)
from tidelog.persist.states.state import Token
from tidelog.persist.transactions import applying
from tidelog.testing.models import Update

T = TypeVar("T")
SCHEMA: Final = "id bigint, n bigint"
KEYS: Final[dict[str, list[str]]] = {"keyed": ["id"], "loose": [], "gone": []}
RETAIN_MS: Final = {"loose": 400}
UNSURE: Final = (LocationError, ContentionError, OutcomeUnknown, ReadOvertaken)
REFUSED: Final = (
    KeyExists,
    UsageError,
    UpperMismatch,
    NoSuchCollection,
    SchemaEvolved,
    AsOfBeforeSince,
)
GONE: Final = (NoSuchCollection.__name__, SchemaEvolved.__name__)
TRIES: Final = 4
PERSISTS: Final = 5_000  # In a storm of faults, few calls of ten requests succeed.


@dataclass(slots=True)
class Call:
    """The writes of one token by rendition, its reads before them, and its answer."""

    token: Token
    writes: list[tuple[str, Write]]
    read: dict[str, Rows] = field(default_factory=dict)
    time: int | None = None
    refused: str = ""


@dataclass(slots=True)
class TablesReport:
    """The counts of a run."""

    trace: str = ""
    commits: int = 0
    several: int = 0
    refused: int = 0
    reads: int = 0
    steps: int = 0
    too_old: int = 0
    drops: int = 0
    alterations: int = 0
    maintained: int = 0
    deaths: int = 0
    requests: int = 0


@dataclass(slots=True)
class TablesScenario:
    """One run."""

    world: World
    dice: random.Random
    report: TablesReport = field(default_factory=TablesReport)
    calls: list[Call] = field(default_factory=list)
    snapshots: list[tuple[str, int, Rows]] = field(default_factory=list)
    told: int = -1
    writers_left: int = 0
    follows: bool = True

    def definition(self, name: str) -> dict[str, Any]:
        """Return the options with which a table is created."""
        return {"key": KEYS[name], "shards": 2, "retain_ms": RETAIN_MS.get(name)}

    async def made(self, client: Client, name: str) -> Table:
        """Return a table, and create it if it is not there."""
        tables = self.tables(client)

        async def make() -> Table:
            while True:
                try:
                    return await tables.create(name, SCHEMA, **self.definition(name))
                except NameTaken:
                    # A drop whose answer was lost may land before the table is opened.
                    with suppress(NoSuchCollection):
                        return await tables.open(name)

        return await persist(client, make)

    def tables(self, client: Client) -> Tables:
        """Return the tables as a new process opens them."""
        return Tables(
            store=client.store,
            consensus=client.consensus,
            clock=client.clock,
            controller=Controller(
                store=client.store, consensus=client.consensus, clock=client.clock
            ),
            transactions=table_transactions(client.store, client.consensus, client.clock),
        )


def simulate_tables(seed: int) -> TablesReport:
    """Run one seed, and check everything.

    Raises:
        Violated: a check failed. Any other error: a client failed with an error that it must
            not raise.
    """
    dice = random.Random(f"tables {seed}")
    mortal = frozenset(["w0", "w1", "m0", "dropper", "a0"])
    faults = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, faults, attempts=dice.choice([1, 2, 20]))
    watch = Watch(world.store)
    world.watchers.append(watch)
    scenario = TablesScenario(world, dice)
    with limited(limits_of(seed)), patch.object(applying, "APPLY_COUNT", dice.choice([1, 3, 64])):
        tables = run(lambda: _play(scenario), seed)
        shards = check_all(world.store, watch)
        check_tables(scenario, decided_in(watch, TABLES), shards, tables)
    report = scenario.report
    report.trace = world.trace()
    report.requests = world.requests_count
    report.deaths = sum(client.is_dead for client in world.clients.values())
    return report


async def _play(scenario: TablesScenario) -> dict[str, list[str]]:
    """Run all clients; return the shards of each rendition that is left."""
    world = scenario.world
    maker = world.client("maker")
    for name in KEYS:
        await scenario.made(maker, name)
    writers = [world.client(f"w{number}") for number in range(scenario.dice.choice([1, 2, 3]))]
    scenario.writers_left = len(writers)
    last = world.client("last")
    async with asyncio.TaskGroup() as group:
        for client in writers:
            writes = _write_all(scenario, client)
            group.create_task(write_on(scenario, client, writes), name=client.name)
        for name, work in (
            ("r0", _read_on),
            ("m0", maintain_on),
            ("m1", maintain_on),
            ("dropper", _drop_on),
            ("a0", _alter_on),
            ("a1", _alter_on),
        ):
            client = world.client(name)
            group.create_task(client.live(work(scenario, client)), name=name)
        follower = world.client("follower")
        group.create_task(follow_on(scenario, follower), name="follower")
        group.create_task(_advance_on(scenario, last), name="last")
    await asyncio.sleep(3_600)  # By then each late request of a dead client has landed.
    tables = scenario.tables(last)
    await persist(last, tables.transactions.tidy)
    assert isinstance(world.schedule, Dice)
    world.schedule.calm = True  # In a storm, a call of twenty requests hardly ever succeeds.
    left: dict[str, list[str]] = {}
    for name in await persist(last, tables.list):
        table = await scenario.made(last, name)
        await persist(last, table.finish)
        left[table.info.rendition] = [shard.id for shard in table.shards]
        await persist(last, partial(read_tables, scenario, [table], None))
    return left


async def persist(client: Client, call: Callable[[], Awaitable[T]]) -> T:
    """Retry a call while the store fails or other clients win."""
    for _ in range(PERSISTS):
        try:
            return await call()
        except UNSURE:
            await client.clock.sleep(100_000)
    raise Violated("a repeated call never succeeds")


async def write_on(
    scenario: TablesScenario, client: Client, writes: Coroutine[Any, Any, None]
) -> None:
    """Do the writes of one writer, which is counted until it ends or dies."""
    try:
        await client.live(writes)
    finally:
        scenario.writers_left -= 1


async def _write_all(scenario: TablesScenario, client: Client) -> None:
    dice, tables, opened = scenario.dice, scenario.tables(client), dict[str, Table]()
    for number in range(dice.randrange(3, 8)):
        await client.clock.sleep(dice.randrange(60_000))
        if dice.random() < 0.2:  # The process starts again.
            tables, opened = scenario.tables(client), {}
        if dice.random() < 0.35:
            await _transact(scenario, client, tables)
            continue
        name = dice.choice(list(KEYS))
        try:
            if name not in opened:
                opened[name] = await tables.open(name)
        except (NoSuchCollection, *UNSURE):
            continue
        if not await write_table(scenario, client, opened[name], number):
            opened.pop(name)


async def write_table(scenario: TablesScenario, client: Client, table: Table, number: int) -> bool:
    """Write one table, with a token; return False if the handle is of no further use."""
    write = drawn_write(scenario.dice, keyed=bool(table.info.key))
    write = write.widened(extra_columns(table))
    token = (f"{client.name}.{number}", number)
    scoped = scoped_token(table.info, token)
    assert scoped is not None
    call = Call(scoped, [(table.info.rendition, write)])
    scenario.calls.append(call)
    method = getattr(table, write.method)
    await _answered(
        scenario, client, call, lambda: method(*write.given, token=token, **write.options)
    )
    return call.refused not in GONE


async def _transact(scenario: TablesScenario, client: Client, tables: Tables) -> None:
    """Read and write one table or several in one transaction."""
    dice, begun = scenario.dice, TableTransaction(tables=tables)
    call = Call(begun.token, [])
    try:
        for name in dice.sample(list(KEYS), dice.choice([0, 1, 2])):
            found = await (await begun.snapshot(name)).to_arrow()
            call.read[begun._touched[name].table.info.rendition] = counted(found)
        for _ in range(dice.choice([1, 2, 3])):
            name = dice.choice(list(KEYS))
            write = drawn_write(dice, keyed=bool(KEYS[name]))
            if name in begun._touched:
                write = write.widened(extra_columns(begun._touched[name].table))
            await getattr(begun, write.method)(name, *write.given, **write.options)
            call.writes.append((begun._touched[name].table.info.rendition, write))
    except (*REFUSED, AsOfNotComplete, *UNSURE):
        return
    await client.clock.sleep(dice.choice([0, 0, 40_000]))
    scenario.calls.append(call)
    await _answered(scenario, client, call, begun.commit)


async def _answered(
    scenario: TablesScenario, client: Client, call: Call, attempt: Callable[[], Awaitable[int]]
) -> None:
    """Call until there is an answer, or give up in doubt."""
    for _ in range(TRIES):
        try:
            call.time = await attempt()
        except REFUSED as error:
            call.refused = type(error).__name__
            scenario.report.refused += 1
            return
        except OutcomeUnknown:
            return
        except UNSURE:
            await client.clock.sleep(scenario.dice.randrange(50_000))
        else:
            scenario.told = max(scenario.told, call.time)
            return


async def read_tables(scenario: TablesScenario, tables: list[Table], time: int | None) -> None:
    """Read tables as of one time: a given one, or the newest complete time of the first table."""
    told = scenario.told if time is None else -1
    for table in tables:
        contents = await table.snapshot(time)
        time = contents.as_of
        demand(told <= time, "a read missed what was told before it", told=told, saw=time)
        found = counted(await contents.to_arrow())
        scenario.snapshots.append((table.info.rendition, time, found))
        scenario.report.reads += 1


async def _read_on(scenario: TablesScenario, client: Client) -> None:
    dice, tables = scenario.dice, scenario.tables(client)
    while scenario.writers_left:
        await client.clock.sleep(dice.randrange(120_000))
        if dice.random() < 0.2:
            tables = scenario.tables(client)
        try:
            names = dice.sample(list(KEYS), len(KEYS))
            opened = [await tables.open(name) for name in names]
            past = scenario.told - dice.choice([0, 20, 500]) if dice.random() < 0.3 else -1
            await read_tables(scenario, opened, past if past >= 0 else None)
        except (AsOfBeforeSince, AsOfNotComplete):
            scenario.report.too_old += 1
        except (NoSuchCollection, SchemaEvolved, *UNSURE):
            continue


async def follow_on(scenario: TablesScenario, client: Client, name: str = "keyed") -> None:
    """Follow a table; begin again if retention has passed the follower."""
    while scenario.follows:
        try:
            await _follow(scenario, client, name)
        except AsOfBeforeSince:
            scenario.report.too_old += 1


async def _follow(scenario: TablesScenario, client: Client, name: str) -> None:
    """Take a snapshot, and add the steps after it; each must give the contents at its upper."""
    table = await scenario.made(client, name)
    base = await persist(client, table.snapshot)
    while True:
        try:
            rows = counted(await persist(client, base.to_arrow))
            break
        except SchemaEvolved:  # Another process has dropped a column since.
            table = await scenario.made(client, name)
            base = await persist(client, table.snapshot)
    reached = base.as_of
    while scenario.follows:
        try:
            async for step in table.listen(reached):
                for row in step.updates.to_pylist():
                    rows[row["id"], row["n"]] += row["_diff"]
                reached = step.upper.time - 1
                scenario.snapshots.append((table.info.rendition, reached, +rows))
                demand(min(rows.values(), default=0) >= 0, "a row was removed before it was added")
                scenario.report.steps += 1
                if not scenario.writers_left:
                    scenario.follows = False
                    return
        except UNSURE:
            pass
        except SchemaEvolved:
            table = await scenario.made(client, name)
        await client.clock.sleep(20_000)


async def _advance_on(scenario: TablesScenario, client: Client) -> None:
    """After the last writer, move upper until the follower has ended."""
    tables = scenario.tables(client)
    while scenario.follows:
        await client.clock.sleep(200_000)
        if not scenario.writers_left:
            with suppress(*UNSURE):
                await tables.advance()


async def maintain_on(scenario: TablesScenario, client: Client) -> None:
    """Merge, collect, sweep and apply."""
    dice = scenario.dice
    while scenario.writers_left:
        await client.clock.sleep(dice.randrange(300_000))
        tables = scenario.tables(client)
        maintenance = Maintenance(
            store=client.store,
            fresh=client.store,
            consensus=client.consensus,
            clock=client.clock,
            controller=tables.controller,
            tables=tables.transactions,
        )
        try:
            groups = await maintenance.groups(dropped=True)
            if dice.random() < 0.6:
                living = [group for group in groups if not group.is_dropped]
                async for _ in maintenance.compact(living, full=dice.random() < 0.5):
                    scenario.report.maintained += 1
            if dice.random() < 0.5:
                sweeps = dice.random() < 0.5
                async for _ in maintenance.collect(groups, after_us=0, sweeps=sweeps):
                    scenario.report.maintained += 1
            if dice.random() < 0.4:
                async for _ in maintenance.tidy(sweeps=dice.random() < 0.5):
                    scenario.report.maintained += 1
        except (NoSuchCollection, *UNSURE):
            continue


async def _drop_on(scenario: TablesScenario, client: Client) -> None:
    """Drop one table, and create it again."""
    while scenario.writers_left:
        await client.clock.sleep(scenario.dice.randrange(500_000))
        try:
            await scenario.tables(client).drop("gone")
            scenario.report.drops += 1
            await client.clock.sleep(scenario.dice.randrange(100_000))
        except (NoSuchCollection, *UNSURE):
            pass
        await scenario.made(client, "gone")


async def _alter_on(scenario: TablesScenario, client: Client) -> None:
    """Add columns, and drop some of those that were added, with or without values."""
    dice, number = scenario.dice, 0
    while scenario.writers_left:
        await client.clock.sleep(dice.randrange(600_000))
        tables, number = scenario.tables(client), number + 1
        try:
            table = await tables.open(dice.choice(list(KEYS)))
            extra = extra_columns(table)
            alter = partial(
                tables.alter,
                table.name,
                add=f"{client.name}_{number} bigint",
                drop=dice.sample(extra, dice.randrange(len(extra) + 1)),
                discard_values=dice.random() < 0.7,
            )
            for _ in range(TRIES):
                with suppress(*UNSURE):
                    await alter()
                    scenario.report.alterations += 1
                    break
        except AsOfNotComplete:
            continue  # The creation of the table was interrupted, so its values cannot be read.
        except UsageError as error:
            # The other client may have altered the table since, or dropped the same column.
            known = ("have values", "has a column", "was dropped", "has no column")
            demand(any(words in str(error) for words in known), "a wrong refusal", error=error)
        except (NoSuchCollection, *UNSURE):
            continue


def extra_columns(table: Table) -> list[str]:
    """Return the columns that alterations have added."""
    return [name for name in table.schema.names if name not in ("id", "n")]


def _row(update: Update) -> tuple[int, int]:
    one, n, *_ = update.row
    assert isinstance(one, int)
    assert isinstance(n, int)
    return one, n


def counted(rows: Any) -> Rows:
    """Count rows; a column that was added has the id of its row, or null."""
    for row in rows.to_pylist():
        extra = {value for name, value in row.items() if name not in ("id", "n")}
        demand(extra <= {row["id"], None}, "a column has the value of another row", row=row)
    return Counter((row["id"], row["n"]) for row in rows.to_pylist())


def check_tables(
    scenario: TablesScenario,
    decided: list[CommittedTransaction],
    shards: dict[str, ObservedShard],
    left: dict[str, list[str]],
) -> None:
    """Check everything against the decisions."""
    calls = {call.token: call for call in scenario.calls}
    histories = _replayed(decided, calls)
    _check_answers(scenario.calls, decided, histories)
    for rendition, time, found in scenario.snapshots:
        was = _at(histories, rendition, time)
        demand(found == was, "a reader saw what never was", at=time, saw=found, was=was)
    for rendition, names in left.items():
        held: Rows = Counter()
        for update in (one for name in names for one in shards[name].updates):
            held[_row(update)] += update.diff
        held = Counter({row: count for row, count in held.items() if count})
        was = _at(histories, rendition, decided[-1].upper)
        demand(held == was, "the shards hold other rows than were committed", saw=held, was=was)
    own = [one for one in decided if one.token in calls]
    scenario.report.commits = len(own)
    scenario.report.several = sum(
        len({rendition for rendition, _ in calls[one.token].writes}) > 1 for one in own
    )


Histories = dict[str, list[tuple[int, Rows]]]


def _replayed(decided: list[CommittedTransaction], calls: dict[Token, Call]) -> Histories:
    """Return the contents of each rendition after each of its commits."""
    histories: Histories = {}
    for one in decided:
        call, time = calls.get(one.token), one.upper - 1
        if call is None:
            demand(not one.shards, "an unknown commit wrote rows", token=one.token)
            continue
        for rendition, rows in call.read.items():
            was = _at(histories, rendition, time)
            demand(rows == was, "a commit does not follow from its reads", call=call, was=was)
        for rendition, write in call.writes:
            rows = write.effect(_at(histories, rendition, time))
            histories.setdefault(rendition, []).append((time, rows))
    return histories


def _at(histories: Histories, rendition: str, time: int) -> Rows:
    until = [rows for at, rows in histories.get(rendition, []) if at <= time]
    return until[-1] if until else Counter()


def _check_answers(
    calls: list[Call], decided: list[CommittedTransaction], histories: Histories
) -> None:
    times = {one.token: one.upper - 1 for one in decided}
    demand(len(times) == len(decided), "a token was committed twice")
    for call in calls:
        time = times.get(call.token)
        if call.refused:
            demand(time is None, "a refused write is there", call=call)
        elif call.time is not None and time is None:
            for rendition in {rendition for rendition, _ in call.writes}:
                was = rows = _at(histories, rendition, call.time)
                for _, write in (one for one in call.writes if one[0] == rendition):
                    rows = write.effect(rows)
                demand(rows == was, "an acknowledged write is missing", call=call)
        elif call.time is not None:
            demand(call.time == time, "an answer names another time", call=call, time=time)
