"""Streaming queries into tables: checkpoints, batches without rows, sweeps, and deletes by key."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tidelog
from kit.spark_queries import run_available

COLUMNS = "a bigint, b varchar"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A location with two empty tables that have the same columns; one has a key."""
    with tidelog.connect(str(tmp_path), create=True) as location:
        location.tables.create("plain", COLUMNS)
        location.tables.create("keyed", COLUMNS, key=["a"], shards=2)
    return tmp_path


def give(lake: Path, number: int, *keys: int) -> None:
    """Write one file, which is one micro-batch of the query."""
    (lake / "given").mkdir(exist_ok=True)
    lines = "".join(f'{{"a": {key}, "b": "{number}.{key}"}}\n' for key in keys)
    (lake / "given" / f"{number}.json").write_text(lines)


def given(spark: SparkSession, lake: Path) -> DataFrame:
    reader = spark.readStream.schema("a bigint, b string").option("maxFilesPerTrigger", 1)
    return reader.json(str(lake / "given"))


def writer_of(frame: DataFrame, lake: Path, **options: str) -> Any:
    place = {"location": str(lake), "checkpointLocation": str(lake / "check")}
    return frame.writeStream.format("tidelog").options(**place, **options)


def texts_in(lake: Path, name: str) -> Counter[str]:
    with tidelog.connect(str(lake)) as location:
        rows = location.table(name).snapshot().to_arrow().to_pylist()
    return Counter(row["b"] for row in rows)


def newest_in(lake: Path, name: str) -> int:
    with tidelog.connect(str(lake)) as location:
        return location.table(name).snapshot().as_of


def sweep(lake: Path) -> None:
    command = [sys.executable, "-m", "tidelog.cli.main", "--location", str(lake)]
    command += ["collect", "--grace", "0s", "--sweep"]
    subprocess.run(command, check=True, capture_output=True)


def test_a_checkpoint_of_another_table_is_refused(spark: SparkSession, lake: Path) -> None:
    """The other table would lack the earlier batches; the first table can still go on."""
    give(lake, 0, 1, 2)
    run_available(writer_of(given(spark, lake), lake), "plain")
    give(lake, 1, 3)
    with pytest.raises(PySparkException) as refused:
        run_available(writer_of(given(spark, lake), lake), "keyed")
    assert "the table 'keyed' has no earlier batch of this query" in str(refused.value)
    assert "start the query with a new checkpoint" in str(refused.value)
    assert not texts_in(lake, "keyed")

    run_available(writer_of(given(spark, lake), lake), "plain")
    assert texts_in(lake, "plain") == Counter(["0.1", "0.2", "1.3"])


def test_batches_without_rows_move_the_upper(spark: SparkSession, lake: Path) -> None:
    """A condition removes all rows of a batch; the next batch with rows is not refused."""
    uppers = [newest_in(lake, "plain")]
    for number, key in enumerate((1, 2, 10)):
        give(lake, number, key)
        run_available(writer_of(given(spark, lake).where("a > 9"), lake), "plain")
        uppers.append(newest_in(lake, "plain"))

    assert uppers == sorted(set(uppers))
    assert texts_in(lake, "plain") == Counter(["2.10"])


def test_times_without_changes_pass_from_table_to_table(spark: SparkSession, lake: Path) -> None:
    """A micro-batch of a stream of changes has no partition; Spark still runs one task."""
    for rows in ([], [{"a": 1, "b": "one"}], []):
        before = newest_in(lake, "keyed")
        with tidelog.connect(str(lake)) as location:
            location.table("plain").insert(rows)
            location.table("plain").insert([])
        changes = spark.readStream.format("tidelog").option("kind", "changes")
        changes = changes.option("maxTimesPerTrigger", "1").option("location", str(lake))
        run_available(writer_of(changes.load("plain").select("a", "b"), lake), "keyed")
        assert newest_in(lake, "keyed") > before

    assert texts_in(lake, "keyed") == Counter(["one"])


def test_a_dataframe_without_tasks_moves_the_upper(spark: SparkSession, lake: Path) -> None:
    """A DataFrame with no partition at all is a commit, too."""
    before = newest_in(lake, "keyed")
    empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), "a bigint, b string")
    empty.write.format("tidelog").option("location", str(lake)).mode("append").save("keyed")

    assert newest_in(lake, "keyed") > before


def test_a_query_goes_on_after_many_sweeps(spark: SparkSession, lake: Path) -> None:
    """Each sweep raises the write epoch of a shard; each batch stages for the present one."""
    give(lake, 0, 1, 2)
    query = writer_of(given(spark, lake), lake, operation="upsert").start("keyed")
    try:
        query.processAllAvailable()
        for number in range(1, 4):
            sweep(lake)
            sweep(lake)
            give(lake, number, 2, 3)
            query.processAllAvailable()
    finally:
        query.stop()

    assert texts_in(lake, "keyed") == Counter(["0.1", "3.2", "3.3"])


def test_rows_are_deleted_by_key(spark: SparkSession, lake: Path) -> None:
    """A delete takes the key columns only; keys that are absent or repeated are no error."""
    give(lake, 0, 1, 2, 3, 4)
    run_available(writer_of(given(spark, lake), lake), "keyed")
    keys = spark.createDataFrame([(2,), (9,), (2,), (4,)], "a bigint")
    deletion = keys.write.format("tidelog").option("location", str(lake)).mode("append")
    deletion.option("operation", "delete").save("keyed")

    assert texts_in(lake, "keyed") == Counter(["0.1", "0.3"])
    with tidelog.connect(str(lake)) as location:
        newest = location.table("keyed").history()[-1]
    assert (newest.added, newest.removed) == (0, 2)
