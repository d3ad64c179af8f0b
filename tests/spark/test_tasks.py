"""Tasks of RDDs and of DataFrames: the engine can use either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kit.sources import SCHEMA, changes, ingest, make_source, rows_of, write_files
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import UsageError
from tidelog.spark import SparkEngine, tasks
from tidelog.spark import engine as engine_module
from tidelog.spark.job import live_context
from tidelog.spark.plan import TickSettings
from tidelog.spark.ship import is_connect
from tidelog.spark.tasks import FrameTasks, RddTasks, SparkTasks

# Everything is cut as small as possible, so that messages of one key come from many tasks.
CUT = TickSettings(
    small_bytes=0, task_bytes_min=1, task_bytes_max=1_500, range_bytes=1, driver_bytes=0
)


def squares(items: Iterable[int]) -> Iterator[list[int]]:
    yield [item * item for item in items]


def spread(items: Iterable[int]) -> Iterator[tuple[int, int]]:
    for item in items:
        yield item % 3, item


def gathered(met: Iterable[tuple[int, int]]) -> Iterator[tuple[set[int], list[int]]]:
    found = list(met)
    yield {place for place, _ in found}, sorted(value for _, value in found)


@pytest.fixture(params=["rdd", "frame"])
def each(request: pytest.FixtureRequest, spark: SparkSession) -> SparkTasks:
    """Both ways to run tasks on the one session."""
    return FrameTasks(spark) if request.param == "frame" else RddTasks(live_context(spark))


def test_each_item_has_a_task_of_its_own(each: SparkTasks) -> None:
    """Each item runs in a task of its own, so that no core is idle."""
    assert sorted(each.run(squares, [1, 2, 3, 4, 5])) == [[1], [4], [9], [16], [25]]


def test_what_is_made_for_a_partition_meets_there(each: SparkTasks) -> None:
    """Items of one partition meet in one task, since a key's messages must not be divided."""
    found = each.meet(spread, [1, 2, 3, 4, 5, 7], gathered, 3)

    assert sorted(found, key=str) == [({0}, [3]), ({1}, [1, 4, 7]), ({2}, [2, 5])]


def test_both_know_how_many_tasks_run_at_once(spark: SparkSession) -> None:
    """Both report the same number of parallel tasks, which decides the cuts of a tick."""
    assert FrameTasks(spark).cores_count() == RddTasks(live_context(spark)).cores_count()


@pytest.mark.parametrize("envelope", ["upsert", "none"])
async def test_an_engine_of_dataframes_gives_the_same_collection(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envelope: str
) -> None:
    """Spark Connect has no RDDs; the engine of DataFrames gives the same collection."""
    files = write_files(tmp_path / "in", "json", changes(240))
    spec = SourceSpec(
        name="c",
        files=files,
        envelope=envelope,
        key=("k",) if envelope == "upsert" else (),
        time_column="at",
        schema=SCHEMA,
        shards=3,
    )
    by_hand = await make_source(tmp_path / "local", spec)
    by_frames = await make_source(tmp_path / "spark", spec)
    monkeypatch.setattr(engine_module, "tasks_of", FrameTasks)
    engine = SparkEngine(spark, location_url=by_frames.url, settings=CUT)

    await ingest(by_hand, "c")
    await ingest(by_frames, "c", engine=engine)

    for name in ("c", "c_errors"):
        ours, theirs = [
            rows_of(await (await place.collection(name)).consolidated())
            for place in (by_frames, by_hand)
        ]
        assert ours == theirs
        assert ours


def test_what_needs_rdds_says_so_on_spark_connect() -> None:
    """The error names Spark Connect instead of a missing JVM attribute."""
    connected: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()

    assert is_connect(connected)
    assert isinstance(tasks.tasks_of(connected), FrameTasks)
    with pytest.raises(UsageError, match="Spark Connect"):
        live_context(connected)
