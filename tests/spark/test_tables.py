"""Tables on Spark: readers have the commits that the shards do not have yet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidelog
from tidelog.persist.format import part
from tidelog.spark.datasource import TidelogDataSource

FUTURE = 4_000_000_000_000  # Past the clock's time, at which the table is created.


def filled(location: str) -> list[int]:
    """Make a table of two shards with two inserts; return their times."""
    with tidelog.connect(location, create=True) as lake:
        table = lake.tables.create("t", "a bigint, b varchar", shards=2)
        return [
            table.insert(pa.table({"a": [n, n + 1], "b": ["x", "y"]}), at=FUTURE + n)
            for n in (0, 10)
        ]


def read_here(**options: str) -> list[dict[str, object]]:
    """Return the rows that Spark's tasks read, without a session."""
    source = TidelogDataSource(options)
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    found = [batch for each in partitions for batch in reader.read(each)]
    assert all(isinstance(batch, pa.RecordBatch) for batch in found)
    return [row for batch in found for row in batch.to_pylist()]  # type: ignore[union-attr]


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "objects"])
def test_tasks_read_unapplied_commits(
    tmp_path: Path, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contents and changes have the rows of each commit, at its assigned time."""
    if not inline:
        monkeypatch.setattr(part, "INLINE_BYTES", -1)
    location = str(tmp_path / "lake")
    times = filled(location)

    def read(**options: str) -> list[dict[str, object]]:
        return read_here(location=location, path="t", **options)

    assert sorted((row["a"], row["b"]) for row in read()) == [
        (0, "x"),
        (1, "y"),
        (10, "x"),
        (11, "y"),
    ]
    assert {row["a"] for row in read(asof=str(times[0]))} == {0, 1}
    assert {row["a"] for row in read(hold="1h")} == {0, 1, 10, 11}
    changes = read(kind="changes", since=str(times[0]))
    assert {(row["a"], row["_diff"]) for row in changes} == {(10, 1), (11, 1)}


def test_a_frame_has_unapplied_commits(spark: SparkSession, tmp_path: Path) -> None:
    """``spark.read`` of a table returns the rows of all commits."""
    location = str(tmp_path / "lake")
    filled(location)

    frame = spark.read.format("tidelog").option("location", location).load("t")

    assert sorted(row.a for row in frame.collect()) == [0, 1, 10, 11]
