"""Backfills on Spark: copies and ranges of other collections have the updates of local ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kit.renditions import handle_of, sums
from kit.sources import collect, compact, ingest, lake_of, run_once
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.spec_types import SourceSpec
from tidelog.collection.table_handle import Table
from tidelog.errors import CorruptionError
from tidelog.location import Location, open_location
from tidelog.rowhash import RowSum
from tidelog.spark import SparkEngine
from tidelog.spark.backfill import plan_range
from tidelog.spark.plan import TickSettings
from tidelog.spark.scan_plan import plan_updates

# Every part is a task of its own, so updates of one row come from many tasks.
CUT = TickSettings(small_bytes=0, task_bytes_min=1, task_bytes_max=1_500, range_bytes=1)
WHOLE = TickSettings()
BOTH = pytest.mark.parametrize("settings", [WHOLE, CUT], ids=["whole", "cut"])
TEXTS = ('{"n": 1}', '{"n": 2}', ' {"n":1}', '{"n": "x"}', "no json", '{"n": null}', '{"m": 2}')


def engine_for(spark: SparkSession, lake: Location, settings: TickSettings) -> SparkEngine:
    return SparkEngine(spark, location_url=lake.url, clock=lake.clock, settings=settings)


async def equal_sums(lake: Location, *names: str) -> list[int]:
    """Check that renditions have the sums of the first one; return its uppers."""
    first = await handle_of(lake, names[0])
    shards = first.all_shards
    uppers = sorted({one.upper or 0 for shard in shards for one in shard.state.batches})
    for is_errors in (False, True):
        expected, *found = [
            sums(await handle_of(lake, name, is_errors=is_errors), uppers) for name in names
        ]
        assert all(one == expected for one in found)
    return uppers


async def deleting_lake(folder: Path) -> Location:
    """Return a lake whose source deletes rows, has late and bad rows, and whose files are gone."""
    lake = await lake_of(
        folder,
        schema="n bigint, at bigint, gone boolean",
        envelope="upsert",
        key=("n",),
        time_column="at",
        delete_when="gone",
        lateness="0s",
        shards=2,
    )
    dice = random.Random(7)
    for n in range(8):
        rows: list[Any] = [
            {"n": dice.randrange(40), "at": 1_000 * n + at, "gone": dice.random() < 0.2}
            for at in range(60)
        ]
        text = "".join(json.dumps(row) + "\n" for row in [*rows, {"n": "bad", "at": 1}])
        (folder / "in" / f"{n}.jsonl").write_text(text)
        await run_once(await lake.sources.ingester("c"))
    for path in (folder / "in").iterdir():
        path.unlink()
    return lake


@BOTH
@pytest.mark.parametrize("merged", [False, True], ids=["ticks", "merged"])
async def test_a_copy_on_spark_has_the_sums_of_a_local_one(
    spark: SparkSession, tmp_path: Path, settings: TickSettings, *, merged: bool
) -> None:
    """From 2 shards to 8, without the files: rows, bad rows and remembered deletions."""
    lake = await deleting_lake(tmp_path)
    if merged:
        await compact(lake)
    for name in ("local", "spark"):
        await lake.renditions.create(RenditionSpec(name=name, shards=8, copy=True), of="c")
    for name, used in (("local", None), ("spark", engine_for(spark, lake, settings))):
        ingester = await lake.sources.ingester(name, engine=used, bytes_max=3_000)
        ticks = []
        while (tick := await ingester.copy()) is not None:
            ticks.append(tick)
        assert sum(tick.bad for tick in ticks) == 8
        assert len(ticks) > 1 or merged
        if used is not None and settings is CUT:
            assert sum(tick.usage.written_bytes for tick in ticks) > 0
    assert len(await equal_sums(lake, "c", "local", "spark")) > 1 or merged
    # A late row of a deleted key does not come back.
    late = [{"n": n, "at": 7_000 - n, "gone": False} for n in range(45)]
    text = "".join(json.dumps(row) + "\n" for row in [*late, {"n": 50, "at": 9_000, "gone": False}])
    (tmp_path / "in" / "late.jsonl").write_text(text)
    for name in ("local", "spark"):
        assert (await run_once(await lake.sources.ingester(name))).rows > 0
    await equal_sums(lake, "local", "spark")


@BOTH
async def test_a_killed_copy_goes_on_with_another_engine(
    spark: SparkSession, tmp_path: Path, settings: TickSettings
) -> None:
    """Each step may be done by another ingester, on Spark or here. Two of them agree on a step."""
    lake = await deleting_lake(tmp_path)
    await lake.renditions.create(RenditionSpec(name="c2", shards=3, copy=True), of="c")
    steps = 0
    while True:
        other = await lake.sources.ingester("c2", bytes_max=1)
        used = engine_for(spark, lake, settings) if steps % 2 else None
        ingester = await lake.sources.ingester("c2", engine=used, bytes_max=1)
        if (tick := await ingester.copy()) is None:
            break
        # The other one still has the state of before, computes the same step, and compares.
        late = await other.copy()
        assert late is None or late.lower >= tick.lower
        steps += 1
    assert steps > 4
    await equal_sums(lake, "c", "c2")


async def table_of_texts(folder: Path, shards: int = 2) -> tuple[Location, Table]:
    lake = await open_location(str(folder / "lake"), create=True)
    return lake, await lake.tables.create("raw", "k bigint, v varchar", key=["k"], shards=shards)


async def follow(lake: Location, *names: str, of: str = "raw", **asked: Any) -> None:
    for name in names:
        settings = {"collection": of}
        await lake.sources.create(
            SourceSpec(name=name, kind="collection", settings=settings, **asked)
        )


@BOTH
@pytest.mark.parametrize("format", ["json", None])
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_raw_collection_is_decoded_on_spark_as_here(
    spark: SparkSession, tmp_path: Path, settings: TickSettings, format: str | None, seed: int
) -> None:
    """Equal texts of several keys meet before they are decoded, so bad rows are counted alike."""
    dice = random.Random(seed)
    lake, table = await table_of_texts(tmp_path)
    asked = {} if format is None else {"format": format, "schema": "n bigint"}
    await table.upsert([{"k": k, "v": dice.choice(TEXTS)} for k in range(40)])
    await follow(lake, "local", "spark", **asked)
    used = engine_for(spark, lake, settings)
    bad = 0
    for _ in range(3):
        for _ in range(dice.randrange(1, 5)):
            rows = {dice.randrange(40): dice.choice(TEXTS) for _ in range(30)}
            await table.upsert([{"k": k, "v": v} for k, v in rows.items()])
            await table.delete(keys=[dice.randrange(40)])
        if dice.random() < 0.5:
            await compact(lake)
        expected = await ingest(lake, "local")
        found = await ingest(lake, "spark", engine=used)
        told = [(t.upper, t.rows, t.bad) for t in expected]
        assert [(t.upper, t.rows, t.bad) for t in found] == told
        bad += sum(t.bad for t in found)
    assert (bad > 0) == (format is not None)
    states = [(await lake.collection(name)) for name in ("local", "spark")]
    for one in states:
        await one.refresh()
    uppers = [states[0].upper.time]
    assert sums(states[0], uppers) == sums(states[1], uppers) != [RowSum.zero()]
    ours, theirs = [
        await (await lake.collection(f"{n}_errors")).consolidated() for n in ("local", "spark")
    ]
    drop = ["file"]
    assert sorted(map(repr, ours.drop_columns(drop).to_pylist())) == sorted(
        map(repr, theirs.drop_columns(drop).to_pylist())
    )


@BOTH
async def test_a_handover_of_the_raw_collection_is_crossed_on_spark(
    spark: SparkSession, tmp_path: Path, settings: TickSettings
) -> None:
    """At its time, rows that only the former rendition had are taken back."""
    lake = await lake_of(tmp_path, schema="n bigint, t varchar")
    place = tmp_path / "in"
    (place / "1.jsonl").write_text('{"n": 1, "t": "x"}\n{"n": "a", "t": "y"}\n')
    await follow(lake, "local", "spark", of="c")
    await run_once(await lake.sources.ingester("c"))
    await lake.renditions.create(RenditionSpec(name="raw2", shards=2), of="c")
    await run_once(await lake.sources.ingester("raw2"))
    await lake.renditions.handover("c", to="raw2")
    (place / "2.jsonl").write_text('{"n": 3, "t": "z"}\n')
    await run_once(await lake.sources.ingester("c"))
    await ingest(lake, "local")
    await ingest(lake, "spark", engine=engine_for(spark, lake, settings))
    raw, ours, theirs = [
        sorted(map(repr, (await (await lake.collection(name)).consolidated()).to_pylist()))
        for name in ("c", "local", "spark")
    ]
    assert raw == ours == theirs
    assert len(raw) == 2


@BOTH
async def test_both_engines_commit_the_same_range(
    spark: SparkSession, tmp_path: Path, settings: TickSettings
) -> None:
    """The second of two ingesters with one state compares its rows with those of the first."""
    lake, table = await table_of_texts(tmp_path)
    await table.upsert([{"k": k, "v": TEXTS[k % len(TEXTS)]} for k in range(100)])
    await follow(lake, "d", format="json", schema="n bigint", shards=2)
    here = await lake.sources.ingester("d")
    there = await lake.sources.ingester("d", engine=engine_for(spark, lake, settings))
    for ingester in (here, there):
        head = await ingester.source.head()
        await ingester.tick(head)
    found = await lake.sources.check("d", engine=engine_for(spark, lake, settings))
    assert (found.first, found.rows > 0) == (None, True)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_parts_that_a_merge_replaced_are_read_from_the_newest_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """A part that the newest state still names is lost: an error names it."""
    lake, table = await table_of_texts(tmp_path, shards=1)
    for start in range(3):
        rows = [{"k": k, "v": "x" * 2_000} for k in range(100 * start, 100 * start + 100)]
        await table.upsert(rows)
    await follow(lake, "d")
    plans: list[Any] = []

    def meddle(*args: Any, **told: Any) -> Any:
        plans.append(plan_range(*args, **told))
        if len(plans) == 1 or is_lost:
            for part in (part for scan in args[1] for part in scan.parts if part.path):
                (tmp_path / "lake" / part.path).unlink(missing_ok=True)
        return plans[-1]

    async def planning(*args: Any, **told: Any) -> Any:
        scans = await plan_updates(*args, **told)
        if not plans and not is_lost:
            await compact(lake)
        return scans

    monkeypatch.setattr("tidelog.spark.engine.plan_range", meddle)
    monkeypatch.setattr("tidelog.spark.engine.plan_updates", planning)
    used = engine_for(spark, lake, WHOLE)
    if is_lost:
        with pytest.raises(CorruptionError, match="'raw', which the source 'd' reads, has lost"):
            await ingest(lake, "d", engine=used)
        return
    ticks = await ingest(lake, "d", engine=used)
    assert len(plans) == 1 + sum(tick.rows > 0 for tick in ticks)
    assert (await (await lake.collection("d")).consolidated()).num_rows == 300
    await collect(lake)
