"""The speed of an upsert of a few rows into many, next to Delta's MERGE.

One collection, and one Delta table with deletion vectors, have the same rows. Both are compacted
first. Each round adds one Parquet file of rows with random keys, most of which exist. tidelog
ingests it as a tick of an upsert source, from the listing to the commit of old and new rows. Delta
merges it: it updates matched rows and inserts the others. Both run in one warm session. The local
engine, which needs no session, has a line of its own. Seconds and ratios are medians over the
rounds; requests are those of one round.

    python bench/upsert.py --delta FOLDER_OF_JARS [--rows N] [--changed N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
from pyspark.sql import SparkSession

from figures import print_table, ratio, seconds_of, side_by_side
from ingest_sides import delta_settings
from tidelog.aio import SourceSpec, connect
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import Summary
from tidelog.core.clock import SystemClock
from tidelog.spark.engine import SparkEngine
from tidelog.spark.session import session, stop

AIM = 2.0  # Delta's seconds over ours.
SCHEMA = "id bigint, user varchar, amount double, note varchar"


def write_rows(path: Path, rows: str) -> None:
    """Write rows, about 60 bytes each, with the ids of the query ``rows``."""
    salt = int(path.stem) if path.stem.isdigit() else 0
    duckdb.sql(f"""
        COPY (
            SELECT id, 'user-' || hash(id) % 100000 AS user,
                   (hash(id + {salt}) % 100000) / 100 AS amount,
                   'note ' || hash(id + 3) % 1000 AS note
            FROM ({rows})
        ) TO '{path}' (FORMAT parquet, COMPRESSION zstd)""")


@dataclass(slots=True, kw_only=True)
class Ours:
    """A collection of the files of a folder; each call ingests the new files."""

    name: str
    folder: Path
    spark: SparkSession | None
    summary: Summary

    @property
    def url(self) -> str:
        return (self.folder / f"lake-{self.name}").as_uri()

    @property
    def inputs(self) -> Path:
        return self.folder / f"in-{self.name}"

    async def create(self) -> None:
        location = await connect(self.url, create=True)
        spec = SourceSpec(
            name="rows",
            files=f"{self.inputs}/*.parquet",
            format="parquet",
            schema=SCHEMA,
            envelope="upsert",
            key=("id",),
            retain="1s",
        )
        await location.sources.create(spec)

    async def ingest(self) -> None:
        location = await connect(self.url)
        spark, clock = self.spark, SystemClock()
        engine = None if spark is None else SparkEngine(spark, location_url=self.url, clock=clock)
        ingester = await location.sources.ingester("rows", engine=engine)
        self.summary = await run_ingest(
            ingester,
            follow=False,
            interval_us=1_000_000,
            on_tick=lambda _: None,
            stop=lambda: False,
        )

    async def compact(self) -> None:
        location = await connect(self.url)
        for shard in (await location.collection("rows")).all_shards:
            await shard.compact(full=True)
            await shard.collect(after_us=0)

    def __call__(self) -> float:
        return seconds_of(lambda: asyncio.run(self.ingest()))


class Merge:
    """A Delta table; each call merges the newest file of a folder."""

    def __init__(self, spark: SparkSession, table: Path, changes: Path) -> None:
        self.spark, self.table, self.changes = spark, table, changes

    def create(self, rows: Path) -> None:
        name = f"delta.`{self.table}`"
        frame = self.spark.read.parquet(str(rows))
        frame.write.format("delta").option("delta.enableDeletionVectors", "true").save(
            str(self.table)
        )
        self.spark.sql(f"OPTIMIZE {name}")

    def __call__(self) -> float:
        newest = max(self.changes.iterdir())
        statement = f"""
            MERGE INTO delta.`{self.table}` AS t USING parquet.`{newest}` AS s ON t.id = s.id
            WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
        return seconds_of(lambda: self.spark.sql(statement).collect())


def measure(spark: SparkSession, folder: Path, *, rows: int, changed: int, rounds: int) -> None:
    """Print the seconds of each side."""
    ours = [
        Ours(name="spark", folder=folder, spark=spark, summary=Summary()),
        Ours(name="local", folder=folder, spark=None, summary=Summary()),
    ]
    changes, delta = folder / "changes", folder / "delta"
    changes.mkdir()
    first = folder / "first.parquet"
    write_rows(first, f"SELECT range AS id FROM range({rows})")
    merge = Merge(spark, delta, changes)
    merge.create(first)
    for side in ours:
        side.inputs.mkdir()
        (side.inputs / "0000.parquet").symlink_to(first)
        asyncio.run(side.create())
        asyncio.run(side.ingest())
        asyncio.run(side.compact())
    number = 0

    def bring() -> float:
        nonlocal number
        number += 1
        ids = f"SELECT DISTINCT hash(range + {number * 1_000_003}) % {rows + changed} AS id"
        path = changes / f"{number:04}.parquet"
        write_rows(path, f"{ids} FROM range({changed})")
        for side in ours:
            (side.inputs / path.name).symlink_to(path)
        return 0.0

    bring()
    merge()
    for side in ours:
        side()
    works: dict[str, Callable[[], float]] = {"files": bring, "Delta's MERGE": merge}
    works |= {f"tidelog, {side.name} engine": side for side in ours}
    found = side_by_side(works, rounds)

    held = spark.read.format("delta").load(str(delta)).count()
    for side in ours:
        location = asyncio.run(counted(side))
        assert location == held, f"{side.name} has {location} rows, Delta {held}"
    print(
        f"{changed:,} random keys into {rows:,} rows, compacted; {rounds} rounds; PySpark "
        f"{spark.version}; both hold {held:,} rows\n"
    )
    base = found["Delta's MERGE"]
    table = [["Delta's MERGE", f"{statistics.median(base):.2f}", "1.00", "", ""]]
    for side in ours:
        seconds = found[f"tidelog, {side.name} engine"]
        times = f"{ratio(seconds, base):.2f}"
        requests = str(side.summary.store.requests_count)
        took = f"{statistics.median(seconds):.2f}"
        table.append([f"tidelog, {side.name} engine", took, times, f"{AIM:.1f}", requests])
    print_table(["work", "seconds", "times as fast", "aim", "requests"], table)


async def counted(side: Ours) -> int:
    """Return the present number of rows of a collection."""
    location = await connect(side.url)
    contents = await (await location.collection("rows")).snapshot()
    return (await contents.to_arrow()).num_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delta", type=Path, required=True, help="a folder of Delta's jars")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--changed", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    pa.set_cpu_count(2)
    spark = session(extra=delta_settings(given.delta))
    try:
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
            work = partial(measure, rows=given.rows, changed=given.changed, rounds=given.rounds)
            work(spark, Path(folder))
    finally:
        stop(spark)


if __name__ == "__main__":
    main()
