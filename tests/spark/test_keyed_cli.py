"""``tidelog keyed compact --engine spark``: tasks of Spark merge large runs."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from tidelog import connect
from tidelog.cli.main import main
from tidelog.spark.keyed.merger import SparkRunMerger


def test_compaction_is_done_on_spark_where_it_is_asked_for(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command starts a session, merges with it, and stops it."""
    with connect(tmp_path, create=True) as lake, lake.keyed.create("k") as log:
        log.append([(b"a", b"1"), (b"b", b"2")])
    words = ["--location", str(tmp_path), "keyed", "compact", "k", "--full"]
    with (
        patch("tidelog.spark.session.session", return_value=spark) as started,
        patch("tidelog.spark.session.stop") as stopped,
        patch("tidelog.spark.keyed.merger.SparkRunMerger", side_effect=SparkRunMerger) as merger,
    ):
        assert main([*words, "--engine", "spark"]) == 0

    assert merger.call_args.args[0] is spark
    assert started.called
    assert stopped.call_args.args == (spark,)
    capsys.readouterr()
    assert main([*words[:2], "keyed", "scan", "k", "--key", "a", "--format", "raw"]) == 0
    assert capsys.readouterr().out == "1\n"
    assert main([*words, "--engine", "local", "--master", "local[1]"]) == 2
