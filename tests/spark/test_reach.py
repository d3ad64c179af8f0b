"""Faults of executors: each becomes a sentence with a remedy."""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kit.doc_blocks import run_block
from kit.sources import SCHEMA, changes, make_source, write_files
from tidelog.collection.ingest.engine import TickParts
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.clock import SystemClock
from tidelog.errors import (
    LocationError,
    ObjectNotFound,
    StoreRefused,
    TidelogError,
    UsageError,
)
from tidelog.spark import SparkEngine
from tidelog.spark import engine as engine_module
from tidelog.spark.reach import (
    ReachAnswer,
    ReachRequest,
    ReachSample,
    explain,
    judge,
    look,
    take_sample,
)
from tidelog.spark.ship import fingerprint

APART = Path("/proc/self/cwd")
SAMPLE = ReachSample(url="file:///in", told="file:///in", path="a.json", size_bytes=3, digest=b"")
ASKED = ReachRequest(fingerprint="ours", location_url="file:///lake", key="probe/1", sample=SAMPLE)
SEEN = ReachAnswer(host="worker-1", fingerprint="ours", answer="probe/1-2")
GONE = ObjectNotFound("no object has that key")


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        (replace(SEEN, missing=("obstore", "xxhash")), UsageError, "obstore, xxhash"),
        (replace(SEEN, fingerprint="theirs"), UsageError, "another tidelog"),
        (replace(SEEN, location=GONE), UsageError, "s3://, gs://, az://"),
        (replace(SEEN, location=UsageError("no such")), UsageError, "do not see the location"),
        (replace(SEEN, location=LocationError("timed out")), LocationError, "timed out"),
        (replace(SEEN, location=StoreRefused("denied")), StoreRefused, "credentials"),
        (replace(SEEN, source=GONE), UsageError, "a.json"),
        (replace(SEEN, source=StoreRefused("denied")), StoreRefused, "the source's files"),
    ],
)
def test_what_is_wrong_with_an_executor_is_told(
    seen: ReachAnswer, kind: type[TidelogError], words: str
) -> None:
    """The error names the executor's host."""
    problem = judge(seen, ASKED, "file:///lake")

    assert type(problem) is kind
    assert words in str(problem)
    assert "worker-1" in str(problem)


def test_nothing_is_told_of_an_executor_that_can() -> None:
    """An executor that reaches everything raises nothing, even if the source has no file yet."""
    assert judge(SEEN, ASKED, "file:///lake") is None
    assert judge(SEEN, replace(ASKED, sample=None), "file:///lake") is None


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (
            "Python in worker has different version: 3.12 than that in driver: 3.11, PySpark",
            "run Python 3.12, but this process runs 3.11",
        ),
        ('Cannot run program "/opt/python": error=2', "no Python at /opt/python"),
        (
            "ModuleNotFoundError: No module named 'pyarrow'",
            "that tidelog needs: pyarrow",
        ),
    ],
)
def test_what_keeps_spark_from_running_anything_is_told(cause: str, words: str) -> None:
    """Spark's messages assume knowledge of its workers, so the error gives the remedy."""
    found = explain(LocationError(f"Spark did not finish the check of its executors: {cause}"))

    assert isinstance(found, UsageError)
    assert words in str(found)
    assert len(re.findall(r"[.;] ", str(found))) <= 1


def test_what_is_not_known_is_passed_on() -> None:
    """An unknown failure, such as a store that is away, is passed on unchanged."""
    error = LocationError("Spark did not finish the check of its executors: lost")

    assert explain(error) is error


@pytest.mark.parametrize(
    ("lake", "files", "words"),
    [
        (APART / "lake", Path("in"), "do not see the location file:///proc/self/cwd/lake"),
        (Path("lake"), APART / "in", "do not see the source's files at file:///proc/self/cwd/in"),
        (Path("lake"), Path("in"), None),
    ],
    ids=["location", "source", "neither"],
)
async def test_what_executors_do_not_see_is_refused_before_anything_is_bound(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lake: Path,
    files: Path,
    words: str | None,
) -> None:
    """Parts on a worker's own disk would be committed, but no reader could find them.

    The workers have another working directory, so the same path is another place there.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tidelog.spark.tasks.is_elsewhere", lambda master: True)
    source = write_files(tmp_path / "in", "json", changes(60))
    spec = SourceSpec(name="c", files=source, schema=SCHEMA, time_column="at")
    spec = replace(spec, files=str(tmp_path / files / "*.json"))
    location = await make_source(tmp_path / lake, spec)
    engine = SparkEngine(spark, location_url=location.url, clock=location.clock)
    ingester = await location.sources.ingester("c", engine=engine)
    head = await ingester.source.head()

    if words is None:
        tick = await ingester.tick(head)
        assert tick is not None
        assert tick.rows > 50
    else:
        with pytest.raises(UsageError, match=words):
            await ingester.tick(head)
        assert ingester.remap.state.upper == 0
    assert not list((tmp_path / lake / "probe").glob("*"))


def test_the_documented_session_of_ones_own_ingests(spark: SparkSession, tmp_path: Path) -> None:
    """The block of docs/guides/cluster.md ingests with an engine of the user's session."""
    source = write_files(tmp_path / "in", "json", changes(60))
    spec = SourceSpec(name="airborne", files=source, schema=SCHEMA, time_column="at")
    asyncio.run(make_source(tmp_path / "lake", spec))
    names = {"url": str(tmp_path / "lake"), "spark": spark}

    done = run_block("docs/guides/cluster.md", "SparkEngine", location=tmp_path, **names)["done"]

    assert done.rows > 50


async def test_parts_that_are_not_here_are_not_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that the driver cannot see are not committed: a machine may join the cluster late."""
    monkeypatch.setattr("tidelog.spark.tasks.is_elsewhere", lambda master: True)
    source = write_files(tmp_path / "in", "json", changes(3_000))
    location = await make_source(
        tmp_path / "lake", SourceSpec(name="c", files=source, schema=SCHEMA, time_column="at")
    )
    engine = SparkEngine(spark, location_url=location.url, clock=location.clock)
    ingester = await location.sources.ingester("c", engine=engine)
    gather = engine_module.gather

    def lose(*given: Any, **named: Any) -> TickParts:
        computed = gather(*given, **named)
        shutil.rmtree(tmp_path / "lake" / "shard" / ingester.outputs[0].id)
        return computed

    monkeypatch.setattr(engine_module, "gather", lose)
    with pytest.raises(UsageError, match="another directory"):
        await ingester.tick(await ingester.source.head())

    assert ingester.upper.time == 0


async def test_an_executor_reads_what_the_driver_wrote_and_answers(tmp_path: Path) -> None:
    """An executor reads the driver's probe and answers, here in a thread instead of a task."""
    clock = SystemClock()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(b"x" * 10_000)
    sample = await take_sample(str(tmp_path / "in"), ["a.json"], clock=clock)
    asked = replace(
        ASKED, location_url=str(tmp_path / "lake"), sample=sample, fingerprint=fingerprint()
    )

    async def see() -> ReachAnswer:
        (seen,) = await clock.offload(lambda: list(look([asked])))
        return seen

    before = await see()
    (tmp_path / "lake" / "probe").mkdir(parents=True)
    (tmp_path / "lake" / "probe" / "1").write_text(asked.key)
    after = await see()
    (tmp_path / "in" / "a.json").write_bytes(b"y" * 10_000)
    changed = await see()

    assert isinstance(before.location, ObjectNotFound)
    assert (after.location, after.source, after.missing) == (None, None, ())
    assert (tmp_path / "lake" / str(after.answer)).exists()
    assert isinstance(changed.source, ObjectNotFound)
    assert await take_sample(str(tmp_path / "in"), ["b.json"], clock=clock) is None
