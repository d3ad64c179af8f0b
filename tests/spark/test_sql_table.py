"""Tables of Spark's catalog, created by ``CREATE TABLE name USING tidelog``."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types

import tidelog
from tidelog.errors import UsageError
from tidelog.spark.sql_table import (
    check_unchanged,
    options_of_table,
    options_stored_in,
    stored_in,
)

# The properties that PySpark 4.3.0 adds to those of the statement at CREATE TABLE.
ADDED = {"owner": "root", "provider": "tidelog"}
SCHEMA = spark_types.StructType(
    [
        spark_types.StructField("n", spark_types.LongType()),
        spark_types.StructField("text", spark_types.StringType()),
    ]
)


def test_the_options_of_a_statement_are_those_of_a_read() -> None:
    """Spark repeats each option under a prefix; table properties are no options."""
    given = {
        **ADDED,
        "location": "s3://bucket/lake/orders",
        "option.asOf": "5",
        "asof": "5",
        "note": "a table property",
    }

    found = options_of_table(given)

    assert found == {"location": "s3://bucket/lake", "path": "orders", "asof": "5"}


def test_the_location_of_a_statement_ends_with_the_collection() -> None:
    """The place has two parts: the URL of the location, a slash, and the collection."""
    found = options_of_table({**ADDED, "location": "s3://bucket/lake/orders"})

    assert found == {"location": "s3://bucket/lake", "path": "orders"}
    assert options_of_table({"location": "s3://bucket/lake", "path": "orders"}) is None


@pytest.mark.parametrize("given", [{}, {"location": "orders"}])
def test_a_statement_without_a_collection_is_refused_with_one_that_works(
    given: dict[str, str],
) -> None:
    """The error contains the statement to write."""
    with pytest.raises(UsageError, match=r"CREATE TABLE .* LOCATION"):
        options_of_table({**ADDED, **given})


def test_the_schema_of_a_table_contains_its_options() -> None:
    """Spark's catalog stores the schema as JSON, and passes it with each query."""
    options = {"location": "s3://bucket/lake", "path": "orders", "columns": "n, text"}
    stored = spark_types.StructType.fromJson(stored_in(SCHEMA, options).jsonValue())

    assert options_stored_in(stored) == (options, SCHEMA)
    assert options_stored_in(SCHEMA) == (None, SCHEMA)
    with pytest.raises(UsageError, match="DROP TABLE"):
        check_unchanged(SCHEMA, spark_types.StructType(SCHEMA.fields[:1]))


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A location with a collection ``numbers``."""
    url = str(tmp_path / "lake")
    (tmp_path / "1.jsonl").write_text('{"n": 1, "at": 1000}\n{"n": 2, "at": 2000}\n')
    with tidelog.connect(url, create=True) as opened:
        opened.sources.create(
            tidelog.SourceSpec(name="numbers", files=str(tmp_path / "*.jsonl"), time_column="at")
        )
        opened.sources.ingest("numbers")
    return url


def numbers(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


@pytest.mark.parametrize(
    "place", ["LOCATION '{}/numbers'", "OPTIONS (asOf '1000') LOCATION '{}/numbers'"]
)
def test_a_table_of_the_catalog_is_read_like_any_other(
    spark: SparkSession, lake: str, place: str
) -> None:
    """SQL reads the collection through the table, also a column of it, and a join with itself."""
    is_early = "asOf" in place
    spark.sql(f"CREATE TABLE entries USING tidelog {place.format(lake)}")
    try:
        found = numbers(spark, "SELECT n FROM entries")
        joined = numbers(spark, "SELECT a.n FROM entries a JOIN entries b USING (n) WHERE b.n = 1")
        frame = [row["n"] for row in spark.table("entries").orderBy("n").collect()]
        with pytest.raises(PySparkException) as refused:
            spark.sql("INSERT INTO entries SELECT n, at FROM entries")
    finally:
        spark.sql("DROP TABLE entries")

    assert found == ([(1,)] if is_early else [(1,), (2,)])
    assert joined == [(1,)]
    assert frame == [n for (n,) in found]
    told = "'asOf' applies only to reads" if is_early else "cannot write a collection of a source: "
    assert "[TIDELOG_USAGE_ERROR] " in str(refused.value)
    assert told in str(refused.value)
    assert "Traceback" not in str(refused.value)
    with tidelog.connect(lake) as opened:
        assert len(opened.collection("numbers").snapshot()) == 2
