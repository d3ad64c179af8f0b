"""The blocks of docs/guides/spark.md, run in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import tidelog
from kit.doc_blocks import blocks_of

PAGE = "docs/guides/spark.md"


def test_the_guide_reads_contents_changes_and_snapshots(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A user can copy the blocks into a session, with a location of their own."""
    url = str(tmp_path / "lake")
    (tmp_path / "1.jsonl").write_text(
        '{"flight": 1, "at": "2013-01-15T13:00:00Z"}\n{"flight": 2, "at": "2013-01-15T14:30:00Z"}\n'
    )
    with tidelog.connect(url, create=True) as lake:
        lake.sources.create(
            tidelog.SourceSpec(name="airborne", files=str(tmp_path / "*.jsonl"), time_column="at")
        )
        lake.sources.ingest("airborne")
        stock = lake.shard("stock", schema=pa.schema({"n": pa.int64()}), key=["n"])
        stock.compare_and_append(pa.table({"n": [1, 2], "_time": [0, 0], "_diff": [1, 1]}), 0, 1)

    names: dict[str, Any] = {"spark": spark, "url": url}
    for block in blocks_of(PAGE):
        exec(compile(block.text, PAGE, "exec"), names)

    assert [row["flight"] for row in names["flights"].collect()] == [1]
    assert [row["flight"] for row in names["changes"].collect()] == [2]
    assert names["stream"].isStreaming
    assert (names["time"], names["counted"][0]["n"]) == (1_358_260_200_000, 2)
    assert names["newest"].count() == 2
    assert [row["n"] for row in names["some"].collect()] == [2]
