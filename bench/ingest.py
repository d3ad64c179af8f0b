"""How fast json lines become a definite collection, beside Spark writing them to plain Parquet.

All in one warm session on the same files. Spark's side reads with the schema given and writes
Parquet: no row is checked apart, nothing is committed, and a crash leaves half of it. Ours keeps
bad rows apart, records what it took with checksums, hashes each row and commits exactly once.
Each round runs all sides in turn; seconds are medians, ratios are medians over the rounds.

    python bench/ingest.py [--rows N] [--rounds N] [--engine spark|local]
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

import duckdb
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from figures import print_table, ratio, seconds_of, side_by_side
from ingest_plan import FILES as FILES_PLANNED
from ingest_plan import RUNS, measure_plans
from tidelog.aio import SourceSpec, connect
from tidelog.clock import SystemClock
from tidelog.collection.engine import Engine
from tidelog.collection.run import Summary, run_ingest
from tidelog.spark.engine import SparkEngine
from tidelog.spark.session import session, stop

EngineAt = Callable[[str], Engine | None]  # By the location's URL; None is the local one.
FILES = 8
SCHEMA = (
    "id bigint, user varchar, at bigint, kind varchar, amount double, ok boolean, day date, "
    "note varchar"
)
SPARK_SCHEMA = SCHEMA.replace("varchar", "string")
AIMS = {"none": 2.0, "upsert": 1.0}


@dataclass(frozen=True, slots=True)
class Case:
    """One way to ingest the rows."""

    envelope: str
    timed: bool

    @property
    def name(self) -> str:
        return f"{self.envelope}, times from the {'data' if self.timed else 'clock'}"

    def spec(self, files: Path) -> SourceSpec:
        return SourceSpec(
            name="rows",
            files=f"{files}/*.json",
            schema=SCHEMA,
            envelope=self.envelope,
            key=("user",) if self.envelope == "upsert" else (),
            time_column="at" if self.timed else None,
        )


CASES = [Case(envelope, timed) for envelope in ("none", "upsert") for timed in (False, True)]


def write_rows(folder: Path, rows: int) -> int:
    """Write rows of 8 fields, about 140 bytes each, in time order, ten to a user; return bytes."""
    folder.mkdir()
    for number in range(FILES):
        start, limit = rows * number // FILES, rows * (number + 1) // FILES
        duckdb.sql(f"""
            COPY (
                SELECT i AS id, 'user-' || hash(i) % {max(1, rows // 10)} AS user,
                       1700000000000 + i AS at, 'k' || hash(i + 1) % 5 AS kind,
                       (hash(i + 2) % 100000) / 100 AS amount, hash(i + 3) % 2 = 0 AS ok,
                       DATE '2024-01-01' + (i % 28)::INT AS day, repeat('x', 20) AS note
                FROM range({start}, {limit}) r(i) ORDER BY i
            ) TO '{folder}/{number:04d}.json' (FORMAT json)""")
    return sum(path.stat().st_size for path in folder.iterdir())


def spark_parquet(spark: SparkSession, files: Path, out: Path) -> float:
    """Read with Spark's own reader and write plain Parquet."""
    read = spark.read.schema(SPARK_SCHEMA).json
    seconds = seconds_of(lambda: read(f"{files}/*.json").write.parquet(out.as_uri()))
    shutil.rmtree(out)
    return seconds


def arrow_parquet(files: Path, out: Path) -> float:
    """Read with Arrow's reader on one core, and write Parquet with zstd and page checksums."""

    def convert(path: Path) -> None:
        table = pj.read_json(path, read_options=pj.ReadOptions(use_threads=False))
        pq.write_table(table, out, compression="zstd", write_page_checksum=True)

    def convert_all() -> None:
        for path in sorted(files.iterdir()):
            convert(path)

    seconds = seconds_of(convert_all)
    out.unlink()
    return seconds


async def ingest_all(lake: Path, spec: SourceSpec, engine: EngineAt) -> Summary:
    """Ingest into a new location, as ``tidelog ingest --once`` does."""
    location = await connect(lake.as_uri(), create=True)
    await location.create_source(spec)
    ingester = await location.ingester(spec.name, engine=engine(location.url))
    return await run_ingest(
        ingester,
        follow=False,
        interval_us=1_000_000,
        on_tick=lambda _: None,
        stop=lambda: False,
    )


class Ingest:
    """One case, run again and again into new locations; keeps the last summary."""

    def __init__(self, case: Case, files: Path, lake: Path, engine: EngineAt) -> None:
        self.case, self.files, self.lake, self.engine = case, files, lake, engine
        self.summary = Summary()

    def __call__(self) -> float:
        self.summary = asyncio.run(ingest_all(self.lake, self.case.spec(self.files), self.engine))
        shutil.rmtree(self.lake)
        return self.summary.duration_us / 1e6


def measure(spark: SparkSession, folder: Path, rows: int, rounds: int, engine: str) -> None:
    """Print what each side took."""
    files, few = folder / "files", folder / "few"
    size = write_rows(files, rows)
    write_rows(few, rows // 20)

    def engine_at(url: str) -> Engine | None:
        if engine == "local":
            return None
        return SparkEngine(spark, location_url=url, clock=SystemClock())

    ingests = {case.name: Ingest(case, files, folder / "lake", engine_at) for case in CASES}
    spark_name = "Spark's reader to Parquet"
    works: dict[str, Callable[[], float]] = {
        spark_name: partial(spark_parquet, spark, files, folder / "spark"),
        "Arrow's reader to Parquet, one core": partial(arrow_parquet, files, folder / "arrow"),
        **ingests,
    }
    spark_parquet(spark, few, folder / "spark")
    for case in CASES:
        Ingest(case, few, folder / "lake", engine_at)()

    found = side_by_side(works, rounds)

    print(
        f"{rows:,} rows, {size / 1e6:.0f} MB in {FILES} files; engine {engine}; {rounds} rounds\n"
    )
    table = []
    for name, seconds in found.items():
        took = statistics.median(seconds)
        row = [
            name,
            f"{took:.1f}",
            f"{rows / took:,.0f}",
            f"{ratio(seconds, found[spark_name]):.2f}",
        ]
        if name in ingests:
            done = ingests[name].summary
            row += [f"{AIMS[ingests[name].case.envelope]:.1f}", str(done.ticks)]
            row += [str(done.store.requests_count)]
        table.append([*row, *[""] * (7 - len(row))])
    head = ["work", "seconds", "rows/s", "ratio to Spark's", "aim", "ticks", "requests"]
    print_table(head, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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
    pa.set_cpu_count(1)
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
            measure(spark, Path(folder), given.rows, given.rounds, given.engine)
    finally:
        stop(spark)


if __name__ == "__main__":
    main()
