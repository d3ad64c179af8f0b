"""The Spark engine: the results and the errors of the local engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kit.packing import packed
from kit.s3_servers import KEYS, MotoServer
from kit.sources import (
    FIRST,
    changes,
    changes_spec,
    contents,
    ingest,
    make_source,
    rows_of,
    sums_of,
    table_of,
    write_files,
)
from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.ingest.compute import Job
from tidelog.collection.ingest.copy_job import CopyJob, StepParts
from tidelog.collection.ingest.engine import TickParts
from tidelog.collection.ingest.tick import Tick
from tidelog.collection.source.binding import AddressRange
from tidelog.collection.source.port import RawSource, SurveyResult
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.clock import SystemClock
from tidelog.errors import GoneError, LocationError, SourceRewritten, UsageError
from tidelog.location import Location
from tidelog.spark import SparkEngine
from tidelog.spark.plan import TickSettings
from tidelog.store.urls import open_store

# Everything is cut as small as possible, so that messages of one key come from many tasks.
CUT = TickSettings(small_bytes=0, task_bytes_min=1, task_bytes_max=1_500, range_bytes=1)
IN_TWO = TickSettings(small_bytes=0, task_bytes_min=1, range_bytes=1)
WHOLE = TickSettings()


def engine_for(
    spark: SparkSession, location: Location, settings: TickSettings = WHOLE
) -> SparkEngine:
    return SparkEngine(spark, location_url=location.url, clock=location.clock, settings=settings)


async def both(
    spark: SparkSession, folder: Path, spec: SourceSpec, settings: TickSettings
) -> tuple[Location, Location, list[Tick]]:
    """Ingest with both engines and compare; return both locations, and the ticks of Spark's."""
    by_hand = await make_source(folder / "local", spec)
    by_spark = await make_source(folder / "spark", spec)
    expected = await ingest(by_hand, "c")
    ticks = await ingest(by_spark, "c", engine=engine_for(spark, by_spark, settings))

    told = [(t.lower, t.upper, t.rows, t.bad, t.late, dict(t.dropped)) for t in ticks]
    assert told == [(t.lower, t.upper, t.rows, t.bad, t.late, dict(t.dropped)) for t in expected]
    assert await sums_of(by_spark) == await sums_of(by_hand)
    found = await by_hand.sources.check("c", engine=engine_for(spark, by_hand, settings))
    assert (found.first, found.bindings > 0) == (None, True)
    return by_hand, by_spark, ticks


@pytest.mark.parametrize(
    ("format", "shards", "settings"),
    [
        pytest.param("json", 1, WHOLE, id="json-1-whole"),
        pytest.param("json", 3, WHOLE, id="json-3-whole"),
        pytest.param("json", 1, CUT, id="json-1-cut"),
        pytest.param("json", 3, CUT, id="json-3-cut"),
        pytest.param("csv", 1, WHOLE, id="csv-1-whole"),
        pytest.param("csv", 3, CUT, id="csv-3-cut"),
        pytest.param("parquet", 1, WHOLE, id="parquet-1-whole"),
        pytest.param("parquet", 3, CUT, id="parquet-3-cut"),
    ],
)
@pytest.mark.parametrize("envelope", ["upsert", "none"])
async def test_both_engines_give_the_same_collection(
    spark: SparkSession,
    tmp_path: Path,
    format: str,
    envelope: str,
    shards: int,
    settings: TickSettings,
) -> None:
    """The committed updates must not depend on the engine, or two ingesters would disagree."""
    files = write_files(tmp_path / "in", format, changes(240))
    is_keyed = envelope == "upsert"
    spec = changes_spec(files, is_keyed=is_keyed, format=format, shards=shards)

    by_hand, by_spark, ticks = await both(spark, tmp_path, spec, settings)
    assert sum(t.bad for t in ticks) >= 3
    for time in (FIRST - 1, FIRST + 7, FIRST + 30, FIRST + 47):
        for name in ("c", "c_errors"):
            ours = await (await by_spark.collection(name)).consolidated(time)
            theirs = await (await by_hand.collection(name)).consolidated(time)
            assert rows_of(ours) == rows_of(theirs)


@pytest.mark.parametrize(("format", "suffix"), [("json", ".gz"), ("csv", ".zst")])
async def test_compressed_text_is_the_same_to_both_engines(
    spark: SparkSession, tmp_path: Path, format: str, suffix: str
) -> None:
    """One task surveys and decompresses a compressed file; both engines give the same sums."""
    write_files(tmp_path / "in", format, changes(240))
    for file in (tmp_path / "in").iterdir():
        file.with_suffix(f".{format}{suffix}").write_bytes(
            packed(file.read_bytes(), suffix, (900,))
        )
    spec = changes_spec(f"{tmp_path}/in/*{suffix}", format=format)

    _, _, ticks = await both(spark, tmp_path, spec, replace(CUT, driver_bytes=0))
    assert sum(t.bad for t in ticks) >= 3


async def test_json_arrays_are_the_same_to_both_engines(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A task that begins in the middle of a JSON array gives the same rows as a whole read."""
    write_files(tmp_path / "lines", "json", changes(240))
    (tmp_path / "in").mkdir()
    for file in (tmp_path / "lines").iterdir():
        text = "[\n" + ",\n".join(file.read_text().splitlines()).replace('"at":,', '"at":},') + "]"
        (tmp_path / "in" / file.name).write_text(text)
    spec = changes_spec(f"{tmp_path}/in/*.json", format="json-array")

    _, _, ticks = await both(spark, tmp_path, spec, replace(CUT, driver_bytes=0))
    assert (sum(t.rows for t in ticks), sum(t.bad for t in ticks)) == (240, 9)


async def test_executors_reach_buckets_as_they_reach_disks(
    spark: SparkSession, tmp_path: Path, moto: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Spark engine ingests from a bucket into a bucket with the sums of a local run."""
    files = write_files(tmp_path / "in", "csv", changes(240))
    place = moto.url("spark/lake")
    for name, value in KEYS.items():  # Executors have them since the start of the session.
        monkeypatch.setenv(name, value)

    inputs = open_store(moto.url("spark/in"), clock=SystemClock())
    for file in (tmp_path / "in").iterdir():
        await inputs.put(file.name, file.read_bytes())
    by_hand = await make_source(tmp_path / "local", changes_spec(files, format="csv"))
    await ingest(by_hand, "c")
    by_spark = await make_source(place, changes_spec(moto.source_url("spark/in"), format="csv"))
    await ingest(by_spark, "c", engine=engine_for(spark, by_spark, CUT))

    read = spark.read.format("tidelog").option("location", place).load("c").toArrow()
    expected = await (await by_hand.collection("c")).consolidated()
    assert read.num_rows == expected.num_rows > 0
    # Errors name their files, which have other paths there.
    assert (await sums_of(by_spark))[0] == (await sums_of(by_hand))[0]


def test_the_first_bad_record_is_told_of_alike(spark: SparkSession, tmp_path: Path) -> None:
    """``--strict`` shows only the first error, so it must not depend on how work was cut."""
    files = write_files(tmp_path / "in", "json", changes(300))

    async def first_error(settings: TickSettings | None, root: str) -> str | None:
        location = await make_source(tmp_path / root, changes_spec(files))
        engine = None if settings is None else engine_for(spark, location, settings)
        ticks = await ingest(location, "c", engine=engine, bytes_max=10**6)
        computed = ticks[0].computed
        assert computed is not None
        return computed.first_error

    expected = asyncio.run(first_error(None, "local"))

    assert expected is not None
    assert asyncio.run(first_error(WHOLE, "whole")) == expected
    assert asyncio.run(first_error(CUT, "cut")) == expected


def test_what_executors_asked_of_stores_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """The reported costs include the executors' requests, which the driver's stores do not see."""
    files = write_files(tmp_path / "in", "json", changes(2_000))

    async def run(settings: TickSettings) -> TickParts:
        location = await make_source(tmp_path / str(settings.small_bytes), changes_spec(files))
        engine = engine_for(spark, location, settings)
        computed = (await ingest(location, "c", engine=engine, bytes_max=10**6))[0].computed
        assert computed is not None
        return computed

    for settings in (WHOLE, IN_TWO):
        computed = asyncio.run(run(settings))
        stored = [p for one in computed.written for p in one.rows if p.path is not None]
        assert stored
        assert computed.usage.put_count >= len(stored)
        assert computed.usage.get_count >= 3


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "avro"])
@pytest.mark.parametrize("timed", [True, False], ids=["data", "clock"])
async def test_the_driver_reads_none_of_the_data(
    spark: SparkSession, tmp_path: Path, format: str, timed: bool
) -> None:
    """The driver reads almost nothing, or a cluster would ingest no faster than one process."""
    files = write_files(tmp_path / "in", format, changes(600))
    size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    spec = replace(changes_spec(files, format=format), time_column="at" if timed else None)
    location = await make_source(tmp_path / "lake", spec)
    settings = replace(CUT, driver_bytes=0, task_bytes_max=20_000)
    engine = engine_for(spark, location, settings)
    ingester = await location.sources.ingester("c", engine=engine, bytes_max=10**6)

    tick = await ingester.tick(await ingester.source.head())
    assert tick is not None
    assert tick.rows > 500
    assert tick.size_bytes == size
    assert ingester.source.usage().read_bytes < size / 100
    assert ingester.surveyed.read_bytes >= size


def test_only_a_task_that_writes_a_whole_shard_stores_parts_inline(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Only a task that writes a whole shard stores small parts in its state, which stays small."""
    files = write_files(tmp_path / "in", "json", changes(30))

    async def inline_of(settings: TickSettings, *, shards: int) -> int:
        root = tmp_path / f"{settings.small_bytes}-{shards}"
        location = await make_source(root, changes_spec(files, shards=shards))
        engine = engine_for(spark, location, settings)
        ticks = await ingest(location, "c", engine=engine, bytes_max=10**6)
        computed = ticks[0].computed
        assert computed is not None
        return sum(p.inline is not None for one in computed.written for p in one.rows)

    assert asyncio.run(inline_of(WHOLE, shards=1)) == 1
    assert asyncio.run(inline_of(CUT, shards=1)) == 0
    assert asyncio.run(inline_of(CUT, shards=4)) > 0


@dataclass
class Meddler:
    """An engine that changes a source file after the binding was minted."""

    inner: SparkEngine
    file: Path
    text: str | None

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def tick_bytes(self) -> int:
        return self.inner.tick_bytes

    async def survey(self, job: SurveyJob, source: RawSource) -> SurveyResult:
        return await self.inner.survey(job, source)

    async def prepare(self, source: SourceInfo, ranges: Sequence[AddressRange]) -> None:
        await self.inner.prepare(source, ranges)

    async def compute(self, job: Job, source: RawSource) -> TickParts:
        if self.text is None:
            self.file.unlink()
        else:
            self.file.write_text(self.text)
        return await self.inner.compute(job, source)

    async def copy(self, job: CopyJob) -> StepParts:
        return await self.inner.copy(job)


@pytest.mark.parametrize("settings", [WHOLE, CUT], ids=["whole", "cut"])
def test_errors_in_executors_come_back_as_they_are(
    spark: SparkSession, tmp_path: Path, settings: TickSettings
) -> None:
    """An executor's error reaches the driver with its class and sentence, not as a traceback."""
    files = write_files(tmp_path / "in", "json", changes(100))
    file = tmp_path / "in" / "1.json"

    async def run(text: str | None, root: str) -> None:
        location = await make_source(tmp_path / root, changes_spec(files))
        engine = Meddler(engine_for(spark, location, settings), file, text)
        await ingest(location, "c", engine=engine, bytes_max=10**6)

    with pytest.raises(SourceRewritten) as rewritten:
        asyncio.run(run(file.read_text().replace("line", "LINE"), "rewritten"))
    with pytest.raises(GoneError) as gone:
        asyncio.run(run(None, "gone"))

    assert type(rewritten.value) is SourceRewritten
    assert "1.json" in str(rewritten.value)
    assert "Traceback" not in f"{rewritten.value} {gone.value}"


@pytest.mark.parametrize("settings", [WHOLE, IN_TWO], ids=["whole", "cut"])
def test_a_store_that_fails_in_executors_is_a_location_error(
    spark: SparkSession, tmp_path: Path, settings: TickSettings
) -> None:
    """The tick commits nothing and raises LocationError, so a follower retries at the next."""
    files = write_files(tmp_path / "in", "json", changes(2_000))

    async def run() -> None:
        location = await make_source(tmp_path / "lake", changes_spec(files))
        _, rendition = await location.sources.find("c")
        blocked = tmp_path / "lake" / "shard" / rendition.shards[0]
        blocked.parent.mkdir(parents=True, exist_ok=True)
        blocked.write_text("a file where there should be a directory")
        await ingest(location, "c", engine=engine_for(spark, location, settings), bytes_max=10**6)

    with pytest.raises(LocationError, match="a file is in place of"):
        asyncio.run(run())


def test_a_replaced_location_is_written(spark: SparkSession, tmp_path: Path) -> None:
    """A worker's open store must not rely on directories of a location that was replaced."""
    files = write_files(tmp_path / "in", "json", changes(2_000))

    async def run() -> int:
        location = await make_source(tmp_path / "lake", changes_spec(files))
        ticks = await ingest(location, "c", engine=engine_for(spark, location), bytes_max=10**6)
        return sum(tick.rows for tick in ticks)

    first = asyncio.run(run())
    (tmp_path / "lake").rename(tmp_path / "old")

    assert asyncio.run(run()) == first


def test_a_location_that_executors_cannot_reach_is_refused(spark: SparkSession) -> None:
    """Each executor would have a memory store of its own."""
    with pytest.raises(UsageError, match="memory://"):
        SparkEngine(spark, location_url="memory://", clock=SystemClock())


def test_a_stopped_session_is_told_in_a_sentence(tmp_path: Path) -> None:
    """After the user stops the session, an ingest raises a one-sentence LocationError."""

    class StoppedSpark:
        class sparkContext:  # noqa: N801 - Spark's name
            _jsc = None

    files = write_files(tmp_path / "in", "json", changes(10))

    async def run() -> None:
        location = await make_source(tmp_path / "lake", changes_spec(files))
        engine = engine_for(StoppedSpark(), location)  # type: ignore[arg-type]
        await ingest(location, "c", engine=engine)

    with pytest.raises(LocationError, match="session was stopped"):
        asyncio.run(run())


@pytest.mark.parametrize("how", ["alter", "evolve"])
@pytest.mark.parametrize("settings", [CUT, WHOLE], ids=["cut", "whole"])
def test_an_altered_source_gives_the_same_on_both_engines(
    spark: SparkSession, tmp_path: Path, settings: TickSettings, how: str
) -> None:
    """Tasks decode each range in the columns of its binding, and read back older parts."""

    async def run() -> None:
        rows = changes(200)
        spec = changes_spec(
            str(tmp_path / "in" / "*.json"), shards=3, lateness="10ms", evolve=how == "evolve"
        )
        write_json(tmp_path / "in" / "1.json", rows[:100])
        lakes = [await make_source(tmp_path / name, spec) for name in ("local", "spark")]
        engines = [None, engine_for(spark, lakes[1], settings)]
        for lake, engine in zip(lakes, engines, strict=True):
            await ingest(lake, "c", engine=engine)
            if how == "alter":
                columns = "more bigint, other varchar"
                await lake.sources.alter("c", add=columns, drop=["small"], discard_values=True)
                await lake.sources.alter("c", drop=["other"])
        later = [{**row, "at": row["at"] + 5_000, "more": row["k"]} for row in rows[100:]]
        write_json(tmp_path / "in" / "2.json", later)
        for lake, engine in zip(lakes, engines, strict=True):
            await ingest(lake, "c", engine=engine, bytes_max=3_000)

        assert await sums_of(lakes[0]) == await sums_of(lakes[1])
        local, by_spark = [await contents(lake) for lake in lakes]
        assert local == by_spark
        found = (await table_of(lakes[1])).column("more").to_pylist()
        assert sum(value is not None for value in found) > 5

    asyncio.run(run())


def write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
