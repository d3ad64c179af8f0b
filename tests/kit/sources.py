"""Sources of files, and locations with their collections, for tests that compare ingesters."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.collection.ingest.engine import Engine
from tidelog.collection.ingest.ingest import Ingester, Tick
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import Summary
from tidelog.collection.source.files import FilesSource
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import Location, open_location

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
FIRST = 1_000_000

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
        else:
            path.write_text(_json(share) if format == "json" else _csv(share))
    return str(folder / f"*.{format}")


def arrow_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows in the types of the schema."""
    wire = ARROW.set(4, pa.field("amount", pa.string()))
    return pa.Table.from_pylist(list(rows), schema=wire).cast(ARROW)


async def make_source(root: Path | str, spec: SourceSpec) -> Location:
    """Make a location with one source."""
    location = await open_location(str(root), create=True)
    await location.sources.create(spec)
    return location


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


async def bind(ingester: Ingester) -> bool:
    """Bind the new rows without computing them; return True if new rows exist."""
    lower = ingester.upper.time
    plan = await ingester.plan(await ingester.source.head(), lower)
    if plan is None or not plan.ranges:
        return False
    await ingester._mint(plan, lower, ingester._upper_of(plan, lower))
    return True


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
    location = await open_location(str(folder / "lake"))
    ingester = await location.sources.ingester("c", bytes_max=bytes_max, final=final)
    assert isinstance(ingester.source, FilesSource)
    ingester.source.is_versioned = versioned
    return await run_once(ingester)


async def numbers(folder: Path) -> list[int]:
    """Return the numbers ``n`` of the collection ``c`` in the folder's lake."""
    location = await open_location(str(folder / "lake"))
    found = await (await location.collection("c")).consolidated()
    values, counts = (found.column(name).to_numpy() for name in ("n", "_diff"))
    return sorted(np.repeat(values, counts).tolist())


async def contents(location: Location, name: str = "c") -> list[str]:
    """Return a collection's contents as `rows_of` does, without their multiplicities."""
    found = await (await location.collection(name)).consolidated()
    return rows_of(found.drop_columns(["_diff"]))


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
