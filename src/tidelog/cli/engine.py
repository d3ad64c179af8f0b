"""The engine of a computation: its choice, and a Spark session that starts at its first use.

Both engines give the same contents, so the choice affects only the duration. Spark takes seconds to
start; in that time one process ingests some hundred megabytes. An idle run needs no JVM.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.core.clock import SystemClock
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.collection.catalog.catalog import SourceInfo
    from tidelog.collection.ingest.compute import Job
    from tidelog.collection.ingest.copy_job import CopyJob, StepParts
    from tidelog.collection.ingest.engine import TickParts
    from tidelog.collection.ingest.ingest import Ingester
    from tidelog.collection.ingest.run import FirstHead
    from tidelog.collection.source.binding import AddressRange
    from tidelog.collection.source.port import RawSource, SurveyResult
    from tidelog.collection.source.survey_result import SurveyJob
    from tidelog.location import Location
    from tidelog.persist.handle.port import ShardHandle
    from tidelog.persist.maintenance.merger import MergedParts, Merger
    from tidelog.persist.maintenance.merging import MergeRequest
    from tidelog.persist.maintenance.part_checks import PartCheck, PartChecker, PartOutcome
    from tidelog.spark.engine import SparkEngine
    from tidelog.wal.scrub.report import ScrubReport

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The Spark cluster: spark://HOST:7077, yarn, k8s://... Default: this machine.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A Spark setting, such as spark.executor.memory=4g; may be repeated. Default: Spark's "
        "own settings.",
    ),
]

ENGINES: Final = ("auto", "spark", "local")
SPARK_BYTES_MIN: Final = 1 << 30  # Below this much input left, a start of Spark costs more time.
_MASTER: Final = re.compile(
    r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|spark://\S+:[0-9]+|k8s://\S+"
)


def check_engine(engine: str, *, master: str | None, conf: Sequence[str]) -> str:
    """Return the engine that the options choose: auto, local or spark.

    ``--master``, ``--conf`` and spark-submit each choose Spark.

    Raises:
        UsageError: the engine is unknown or not installed, or the options contradict each other.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    submitted = is_submitted(os.environ)
    option = "--master" if master is not None else "--conf" if conf else None
    if option is not None and engine == "local":
        raise UsageError(f"{option} is for Spark: leave out --engine local, or {option}")
    if option is not None and submitted:
        raise UsageError(f"spark-submit runs this process: pass {option} to spark-submit instead")
    if master is not None and _MASTER.fullmatch(master) is None:
        raise UsageError(
            f"--master {master!r} is not a Spark master: write spark://HOST:7077, yarn, "
            "k8s://https://HOST:PORT, or local[4]"
        )
    if engine == "auto" and (option is not None or submitted):
        engine = "spark"
    if engine == "spark":
        check_installed()
    return engine


def is_submitted(env: Mapping[str, str]) -> bool:
    """Return True if spark-submit runs this process; it then sets the session's options."""
    return "PYSPARK_GATEWAY_PORT" in env


def parse_conf(given: Sequence[str]) -> dict[str, str]:
    """Return Spark settings from texts of the form NAME=VALUE.

    Raises:
        UsageError: a text does not have this form.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.strip().startswith("spark.")):
            raise UsageError(
                f"--conf {text!r} is not a Spark setting: write NAME=VALUE, such as "
                "spark.executor.memory=4g"
            )
        found[name.strip()] = value
    return found


async def choose_engine(ingester: Ingester) -> tuple[str, FirstHead | None]:
    """Return ``spark`` if Spark can run and the source has much input left, else ``local``.

    Return also the head of the source that was read for this, so that the run need not read it
    again.

    Raises:
        LocationError: the location's store or the source's store failed.
    """
    from tidelog.collection.ingest.run import look_ahead

    if importlib.util.find_spec("pyspark") is None:
        return "local", None
    if ingester.is_copying:
        first, left = None, await ingester.left_to_copy()
    else:
        first, left = await look_ahead(ingester)
    if left < SPARK_BYTES_MIN or not await ingester.clock.offload(_has_java):
        return "local", first
    return "spark", first


def _has_java() -> bool:
    from tidelog.spark.java import find_launcher

    try:
        find_launcher(os.environ)
    except UsageError:
        return False
    return True


def check_installed(*, instead: str = "--engine local") -> None:
    """Raise if pyspark is not installed; ``instead`` names the option that does without it.

    Raises:
        UsageError: pyspark is not installed.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise UsageError(
            f"Spark is not installed: pip install 'tidelog[spark]', or work without it: {instead}"
        )


def scrub_on_spark(url: str, name: str) -> ScrubReport:
    """Scrub a log on Spark, and start a session if none is active; see `scrub_log`.

    Raises:
        UsageError: Spark needs Java, and found none.
    """
    from tidelog.spark.log_scrub import scrub_log
    from tidelog.spark.session import passing_session

    with passing_session() as spark:
        return scrub_log(spark, url, name)


@dataclass(slots=True, kw_only=True)
class LateSession:
    """A Spark session that starts at its first use; `close` stops it."""

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    _spark: SparkSession | None = field(init=False, default=None)

    def start(self) -> SparkSession:
        """Start the session. This takes seconds, so call it in a thread.

        Raises:
            UsageError: Spark needs Java, and found none.
        """
        from tidelog.spark.session import session

        self._spark = session(master=self.master, extra=self.conf)
        return self._spark

    @asynccontextmanager
    async def started(self) -> AsyncIterator[SparkSession]:
        """Yield the session, started in a thread, and stop it at the end; see `start`."""
        try:
            yield await SystemClock().offload(self.start)
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop the session if it was started, with its running jobs."""
        if self._spark is not None:
            await SystemClock().offload(self._stop)

    def _stop(self) -> None:
        from tidelog.spark.session import stop

        if self._spark is not None:
            stop(self._spark)


@dataclass(slots=True)
class LateSpark:
    """An engine that starts Spark late; ``note`` receives the text of the current wait."""

    location: Location
    note: Callable[[str], None]
    session: LateSession
    _engine: SparkEngine | None = None
    _starting: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return "spark"

    @property
    def tick_bytes(self) -> int:
        from tidelog.collection.ingest.engine import SPARK_TICK_BYTES

        return SPARK_TICK_BYTES

    async def survey(self, job: SurveyJob, source: RawSource) -> SurveyResult:
        """See `tidelog.collection.ingest.engine.Engine`; a small survey does not start Spark.

        Raises:
            UsageError: Spark needs Java, and found none.
        """
        from tidelog.collection.ingest.engine import survey_here

        if self._engine is None and job.is_small():
            return await survey_here(job, source, at_once=4)
        return await (await self._started()).survey(job, source)

    async def prepare(self, source: SourceInfo, ranges: Sequence[AddressRange]) -> None:
        """See `tidelog.collection.ingest.engine.Engine`.

        Raises:
            UsageError: Spark needs Java, and found none; or its executors cannot do the work.
        """
        await (await self._started()).prepare(source, ranges)

    async def compute(self, job: Job, source: RawSource) -> TickParts:
        """See `tidelog.collection.ingest.engine.Engine`.

        Raises:
            UsageError: Spark needs Java, and found none.
        """
        return await (await self._started()).compute(job, source)

    async def copy(self, job: CopyJob) -> StepParts:
        """See `tidelog.collection.ingest.engine.Engine`.

        Raises:
            UsageError: Spark needs Java, and found none; or its executors cannot do the work.
        """
        return await (await self._started()).copy(job)

    async def _started(self) -> SparkEngine:
        async with self._starting:
            if self._engine is None:
                self.note("starting Spark")
                # A JVM takes seconds to start. In a thread it does not stop the progress bar.
                self._engine = await self.location.clock.offload(self._start)
                self.note("")
            return self._engine

    def _start(self) -> SparkEngine:
        from tidelog.spark.engine import SparkEngine

        return SparkEngine(
            self.session.start(), location_url=self.location.executor_url, clock=self.location.clock
        )


@dataclass(slots=True)
class LateMerger:
    """A merger that runs large merges on Spark; the first large merge starts it."""

    location: Location
    session: LateSession
    _merger: Merger | None = None

    async def write(self, shard: ShardHandle, request: MergeRequest) -> MergedParts:
        """See `tidelog.persist.maintenance.merger.Merger`.

        Raises:
            UsageError: Spark needs Java, and found none; or its executors cannot do the work.
        """
        from tidelog.persist.maintenance.compactor import HERE
        from tidelog.spark import merger

        if request.size_bytes < merger.LEAST_BYTES:
            return await HERE.write(shard, request)
        if self._merger is None:
            self._merger = await self.location.clock.offload(self._start)
        return await self._merger.write(shard, request)

    def _start(self) -> Merger:
        from tidelog.spark import merger

        return merger.SparkMerger(
            self.session.start(),
            location_url=self.location.executor_url,
            least_bytes=merger.LEAST_BYTES,
        )


@dataclass(slots=True)
class LateChecker:
    """A checker that checks large shards on Spark; the first large shard starts it."""

    location: Location
    session: LateSession
    _checker: PartChecker | None = None

    async def check(self, shard: ShardHandle, checks: Sequence[PartCheck]) -> list[PartOutcome]:
        """See `tidelog.persist.maintenance.part_checks.PartChecker`.

        Raises:
            UsageError: Spark needs Java, and found none; or its executors cannot do the work.
        """
        from tidelog.persist.maintenance.part_checks import HERE, is_small

        if is_small(checks):
            return await HERE.check(shard, checks)
        if self._checker is None:
            self._checker = await self.location.clock.offload(self._start)
        return await self._checker.check(shard, checks)

    def _start(self) -> PartChecker:
        from tidelog.spark.shard_scrub import SparkChecker

        return SparkChecker(self.session.start(), location_url=self.location.executor_url)
