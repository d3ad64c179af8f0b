"""Messy files on Spark: some of the seeds of `tests/messy`, so that each format occurs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from messy.case import arun_case
from tidelog.location import Location
from tidelog.spark import SparkEngine
from tidelog.spark.plan import TickSettings

CUT = TickSettings(small_bytes=0, task_bytes_min=1, task_bytes_max=1_500, range_bytes=1)
SEEDS = (1, 2, 3, 7, 11, 23, 24, 32, 43, 44, 48, 57)


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_row_is_in_once(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Spark's result matches the model of the local engine; every other seed is cut small."""

    def engine_of(location: Location) -> SparkEngine:
        settings = CUT if seed % 2 else TickSettings()
        return SparkEngine(
            spark, location_url=location.url, clock=location.clock, settings=settings
        )

    outcome = await arun_case(seed, tmp_path, engine_of=engine_of)

    assert not outcome.differences, str(outcome)
    assert outcome.rows + outcome.bad > 0
