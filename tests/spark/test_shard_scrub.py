"""A scrub of shards on Spark finds the same as the scrub in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidelog
from tidelog.cli.main import main
from tidelog.collection.maintenance import GroupScrub
from tidelog.errors import LocationError, NoSuchCollection
from tidelog.location import open_location
from tidelog.persist.format import part
from tidelog.persist.maintenance import part_checks
from tidelog.spark import shard_scrub
from tidelog.spark.shard_scrub import check_shares

ROWS = 300


@pytest.fixture(autouse=True)
def small_tasks() -> Iterator[None]:
    """Make each part an object, and each object a task."""
    with (
        patch.object(part, "INLINE_BYTES", 0),
        patch.object(part_checks, "LEAST_BYTES", 0),
        patch.object(shard_scrub, "TASK_BYTES", 1),
    ):
        yield


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A location with a table of two shards, and a shard."""
    with tidelog.connect(str(tmp_path), create=True) as location:
        table = location.tables.create("t", "a bigint, b varchar", key=["a"], shards=2)
        for n in range(4):
            table.upsert([{"a": a, "b": f"{n}"} for a in range(n * 100, n * 100 + ROWS)])
        shard = location.shard("s", schema=pa.schema([pa.field("a", pa.int64())]), key=["a"])
        for n in range(3):
            rows = {"a": [*range(ROWS)], "_time": [n] * ROWS, "_diff": [1] * ROWS}
            shard.compare_and_append(pa.table(rows), n, n + 1)
    return tmp_path


def parts_of(lake: Path) -> list[Path]:
    """Return the parts of the table and the shard; the catalog must stay readable."""
    found = (lake / "shard").glob("*/part/**/*.parquet")
    return sorted(path for path in found if "catalog" not in path.parts)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def here(lake: Path) -> list[GroupScrub]:
    async def run() -> list[GroupScrub]:
        maintenance = (await open_location(str(lake))).maintenance
        return [one async for one in maintenance.scrub(await maintenance.groups())]

    return asyncio.run(run())


DAMAGE: dict[str, Callable[[list[Path]], Any]] = {
    "flipped": lambda parts: flip(parts[1]),
    "cut": lambda parts: parts[2].write_bytes(parts[2].read_bytes()[:-9]),
    "lost": lambda parts: parts[-1].unlink(),
    "swapped": lambda parts: swap(parts[0], parts[-1]),
}


@pytest.mark.parametrize("damage", ["none", *DAMAGE])
def test_damage_is_found_by_tasks(spark: SparkSession, lake: Path, damage: str) -> None:
    """The counts, the damaged objects and the remedies are those of the scrub in this process."""
    if damage != "none":
        DAMAGE[damage](parts_of(lake))
    with patch.object(part_checks.CheckerHere, "check", side_effect=AssertionError):
        found = tidelog.spark.scrub(spark, str(lake))

    assert found == here(lake)
    assert {one.name for one in found} == {"t", "s", "(catalog)"}
    damaged = [one.path for each in found for one in each.found.damages]
    assert bool(damaged) == (damage != "none")
    assert sum(each.found.parts for each in found) + len(damaged) >= len(parts_of(lake))


def test_an_error_of_a_task_is_an_error_of_the_scrub(spark: SparkSession, lake: Path) -> None:
    """A task returns its error as a value, and the driver raises it."""
    answers = list(check_shares([(0, [])], location_url=(lake / "none").as_uri()))
    with pytest.raises(NoSuchCollection, match="'other'"):
        tidelog.spark.scrub(spark, str(lake), ["other"])
    with pytest.raises(LocationError, match="away"):
        shard_scrub._in_order([(1, []), (0, LocationError("away"))])
    assert answers == [(0, [])]


def test_a_small_shard_needs_no_task(lake: Path) -> None:
    """The driver checks it itself, so no session is used."""
    with patch.object(part_checks, "LEAST_BYTES", 10**9):
        found = tidelog.spark.scrub(None, str(lake), ["t"])  # type: ignore[arg-type]

    assert [one.found.is_clean for one in found] == [True, True]
    assert sum(one.found.parts for one in found) > 2


@pytest.mark.parametrize("is_hurt", [False, True])
def test_the_command_reports_the_same_on_spark(
    spark: SparkSession, lake: Path, capsys: pytest.CaptureFixture[str], is_hurt: bool
) -> None:
    """``--master`` chooses Spark, too; the command starts one session, and stops it."""
    if is_hurt:
        flip(parts_of(lake)[0])
    said = []
    with (
        patch("tidelog.spark.session.session", return_value=spark) as started,
        patch("tidelog.spark.session.stop") as stopped,
    ):
        for flags in ([], ["--engine", "spark"], ["--master", "local[2]"]):
            status = main(["--location", str(lake), "scrub", "--json", *flags])
            lines = capsys.readouterr().out.splitlines()
            said.append((status, [json.loads(line) for line in lines]))

    assert said[0] == said[1] == said[2]
    assert said[0][0] == int(is_hurt)
    assert started.call_count == stopped.call_count == 2
