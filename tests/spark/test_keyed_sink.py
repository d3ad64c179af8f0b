"""Writes to keyed logs from Spark: the refusals, and the records after a write."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

import tidelog
from kit.keyed_lake import append_keyed, keyed_rows, make_keyed, rows_in
from kit.s3_servers import SeaweedServer
from tidelog.errors import UsageError
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.keyed.share import KeyedLogPlace
from tidelog.spark.keyed.sink import KeyedBatchWriter, KeyedSink
from tidelog.spark.keyed.staging import BLOCK_BYTES, INLINE_BYTES, stage_records
from tidelog.spark.options import SourceError

GOOD = "key binary, value string"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A location with an empty log."""
    make_keyed(tmp_path, "orders", compacted=0, loose=0)
    return tmp_path


def save(frame: DataFrame, lake: Path, **options: str) -> None:
    writer = frame.write.format("tidelog").option("kind", "keyed").mode("append")
    writer.options(location=str(lake), **options).save("orders")


def pairs(lake: Path) -> Counter[tuple[bytes, bytes]]:
    return Counter((row[0], row[3]) for row in keyed_rows(lake, "orders"))


def staged_in(lake: Path) -> list[Path]:
    return [*lake.glob("keyed/orders/run/*/*-staged.arrow")]


def test_a_dataframe_is_appended_with_what_large_tasks_staged(
    spark: SparkSession, lake: Path
) -> None:
    """Strings become bytes, sequences are dense, and staged objects are deleted."""
    made = spark.range(0, 4_000, 1, 3).selectExpr(
        "concat('k', id % 10) AS key",
        "concat(unhex(sha2(concat('a', id), 512)), unhex(sha2(concat('b', id), 512)), "
        "unhex(sha2(concat('c', id), 512)), unhex(sha2(concat('d', id), 512))) AS value",
    )
    save(made, lake)

    expected = Counter((row["key"].encode(), bytes(row["value"])) for row in made.collect())
    assert pairs(lake) == expected
    assert [row[1] for row in keyed_rows(lake, "orders")] == list(range(1, 4_001))
    assert not staged_in(lake)


def test_a_named_batch_is_written_once(spark: SparkSession, lake: Path) -> None:
    """``txnAppId`` and a rising ``txnVersion`` name a batch, as in Delta."""
    made = spark.range(10).selectExpr("binary(string(id)) AS value", "binary('k') AS key")
    for version in ("7", "7", "6", "8"):
        save(made, lake, txnAppId="job", txnVersion=version)
    save(made, lake, txnAppId="other", txnVersion="7")

    assert set(pairs(lake).values()) == {3}


def test_a_row_that_is_no_record_is_told_and_nothing_is_appended(
    spark: SparkSession, lake: Path
) -> None:
    """One bad row fails the write, and no row of another task is appended."""
    append_keyed(lake, "orders", first=0)
    with pytest.raises(PySparkException, match="the column key must not have nulls"):
        save(spark.range(4).selectExpr("nullif('k1', 'k' || id) AS key", "'v' AS value"), lake)

    assert len(keyed_rows(lake, "orders")) == 200
    assert not staged_in(lake)


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        ("key string", {}, "from the columns key and value: select only them"),
        ("key string, value string, sequence int", {}, "from the columns key and value"),
        ("key int, value string", {}, "the column key must be binary or a string"),
        (GOOD, {"txnAppId": "a"}, "set both, or neither"),
        (GOOD, {"start": "1"}, "applies only to reads"),
        (GOOD, {"path": "none"}, "TIDELOG_NO_SUCH_LOG"),
        (GOOD, {"overwrite": "yes"}, "unknown option 'overwrite'"),
    ],
)
def test_bad_writes_are_told_before_a_task_starts(
    lake: Path, schema: str, options: dict[str, str], told: str
) -> None:
    """Bad columns, types and names each give a sentence, for batches and for streams."""
    given = {"kind": "keyed", "location": str(lake), "path": "orders", **options}
    source = TidelogDataSource(given)
    for call in (source.writer, source.streamWriter):
        with pytest.raises(SourceError, match=told):
            call(_schema(schema), False)


def _schema(told: str) -> StructType:
    """Return a schema; Spark's own parser needs a session."""
    types = {"string": StringType(), "binary": BinaryType(), "int": IntegerType()}
    pairs = [one.split() for one in told.split(", ")]
    return StructType([StructField(name, types[kind]) for name, kind in pairs])


def test_a_log_is_never_written_over(lake: Path) -> None:
    """Overwrite mode and complete output mode are both refused."""
    given = {"kind": "keyed", "location": str(lake), "path": "orders"}
    source = TidelogDataSource(given)
    for call in (source.writer, source.streamWriter):
        with pytest.raises(SourceError, match="cannot be overwritten"):
            call(_schema(GOOD), True)


def test_other_kinds_are_not_written_and_say_so() -> None:
    """The error of another kind names the alternative."""
    for kind, told in (("log", "Spark cannot write a log"), ("changes", "cannot write changes")):
        source = TidelogDataSource({"kind": kind, "location": "/lake", "path": "a"})
        for call in (source.writer, source.streamWriter):
            with pytest.raises(SourceError, match=told):
                call(StructType(), False)


def batch(count: int, size: int) -> pa.RecordBatch:
    values: Any = pa.array([bytes([n % 251]) * size for n in range(count)], pa.binary())
    return pa.record_batch([values, pa.array([b"k"] * count, pa.binary())], ["value", "key"])


def test_a_key_that_is_too_long_is_told_by_its_task(lake: Path) -> None:
    """A task refuses a key that is too long."""
    place = KeyedLogPlace(location_url=str(lake), name="orders")
    columns: list[Any] = [pa.array([b"k" * 20_000]), pa.array([b"v"])]
    with pytest.raises(UsageError, match="a key must have at most 16384 bytes"):
        stage_records(place, 0, iter([pa.record_batch(columns, ["key", "value"])]))


def test_tasks_stage_what_is_large_and_an_abort_deletes_it(lake: Path) -> None:
    """Small blocks travel in the answer; an abort deletes staged objects."""
    place = KeyedLogPlace(location_url=str(lake), name="orders")
    assert stage_records(place, 0, iter([])) == ()
    (small,) = stage_records(place, 0, iter([batch(3, 10), batch(0, 0), batch(2, 10)]))
    assert (small.rows, small.path) == (5, None)
    assert len(small.data or b"") <= INLINE_BYTES
    writer = KeyedBatchWriter(KeyedSink(place=place, write_epoch=0), None)  # type: ignore[arg-type]
    message = writer.write(iter([batch(2, BLOCK_BYTES // 2), batch(1, 5)]))
    assert [block.rows for block in message.blocks] == [2, 1]
    assert len(staged_in(lake)) == 2

    writer.abort([message, None])
    assert not staged_in(lake)


def test_a_bucket_is_written_and_read_by_tasks(spark: SparkSession, seaweed: SeaweedServer) -> None:
    """Tasks write and read a log in a bucket, which Spark cannot scan as files."""
    url = seaweed.url("keyed/lake")
    with tidelog.connect(url, create=True) as location:
        location.keyed.create("orders").close()
        frame = spark.range(500).selectExpr("'k' || id % 10 AS key", "string(id) AS value")
        writer = frame.write.format("tidelog").option("kind", "keyed").option("location", url)
        writer.mode("append").save("orders")
        log = location.keyed.open("orders")
        log.compact(full=True)
        log.append([(b"k3", b"loose")])
        expected = rows_in(log.scan(b"k3").to_arrow())
        by_handle = rows_in(log.to_spark(spark, b"k3").toArrow())
        log.close()
    reader = spark.read.format("tidelog").option("kind", "keyed").option("location", url)

    assert len(expected) == 51
    assert by_handle == expected
    assert rows_in(reader.load("orders").where("key = X'6b33'").toArrow()) == expected
