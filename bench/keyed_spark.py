"""A keyed log from Spark: full scans and one key of a million records, by each way to read it.

With ``to_spark``, Spark reads the runs by itself. With ``format("tidelog")``, tidelog's tasks read
them, as they do for a log that is not on a disk. Rows and bytes of ``to_spark`` are Spark's own
counts of its scan. Spark counts only bytes of the task's thread, so few bytes of a full scan.

The best case for comparison is Spark's scan of the same rows in the same order, in plain Parquet
written by Arrow. The frames of full scans exist before the clock starts, also SlateDB's, unless the
line says *anew*. Each figure is the least of the warm rounds, in a session of two cores. The query
sums the lengths of keys and values, so that Spark reads each of them.

    python bench/keyed_spark.py [--records N] [--keys N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import tidelog
from figures import print_table
from keyed_records import MadeRecords, made_records
from keyed_slatedb import SlateLog, scan_half
from tidelog.keyed.values import Keys
from tidelog.spark.session import session, stop

READ_ALL = "sum(length(key)) + sum(length(value)) + sum(sequence) AS read"


def seconds_of(work: Callable[[], Any], rounds: int) -> float:
    """Return the least seconds of the rounds, after two warm-up rounds.

    The least, because other processes may use the machine.
    """
    taken = []
    for _ in range(rounds + 2):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return min(taken[2:])


def scanned(frame: DataFrame) -> tuple[int, int]:
    """Run a query; return the numbers of rows and bytes that Spark's own scan of files read."""
    context = frame.sparkSession.sparkContext
    before = _inputs(context)
    frame.collect()
    after = _inputs(context)
    return after[0] - before[0], after[1] - before[1]


def _inputs(context: Any) -> tuple[int, int]:
    store = context._jsc.sc().statusStore()
    context._jsc.sc().listenerBus().waitUntilEmpty()
    none = context._gateway.new_array(context._jvm.double, 0)
    stages = store.stageList(None, False, False, none, None)
    every = [stages.apply(n) for n in range(stages.size())]
    return sum(s.inputRecords() for s in every), sum(s.inputBytes() for s in every)


def figures(
    spark: SparkSession, lake: Path, key: bytes, rounds: int, records: int
) -> Iterator[tuple[str, ...]]:
    reader = spark.read.format("tidelog").option("kind", "keyed").option("location", str(lake))
    with tidelog.connect(str(lake)) as location, location.keyed.reader("log") as log:

        def asked(name: str, make: Callable[[], DataFrame], *, is_all: bool) -> tuple[str, ...]:
            def summed() -> DataFrame:
                return make().selectExpr("count(*) AS rows", READ_ALL)

            count = summed().collect()[0]["rows"]
            taken = seconds_of(lambda: summed().collect(), rounds)
            rows, size = scanned(summed())
            told = f"{records / taken:,.0f}" if is_all else ""
            return name, f"{count:,}", f"{taken * 1000:,.0f}", told, f"{rows:,}", f"{size:,}"

        frame = log.to_spark(spark)
        yield asked("all, to_spark", lambda: frame, is_all=True)
        yield asked("all, to_spark, anew", lambda: log.to_spark(spark), is_all=True)
        yield asked("all, format", lambda: reader.load("log"), is_all=True)
        yield asked("one key, to_spark", lambda: log.to_spark(spark, key), is_all=False)
        yield asked(
            "one key, format", lambda: reader.option("keyHex", key.hex()).load("log"), is_all=False
        )
        condition = f"key = X'{key.hex()}'"
        yield asked("one key, where", lambda: log.to_spark(spark).where(condition), is_all=False)
        yield asked("absent key", lambda: log.to_spark(spark, key + b"-"), is_all=False)


def plain_scan(spark: SparkSession, folder: Path) -> Callable[[], Any]:
    """Return Spark's scan of the same rows, which Arrow writes to one file."""
    with tidelog.connect(str(folder / "lake")) as location, location.keyed.reader("log") as log:
        rows = log.scan(Keys.all()).to_arrow().sort_by([("key", "ascending")])
    pq.write_table(rows, folder / "plain.parquet")
    frame = spark.read.parquet(str(folder / "plain.parquet"))
    return lambda: frame.selectExpr("count(*) AS rows", READ_ALL).collect()


def slate_scan(spark: SparkSession, folder: Path, made: MadeRecords) -> Callable[[], Any]:
    """Return a full scan of a SlateDB checkpoint by two tasks, each with half of the keys.

    SlateDB has no source for Spark, so the tasks use its binding.
    """
    checkpoint = asyncio.run(_slate_made(folder, made))
    middle = sorted(set(made.keys))[len(set(made.keys)) // 2]

    def half(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                bounds = (None, middle) if number == 0 else (middle, None)
                yield asyncio.run(scan_half(folder, checkpoint, *bounds))

    schema = "key binary, value binary, sequence long"
    frame = spark.range(0, 2, 1, 2).mapInArrow(half, schema)
    return lambda: frame.selectExpr("count(*) AS rows", READ_ALL).collect()


async def _slate_made(folder: Path, made: MadeRecords) -> str:
    log = SlateLog(folder)
    await log.open()
    await log.ingest(made.pairs)
    await log.compact()
    found = await log.checkpoint()
    await log.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slatedb", action="store_true", help="SlateDB by Spark's tasks, too")
    told = parser.parse_args()
    made = made_records(told.records, told.keys, is_skewed=False)
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder, "lake")
        with tidelog.connect(str(lake), create=True) as location:
            log = location.keyed.create("log")
            log.append_arrow(made.table)
            log.compact(full=True)
            log.close()
        spark = session(master="local[2]")
        found = figures(spark, lake, made.keys[0], told.rounds, told.records)
        head = ("", "rows", "ms", "rows/s", "rows scanned", "bytes scanned")
        rows = list(found)
        others = {"all, plain Parquet": plain_scan(spark, Path(folder))}
        if told.slatedb:
            others["all, SlateDB"] = slate_scan(spark, Path(folder), made)
        for name, scan in others.items():
            assert scan()[0]["rows"] == told.records
            taken = seconds_of(scan, told.rounds)
            each = f"{told.records / taken:,.0f}"
            rows.append((name, f"{told.records:,}", f"{taken * 1000:,.0f}", each, "", ""))
        print_table(head, rows)
        by_spark(spark, lake, made)
        stop(spark)


def by_spark(spark: SparkSession, lake: Path, made: Any) -> None:
    """Print the speed of an append of all records, from a DataFrame in memory."""
    with tidelog.connect(str(lake)) as location:
        location.keyed.create("written").close()
    frame = spark.createDataFrame(made.table).repartition(2).cache()
    frame.count()
    writer = frame.write.format("tidelog").option("kind", "keyed").option("location", str(lake))
    for told in ("first", "then"):
        begun = time.perf_counter()
        writer.mode("append").save("written")
        taken = time.perf_counter() - begun
        print(f"append by df.write, {told}: {len(made.keys) / taken:,.0f} records/s")


if __name__ == "__main__":
    main()
