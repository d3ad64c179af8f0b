"""Conditions of a read on Spark: the option ``where``, and Spark's own conditions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kit.sources import changes, ingest, rows_of, write_files
from spark.test_datasource import keyed_spec, load, said, snapshot
from spark.test_scan import part_of, read, scan_of
from tidelog.location import open_location
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.options import SourceError
from tidelog.spark.scan import Scan
from tidelog.spark.types import spark_schema

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def test_a_scan_within_a_box_lets_updates_meet() -> None:
    """A row and its retraction are both within a box, or neither is."""
    made = [part_of([(n, "a", 0, 1) for n in range(9)]), part_of([(4, "a", 1, -1)])]
    data = {hash(part.xxh3): found for part, found in made}
    scan = msgspec.structs.replace(scan_of([part for part, _ in made]), box={"k": (3, 5)})
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(scan), type=Scan)

    assert sorted(read(sent, data)) == [(3, "a"), (5, "a")]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A location with a keyed and an appended collection."""
    root: Path = tmp_path_factory.mktemp("lake")
    files = write_files(root / "in", "json", changes(240))

    async def make() -> None:
        location = await open_location(str(root / "lake"), create=True)
        for name in ("keyed", "appended"):
            await location.sources.create(keyed_spec(files, name))
            await ingest(location, name)

    asyncio.run(make())
    return str(root / "lake")


def test_a_row_outside_of_the_condition_is_not_given_to_spark(lake: str) -> None:
    """Bounds of the condition skip objects; the rest of it is evaluated in tasks."""
    source = TidelogDataSource({"location": lake, "path": "keyed", "where": "k = 3 AND NOT gone"})
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    found = [batch for each in partitions for batch in reader.read(each)]
    scans = [
        scan for each in partitions for scan in msgspec.msgpack.decode(each.value, type=list[Scan])
    ]

    assert set(pa.Table.from_batches(found).column("k").to_pylist()) == {3}  # type: ignore[arg-type]
    assert {tuple(scan.box["k"]) for scan in scans} == {(3, 3)}


@pytest.mark.parametrize("name", ["keyed", "appended"])
@pytest.mark.parametrize("columns", [None, "at,amount"])
def test_a_read_with_a_condition_is_the_whole_less_the_rest(
    spark: SparkSession, lake: str, name: str, columns: str | None
) -> None:
    """A read with the option returns exactly the matching rows, as Spark's own condition does."""
    condition = "k >= 3 AND k < 9 AND (text IS NULL OR text LIKE 'line 1%')"
    options = {} if columns is None else {"columns": columns}
    found = load(spark, lake, name, where=condition, **options).toArrow()
    by_spark = load(spark, lake, name).where(condition).toArrow()

    mask = [
        3 <= row["k"] < 9 and (row["text"] or "line 1").startswith("line 1")
        for row in snapshot(lake, name).to_pylist()
    ]
    expected = snapshot(lake, name).filter(pa.array(mask))
    assert rows_of(by_spark) == rows_of(expected)
    assert rows_of(found) == rows_of(expected.select(found.column_names))
    assert found.num_rows


@pytest.mark.parametrize("pushdown", ["true", "false"])
@pytest.mark.parametrize("kind", ["collection", "changes"])
def test_a_condition_of_one_query_does_not_narrow_another(
    spark: SparkSession, lake: str, kind: str, pushdown: str
) -> None:
    """PySpark 4.3.0 keeps the filters that a source accepts for later queries of a DataFrame."""
    told = {"kind": kind, **({"since": "0"} if kind == "changes" else {})}
    frame = load(spark, lake, "keyed", **told)
    whole, first = frame.count(), frame.where("k = 3")

    spark.conf.set(PUSHDOWN, pushdown)
    try:
        assert 0 < first.count() < whole
        assert frame.count() == whole
        assert frame.select("k").crossJoin(first.select("k").limit(1)).count() == whole
        both = first.union(frame.where("k = 4"))
        assert {row["k"] for row in both.select("k").collect()} == {3, 4}
    finally:
        spark.conf.unset(PUSHDOWN)


def test_a_bad_condition_is_refused_at_load(spark: SparkSession, lake: str) -> None:
    """The error is one sentence with the fault, as in the library."""
    assert "nope" in said(spark, lake, "keyed", where="nope = 1")
    assert "where" in said(spark, lake, "keyed", where="k = ")


def test_a_stream_of_contents_is_refused_with_the_option_to_set() -> None:
    """The error names the fault and the alternative."""
    source = TidelogDataSource({"location": "memory://", "path": "keyed"})
    with pytest.raises(SourceError, match=r"set option\('kind', 'changes'\).* spark\.read"):
        source.streamReader(spark_schema(pa.schema([]))).initialOffset()
