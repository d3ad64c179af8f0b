"""Writes of tables from Spark: DataFrames and streams, each batch once."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

import tidelog
from kit.doc_blocks import run_block
from kit.s3_servers import SeaweedServer
from kit.spark_queries import run_available
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.options import SourceError

COLUMNS = "a bigint, b varchar"
TYPES = {
    "long": LongType(),
    "string": StringType(),
    "int": IntegerType(),
    "months": YearMonthIntervalType(),
    "list": ArrayType(YearMonthIntervalType()),
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A location with an empty table without a key, and one with a key."""
    with tidelog.connect(str(tmp_path), create=True) as location:
        location.tables.create("plain", COLUMNS, shards=2)
        location.tables.create("keyed", COLUMNS, key=["a"], shards=2)
    return tmp_path


def save(frame: DataFrame, lake: Path, name: str, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("tidelog").options(location=str(lake), **options)
    writer.mode(mode).save(name)


def numbered(spark: SparkSession, start: int, end: int, word: str = "new") -> DataFrame:
    """Return rows of three tasks."""
    return spark.range(start, end, 1, 3).selectExpr("id AS a", f"'{word} ' || id AS b")


def rows_in(lake: Path, name: str) -> Counter[tuple[int, str]]:
    with tidelog.connect(str(lake)) as location:
        rows = location.table(name).snapshot().to_arrow().to_pylist()
    return Counter((row["a"], row["b"]) for row in rows)


def pairs(start: int, end: int, word: str = "new") -> Counter[tuple[int, str]]:
    return Counter((n, f"{word} {n}") for n in range(start, end))


def test_a_dataframe_is_appended_in_one_commit(spark: SparkSession, lake: Path) -> None:
    """Tasks write the parts; narrower types fit, and a column that is missing is null."""
    save(numbered(spark, 0, 1_000), lake, "plain")
    save(spark.sql("SELECT CAST(7 AS SMALLINT) AS a"), lake, "plain")
    with tidelog.connect(str(lake)) as location:
        table = location.table("plain")
        history = table.history()
        found = table.snapshot(history[0].time).to_arrow()

    assert [(commit.added, commit.removed) for commit in history] == [(1_000, 0), (1, 0)]
    assert Counter((r["a"], r["b"]) for r in found.to_pylist()) == pairs(0, 1_000)
    assert rows_in(lake, "plain")[7, None] == 1  # type: ignore[index]


def test_keys_are_inserted_replaced_and_written_over(spark: SparkSession, lake: Path) -> None:
    """An append refuses present keys; an upsert replaces rows; an overwrite replaces all."""
    save(numbered(spark, 0, 50), lake, "keyed")
    with pytest.raises(PySparkException) as refused:
        save(numbered(spark, 49, 60), lake, "keyed")
    assert "[TIDELOG_KEY_EXISTS] the key a=49 exists" in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert rows_in(lake, "keyed") == pairs(0, 50)

    save(numbered(spark, 40, 60, "later"), lake, "keyed", operation="upsert")
    assert rows_in(lake, "keyed") == pairs(0, 40) + pairs(40, 60, "later")
    save(numbered(spark, 5, 8, "last"), lake, "keyed", "overwrite")
    assert rows_in(lake, "keyed") == pairs(5, 8, "last")
    save(numbered(spark, 1, 3, "only"), lake, "plain", "overwrite")
    assert rows_in(lake, "plain") == pairs(1, 3, "only")


def test_a_named_batch_is_written_once(spark: SparkSession, lake: Path) -> None:
    """``txnAppId`` and a rising ``txnVersion`` name a batch, as in Delta."""
    for number, version in enumerate(("7", "7", "6", "8")):
        rows = numbered(spark, 10 * number, 10 * number + 5)
        save(rows, lake, "plain", txnAppId="job", txnVersion=version)
    save(numbered(spark, 90, 95), lake, "plain", txnAppId="other", txnVersion="7")

    assert rows_in(lake, "plain") == pairs(0, 5) + pairs(30, 35) + pairs(90, 95)


def test_a_bad_row_fails_the_write(spark: SparkSession, lake: Path) -> None:
    """One task's bad row fails the job with a sentence, and no row is written."""
    bad = numbered(spark, 0, 9).selectExpr("nullif(a, 8) AS a", "b")
    text = numbered(spark, 0, 9).selectExpr("if(a = 8, 'x', string(a)) AS a", "b")
    for frame, told in ((bad, "the key column 'a' is null"), (text, "cannot hold the value")):
        with pytest.raises(PySparkException, match=told):
            save(frame, lake, "keyed")

    assert not rows_in(lake, "keyed")


@pytest.mark.parametrize(
    ("name", "schema", "options", "told"),
    [
        ("plain", "a long, c string", {}, "unknown columns: c; the columns are a, b"),
        ("keyed", "b string", {}, "lacks the key column 'a'"),
        ("plain", "a long", {"operation": "upsert"}, "the table 'plain' has no key"),
        ("plain", "a long", {"operation": "merge"}, "must be one of insert, upsert, delete"),
        ("plain", "a long", {"operation": "delete"}, "the table 'plain' has no key"),
        ("keyed", "a long, b string", {"operation": "delete"}, "unknown columns: b"),
        ("keyed", "b string", {"operation": "delete"}, "lacks the key column 'a'"),
        ("plain", "a long", {"txnAppId": "x"}, "set both, or neither"),
        ("plain", "a long", {"asOf": "1"}, "the option 'asOf' applies only to reads"),
        ("plain", "a long", {"asOf": "1"}, "a table of CREATE TABLE name USING tidelog LOCATION"),
        ("", "a long", {}, r"the name of the collection is missing: save\('NAME'\)"),
        ("plain", "a long", {"mergeSchema": "true"}, "unknown option 'mergeSchema'"),
        ("none", "a long", {}, "no table named 'none'; existing tables: keyed, plain"),
        ("plain", "a long", {"kind": "changes"}, "Spark cannot write changes"),
        ("plain", "a long, b months", {}, "'b' has the type interval year to month, which tide"),
        ("plain", "a list, b string", {}, "'a' has the type array<interval year to month>"),
    ],
)
def test_bad_writes_are_refused_before_a_task_starts(
    lake: Path, name: str, schema: str, options: dict[str, str], told: str
) -> None:
    """Bad columns, options and names each give a sentence, for batches and for streams."""
    source = TidelogDataSource({"location": str(lake), "path": name, **options})
    for call in (source.writer, source.streamWriter):
        with pytest.raises(SourceError, match=told):
            call(_schema(schema), False)


def test_an_overwrite_has_no_operation(lake: Path) -> None:
    """An overwrite with the option for an upsert is refused."""
    options = {"location": str(lake), "path": "keyed", "operation": "upsert"}
    with pytest.raises(SourceError, match="an overwrite replaces all rows"):
        TidelogDataSource(options).writer(_schema("a long"), True)


def test_options_of_writes_are_refused_in_reads(lake: Path) -> None:
    """A read names the option that only a write has."""
    options = {"location": str(lake), "path": "keyed", "operation": "upsert"}
    with pytest.raises(SourceError, match="'operation' applies only to writes"):
        TidelogDataSource(options).schema()


def _schema(told: str) -> StructType:
    """Return a schema; Spark's own parser needs a session."""
    columns = [one.split() for one in told.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


def batches(*numbers: int) -> Iterator[pa.RecordBatch]:
    columns: list[Any] = [pa.array(numbers, pa.int64()), pa.array([f"new {n}" for n in numbers])]
    return iter([pa.record_batch(columns, ["a", "b"])])


def test_lost_attempts_of_tasks_have_no_effect(lake: Path) -> None:
    """A task runs twice, and an abort follows a commit, as Spark may do; each row is in once."""
    source = TidelogDataSource({"location": str(lake), "path": "plain"})
    writer: Any = source.writer(_schema("a long, b string"), False)
    writer.write(batches(1, 2))
    messages = [writer.write(batches(1, 2)), None, writer.write(batches(3))]
    writer.commit(messages)
    writer.abort(messages)

    assert rows_in(lake, "plain") == pairs(1, 4)


def test_a_table_that_was_made_again_is_not_written(lake: Path) -> None:
    """A table of the same name, created during the job, is another table."""
    source = TidelogDataSource({"location": str(lake), "path": "plain"})
    writer: Any = source.writer(_schema("a long, b string"), False)
    message = writer.write(batches(1))
    with tidelog.connect(str(lake)) as location:
        location.tables.drop("plain")
        location.tables.create("plain", COLUMNS)

    with pytest.raises(SourceError, match=r"TIDELOG_NO_SUCH_COLLECTION.* dropped during the write"):
        writer.commit([message])
    assert not rows_in(lake, "plain")


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema(COLUMNS.replace("varchar", "string"))
    return reader.option("maxFilesPerTrigger", 1).json(str(folder))


def give(folder: Path, number: int, *rows: tuple[int, str]) -> None:
    folder.mkdir(exist_ok=True)
    lines = "".join(f'{{"a": {a}, "b": "{b}"}}\n' for a, b in rows)
    path = folder / f"{number}.json"
    path.write_text(lines)
    # Spark reads files in the order of these times, which could be equal.
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def test_a_stream_is_in_the_table_once(spark: SparkSession, lake: Path) -> None:
    """A batch that the checkpoint has lost is committed again, and changes nothing.

    A kill between tidelog's commit and Spark's leaves such a batch.
    """
    folder, checkpoint = lake / "given", lake / "check"

    def run(name: str, **options: str) -> None:
        writer = stream(spark, folder).writeStream.format("tidelog")
        place = {"location": str(lake), "checkpointLocation": str(checkpoint / name)}
        run_available(writer.options(**place, **options), name)

    give(folder, 0, (1, "one"), (2, "two"))
    give(folder, 1, (2, "deux"))
    for _ in range(2):
        run("plain")
        run("keyed", operation="upsert")
        for name in ("plain", "keyed"):
            (checkpoint / name / "commits" / "1").unlink()
            (checkpoint / name / "commits" / ".1.crc").unlink(missing_ok=True)
    give(folder, 2, (3, "three"))
    run("plain")
    run("keyed", operation="upsert")

    assert rows_in(lake, "plain") == Counter([(1, "one"), (2, "two"), (2, "deux"), (3, "three")])
    assert rows_in(lake, "keyed") == Counter([(1, "one"), (2, "deux"), (3, "three")])
    with tidelog.connect(str(lake)) as location:
        assert len(location.table("keyed").history()) == 3


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_copy_of_a_checkpoint_is_refused(spark: SparkSession, lake: Path, ahead: int) -> None:
    """A copy's batch has the number of another one; the first query goes on as before."""
    folder, check = lake / "given", lake / "check"

    def run(checkpoint: Path) -> None:
        writer = stream(spark, folder).writeStream.format("tidelog")
        place = {"location": str(lake), "checkpointLocation": checkpoint.as_uri()}
        run_available(writer.options(**place), "plain")

    give(folder, 0, (1, "one"))
    run(check / "first")
    shutil.copytree(check / "first", check / "copy")
    for number in range(1, ahead + 1):
        give(folder, number, (2, "two"))
    run(check / "first")
    with pytest.raises(StreamingQueryException, match=r"TIDELOG_CHECKPOINT_COPIED.*is a copy"):
        run(check / "copy")
    give(folder, 4, (4, "four"))
    run(check / "first")

    two = Counter({(2, "two"): ahead})
    assert rows_in(lake, "plain") == Counter([(1, "one"), (4, "four")]) + two


def test_a_table_in_a_bucket_is_written(spark: SparkSession, seaweed: SeaweedServer) -> None:
    """Tasks write parts into a bucket, and read them again."""
    url = seaweed.url("tables/lake")
    with tidelog.connect(url, create=True) as location:
        location.tables.create("t", COLUMNS, key=["a"], shards=2)
    writer = numbered(spark, 0, 100).write.format("tidelog").option("location", url)
    writer.mode("append").save("t")
    writer.option("operation", "upsert").mode("append").save("t")

    found = spark.read.format("tidelog").option("location", url).load("t")
    assert sorted(row.a for row in found.collect()) == list(range(100))


def test_the_page_runs(spark: SparkSession, tmp_path: Path) -> None:
    """All Python of docs/guides/spark-tables.md runs in its order."""
    with tidelog.connect(str(tmp_path / "lake"), create=True):
        pass
    names: dict[str, Any] = {
        "spark": spark,
        "url": str(tmp_path / "lake"),
        "tidelog": tidelog,
        "folder": str(tmp_path / "given"),
        "checkpoint": str(tmp_path / "check"),
    }
    (tmp_path / "given").mkdir()
    (tmp_path / "given/1.json").write_text('{"id": 2, "name": "deux"}\n')
    try:
        for words in ("tables.create", "txnAppId", "writeStream", "INSERT INTO"):
            names |= run_block("docs/guides/spark-tables.md", words, location=tmp_path, **names)
    finally:
        spark.sql("DROP TABLE IF EXISTS price_list")

    with tidelog.connect(str(tmp_path / "lake")) as location:
        found = location.table("prices").snapshot().to_arrow().to_pylist()
        commits = location.table("prices").history()
    assert {row["id"]: row["name"] for row in found} == {1: "ONE", 2: "DEUX"}
    assert len(commits) == 6


def test_a_direct_table_is_written_and_read(spark: SparkSession, lake: Path) -> None:
    """A table of mode direct takes the same operations, and Spark reads it at its own time."""
    with tidelog.connect(str(lake)) as location:
        location.tables.create("direct", "a bigint, b varchar", key=["a"], mode="direct")
    save(numbered(spark, 0, 50), lake, "direct")
    save(numbered(spark, 40, 60, "newer"), lake, "direct", operation="upsert")
    assert rows_in(lake, "direct") == pairs(0, 40) + pairs(40, 60, "newer")
    frame = spark.read.format("tidelog").option("location", str(lake)).load("direct")
    assert frame.count() == 60
    save(numbered(spark, 0, 3), lake, "direct", mode="overwrite")
    assert rows_in(lake, "direct") == pairs(0, 3)
