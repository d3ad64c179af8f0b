"""``kind`` ``keyed`` in a batch: each record that the log had at the load, once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kit.keyed_lake import append_keyed, compact_and_collect, keyed_rows, make_keyed, rows_in
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.keyed import share
from tidelog.spark.keyed.pin import KEYED_SCHEMA
from tidelog.spark.options import SourceError

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with a log of three runs, each a segment, and of two loose fragments."""
    lake = tmp_path_factory.mktemp("lake")
    make_keyed(lake, "orders")
    return lake


def load(spark: SparkSession, lake: Path, name: str = "orders", **options: str) -> DataFrame:
    reader = spark.read.format("tidelog").option("kind", "keyed")
    return reader.options(location=str(lake), **options).load(name)


def test_a_read_gives_what_a_scan_gives(spark: SparkSession, lake: Path) -> None:
    """A read gives the rows of a scan: all, one key in any form, a prefix, or a range."""
    everything = keyed_rows(lake, "orders")
    frame = load(spark, lake)
    assert frame.schema == KEYED_SCHEMA
    assert rows_in(frame.toArrow()) == everything
    for options, wanted in (
        ({"keyHex": "ff"}, lambda row: row[0] == b"\xff"),
        ({"prefix": "k"}, lambda row: row[0][:1] == b"k"),
        ({"key": "k3", "start": "150", "limit": "901"}, lambda row: _k3(row, 150, 901)),
    ):
        found = rows_in(load(spark, lake, **options).toArrow())
        assert found == [row for row in everything if wanted(row)]
        assert found


def _k3(row: Any, start: int, limit: int) -> bool:
    return bool(row[0] == b"k3" and start <= row[1] < limit)


def test_conditions_give_what_spark_gives_by_itself(spark: SparkSession, lake: Path) -> None:
    """Conditions on key and sequence give Spark's own results, pushed down or not."""
    everything = load(spark, lake).toArrow()
    local = spark.createDataFrame(everything)
    for condition in (
        "key = X'6b33'",
        "key in (X'', X'FF', X'6b34') and sequence > 333",
        "key >= X'6b35' and sequence between 100 and 700",
        "not (key = X'6b33') and value like '%7'",
    ):
        found = rows_in(load(spark, lake).where(condition).toArrow())
        assert found == rows_in(local.where(condition).toArrow())
        assert found


def test_a_condition_of_one_query_does_not_narrow_another(spark: SparkSession, lake: Path) -> None:
    """Spark may keep the plan of a query with conditions for others of the same DataFrame."""
    frame = load(spark, lake)
    whole = frame.count()

    spark.conf.set(PUSHDOWN, "true")
    try:
        assert 0 < frame.where("key = X'6b33'").count() < whole
        assert frame.count() == whole
    finally:
        spark.conf.unset(PUSHDOWN)


def test_each_record_is_in_one_share(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large parts are cut at row groups, and each record is in exactly one share."""
    from tidelog.keyed.format import part_file

    monkeypatch.setattr(part_file, "GROUP_ROWS", 32)
    monkeypatch.setattr(share, "SHARE_BYTES", 1_000)
    make_keyed(lake, "cut", compacted=1, loose=1)
    source = TidelogDataSource({"kind": "keyed", "location": str(lake), "path": "cut"})
    source.schema()
    reader = source.reader(KEYED_SCHEMA)
    planned = reader.partitions()
    executor = pickle.loads(pickle.dumps(reader))

    assert len(planned) > 3
    found = [row for p in planned for batch in executor.read(p) for row in batch.to_pylist()]
    sequences = sorted(row["sequence"] for row in found)
    assert sequences == [row[1] for row in keyed_rows(lake, "cut")] == list(range(1, 401))


def test_a_dataframe_stays_what_it_was_when_it_was_loaded(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A self-join after an append reads the records of the load on both sides."""
    make_keyed(tmp_path, "orders", compacted=1, loose=1)
    loaded = load(spark, tmp_path)
    append_keyed(tmp_path, "orders", first=400)

    assert loaded.count() == 400
    both = loaded.alias("a").join(loaded.alias("b"), "sequence", "full")
    found = both.selectExpr("count(*) n", "sum(int(a.value = b.value)) m").collect()[0]
    assert (found["n"], found["m"]) == (400, 400)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "other"}, r"\[TIDELOG_NO_SUCH_LOG\].*'other' does not exist"),
        ({"start": "9999"}, r"start 9999 is after the end of the log: start at 1001"),
        ({"keyHex": "xyz"}, r"\[TIDELOG_USAGE_ERROR\] a key or a prefix is not valid hex"),
        ({"checkpoint": "c"}, r"\[TIDELOG_NO_SUCH_CHECKPOINT\]"),
        ({"start": "latest"}, r"start 'next' needs readStream"),
    ],
)
def test_errors_are_a_sentence_each(lake: Path, options: dict[str, str], told: str) -> None:
    """Errors at load and at planning are one sentence each."""
    given = {"kind": "keyed", "location": str(lake), "path": "orders", **options}
    source = TidelogDataSource(given)
    with pytest.raises(SourceError, match=told):
        source.reader(source.schema())


def test_what_was_planned_too_long_ago_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """A plan whose parts were compacted and collected before the read raises ReadOvertaken."""
    make_keyed(tmp_path, "orders", compacted=1, loose=1)
    loaded = load(spark, tmp_path)
    planned = loaded.rdd  # This plans it.
    assert planned.getNumPartitions()
    compact_and_collect(tmp_path, "orders")
    append_keyed(tmp_path, "orders", first=600)
    compact_and_collect(tmp_path, "orders")
    with pytest.raises(PySparkException, match=r"TIDELOG_READ_OVERTAKEN.*load the DataFrame again"):
        loaded.collect()


def test_a_schema_of_the_users_is_refused(lake: Path) -> None:
    """A user's schema is refused, since it could cast or drop values silently."""
    source = TidelogDataSource({"kind": "keyed", "location": str(lake), "path": "orders"})
    with pytest.raises(SourceError, match="has a fixed schema"):
        source.reader(StructType())
    with pytest.raises(SourceError, match="has a fixed schema"):
        source.streamReader(StructType()).initialOffset()
