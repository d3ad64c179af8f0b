"""A shard whose columns change under faults: schema changes, writers of all kinds, readers.

The model is a list of rows as dicts, each marked with its write. A reader of some columns must see
these rows, with null for a column that a row lacks. A writer that gets SchemaEvolved has written
nothing; a reader gets it only if one of its columns was dropped. Column names are requested again
after a drop, and must be refused.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from sim.checkers.appended_updates import projected
from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard, check_all
from sim.checkers.watch import Watch
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
from sim.kernel.world import Client, World
from sim.workloads.merging import Merges, merge_on
from tidelog.core.ids import ShardId
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    DeadlineExceeded,
    LocationError,
    Outcome,
    OutcomeUnknown,
    ReadOvertaken,
    SchemaEvolved,
    SchemaIncompatible,
    UpperMismatch,
    UsageError,
)
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.evolution import EvolveVerdict, newest_schema
from tidelog.persist.states.transition import Verdict
from tidelog.testing.models import Row, Update, accumulate, consolidate, contents_of, updates_of

_COLUMNS: Final[dict[str, pa.DataType]] = {"k": pa.string(), "v": pa.int64(), "x": pa.float64()}
FIRST: Final = pa.schema(_COLUMNS)
TYPES: Final[dict[pa.DataType, tuple[Hashable, ...]]] = {
    pa.int64(): (None, 0, 1),
    pa.float64(): (None, 0.0, 1.5),
    pa.string(): (None, "", "a"),
    pa.bool_(): (None, True),
}
NAME: Final = ShardId("evolving")
HOUR_S: Final = 3_600
FAILED = (LocationError, ContentionError)
Values = dict[str, Hashable]
Rows = list[tuple[Values, int, int]]  # values, time, diff


@dataclass(slots=True)
class SchemaWrite:
    """A write: its rows, the first of which carries its mark, and the answers of its calls."""

    mark: str
    lower: int
    upper: int
    rows: Rows
    said: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EvolveCall:
    """An answered call to evolve the schema: the schema's id and columns."""

    schema_id: int
    columns: pa.Schema


@dataclass(slots=True)
class SchemaReport:
    """The counts of a run."""

    trace: str = ""
    writes: int = 0
    committed: int = 0
    already: int = 0
    told_evolved: int = 0
    schemas: int = 0
    refused: int = 0
    reads: int = 0
    heard: int = 0
    merged: Merges = field(default_factory=Merges)
    deaths: int = 0
    requests: int = 0


@dataclass(slots=True)
class SchemaScenario:
    """One run; ``key`` is empty if rows are kept as they arrive."""

    world: World
    dice: random.Random
    key: list[str]
    report: SchemaReport = field(default_factory=SchemaReport)
    writes: list[SchemaWrite] = field(default_factory=list)
    wanted: list[EvolveCall] = field(default_factory=list)
    snapshots: list[tuple[list[str], int, Counter[Row]]] = field(default_factory=list)
    heard: list[tuple[list[str], int, int, list[Update]]] = field(default_factory=list)
    told: list[list[str]] = field(default_factory=list)
    writers_left: int = 0

    def shard(self, client: Client, columns: pa.Schema | None = None) -> Shard:
        return Shard(
            id=NAME,
            store=client.store,
            consensus=client.consensus,
            clock=client.clock,
            schema=None if columns is None else shard_schema(columns, key=self.key),
            cache_bytes=self.dice.choice([0, 1 << 20]),
        )


def simulate_schemas(seed: int) -> SchemaReport:
    """Run one seed, and check everything.

    Raises:
        Violated: a check failed. Any other error: a client failed with an error that it must
            not raise.
    """
    dice = random.Random(f"schemas {seed}")
    mortal = frozenset(["w0", "w1", "n0", "e0", "m0"])
    schedule = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, schedule, attempts=dice.choice([1, 2, 20]))
    watch = Watch(world.store)
    world.watchers.append(watch)
    scenario = SchemaScenario(world, dice, dice.choice([["k"], ["k"], []]))
    with limited(limits_of(seed)):
        run(lambda: _play(scenario), seed)
        _check(scenario, check_all(world.store, watch)[NAME])
    scenario.report.trace = world.trace()
    scenario.report.requests = world.requests_count
    scenario.report.deaths = sum(client.is_dead for client in world.clients.values())
    return scenario.report


async def _play(scenario: SchemaScenario) -> None:
    world, dice = scenario.world, scenario.dice
    maker = world.client("maker")
    while not await _made(scenario, maker):
        await maker.clock.sleep(100_000)
    names = [f"w{number}" for number in range(dice.choice([1, 2, 3]))]
    scenario.writers_left = len(names) + 1
    async with asyncio.TaskGroup() as group:
        for name in names:
            client = world.client(name)
            group.create_task(_until_through(scenario, client, named=False), name=name)
        group.create_task(_until_through(scenario, world.client("n0"), named=True), name="n0")
        for name in ("e0", "e1"):
            client = world.client(name)
            group.create_task(client.live(_evolve_on(scenario, client)), name=name)
        for name in ("r0", "r1"):
            group.create_task(_read_on(scenario, world.client(name)), name=name)
        group.create_task(_listen_on(scenario, world.client("ear")), name="ear")
        group.create_task(_retain_on(scenario, world.client("keeper")), name="keeper")
        for name in ("m0", "m1"):
            merger = world.client(name)
            merging = merge_on(
                merger,
                [scenario.shard(merger, dice.choice([None, FIRST]))],
                dice,
                is_over=lambda: not scenario.writers_left,
                done=scenario.report.merged,
            )
            group.create_task(merger.live(merging), name=name)
    await asyncio.sleep(HOUR_S)
    assert isinstance(world.schedule, Dice)
    world.schedule.calm = True
    last = world.client("last")
    await scenario.shard(last).compact(full=True)
    reads = scenario.report.reads
    await _read(scenario, last, None, back=1)
    demand(scenario.report.reads > reads, "what is complete could not be read in the end")


async def _made(scenario: SchemaScenario, client: Client) -> bool:
    """Make the shard with its first schema, and a hold of all its times."""
    try:
        await scenario.shard(client, FIRST).hold("history", 0)
        await scenario.shard(client, FIRST).try_compare_and_append(None, 0, 1, token=("maker", 0))
    except FAILED:
        return False
    return True


async def _until_through(scenario: SchemaScenario, client: Client, *, named: bool) -> None:
    try:
        await client.live((_append_on if named else _write_on)(scenario, client))
    finally:
        scenario.writers_left -= 1


def _columns(scenario: SchemaScenario, shard: Shard) -> pa.Schema:
    """Return the columns that a handle knows, or sometimes earlier ones."""
    if not shard.state.schema:
        return FIRST
    known = newest_schema(shard.state).known
    return known[-1] if scenario.dice.random() < 0.85 else scenario.dice.choice(known)


def _rows(scenario: SchemaScenario, columns: pa.Schema, mark: str, lower: int, upper: int) -> Rows:
    """Return rows for some columns: the first is unique; others share rows with other writes."""
    dice = scenario.dice

    def row(key: str) -> Values:
        values = {f.name: dice.choice(TYPES[f.type]) for f in columns if f.name != "k"}
        return {"k": key, **values}

    found: Rows = [(row(mark), dice.randrange(lower, upper), 1)]
    for _ in range(dice.choice([0, 1, 3])):
        diff = dice.choice([1, 1, -1]) if scenario.key else 1
        found.append((row(dice.choice("ab")), dice.randrange(lower, upper), diff))
    return found


def _table(columns: pa.Schema, rows: Rows) -> pa.Table:
    given = [{**values, TIME: time, DIFF: diff} for values, time, diff in rows]
    return pa.Table.from_pylist(given, schema=ShardSchema(columns, 0).updates)


def _begun(
    scenario: SchemaScenario, mark: str, columns: pa.Schema, lower: int, upper: int
) -> SchemaWrite:
    write = SchemaWrite(mark, lower, upper, _rows(scenario, columns, mark, lower, upper))
    scenario.writes.append(write)
    scenario.report.writes += 1
    return write


async def _write_on(scenario: SchemaScenario, client: Client) -> None:
    """Write with tokens, by handles that follow the schema or have a fixed one."""
    dice, shard = scenario.dice, scenario.shard(client)
    for number in range(dice.randrange(3, 12)):
        await client.clock.sleep(dice.randrange(60_000))
        columns = _columns(scenario, shard)
        if dice.random() < 0.3:
            shard = scenario.shard(client, dice.choice([None, columns]))
        if shard.schema is not None:
            columns = shard.schema.data
        lower = max(1, (shard.state.upper or 1) - dice.choice([0, 0, 0, 1]))
        upper = lower + dice.choice([1, 1, 2, 5])
        write = _begun(scenario, f"{client.name}.{number}", columns, lower, upper)
        table = _table(columns, write.rows)
        for _ in range(dice.choice([1, 60])):
            write.said.append("nothing")  # This answer stays if the writer dies during the call.
            known = newest_schema(shard.state).names if shard.state.schema else []
            try:
                token = (write.mark, 0)
                done = await shard.try_compare_and_append(table, lower, upper, token=token)
            except OutcomeUnknown:
                write.said[-1] = "unknown"
                break
            except (SchemaEvolved, UsageError) as error:
                write.said[-1] = "evolved"
                fits = known == columns.names and isinstance(error, UsageError)
                demand(not fits, "rows of the newest schema were refused", error=str(error))
                scenario.report.told_evolved += 1
                shard = scenario.shard(client)
                break
            except FAILED as error:
                write.said[-1] = error.outcome.value
                await client.clock.sleep(dice.randrange(200_000))
                continue
            write.said[-1] = done.verdict.value
            scenario.report.committed += done.verdict is Verdict.COMMITTED
            scenario.report.already += done.verdict is Verdict.ALREADY
            break


async def _append_on(scenario: SchemaScenario, client: Client) -> None:
    """Append by name; open the name again after a lost race or a schema change."""
    dice, number = scenario.dice, 0
    while number < 8:
        shard = scenario.shard(client)
        try:
            writer = await shard.appender("n")
            columns = _columns(scenario, shard)
            while number < 8:
                await client.clock.sleep(dice.randrange(80_000))
                lower = max(1, writer.upper.time)
                upper = lower + dice.choice([1, 2])
                write = _begun(scenario, f"n.{number}", columns, lower, upper)
                number += 1
                write.said.append("nothing")
                await writer.append(_table(columns, write.rows), upper)
                write.said[-1] = Verdict.COMMITTED.value
                scenario.report.committed += 1
        except UpperMismatch:
            write.said[-1] = Verdict.MISMATCH.value
        except (SchemaEvolved, UsageError):
            write.said[-1] = "evolved"
            scenario.report.told_evolved += 1
        except FAILED:
            await client.clock.sleep(dice.randrange(200_000))


async def _evolve_on(scenario: SchemaScenario, client: Client) -> None:
    """Add a column, or drop one; the loser of a race gets MISMATCH."""
    dice = scenario.dice
    while scenario.writers_left:
        await client.clock.sleep(dice.randrange(400_000))
        shard = scenario.shard(client)
        try:
            known = await shard.schemas()
            newest, expected = known[-1], len(known) - 1
            wanted, must_be_refused = _successor(scenario, known)
            given = dice.choice([None, expected])
            await client.clock.sleep(dice.choice([0, 200_000]))
            done = await shard.evolve_schema(wanted, expected=given)
        except SchemaIncompatible:
            demand(must_be_refused or shard.state.schema_id != expected, "a change was refused")
            scenario.report.refused += 1
            continue
        except FAILED:
            continue
        if done.verdict is not EvolveVerdict.MISMATCH:
            demand(not must_be_refused, "a name was taken twice", was=newest, is_now=wanted)
            first = done.verdict is EvolveVerdict.EVOLVED and given is not None
            demand(not first or done.schema_id == expected + 1, "a change came after another's")
            scenario.wanted.append(EvolveCall(done.schema_id, wanted))


def _successor(scenario: SchemaScenario, known: list[pa.Schema]) -> tuple[pa.Schema, bool]:
    """Return a next schema, and True if it must be refused."""
    dice, newest = scenario.dice, known[-1]
    ever = {name for schema in known for name in schema.names}
    gone = sorted(ever - set(newest.names))
    toss = dice.random()
    if gone and toss < 0.2:
        return newest.append(pa.field(dice.choice(gone), dice.choice(list(TYPES)))), True
    loose = [name for name in newest.names if name != "k"]
    if loose and toss < 0.5:
        return newest.remove(newest.get_field_index(dice.choice(loose))), False
    name = dice.choice([f"c{len(known)}", f"c{len(known)}", f"d{len(known)}"])
    return newest.append(pa.field(name, dice.choice(list(TYPES)))), name in ever


async def _read_on(scenario: SchemaScenario, client: Client) -> None:
    """Read by handles that follow the schema, and by one with fixed columns."""
    own: pa.Schema | None = None
    while scenario.writers_left:
        await client.clock.sleep(scenario.dice.randrange(300_000))
        own = await _read(scenario, client, own, back=scenario.dice.choice([1, 1, 2, 5]))


async def _read(
    scenario: SchemaScenario, client: Client, own: pa.Schema | None, *, back: int
) -> pa.Schema | None:
    dice, shard = scenario.dice, scenario.shard(client, own)
    asked = None if own is None else list(own.names)
    try:
        state = await shard.refresh()
        as_of = max(0, (state.upper or 1) - back)
        snapshot = await shard.snapshot(as_of, timeout_us=2_000_000)
        asked = snapshot.schema.names
        await client.clock.sleep(dice.choice([0, 300_000, 3_000_000]))  # Merges may come first.
        table = await snapshot.to_arrow(consolidated=True)
    except SchemaEvolved:
        demand(asked is not None, "who asked for no columns was told that they are others")
        scenario.told.append(asked or [])
        return None
    except (AsOfBeforeSince, DeadlineExceeded, ReadOvertaken, LocationError, ContentionError):
        return own
    names = [name for name in table.column_names if name != DIFF]
    demand(names == asked, "a reader got other columns", saw=names, asked=asked)
    scenario.snapshots.append((names, as_of, contents_of(table)))
    scenario.report.reads += 1
    return newest_schema(shard.state).data if dice.random() < 0.5 else own


async def _listen_on(scenario: SchemaScenario, client: Client) -> None:
    """Listen to all updates, in the present columns or in those of the beginning."""
    reached, own = 0, scenario.dice.choice([None, FIRST])
    while scenario.writers_left:
        shard = scenario.shard(client, own)
        try:
            async with asyncio.timeout(1.0):
                async for progress in shard.listen(reached, wait=True):
                    names = progress.updates.column_names[:-2]
                    upper = progress.upper.time
                    demand(progress.lower.time == reached + 1, "a listener jumped")
                    heard = updates_of(progress.updates)
                    scenario.heard.append((names, reached, upper - 1, heard))
                    scenario.report.heard += 1
                    reached = upper - 1
        except TimeoutError:
            continue
        except SchemaEvolved:
            demand(own is not None, "who asked for no columns was told that they are others")
            scenario.told.append(FIRST.names)
            own = None
        except AsOfBeforeSince:
            reached = (shard.state.upper or 1) - 1
        except FAILED:
            await client.clock.sleep(50_000)


async def _retain_on(scenario: SchemaScenario, client: Client) -> None:
    """Advance since, so that merges combine rows of several schemas.

    A run that keeps more times has readers that read again after a merge.
    """
    kept = scenario.dice.choice([[1, 3, 8], [20, 40]])
    while scenario.writers_left:
        await client.clock.sleep(scenario.dice.randrange(500_000))
        shard = scenario.shard(client)
        try:
            upper = (await shard.refresh()).upper or 0
            await shard.move_hold("history", max(0, upper - scenario.dice.choice(kept)))
        except (UsageError, *FAILED):
            continue


def _check(scenario: SchemaScenario, found: ObservedShard) -> None:
    known = newest_schema(found.state).known
    scenario.report.schemas = len(known)
    for one in scenario.wanted:
        there = [field.name for field in known[one.schema_id]]
        demand(there == one.columns.names, "a schema is another than was told", told=one)
    for names in scenario.told:
        demand(set(names) - set(known[-1].names), "a reader was told of nothing", names=names)
    model = _model(scenario, found)

    def updates(names: list[str]) -> list[Update]:
        return [
            Update(tuple(values.get(name) for name in names), time, diff)
            for values, time, diff in model
        ]

    newest = list(known[-1].names)
    held = projected(found.updates, found.names, newest)
    demand(
        consolidate(held) == consolidate(updates(newest)),
        "the shard holds other rows than were brought",
        held=consolidate(held),
        brought=consolidate(updates(newest)),
    )
    for names, as_of, saw in scenario.snapshots:
        was = accumulate(updates(names), as_of)
        demand(
            saw == was, "a reader saw what never was", names=names, as_of=as_of, saw=saw, was=was
        )
    for names, after, until, heard in scenario.heard:
        were = consolidate(updates(names), after=after, until=until)
        demand(consolidate(heard) == were, "a listener heard other changes", after=after, were=were)


def _model(scenario: SchemaScenario, found: ObservedShard) -> Rows:
    """Check the answers of each write against its mark; return all rows of the shard."""
    marks = Counter(u.row[found.names.index("k")] for u in found.updates)
    model: Rows = []
    for write in scenario.writes:
        there = marks[write.mark] > 0
        demand(marks[write.mark] <= 1, "a write is there twice", write=write)
        said = set(write.said)
        if said & {"committed", "already"}:
            demand(there, "an acknowledged write is not there", write=write)
        if said & {"mismatch", "evolved"} or said == {Outcome.NOT_APPLIED.value}:
            demand(not there, "a refused write is there", write=write)
        if there:
            model += write.rows
    return model
