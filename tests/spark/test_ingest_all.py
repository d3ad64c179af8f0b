"""``tidelog ingest --all --engine spark``: all sources share one session, also at the same time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from tidelog import connect
from tidelog.cli.main import main
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import open_location
from tidelog.spark import SparkEngine

NAMES = ("a", "b", "c", "d", "e", "f")


async def make_sources(folder: Path) -> None:
    location = await open_location(str(folder / "lake"), create=True)
    for n, name in enumerate(NAMES):
        (folder / name).mkdir()
        for file in range(2):
            rows = "".join(f'{{"n": {10 * n + row}}}\n' for row in range(3))
            (folder / name / f"{file}.jsonl").write_text(rows)
        spec = SourceSpec(name=name, files=str(folder / name), schema="n bigint")
        await location.sources.create(spec)


def rows_of(folder: Path) -> dict[str, list[int]]:
    with connect(folder / "lake") as lake:
        tables = {name: lake.collection(name).snapshot().to_arrow() for name in NAMES}
    return {name: sorted(table.column("n").to_numpy().tolist()) for name, table in tables.items()}


def test_all_sources_are_ingested_on_one_session(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first tick starts the session, once; the command stops it at the end."""
    asyncio.run(make_sources(tmp_path))
    words = ["--location", str(tmp_path / "lake"), "ingest", "--all", "--engine", "spark"]
    with (
        patch("tidelog.spark.session.session", return_value=spark) as started,
        patch("tidelog.spark.session.stop") as stopped,
    ):
        assert main([*words, "--max-bytes-per-tick", "20", "--json"]) == 0

    assert started.call_count == stopped.call_count == 1
    summary = json.loads(capsys.readouterr().out)
    assert {one["engine"] for one in summary["sources"].values()} == {"spark"}
    assert summary["rows"] == 36
    expected = {
        name: sorted(2 * [10 * n + row for row in range(3)]) for n, name in enumerate(NAMES)
    }
    assert rows_of(tmp_path) == expected


def test_all_sources_share_an_engine_in_python(tmp_path: Path, spark: SparkSession) -> None:
    """The blocking call takes one engine for all sources."""
    asyncio.run(make_sources(tmp_path))
    told: list[str] = []
    with connect(tmp_path / "lake") as lake:
        engine = SparkEngine(spark, location_url=str(tmp_path / "lake"))
        summaries = lake.sources.ingest_all(
            engine=engine, on_tick=lambda name, _: told.append(name)
        )

    assert {name: one.rows for name, one in summaries.items()} == dict.fromkeys(NAMES, 6)
    assert set(told) == set(NAMES)
    assert all(len(rows) == 6 for rows in rows_of(tmp_path).values())
