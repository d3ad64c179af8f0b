"""Spark jobs of a read-only connection change no file of the location."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidelog
from kit.filled_lake import SCHEMA, rows, updates
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_frames_of_a_read_only_connection_only_read(spark: SparkSession, tmp_path: Path) -> None:
    """Each kind of frame has its rows, and a hold is refused."""
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        lake.tables.create("t", SCHEMA, key=["k"]).insert(rows(1, 2))
        lake.shard("s", schema=SCHEMA).append(updates(0, 1, 2, 3), 0, 1)
        with lake.keyed.create("k") as log:
            log.append([(b"a", b"1"), (b"b", b"2")])
    before = files(tmp_path / "lake")

    with tidelog.connect(tmp_path / "lake", read_only=True) as lake:
        found = lake.table("t").snapshot()
        assert found.to_spark(spark).count() == 2
        assert lake.shard("s").snapshot(0).to_spark(spark).count() == 3
        with lake.keyed.reader("k") as reader, lake.keyed.open("k") as log:
            assert reader.to_spark(spark).count() == 2
            assert log.spark_view(spark).frame.count() == 2
        answer = lake.sql("SELECT count(*) AS n FROM t", engine="spark")
        assert answer.table.to_pylist() == [{"n": 2}]
        for snapshot in (lake.shard("s").snapshot(0), found):
            with pytest.raises(UsageError, match="read-only"):
                snapshot.to_spark(spark, hold="1h")

    assert files(tmp_path / "lake") == before
