"""The speed of merging a shard's batches into one, by this process and by Spark's tasks.

A keyed shard has all its rows in one batch. Later batches replace half of them, at random. The
shard keeps only its newest contents, so a merge drops replaced rows. Each round merges a copy on
this machine's disk, in turn in this process and in a warm session of Spark with all cores. Rows are
counted as read, parts as written.

    python bench/merge.py [--rows N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from figures import print_table, ratio, seconds_of, side_by_side
from tidelog.location import open_location
from tidelog.persist.maintenance.compactor import HERE, CompactionReport, compact
from tidelog.persist.maintenance.merger import Merger
from tidelog.spark.merger import SparkMerger
from tidelog.spark.session import session, stop

FIELDS: list[pa.Field[Any]] = [
    pa.field("k", pa.int64()),
    pa.field("text", pa.string()),
    pa.field("v", pa.float64()),
]
SCHEMA = pa.schema(FIELDS)
NAME = "rows"
BATCHES = 5  # After the first batch.


def updates(keys: np.ndarray[Any, Any], time: int, diff: int, salt: int) -> pa.Table:
    words = pa.array([f"{n} is here" for n in range(9_973)])
    values = np.random.default_rng(salt).random(int(keys.max()) + 1)[keys]
    columns = [keys, words.take(keys % 9_973), values, np.full(len(keys), time)]
    return pa.table([*columns, np.full(len(keys), diff)], [*SCHEMA.names, "_time", "_diff"])


async def make(folder: Path, rows: int) -> None:
    """Write the shard that the rounds merge."""
    shard = (await open_location(str(folder), create=True)).shard(NAME, schema=SCHEMA, key=["k"])
    await shard.compare_and_append(updates(np.arange(rows), 0, 1, 0), 0, 1)
    changed = np.random.default_rng(1).permutation(rows)[: rows // 2]
    for number, keys in enumerate(np.array_split(changed, BATCHES), 1):
        some = [updates(keys, number, -1, 0), updates(keys, number, 1, number)]
        await shard.compare_and_append(pa.concat_tables(some), number, number + 1)
    await shard.move_hold("history", BATCHES)


async def merged(folder: Path, merger: Merger) -> CompactionReport:
    shard = (await open_location(str(folder))).shard(NAME)
    done = await compact(shard, full=True, merger=merger)
    parts = sum(len(batch.parts) for batch in shard.state.batches)
    print(f"{done.rows_read:,} rows to {done.rows_written:,} in {parts} parts", flush=True)
    return done


def seconds(base: Path, merger: Merger) -> float:
    """Merge a copy; return the seconds."""
    with tempfile.TemporaryDirectory(dir=base.parent) as name:
        folder = Path(name, "lake")
        shutil.copytree(base, folder)
        return seconds_of(lambda: asyncio.run(merged(folder, merger)))


def run(spark: SparkSession, rows: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name, "base")
        asyncio.run(make(base, rows))
        size = sum(p.stat().st_size for p in base.rglob("*.parquet"))
        works: dict[str, Callable[[], float]] = {
            "this process": partial(seconds, base, HERE),
            "Spark's tasks": partial(seconds, base, SparkMerger(spark, least_bytes=0)),
        }
        works["Spark's tasks"]()  # Workers start and load their modules.
        found = side_by_side(works, rounds)
    read = 2 * rows
    print(f"\n{read:,} rows, {size / 2**20:,.0f} MiB, {rounds} rounds\n")
    ours = found["this process"]
    print_table(
        ("merged by", "seconds", "rows/s", "ratio"),
        [
            (
                name,
                f"{statistics.median(each):.1f}",
                f"{read / statistics.median(each):,.0f}",
                f"{ratio(each, ours):.2f}",
            )
            for name, each in found.items()
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    spark = session()
    try:
        run(spark, given.rows, given.rounds)
    finally:
        stop(spark)


if __name__ == "__main__":
    main()
