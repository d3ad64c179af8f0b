"""The speed of ingestion into a collection, next to Spark's writes to Parquet and to Delta.

All sides run in one warm session on the same files. Spark reads with a given schema and checks no
row by itself. Plain Parquet has no commit, so a crash leaves half of it. tidelog separates bad
rows, records the bound bytes with checksums, hashes each row and commits exactly once. Each round
runs all sides in turn. Seconds and ratios are medians over the rounds.

    python bench/ingest.py [--format json|csv|parquet] [--rows N] [--rounds N]
                           [--engine spark|local] [--delta FOLDER_OF_JARS]
    python bench/ingest.py --plan [--gigabytes N ...] [--files N ...] [--runs N ...]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from figures import print_table, ratio, side_by_side
from ingest_plan import FILES as FILES_PLANNED
from ingest_plan import RUNS, measure_plans
from ingest_sides import (
    FILES,
    FORMATS,
    SCHEMA,
    arrow_parquet,
    delta_settings,
    spark_write,
    write_rows,
)
from tidelog.aio import SourceSpec, connect
from tidelog.collection.ingest.engine import Engine
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import Summary
from tidelog.core.clock import SystemClock
from tidelog.spark.engine import SparkEngine
from tidelog.spark.session import session, stop

EngineAt = Callable[[str], Engine | None]  # By the location's URL; None is the local one.
# Spark's seconds to Parquet over ours, by envelope and by whether times come from the data.
AIMS = {
    ("none", False): 1.5,
    ("none", True): 1.5,
    ("upsert", False): 1.0,
    ("upsert", True): 0.6,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One way to ingest the rows."""

    envelope: str
    timed: bool
    format: str = "json"

    @property
    def name(self) -> str:
        return f"{self.envelope}, times from the {'data' if self.timed else 'clock'}"

    def spec(self, files: Path) -> SourceSpec:
        return SourceSpec(
            name="rows",
            files=f"{files}/*.{self.format}",
            format=self.format,
            schema=SCHEMA,
            envelope=self.envelope,
            key=("user",) if self.envelope == "upsert" else (),
            time_column="at" if self.timed else None,
        )


async def ingest_all(lake: Path, spec: SourceSpec, engine: EngineAt) -> Summary:
    """Ingest into a new location, as ``tidelog ingest --once`` does."""
    location = await connect(lake.as_uri(), create=True)
    await location.sources.create(spec)
    ingester = await location.sources.ingester(spec.name, engine=engine(location.url))
    return await run_ingest(
        ingester,
        follow=False,
        interval_us=1_000_000,
        on_tick=lambda _: None,
        stop=lambda: False,
    )


class Ingest:
    """One case, run repeatedly into new locations; it keeps the last summary."""

    def __init__(self, case: Case, files: Path, lake: Path, engine: EngineAt) -> None:
        self.case, self.files, self.lake, self.engine = case, files, lake, engine
        self.summary = Summary()

    def __call__(self) -> float:
        self.summary = asyncio.run(ingest_all(self.lake, self.case.spec(self.files), self.engine))
        shutil.rmtree(self.lake)
        return self.summary.duration_us / 1e6


@dataclass(frozen=True, slots=True)
class Asked:
    """The measurements that the command line asks for."""

    format: str
    rows: int
    rounds: int
    engine: str
    with_delta: bool


def measure(spark: SparkSession, folder: Path, asked: Asked) -> None:
    """Print the seconds of each side."""
    files, few, rows = folder / "files", folder / "few", asked.rows
    size = write_rows(files, rows, format=asked.format)
    write_rows(few, rows // 20, format=asked.format)

    def engine_at(url: str) -> Engine | None:
        if asked.engine == "local":
            return None
        return SparkEngine(spark, location_url=url, clock=SystemClock())

    cases = [Case(envelope, timed, asked.format) for envelope, timed in AIMS]
    ingests = {case.name: Ingest(case, files, folder / "lake", engine_at) for case in cases}
    write = partial(spark_write, spark, out=folder / "spark", format=asked.format)
    base = "Spark's reader to Parquet"
    works: dict[str, Callable[[], float]] = {base: partial(write, files, to="parquet")}
    if asked.with_delta:
        works["Spark's reader to Delta"] = partial(write, files, to="delta")
    works["Arrow's reader to Parquet, one core"] = partial(
        arrow_parquet, files, folder / "arrow", format=asked.format
    )
    works |= ingests
    for to in ["parquet", *(["delta"] if asked.with_delta else [])]:
        write(few, to=to)
    for case in cases:
        Ingest(case, few, folder / "lake", engine_at)()

    found = side_by_side(works, asked.rounds)

    print(
        f"{rows:,} rows of {asked.format}, {size / 1e6:.0f} MB in {FILES} files; engine "
        f"{asked.engine}; {asked.rounds} rounds; PySpark {spark.version}\n"
    )
    table = []
    for name, seconds in found.items():
        took = statistics.median(seconds)
        row = [name, f"{took:.1f}", f"{rows / took:,.0f}", f"{ratio(seconds, found[base]):.2f}"]
        if name in ingests:
            case, done = ingests[name].case, ingests[name].summary
            row += [f"{AIMS[case.envelope, case.timed]:.1f}", str(done.ticks)]
            row += [str(done.store.requests_count)]
        table.append([*row, *[""] * (7 - len(row))])
    head = ["work", "seconds", "rows/s", "ratio to Spark's", "aim", "ticks", "requests"]
    print_table(head, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=list(FORMATS), default="json")
    parser.add_argument("--delta", type=Path, help="a folder of Delta's jars: compare with it, too")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=["spark", "local"], default="spark")
    parser.add_argument("--plan", action="store_true", help="what planning takes, and a restart")
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[0.1, 1.0])
    parser.add_argument("--files", type=int, nargs="*", default=list(FILES_PLANNED))
    parser.add_argument("--runs", type=int, nargs="*", default=list(RUNS))
    given = parser.parse_args()
    if given.plan:
        measure_plans(given.gigabytes, given.files, given.runs)
        return
    extra = {} if given.delta is None else delta_settings(given.delta)
    asked = Asked(given.format, given.rows, given.rounds, given.engine, given.delta is not None)
    pa.set_cpu_count(1)
    spark = session(extra=extra)
    try:
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
            measure(spark, Path(folder), asked)
    finally:
        stop(spark)


if __name__ == "__main__":
    main()
