"""The blocks of README and of its guide that need Spark, on the data of their commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kit.doc_blocks import blocks_of
from kit.doc_tours import Tour


def run_spark_block(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the commands of a page in a folder, then its block for Spark; return its names."""
    monkeypatch.setenv("TIDELOG_LOCATION", "")
    monkeypatch.chdir(folder)
    Tour(lambda _: False).run(page)
    (block,) = (each for each in blocks_of(page) if "tidelog.spark" in each.text)
    names: dict[str, Any] = {}
    # The JVM of the tests runs in another folder.
    exec(compile(block.text.replace('"lake"', repr(str(folder / "lake"))), page, "exec"), names)
    return names


@pytest.mark.usefixtures("spark")
def test_readme_shows_a_table_and_its_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new user sees the price before the correction, and both rows of the correction."""
    run_spark_block("README.md", tmp_path, monkeypatch)

    shown = capsys.readouterr().out
    assert shown.count("| tea|2026-01-01 09:00:00|    3|") == 2
    assert shown.count("| tea|2026-01-01 12:00:00|    5|") == 1
    assert shown.count("|   -1| tea|") == 1


def test_the_guide_reads_a_time_and_the_changes_after_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block uses the active session."""
    names = run_spark_block("docs/guides/read-a-collection.md", tmp_path, monkeypatch)

    assert names["spark"] is spark
    assert {(row.item, row.price) for row in names["prices"].collect()} == {("tea", 3), ("jam", 8)}
    assert sorted((row._diff, row.price) for row in names["changes"].collect()) == [(-1, 3), (1, 5)]
