"""``option("kind", "changes")``: the changes of a collection between two times, as a batch."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from kit.sources import FIRST, rows_of
from spark.test_datasource import LAST, lake, load, said
from tidelog.location import open_location
from tidelog.persist.format.schema import DIFF, TIME
from tidelog.spark.types import arrow_schema, spark_schema

__all__ = ["lake"]  # A fixture: pytest finds it by its name here.


def library(location: str, name: str, since: int, until: int | None, **wanted: object) -> pa.Table:
    """Return the library's changes, in Spark's types."""

    async def read() -> pa.Table:
        collection = await (await open_location(location)).collection(name)
        return await collection.changes(since, until, **wanted)  # type: ignore[arg-type]

    found = asyncio.run(read())
    return found.cast(arrow_schema(spark_schema(found.schema)))


@pytest.mark.parametrize("name", ["keyed", "appended", "keyed_errors"])
def test_changes_are_what_the_library_gives(spark: SparkSession, lake: str, name: str) -> None:
    """Spark returns the same changes as the library, for any two times."""
    for since, until in ((FIRST, LAST), (FIRST + 3, FIRST + 20), (FIRST + 7, None), (LAST, LAST)):
        options = {} if until is None else {"until": str(until)}
        read = load(spark, lake, name, kind="changes", since=str(since), **options)
        found, wanted = read.toArrow(), library(lake, name, since, until)

        assert found.column_names[:2] == [TIME, DIFF]
        assert rows_of(found.select(wanted.column_names)) == rows_of(wanted)
    assert library(lake, "keyed", FIRST, LAST).num_rows > 50


def test_some_columns_change_as_if_there_were_no_others(spark: SparkSession, lake: str) -> None:
    """A row whose other columns changed has no change in the selected columns."""
    told = {"kind": "changes", "since": str(FIRST), "columns": "k"}
    found = load(spark, lake, "keyed", **told).toArrow()

    assert rows_of(found.select(["k", TIME, DIFF])) == rows_of(
        library(lake, "keyed", FIRST, None, columns=["k"])
    )


def test_a_condition_chooses_among_changes(spark: SparkSession, lake: str) -> None:
    """The option selects as in the library; a condition in Spark may name time and diff, too."""
    told = {"kind": "changes", "since": str(FIRST), "where": "k >= 3", "columns": "k"}
    pushed = load(spark, lake, "keyed", **told).toArrow()
    read = load(spark, lake, "keyed", kind="changes", since=str(FIRST))
    found = read.where(f"k >= 3 AND {TIME} > {FIRST + 10} AND {DIFF} < 0").toArrow()

    assert rows_of(pushed.select(["k", TIME, DIFF])) == rows_of(
        library(lake, "keyed", FIRST, None, columns=["k"], where="k >= 3")
    )
    whole = library(lake, "keyed", FIRST + 10, None)
    chosen = whole.filter((pc.field("k") >= 3) & (pc.field(DIFF) < 0))
    assert found.num_rows == chosen.num_rows > 0
    assert rows_of(found.select(chosen.column_names)) == rows_of(chosen)


def test_times_that_cannot_be_are_a_sentence(spark: SparkSession, lake: str) -> None:
    """Bad times give a one-sentence error, as for a read of a collection."""
    for options, words in (
        ({}, "option('since'"),
        ({"since": str(LAST), "until": str(FIRST)}, "until= is before since="),
        ({"since": str(FIRST), "until": str(LAST + 1)}, "is complete up to"),
    ):
        assert words in said(spark, lake, "keyed", kind="changes", **options)
