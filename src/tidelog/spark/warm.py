"""A faster start of Spark sessions: ``python -m tidelog.spark.warm`` halves the time.

It takes half a minute and 200 MB of the user's cache, so it runs only on request. After an upgrade
of Java or PySpark, sessions start at the old speed until it runs again.
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
    """Run typical queries, and write the archive of the classes that they loaded; return its path.

    Raises:
        UsageError: no Java that runs Spark was found. NOT_APPLIED.
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
        # Other sessions may start concurrently, and must not see a partial archive.
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
    # The JVM prints hundreds of lines on stdout, about the classes that it cannot archive.
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
