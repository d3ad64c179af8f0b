"""Sources of files, and locations with their collections, for tests that compare ingesters."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.avro import record, write_avro
from kit.packing import packed
from tidelog.collection import create
from tidelog.collection.catalog.announcing import epoch_of_bindings
from tidelog.collection.ingest.engine import Engine
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import Summary
from tidelog.collection.ingest.tick import Tick
from tidelog.collection.maintenance import GroupCollection, GroupCompaction
from tidelog.collection.source.binding import Binding
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.port import Plan
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.ids import group_of
from tidelog.location import Location, open_location
from tidelog.persist.handle.together import ShardAppend

SCHEMA = "k bigint, at bigint, gone boolean, text varchar, amount decimal(20, 4), small utinyint"
TYPES: dict[str, pa.DataType] = {
    "k": pa.int64(),
    "at": pa.int64(),
    "gone": pa.bool_(),
    "text": pa.string(),
    "amount": pa.decimal128(20, 4),
    "small": pa.uint8(),
}
ARROW = pa.schema(TYPES)
NUMBERS = pa.schema({"n": pa.int64(), "at": pa.int64()})
FIRST = 1_000_000

AVRO = record(
    k="long",
    at=["null", "long"],
    gone="boolean",
    text=["null", "string"],
    amount=["null", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}],
    small="int",
)

Row = dict[str, Any]


def changes(count: int) -> list[Row]:
    """Return changes of few keys, with several at one time, deletions and nulls."""
    return [
        {
            "k": n * 7 % 23,
            "at": FIRST + n // 5,
            "gone": n % 11 == 0,
            "text": None if n % 13 == 0 else f"line {n % 6}\nof two, with a comma",
            "amount": None if n % 17 == 0 else f"{n % 9}.25",
            "small": n % 256,
        }
        for n in range(count)
    ]


def write_files(folder: Path, format: str, rows: Sequence[Row], *, files: int = 3) -> str:
    """Write rows as files, some with bad records in between; return the files' pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    step = -(-len(rows) // files)
    for number in range(files):
        share = rows[number * step : (number + 1) * step]
        path = folder / f"{number}.{format}"
        if format == "parquet":
            bad = {**share[0], "at": None}
            # Several row groups, so that a tick may take a part of a file.
            pq.write_table(arrow_of([*share, bad]), path, row_group_size=max(1, step // 2))
        elif format == "avro":
            some = [*share, {**share[0], "at": None}]
            write_avro(path, AVRO, [_avro(row) for row in some], rows_a_block=max(1, step // 4))
        else:
            path.write_text(_json(share) if format == "json" else _csv(share))
    return str(folder / f"*.{format}")


def changes_spec(files: str, *, is_keyed: bool = True, **told: Any) -> SourceSpec:
    """Return the spec of a source ``c`` of files that `write_files` wrote."""
    keyed = {"envelope": "upsert", "key": ("k",), "delete_when": "gone"} if is_keyed else {}
    given = {"name": "c", "time_column": "at", "schema": SCHEMA, **keyed, **told}
    return SourceSpec(files=files, **given)


def _avro(row: Row) -> Row:
    return {**row, "amount": None if row["amount"] is None else Decimal(row["amount"])}


def arrow_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows in the types of the schema."""
    wire = ARROW.set(4, pa.field("amount", pa.string()))
    return pa.Table.from_pylist(list(rows), schema=wire).cast(ARROW)


async def make_source(root: Path | str, spec: SourceSpec) -> Location:
    """Make a location with one source."""
    location = await open_location(str(root), create=True)
    await location.sources.create(spec)
    return location


def make_shards_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create sources as before groups: each shard has a consensus object of its own."""
    monkeypatch.setattr(create, "new_group_id", lambda clock: None)


def consensus_key(shard: str) -> str:
    """Return the path of the consensus object of a shard."""
    return f"consensus/{group_of(shard) or shard}"


def before_the_commit(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` just before the next ingester proposes a binding, with its rows or alone."""
    mint, calls = Ingester._mint, 0

    async def late(
        ingester: Ingester, plan: Plan, lower: int, upper: int, rows: Sequence[ShardAppend] = ()
    ) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            await work()
        return await mint(ingester, plan, lower, upper, rows)

    monkeypatch.setattr(Ingester, "_mint", late)


async def lake_of(folder: Path, *places: str, **asked: Any) -> Location:
    """Make the folder's lake with the source ``c`` of its files, by default those in ``in``.

    Places are folders or patterns relative to ``folder``. Missing folders are made.
    """
    places = places or ("in",)
    for place in places:
        plain = takewhile(lambda part: not set(part) & set("*?[."), Path(place).parts)
        folder.joinpath(*plain).mkdir(parents=True, exist_ok=True)
    files = tuple(str(folder / place) for place in places)
    given = {"schema": "n bigint, at bigint", **asked}
    spec = SourceSpec(name="c", files=files if len(files) > 1 else files[0], **given)
    return await make_source(folder / "lake", spec)


async def reopened(folder: Path) -> Location:
    """Open the folder's lake as a separate process does."""
    return await open_location(str(folder / "lake"))


def write_numbers(path: Path, *numbers: int, at: int | None = None, mode: str = "w") -> Path:
    """Write rows ``n`` and ``at`` in the format of the file's name.

    Units: ``at`` is in milliseconds; by default ``1_000 * n``.
    """
    times = [1_000 * n if at is None else at for n in numbers]
    if path.suffix == ".parquet":
        pq.write_table(pa.table([numbers, times], schema=NUMBERS), path)
        return path
    rows = zip(numbers, times, strict=True)
    if ".csv" in path.suffixes:
        text = "n,at\n" + "".join(f"{n},{time}\n" for n, time in rows)
    else:
        text = "".join(f'{{"n": {n}, "at": {time}}}\n' for n, time in rows)
    data = text.encode()
    with path.open(f"{mode}b") as file:
        file.write(packed(data, path.suffix) if path.suffix in (".gz", ".zst") else data)
    return path


async def ingest(
    location: Location, name: str, *, engine: Engine | None = None, bytes_max: int = 6_000
) -> list[Tick]:
    """Ingest the whole source; return the ticks."""
    ingester = await location.sources.ingester(name, engine=engine, bytes_max=bytes_max)
    head = await ingester.source.head()
    ticks = []
    while (tick := await ingester.tick(head)) is not None:
        ticks.append(tick)
        if not tick.left_bytes:
            break
    return ticks


async def bind(ingester: Ingester) -> Binding | None:
    """Bind the new rows like an ingester that then dies; return None without new rows.

    Like after a command that was killed before its announcement, the ingester does not read the
    catalog: it binds with the entries that it knows.
    """
    lower = ingester.upper.time
    plan = await ingester.plan(await ingester.source.head(), lower)
    if plan is None or not plan.ranges:
        return None
    await mint(ingester, plan)
    return await ingester.pending()


async def mint(ingester: Ingester, plan: Plan) -> None:
    """Propose a plan, without a read of the catalog; see `bind`."""
    lower = ingester.upper.time
    ingester._looked = epoch_of_bindings(ingester.remap.state), 0
    await ingester._mint(plan, lower, ingester._upper_of(plan, lower))


async def bound(location: Location) -> tuple[Ingester, Binding]:
    """Return an ingester of ``c`` that bound everything available, and its binding."""
    ingester = await location.sources.ingester("c")
    binding = await bind(ingester)
    assert binding is not None
    return ingester, binding


async def run_once(ingester: Ingester) -> Summary:
    """Run an ingester as a command does, until the source has no new row."""
    return await run_ingest(
        ingester, follow=False, interval_us=0, on_tick=lambda _: None, stop=lambda: False
    )


async def ingest_files(
    location: Location, *, bytes_max: int = 10**8, final: bool = False, versioned: bool = False
) -> Summary:
    """Run an ingester of the files source ``c`` once, in small blocks."""
    ingester = await location.sources.ingester("c", bytes_max=bytes_max, final=final)
    assert isinstance(ingester.source, FilesSource)
    ingester.source.is_versioned = versioned
    ingester.source.block_bytes = 64
    return await run_once(ingester)


async def ingested(
    folder: Path,
    *,
    bytes_max: int | None = None,
    versioned: bool | None = None,
    final: bool = False,
) -> Summary:
    """Ingest the files source ``c`` of the folder's lake, as a separate process does."""
    location = await reopened(folder)
    ingester = await location.sources.ingester("c", bytes_max=bytes_max, final=final)
    assert isinstance(ingester.source, FilesSource)
    ingester.source.is_versioned = versioned
    return await run_once(ingester)


async def numbers(folder: Path) -> list[int]:
    """Return the numbers ``n`` of the collection ``c`` in the folder's lake."""
    found = await table_of(await reopened(folder))
    values, counts = (found.column(name).to_numpy() for name in ("n", "_diff"))
    return sorted(np.repeat(values, counts).tolist())


async def table_of(location: Location, name: str = "c", as_of: int | None = None) -> pa.Table:
    """Return the newest contents of a collection, or those at a time."""
    collection = await location.collection(name)
    await collection.refresh()
    return await collection.consolidated(as_of)


async def compact(location: Location) -> list[GroupCompaction]:
    """Merge all shards of all collections, as ``tidelog compact --full`` does."""
    maintenance = location.maintenance
    return [one async for one in maintenance.compact(await maintenance.groups(), full=True)]


async def collect(
    location: Location, *, after_us: int | None = 0, sweeps: bool = False
) -> list[GroupCollection]:
    """Collect the garbage of all collections, also of dropped ones, as ``tidelog collect`` does."""
    maintenance = location.maintenance
    groups = await maintenance.groups(dropped=True)
    return [one async for one in maintenance.collect(groups, after_us=after_us, sweeps=sweeps)]


async def sums_of(location: Location, name: str = "c") -> list[bytes]:
    """Return the sum T of each shard: equal sums are equal updates, each at its own time."""
    found = []
    for each in (name, f"{name}_errors"):
        collection = await location.collection(each)
        await collection.refresh()
        found += [shard.state.totals.sum_t for shard in collection.shards]
    return found


async def contents(location: Location, name: str = "c") -> list[str]:
    """Return a collection's contents as `rows_of` does, without their multiplicities."""
    found = await table_of(location, name)
    return rows_of(found.drop_columns(["_diff"]))


async def contents_in(folder: Path, name: str = "c") -> list[str]:
    """Return the contents of a collection in the folder's lake."""
    return await contents(await reopened(folder), name)


def rows_of(table: pa.Table) -> list[str]:
    """Return rows as sorted text, so that nulls can be compared, too."""
    return sorted(repr(row) for row in table.to_pylist())


def _json(rows: Sequence[Row]) -> str:
    lines = [json.dumps(row) for row in rows]
    lines.insert(3, '{"k": 1, "at":')
    lines.insert(len(lines) // 2, json.dumps({**rows[0], "small": 300}))
    lines.append(json.dumps({**rows[0], "at": None, "more": 1}))
    return "".join(line + "\n" for line in lines)


def _csv(rows: Sequence[Row]) -> str:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, ARROW.names, lineterminator="\n")
    writer.writeheader()
    for n, row in enumerate(rows):
        writer.writerow({**row, "gone": str(row["gone"]).lower()})
        if n == len(rows) // 2:
            sink.write("1,2,3\n")
            writer.writerow({**row, "gone": "maybe"})
    return sink.getvalue()
