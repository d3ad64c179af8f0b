"""A shard whose columns change under fire: who adds and drops, writers of all kinds, readers.

The model is a list of rows as dicts, each marked with the write that brought it: what a reader of
some columns sees is these, with null where a row has no such column. A writer that is told that the
schema has evolved has written nothing; a reader that is told so asked for a column that was
dropped. Names are asked for again that were used before, and must be refused.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from sim.checkers.appended import projected
from sim.checkers.demands import demand
from sim.checkers.invariants import Observed, check_all
from sim.checkers.watch import Watch
from sim.kernel.fates import Dice
from sim.kernel.loop import run
from sim.kernel.small import limited, limits_of
from sim.kernel.weather import rates_of
from sim.kernel.world import Client, World
from sim.workloads.merging import Merges, merge_on
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
from tidelog.ids import ShardId
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
class Brought:
    """A write: its rows, the first of which carries its mark, and what its calls said."""

    mark: str
    lower: int
    upper: int
    rows: Rows
    said: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call to evolve the schema that was answered: the id it has, and its columns."""

    schema_id: int
    columns: pa.Schema


@dataclass(slots=True)
class SchemaReport:
    """What a run did."""

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
class SchemaPlot:
    """One run; ``key`` is empty where rows are kept as they come."""

    world: World
    dice: random.Random
    key: list[str]
    report: SchemaReport = field(default_factory=SchemaReport)
    writes: list[Brought] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
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
        Violated: something does not hold. Anything else: a client failed as it never should.
    """
    dice = random.Random(f"schemas {seed}")
    mortal = frozenset(["w0", "w1", "n0", "e0", "m0"])
    fates = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, fates, attempts=dice.choice([1, 2, 20]))
    watch = Watch(world.store)
    world.watchers.append(watch)
    plot = SchemaPlot(world, dice, dice.choice([["k"], ["k"], []]))
    with limited(limits_of(seed)):
        run(lambda: _play(plot), seed)
        _check(plot, check_all(world.store, watch)[NAME])
    plot.report.trace = world.trace()
    plot.report.requests = world.requests_count
    plot.report.deaths = sum(client.is_dead for client in world.clients.values())
    return plot.report


async def _play(plot: SchemaPlot) -> None:
    world, dice = plot.world, plot.dice
    maker = world.client("maker")
    while not await _made(plot, maker):
        await maker.clock.sleep(100_000)
    names = [f"w{number}" for number in range(dice.choice([1, 2, 3]))]
    plot.writers_left = len(names) + 1
    async with asyncio.TaskGroup() as group:
        for name in names:
            client = world.client(name)
            group.create_task(_until_through(plot, client, named=False), name=name)
        group.create_task(_until_through(plot, world.client("n0"), named=True), name="n0")
        for name in ("e0", "e1"):
            client = world.client(name)
            group.create_task(client.live(_evolve_on(plot, client)), name=name)
        for name in ("r0", "r1"):
            group.create_task(_read_on(plot, world.client(name)), name=name)
        group.create_task(_listen_on(plot, world.client("ear")), name="ear")
        group.create_task(_retain_on(plot, world.client("keeper")), name="keeper")
        for name in ("m0", "m1"):
            merger = world.client(name)
            merging = merge_on(
                merger,
                [plot.shard(merger, dice.choice([None, FIRST]))],
                dice,
                is_over=lambda: not plot.writers_left,
                done=plot.report.merged,
            )
            group.create_task(merger.live(merging), name=name)
    await asyncio.sleep(HOUR_S)
    assert isinstance(world.fates, Dice)
    world.fates.calm = True
    last = world.client("last")
    await plot.shard(last).compact(full=True)
    reads = plot.report.reads
    await _read(plot, last, None, back=1)
    demand(plot.report.reads > reads, "what is complete could not be read in the end")


async def _made(plot: SchemaPlot, client: Client) -> bool:
    """Have the shard be there: with its first schema, and a hold of all its times."""
    try:
        await plot.shard(client, FIRST).hold("history", 0)
        await plot.shard(client, FIRST).try_compare_and_append(None, 0, 1, token=("maker", 0))
    except FAILED:
        return False
    return True


async def _until_through(plot: SchemaPlot, client: Client, *, named: bool) -> None:
    try:
        await client.live((_append_on if named else _write_on)(plot, client))
    finally:
        plot.writers_left -= 1


def _columns(plot: SchemaPlot, shard: Shard) -> pa.Schema:
    """Return the columns that a handle knows, or at times those that it knew before."""
    if not shard.state.schema:
        return FIRST
    known = newest_schema(shard.state).known
    return known[-1] if plot.dice.random() < 0.85 else plot.dice.choice(known)


def _rows(plot: SchemaPlot, columns: pa.Schema, mark: str, lower: int, upper: int) -> Rows:
    """Return rows for some columns: the first is of this write alone, others meet with others'."""
    dice = plot.dice

    def row(key: str) -> Values:
        values = {f.name: dice.choice(TYPES[f.type]) for f in columns if f.name != "k"}
        return {"k": key, **values}

    found: Rows = [(row(mark), dice.randrange(lower, upper), 1)]
    for _ in range(dice.choice([0, 1, 3])):
        diff = dice.choice([1, 1, -1]) if plot.key else 1
        found.append((row(dice.choice("ab")), dice.randrange(lower, upper), diff))
    return found


def _table(columns: pa.Schema, rows: Rows) -> pa.Table:
    given = [{**values, TIME: time, DIFF: diff} for values, time, diff in rows]
    return pa.Table.from_pylist(given, schema=ShardSchema(columns, 0).updates)


def _begun(plot: SchemaPlot, mark: str, columns: pa.Schema, lower: int, upper: int) -> Brought:
    write = Brought(mark, lower, upper, _rows(plot, columns, mark, lower, upper))
    plot.writes.append(write)
    plot.report.writes += 1
    return write


async def _write_on(plot: SchemaPlot, client: Client) -> None:
    """Write with tokens, by handles that follow the schema or have one of their own."""
    dice, shard = plot.dice, plot.shard(client)
    for number in range(dice.randrange(3, 12)):
        await client.clock.sleep(dice.randrange(60_000))
        columns = _columns(plot, shard)
        if dice.random() < 0.3:
            shard = plot.shard(client, dice.choice([None, columns]))
        if shard.schema is not None:
            columns = shard.schema.data
        lower = max(1, (shard.state.upper or 1) - dice.choice([0, 0, 0, 1]))
        upper = lower + dice.choice([1, 1, 2, 5])
        write = _begun(plot, f"{client.name}.{number}", columns, lower, upper)
        table = _table(columns, write.rows)
        for _ in range(dice.choice([1, 60])):
            write.said.append("nothing")  # As it stays where the writer dies over it.
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
                plot.report.told_evolved += 1
                shard = plot.shard(client)
                break
            except FAILED as error:
                write.said[-1] = error.outcome.value
                await client.clock.sleep(dice.randrange(200_000))
                continue
            write.said[-1] = done.verdict.value
            plot.report.committed += done.verdict is Verdict.COMMITTED
            plot.report.already += done.verdict is Verdict.ALREADY
            break


async def _append_on(plot: SchemaPlot, client: Client) -> None:
    """Append under a name, opened again where others were first, or the columns are others."""
    dice, number = plot.dice, 0
    while number < 8:
        shard = plot.shard(client)
        try:
            writer = await shard.appender("n")
            columns = _columns(plot, shard)
            while number < 8:
                await client.clock.sleep(dice.randrange(80_000))
                lower = max(1, writer.upper.time)
                upper = lower + dice.choice([1, 2])
                write = _begun(plot, f"n.{number}", columns, lower, upper)
                number += 1
                write.said.append("nothing")
                await writer.append(_table(columns, write.rows), upper)
                write.said[-1] = Verdict.COMMITTED.value
                plot.report.committed += 1
        except UpperMismatch:
            write.said[-1] = Verdict.MISMATCH.value
        except (SchemaEvolved, UsageError):
            write.said[-1] = "evolved"
            plot.report.told_evolved += 1
        except FAILED:
            await client.clock.sleep(dice.randrange(200_000))


async def _evolve_on(plot: SchemaPlot, client: Client) -> None:
    """Add a column, or drop one; who comes second at one schema is told so."""
    dice = plot.dice
    while plot.writers_left:
        await client.clock.sleep(dice.randrange(400_000))
        shard = plot.shard(client)
        try:
            known = await shard.schemas()
            newest, expected = known[-1], len(known) - 1
            wanted, must_be_refused = _successor(plot, known)
            given = dice.choice([None, expected])
            await client.clock.sleep(dice.choice([0, 200_000]))
            done = await shard.evolve_schema(wanted, expected=given)
        except SchemaIncompatible:
            demand(must_be_refused or shard.state.schema_id != expected, "a change was refused")
            plot.report.refused += 1
            continue
        except FAILED:
            continue
        if done.verdict is not EvolveVerdict.MISMATCH:
            demand(not must_be_refused, "a name was taken twice", was=newest, is_now=wanted)
            first = done.verdict is EvolveVerdict.EVOLVED and given is not None
            demand(not first or done.schema_id == expected + 1, "a change came after another's")
            plot.wanted.append(Wanted(done.schema_id, wanted))


def _successor(plot: SchemaPlot, known: list[pa.Schema]) -> tuple[pa.Schema, bool]:
    """Return what a schema may become, or may not, and whether it is that."""
    dice, newest = plot.dice, known[-1]
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


async def _read_on(plot: SchemaPlot, client: Client) -> None:
    """Read by handles that follow the schema, and by one that stays with its columns."""
    own: pa.Schema | None = None
    while plot.writers_left:
        await client.clock.sleep(plot.dice.randrange(300_000))
        own = await _read(plot, client, own, back=plot.dice.choice([1, 1, 2, 5]))


async def _read(
    plot: SchemaPlot, client: Client, own: pa.Schema | None, *, back: int
) -> pa.Schema | None:
    dice, shard = plot.dice, plot.shard(client, own)
    asked = None if own is None else list(own.names)
    try:
        state = await shard.refresh()
        as_of = max(0, (state.upper or 1) - back)
        snapshot = await shard.snapshot(as_of, timeout_us=2_000_000)
        asked = snapshot.schema.names
        await client.clock.sleep(dice.choice([0, 300_000]))
        table = await snapshot.to_arrow(consolidated=True)
    except SchemaEvolved:
        demand(asked is not None, "who asked for no columns was told that they are others")
        plot.told.append(asked or [])
        return None
    except (AsOfBeforeSince, DeadlineExceeded, ReadOvertaken, LocationError, ContentionError):
        return own
    names = [name for name in table.column_names if name != DIFF]
    demand(names == asked, "a reader got other columns", saw=names, asked=asked)
    plot.snapshots.append((names, as_of, contents_of(table)))
    plot.report.reads += 1
    return newest_schema(shard.state).data if dice.random() < 0.5 else own


async def _listen_on(plot: SchemaPlot, client: Client) -> None:
    """Hear all there is, in the columns that are, or in those that were when it began."""
    reached, own = 0, plot.dice.choice([None, FIRST])
    while plot.writers_left:
        shard = plot.shard(client, own)
        try:
            async with asyncio.timeout(1.0):
                async for progress in shard.listen(reached, wait=True):
                    names = progress.updates.column_names[:-2]
                    upper = progress.upper.time
                    demand(progress.lower.time == reached + 1, "a listener jumped")
                    heard = updates_of(progress.updates)
                    plot.heard.append((names, reached, upper - 1, heard))
                    plot.report.heard += 1
                    reached = upper - 1
        except TimeoutError:
            continue
        except SchemaEvolved:
            demand(own is not None, "who asked for no columns was told that they are others")
            plot.told.append(FIRST.names)
            own = None
        except AsOfBeforeSince:
            reached = (shard.state.upper or 1) - 1
        except FAILED:
            await client.clock.sleep(50_000)


async def _retain_on(plot: SchemaPlot, client: Client) -> None:
    """Give up what is past, so that merges put rows of several schemas together."""
    while plot.writers_left:
        await client.clock.sleep(plot.dice.randrange(500_000))
        shard = plot.shard(client)
        try:
            upper = (await shard.refresh()).upper or 0
            await shard.downgrade_since("history", max(0, upper - plot.dice.choice([1, 3, 8])))
        except (UsageError, *FAILED):
            continue


def _check(plot: SchemaPlot, found: Observed) -> None:
    known = newest_schema(found.state).known
    plot.report.schemas = len(known)
    for one in plot.wanted:
        there = [field.name for field in known[one.schema_id]]
        demand(there == one.columns.names, "a schema is another than was told", told=one)
    for names in plot.told:
        demand(set(names) - set(known[-1].names), "a reader was told of nothing", names=names)
    model = _model(plot, found)

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
    for names, as_of, saw in plot.snapshots:
        was = accumulate(updates(names), as_of)
        demand(
            saw == was, "a reader saw what never was", names=names, as_of=as_of, saw=saw, was=was
        )
    for names, after, until, heard in plot.heard:
        were = consolidate(updates(names), after=after, until=until)
        demand(consolidate(heard) == were, "a listener heard other changes", after=after, were=were)


def _model(plot: SchemaPlot, found: Observed) -> Rows:
    """Hold what was said of each write against its mark; return all rows that are there."""
    marks = Counter(u.row[found.names.index("k")] for u in found.updates)
    model: Rows = []
    for write in plot.writes:
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
