"""Frames of a base that Spark scans, with few changes over it: the rows of every history."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidelog
from tidelog.location import open_location
from tidelog.persist.format import part
from tidelog.persist.states.state import State
from tidelog.spark import collection_frame, overlay_frame
from tidelog.spark.overlay_frame import overlay_of

COLUMNS = "a bigint, b varchar, x double, n int"
KEY = ["a", "b"]
EACH = 60
Rows = Counter[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def objects() -> Iterator[None]:
    """Make each part an object, and each base large enough."""
    with patch.object(part, "INLINE_BYTES", 0), patch.object(overlay_frame, "BASE_LEAST", 0):
        yield


@pytest.fixture
def used() -> Iterator[list[overlay_frame.Overlay]]:
    """The overlays from which frames were made."""
    found: list[overlay_frame.Overlay] = []
    make = overlay_frame.overlay_frame

    async def noted(spark: Any, collection: Any, overlay: Any, *rest: Any) -> DataFrame:
        found.append(overlay)
        return await make(spark, collection, overlay, *rest)

    with patch.object(collection_frame, "overlay_frame", noted):
        yield found


def rows_of(first: int, count: int, version: int) -> list[dict[str, Any]]:
    return [row_of(number, version) for number in range(first, first + count)]


def row_of(number: int, version: int) -> dict[str, Any]:
    x = (float("nan"), None, -0.0, version + number / 8)[number % 4]
    n = None if version == 2 else 10 * number + version
    return {"a": number, "b": f"k{number % 3}", "x": x, "n": n}


def compact(place: Path, *, full: bool) -> None:
    async def run() -> None:
        maintenance = (await open_location(str(place))).maintenance
        groups = await maintenance.groups(["t"])
        async for _ in maintenance.compact(groups, full=full):
            pass

    asyncio.run(run())


def wanted(snapshot: Any) -> Rows:
    return Counter(tuple(map(repr, row.values())) for row in snapshot.to_arrow().to_pylist())


def found_in(frame: DataFrame) -> Rows:
    return Counter(tuple(map(repr, row)) for row in frame.collect())


def check(spark: SparkSession, place: Path, times: list[int]) -> None:
    """Compare the frames of all times with the rows that this process reads."""
    with tidelog.connect(str(place)) as lake:
        for time in times:
            snapshot = lake.table("t").snapshot(time)
            frame = snapshot.to_spark(spark)
            assert found_in(frame) == wanted(snapshot)
            assert frame.count() == sum(wanted(snapshot).values())
        some = lake.table("t").snapshot(times[-1], columns=["n"])
        assert found_in(some.to_spark(spark)) == wanted(some)


def test_a_base_with_changes_over_it_is_scanned(
    spark: SparkSession, tmp_path: Path, used: list[overlay_frame.Overlay]
) -> None:
    """Updates, deletes and new keys are right at each time; Spark reads only needed columns."""
    with tidelog.connect(str(tmp_path), create=True) as lake:
        table = lake.tables.create("t", COLUMNS, key=KEY, shards=2)
        times = [table.insert(rows_of(EACH * n, EACH, 0)) for n in range(3)]
        times.append(table.upsert([*rows_of(20, 60, 1), *rows_of(500, 9, 1)]))
        times.append(table.delete(where="a % 7 = 0"))
        times.append(table.upsert(rows_of(30, 8, 2)))
        frame = table.snapshot(columns=["n"]).to_spark(spark)
    plan = frame.where("n > 4")._jdf.queryExecution().executedPlan().toString()

    assert "FileScan parquet [a" in plan
    assert "x#" not in plan.split("FileScan parquet", 1)[1].split("Batched", 1)[0]
    used.clear()
    check(spark, tmp_path, times)
    assert len(used) == 4  # The three times after the inserts, and the single column.
    compact(tmp_path, full=False)
    check(spark, tmp_path, times)


def test_the_count_of_a_compacted_table_reads_no_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark reads only the footers of the files, which have the numbers of rows."""
    with tidelog.connect(str(tmp_path), create=True) as lake:
        table = lake.tables.create("t", COLUMNS, key=KEY, retain_ms=0)
        table.insert(rows_of(0, EACH, 0))
        table.upsert(rows_of(20, 60, 1))
        compact(tmp_path, full=True)
        frame = table.snapshot().to_spark(spark)
    counted = frame.groupBy().count()

    assert counted.collect()[0][0] == 80
    plan = counted._jdf.queryExecution().executedPlan().toString()
    assert "ReadSchema: struct<>" in plan
    assert "MapInArrow" not in plan


def test_keys_that_come_back_are_not_counted_twice(
    spark: SparkSession, tmp_path: Path, used: list[overlay_frame.Overlay]
) -> None:
    """Two plain parts have the same keys, so they are no base."""
    with tidelog.connect(str(tmp_path), create=True) as lake:
        table = lake.tables.create("t", COLUMNS, key=KEY)
        times = [table.insert(rows_of(0, EACH, 0))]
        times.append(table.delete(where="a >= 0"))
        times.append(table.insert(rows_of(0, EACH, 0)))
        times.append(table.delete(where="a < 5"))
    check(spark, tmp_path, times)

    assert len(used) == 1


def test_parts_whose_keys_meet_in_time_are_no_base(tmp_path: Path) -> None:
    """A merged part of several times is a base only if no other part of its batch has its keys."""
    with tidelog.connect(str(tmp_path), create=True) as lake:
        table = lake.tables.create("t", COLUMNS, key=KEY)
        for n in range(3):
            time = table.insert(rows_of(EACH * n, EACH, 0))
    merged = state_of(tmp_path, lambda: compact(tmp_path, full=True))
    (batch,) = merged.batches
    (whole,) = batch.parts
    with tidelog.connect(str(tmp_path)) as lake:
        after = lake.table("t").upsert(rows_of(3, 1, 1))
    changed = state_of(tmp_path)
    overlay = overlay_of([changed], KEY, after)

    assert whole.plain
    assert whole.time_min < whole.time_max == time
    assert overlay is not None
    assert [p.path for p in overlay.base] == [whole.path]
    again = list(changed.batches)[-1].parts
    assert [p for each in overlay.changes for p in each] == list(again)
    assert overlay_frame._is_base(whole, [whole], KEY)
    assert not overlay_frame._is_base(whole, [whole, again[0]], KEY)
    with patch.object(overlay_frame, "ROWS_MAX", 1):
        assert overlay_of([changed], KEY, after) is None
    with patch.object(overlay_frame, "BASE_LEAST", 10**6):
        assert overlay_of([changed], KEY, after) is None


def state_of(place: Path, before: Callable[[], None] = lambda: None) -> State:
    """Return the state of the only shard of the table."""
    before()

    async def read() -> State:
        collection = await (await open_location(str(place))).collection("t")
        await collection.refresh()
        return collection.states[0]

    return asyncio.run(read())


@pytest.mark.parametrize("seed", range(4))
def test_random_histories(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Writes of all kinds, with merges in between, at many times."""
    rng = random.Random(seed)
    with tidelog.connect(str(tmp_path), create=True) as lake:
        table = lake.tables.create("t", COLUMNS, key=KEY, shards=rng.randint(1, 2))
        times = [table.insert(rows_of(EACH * n, EACH, 0)) for n in range(2)]
        for version in range(1, 8):
            first, count = rng.randrange(3 * EACH), rng.randint(1, 30)
            choice = rng.randrange(5)
            if choice <= 2:
                times.append(table.upsert(rows_of(first, count, version)))
            elif choice == 3:
                times.append(table.delete(where=f"a >= {first} and a < {first + count}"))
            else:
                times.append(table.insert(rows_of(1_000 * version, EACH, version)))
            if rng.random() < 0.3:
                compact(tmp_path, full=rng.random() < 0.5)
    check(spark, tmp_path, times[1::2])
