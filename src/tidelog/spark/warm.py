"""Make Spark sessions start in half the time: ``python -m tidelog.spark.warm``.

Takes half a minute and 200 MB of the user's cache, so it is done only when asked for. To be
repeated after an upgrade of Java or PySpark; until then sessions start as if it had not been done.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tidelog.spark.archive import archive_path, recording_options
from tidelog.spark.java import find_launcher
from tidelog.spark.session import session, stop

WRITE_SECONDS_MAX = 300


def warm() -> Path:
    """Run what most sessions run, and write the archive of the classes that took; return its path.

    Raises:
        UsageError: no Java was found to run Spark on. NOT_APPLIED.
    """
    launcher = find_launcher(os.environ)
    path = archive_path(launcher)
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        written = Path(scratch, path.name)
        options = " ".join(recording_options(launcher, written))
        with _silence():
            spark = session(extra={"spark.driver.extraJavaOptions": options})
            _exercise(spark, scratch)
            stop(spark, wait_seconds=WRITE_SECONDS_MAX)
        # A half-written archive is never seen under its name: others may start meanwhile.
        written.replace(path)
    return path


def _exercise(spark: SparkSession, scratch: str) -> None:
    files = f"{scratch}/rows"
    numbers = spark.range(1000).selectExpr("id", "id % 7 AS k", "cast(id AS string) AS s")
    numbers.write.parquet(files)
    numbers.write.json(f"{files}.json")
    spark.read.json(f"{files}.json").count()
    rows = spark.read.parquet(files)
    rows.groupBy("k").count().orderBy("k").toArrow()
    joined = rows.join(numbers.select("id"), "id").where("k = 3")
    joined.mapInArrow(_same, rows.schema).toPandas()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    # The JVM tells of each class that it cannot archive: hundreds of lines, on stdout.
    before = {number: os.dup(number) for number in (1, 2)}
    try:
        with open(os.devnull, "w") as nowhere:
            for number in before:
                os.dup2(nowhere.fileno(), number)
        yield
    finally:
        for number, copy in before.items():
            os.dup2(copy, number)
            os.close(copy)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


if __name__ == "__main__":
    print(warm())
