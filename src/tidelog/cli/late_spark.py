"""The Spark engine, started at the first large computation: an idle run needs no JVM."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.collection.catalog.catalog import SourceInfo
    from tidelog.collection.ingest.compute import Job
    from tidelog.collection.ingest.engine import TickParts
    from tidelog.collection.source.binding import AddressRange
    from tidelog.collection.source.port import RawSource, SurveyResult
    from tidelog.collection.source.survey_result import SurveyJob
    from tidelog.location import Location
    from tidelog.persist.handle.port import ShardHandle
    from tidelog.persist.maintenance.merger import MergedParts, Merger
    from tidelog.persist.maintenance.merging import MergeRequest
    from tidelog.spark.engine import SparkEngine
    from tidelog.wal.scrub.report import ScrubReport


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

    async def close(self) -> None:
        """Stop the session if it was started, with its running jobs."""
        from tidelog.core.clock import SystemClock

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

    async def _started(self) -> SparkEngine:
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
