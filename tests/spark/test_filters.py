"""Spark's conditions as bounds: a read with them equals a filtered read without them."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import datasource as spark_filters

from kit.sources import changes, ingest, rows_of, write_files
from spark.test_datasource import load, snapshot, spec_of
from spark.test_scan import part_of, read, scan_of
from tidelog.location import open_location
from tidelog.persist.format.schema import decode_schema
from tidelog.spark.datasource import (
    FilteringReader,
    TidelogDataSource,
    TidelogReader,
    box_of_filters,
    is_asked_for_filters,
)
from tidelog.spark.options import ReadSettings, SourceError
from tidelog.spark.scan import Scan
from tidelog.spark.scan_plan import PinnedRead, choose_pin
from tidelog.spark.types import spark_schema

COLUMNS: dict[str, pa.DataType] = {
    "i": pa.int32(),
    "s": pa.string(),
    "d": pa.date32(),
    "f": pa.float64(),
}
SCHEMA = pa.schema(COLUMNS)


def equal(name: str, value: Any) -> Any:
    return spark_filters.EqualTo((name,), value)


def test_plain_filters_bound_their_columns() -> None:
    """Several filters on one column narrow it; a date becomes its number of days."""
    given = [
        spark_filters.GreaterThan(("i",), 3),
        spark_filters.LessThanOrEqual(("i",), 9),
        spark_filters.In(("s",), ("b", "a")),
        equal("d", datetime.date(1970, 1, 3)),
    ]

    assert box_of_filters(given, SCHEMA) == {"i": (3, 9), "s": ("a", "b"), "d": (2, 2)}


@pytest.mark.parametrize(
    "given",
    [
        spark_filters.Not(equal("i", 3)),
        spark_filters.IsNull(("i",)),
        spark_filters.EqualNullSafe(("i",), None),
        spark_filters.StringContains(("s",), "a"),
        spark_filters.In(("i",), (1, None)),
        spark_filters.EqualTo(("a", "b"), 1),
        equal("other", 1),
        equal("f", 1.5),
        equal("i", 2**40),
        equal("d", datetime.datetime(1970, 1, 3)),  # noqa: DTZ001 - a value as Spark passes it
    ],
    ids=repr,
)
def test_other_filters_bound_nothing(given: Any) -> None:
    """A filter that cannot become a bound is left to Spark."""
    assert box_of_filters([given], SCHEMA) == {}


def test_a_scan_within_a_box_lets_updates_meet() -> None:
    """A row and its retraction are both within a box, or neither is."""
    made = [part_of([(n, "a", 0, 1) for n in range(9)]), part_of([(4, "a", 1, -1)])]
    data = {hash(part.xxh3): found for part, found in made}
    scan = msgspec.structs.replace(scan_of([part for part, _ in made]), box={"k": (3, 5)})
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(scan), type=Scan)

    assert sorted(read(sent, data)) == [(3, "a"), (5, "a")]


def test_a_reader_that_could_take_filters_is_made_where_spark_asks_for_them_alone() -> None:
    """If the setting is off, Spark refuses a source that overrides the method."""
    named: dict[str, Any] = {"__name__": "pyspark.sql.worker.data_source_pushdown_filters"}
    exec("def ask(work):\n    return work()", named)

    assert named["ask"](is_asked_for_filters)
    assert not is_asked_for_filters()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A location with a keyed and an appended collection."""
    root: Path = tmp_path_factory.mktemp("lake")
    files = write_files(root / "in", "json", changes(240))

    async def make() -> None:
        location = await open_location(str(root / "lake"), create=True)
        for name in ("keyed", "appended"):
            await location.sources.create(spec_of(files, name))
            await ingest(location, name)

    asyncio.run(make())
    return str(root / "lake")


def pin_of(location: str, name: str) -> PinnedRead:
    return asyncio.run(choose_pin(ReadSettings(location_url=location, name=name)))


def test_what_lies_outside_of_a_filter_is_not_given_to_spark(lake: str) -> None:
    """All filters go back to Spark, but rows outside the bounds never reach it."""
    pin = pin_of(lake, "keyed")
    schema = spark_schema(decode_schema(pin.schema).data)
    reader, plain = FilteringReader(pin, schema), TidelogReader(pin, schema)
    given = [equal("k", 3), spark_filters.IsNotNull(("k",))]

    assert list(reader.pushFilters(given)) == given
    found = [b for p in reader.partitions() for b in reader.read(p)]
    whole = [b for p in plain.partitions() for b in plain.read(p)]
    assert {k for batch in found for k in batch.column("k").to_pylist()} == {3}
    assert sum(batch.num_rows for batch in whole) > 1


@pytest.mark.parametrize("name", ["keyed", "appended"])
def test_a_read_with_a_condition_is_the_whole_less_the_rest(
    spark: SparkSession, lake: str, name: str
) -> None:
    """With filter pushdown on, a read with a condition returns exactly the matching rows."""
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    loaded = load(spark, lake, name)
    found = loaded.where("k >= 3 AND k < 9 AND (text IS NULL OR text LIKE 'line 1%')")

    mask = [
        3 <= row["k"] < 9 and (row["text"] or "line 1").startswith("line 1")
        for row in snapshot(lake, name).to_pylist()
    ]
    assert rows_of(found.toArrow()) == rows_of(snapshot(lake, name).filter(pa.array(mask)))


def test_a_stream_of_a_collection_is_refused_with_what_there_is() -> None:
    """The error names the fault and the alternative."""
    source = TidelogDataSource({"location": "memory://", "path": "keyed"})
    with pytest.raises(SourceError, match=r"cannot be read as a stream: read it .* spark\.read"):
        source.streamReader(spark_schema(SCHEMA))
