"""Sources without files on Spark: executors make the same rows, and read the same logs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kit.lake_logs import append, make
from kit.shelf_kind import Shelf
from kit.sources import ingest, make_source, sums_of
from tidelog.collection.source.kinds import register_kind
from tidelog.collection.spec_types import SourceSpec
from tidelog.spark import SparkEngine
from tidelog.spark.plan import TickSettings

CUT = TickSettings(
    small_bytes=0, task_bytes_min=1, task_bytes_max=2_000, range_bytes=1, driver_bytes=0
)


async def both(spark: SparkSession, roots: list[Path], spec: SourceSpec, rows: int) -> None:
    """Ingest a source locally and on Spark, cut as small as possible, and compare the results."""
    sums = []
    for root, is_spark in zip(roots, (False, True), strict=True):
        location = await make_source(root, spec)
        url, clock = location.url, location.clock
        engine = SparkEngine(spark, location_url=url, clock=clock, settings=CUT)
        ticks = await ingest(location, "s", engine=engine if is_spark else None, bytes_max=20_000)
        assert sum(tick.rows + tick.bad for tick in ticks) == rows
        sums.append(await sums_of(location, "s"))
    assert sums[0] == sums[1]


@pytest.mark.parametrize(("envelope", "lateness"), [("none", "0s"), ("upsert", "400ms")])
async def test_a_generator_makes_the_same_rows_in_executors(
    spark: SparkSession, tmp_path: Path, envelope: str, lateness: str
) -> None:
    """A task generates the rows of its share alone, the same each time."""
    asked: dict[str, Any] = {"envelope": envelope, "key": ("key",) if envelope == "upsert" else ()}
    shape = {"shape": "key-value", "rows": "1500", "skew": "1", "keys": "90"}
    spec = SourceSpec(
        name="s",
        kind="generator",
        settings=shape,
        time_column="time",
        shards=2,
        lateness=lateness,
        **asked,
    )

    held = 0 if lateness == "0s" else 400
    await both(spark, [tmp_path / "a", tmp_path / "b"], spec, 1_500 - held)


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_log_is_read_by_executors(spark: SparkSession, tmp_path: Path, protocol: str) -> None:
    """A log source names its log; each executor opens the location that it writes to."""
    roots = [tmp_path / "a", tmp_path / "b"]
    lines = [json.dumps({"k": n % 30, "at": n // 7}).encode() for n in range(400)]
    batches = [[*lines[n : n + 40], b"none"] for n in range(0, 400, 40)]
    for root in roots:
        make(root, "l", protocol)
        append(root, "l", batches)
    spec = SourceSpec(
        name="s",
        kind="log",
        settings={"log": "l"},
        format="json",
        schema="k bigint, at bigint",
        time_column="at",
        envelope="upsert",
        key=("k",),
    )

    asyncio.run(both(spark, roots, spec, 410))


def test_rows_after_lost_records_are_the_same_in_executors(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The range of the binding has the lost records, too, and no task reads these."""
    roots = [tmp_path / "a", tmp_path / "b"]
    batches = [
        [b'{"k": %d, "at": %d}' % (n, n) for n in range(b, b + 40)] for b in range(0, 400, 40)
    ]
    for root in roots:
        make(root, "l", "slot")
        append(root, "l", batches)
    asked: dict[str, Any] = {"schema": "k bigint, at bigint", "time_column": "at"}
    spec = SourceSpec(name="s", kind="log", settings={"log": "l"}, format="json", **asked)

    async def sums(root: Path, *, is_spark: bool) -> Any:
        location = await make_source(root, spec)
        log = await location.log("l")
        for name in (await log.cursors()).cursors:
            await log.drop_cursor(name)
        await log.create_cursor("other", 200)
        await log.collect(grace_us=0)
        await location.sources.skip("s", "l")
        url, clock = location.url, location.clock
        engine = SparkEngine(spark, location_url=url, clock=clock, settings=CUT)
        ticks = await ingest(location, "s", engine=engine if is_spark else None, bytes_max=10**6)
        assert [tick.bad for tick in ticks if tick.bad] == [1]
        assert 0 < sum(tick.rows for tick in ticks) < 400
        return await sums_of(location, "s")

    by_hand, by_spark = (asyncio.run(sums(root, is_spark=root.name == "b")) for root in roots)
    assert by_spark == by_hand


async def test_a_kind_that_was_registered_here_is_known_to_executors(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A kind registered in the driver travels with the work to the executors."""
    register_kind(GeneratedShelf)
    spec = SourceSpec(
        name="s", kind=GeneratedShelf.name, schema="k bigint, at bigint", time_column="at"
    )

    await both(spark, [tmp_path / "a", tmp_path / "b"], spec, 300)


class GeneratedShelf(Shelf):
    """Rows that each process can make by itself."""

    name = "told"
    rows = {"a": [{"k": n, "at": n, "gone": False, "body": None} for n in range(300)]}  # noqa: RUF012
