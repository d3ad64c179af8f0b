"""The engine that computes ticks on Spark.

The driver plans and gathers. Executors open their own stores, read, compute and write parts. Only
the ingester commits. Tasks take and return plain values (see `tasks`). Messages cross the shuffle
as Arrow IPC bytes, so they may have types that Spark lacks.
Source: design page 6, "The recipe, as it runs", steps 3 to 5; storage, "The recipe".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from tidelog.collection.catalog.catalog import FILES, SourceInfo
from tidelog.collection.collection import Collection
from tidelog.collection.ingest.compute import Job
from tidelog.collection.ingest.copy_job import CopyJob, StepParts
from tidelog.collection.ingest.engine import (
    SPARK_TICK_BYTES,
    OutputParts,
    TickParts,
    nothing_computed,
    survey_here,
)
from tidelog.collection.source.binding import AddressRange
from tidelog.collection.source.followed import span_of
from tidelog.collection.source.port import RawSource, SurveyResult
from tidelog.collection.source.survey_facts import FileCandidate, SurveyFacts, SurveyPiece
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.collection.upstream import FollowedSource
from tidelog.core.clock import Clock, SystemClock
from tidelog.errors import TidelogError
from tidelog.persist.format.part import Part
from tidelog.spark.backfill import decode_shares, plan_copy, plan_range, read_shares, run_copies
from tidelog.spark.job import run_job
from tidelog.spark.place import url_for_executors
from tidelog.spark.plan import (
    TickPlan,
    TickSettings,
    plan_tick,
    share_survey,
)
from tidelog.spark.reach import check_executors, see_parts
from tidelog.spark.scan_plan import plan_updates
from tidelog.spark.ship import is_connect
from tidelog.spark.task import (
    READS_MAX,
    Outcome,
    SurveyOutcome,
    SurveyShare,
    TaskResult,
    finish_shares,
    run_shares,
    run_surveys,
    shape_shares,
)
from tidelog.spark.tasks import SparkTasks, tasks_of
from tidelog.store.wrappers.metered import Usage
from tidelog.store.wrapping import open_wrapped


@dataclass(slots=True)
class SparkEngine:
    """An engine on the executors of a Spark session, which must reach the location and source."""

    spark: SparkSession
    _: KW_ONLY
    location_url: str
    clock: Clock = field(default_factory=SystemClock)
    settings: TickSettings = field(default_factory=TickSettings)
    _checked: set[str] = field(default_factory=set)
    _known_tasks: SparkTasks | None = None

    def __post_init__(self) -> None:
        store = open_wrapped(self.location_url, clock=self.clock).meter
        self.location_url = url_for_executors(self.location_url, store)

    @property
    def name(self) -> str:
        return "spark"

    @property
    def tick_bytes(self) -> int:
        return SPARK_TICK_BYTES

    async def prepare(self, source: SourceInfo, ranges: Sequence[AddressRange]) -> None:
        await self._check(source, ranges)

    async def compute(self, job: Job, source: RawSource) -> TickParts:
        """Read the job's ranges, compute, and write parts, in executors.

        Raises:
            SourceRewritten, GoneError: an object of the source changed or disappeared.
            LocationError: a store failed, or Spark. Nothing was committed.
            UsageError: the executors cannot do the work; see `check_executors`.
        """
        await self._check(job.source, job.ranges)
        if isinstance(source, FollowedSource):
            (found,) = job.ranges
            return await source.reread(found, partial(self._compute_range, job, source.columns))
        tasks = self._tasks()
        plan = plan_tick(
            job,
            location_url=self.location_url,
            cores=await self.clock.offload(tasks.cores_count),
            settings=self.settings,
        )
        outcomes = await run_job(
            tasks.tags, lambda: _collect(tasks, plan), clock=self.clock, what="the tick"
        )
        return await self._seen(gather(outcomes, shards=len(job.shards)))

    async def _compute_range(
        self, job: Job, columns: Sequence[str], upstream: Collection
    ) -> TickParts:
        """Compute the range of a source that reads columns of another collection."""
        (found,) = job.ranges
        scans = await plan_updates(
            upstream, columns, span_of(found), location_url=self.location_url
        )
        if not scans:
            return nothing_computed(len(job.shards))
        tasks = self._tasks()
        reads, decodes = plan_range(
            job,
            scans,
            location_url=self.location_url,
            cores=await self.clock.offload(tasks.cores_count),
            settings=self.settings,
        )
        # The second stage's work travels with that of the first task; see `_collect`.
        given = [(share, () if n else decodes) for n, share in enumerate(reads)]
        outcomes = await run_job(
            tasks.tags,
            lambda: tasks.meet(read_shares, given, decode_shares, len(decodes)),
            clock=self.clock,
            what="the tick",
        )
        return await self._seen(gather(outcomes, shards=len(job.shards)))

    async def copy(self, job: CopyJob) -> StepParts:
        """Do a step of a copy in executors; see `Engine.copy`.

        Raises:
            PartMissing: a merge has replaced a part.
            CorruptionError, LocationError: a store failed, or Spark.
            UsageError: the executors cannot do the work; see `check_executors`.
        """
        await self._check(job.source, ())
        tasks = self._tasks()
        shares = plan_copy(
            job,
            location_url=self.location_url,
            cores=await self.clock.offload(tasks.cores_count),
            settings=self.settings,
        )
        done = StepParts(parts=[()] * sum(len(lane.shards) for lane in job.lanes), rows=0, bad=0)
        if not shares:
            return done
        outcomes = await run_job(
            tasks.tags,
            lambda: tasks.run(run_copies, shares),
            clock=self.clock,
            what="the step of the copy",
        )
        for outcome in outcomes:
            if isinstance(outcome, TidelogError):
                raise outcome
            done = done + outcome
        parts = [part for one in done.parts for part in one]
        await see_parts(parts, tasks, self.location_url, clock=self.clock)
        return done

    async def _seen(self, computed: TickParts) -> TickParts:
        """Return the results of tasks, whose parts the driver sees."""
        parts = [*computed.error_parts]
        for output in computed.written:
            parts += [*output.rows, *output.deleted]
        await see_parts(parts, self._tasks(), self.location_url, clock=self.clock)
        return computed

    async def survey(self, job: SurveyJob, source: RawSource) -> SurveyResult:
        """Survey the pieces of files that the next tick may take, in executors.

        Raises:
            SourceRewritten, GoneError: an object of the source changed or disappeared.
            LocationError: a store failed, or Spark.
            UsageError: the executors cannot do the work; see `check_executors`.
        """
        if job.is_small(self.settings.driver_bytes):
            return await survey_here(job, source, at_once=READS_MAX)
        files = [piece.candidate for piece in job.pieces if isinstance(piece, SurveyPiece)]
        await self._check(job.source, files)
        tasks = self._tasks()
        cores = await self.clock.offload(tasks.cores_count)
        shares = [
            SurveyShare(
                location_url=self.location_url, job=task_job, keeps_rows=not tasks.is_elsewhere
            )
            for task_job in share_survey(job, cores, self.settings)
        ]
        outcomes = await run_job(
            tasks.tags,
            lambda: tasks.run(run_surveys, shares),
            clock=self.clock,
            what="the survey",
        )
        return gather_surveys(outcomes)

    async def _check(
        self, source: SourceInfo, files: Sequence[AddressRange | FileCandidate]
    ) -> None:
        """Check the executors once per source, if they are not threads of this process."""
        if source.id in self._checked:
            return
        if self._tasks().is_elsewhere:
            await check_executors(
                self.spark,
                self._tasks(),
                location_url=self.location_url,
                source_url=source.url,
                paths=[file.path for file in files] if source.kind == FILES else [],
                clock=self.clock,
            )
        self._checked.add(source.id)

    def _tasks(self) -> SparkTasks:
        if self._known_tasks is None or not is_connect(self.spark):
            # Without Connect, each use checks that the session was not stopped.
            self._known_tasks = tasks_of(self.spark)
        return self._known_tasks


def _collect(tasks: SparkTasks, plan: TickPlan) -> Sequence[Outcome]:
    if not plan.finishes:
        return tasks.run(run_shares, plan.shares)
    # The second stage's shares travel with the first task's input and through the shuffle, so each
    # reaches only its own task. A closure or a broadcast would send all shares to every task.
    given = [(share, () if n else plan.finishes) for n, share in enumerate(plan.shares)]
    return tasks.meet(shape_shares, given, finish_shares, len(plan.finishes))


def gather(outcomes: Sequence[Outcome], *, shards: int) -> TickParts:
    """Combine the results of a tick's tasks.

    Raises:
        TidelogError: the first error among the results.
    """
    written = [OutputParts()] * shards
    error_parts: list[Part] = []
    dropped: Counter[str] = Counter()
    usage = Usage()
    for outcome in outcomes:
        if isinstance(outcome, TidelogError):
            raise outcome
        done = outcome.computed
        for place, more in zip(outcome.places, done.written, strict=True):
            written[place] += more
        error_parts.extend(done.error_parts)
        dropped.update(done.dropped)
        usage = usage + done.usage
    results = [o.computed for o in outcomes if isinstance(o, TaskResult)]
    return TickParts(
        written,
        error_parts,
        rows=sum(c.rows for c in results),
        bad=sum(c.bad for c in results),
        dropped=dict(dropped),
        first_error=next((c.first_error for c in results if c.first_error is not None), None),
        usage=usage,
    )


def gather_surveys(told: Sequence[SurveyOutcome]) -> SurveyResult:
    """Combine the results of a survey's tasks.

    Raises:
        TidelogError: the first error among the results.
    """
    facts: list[SurveyFacts] = []
    usage = Usage()
    for outcome in told:
        if isinstance(outcome, TidelogError):
            raise outcome
        facts.extend(msgspec.msgpack.decode(outcome[0], type=list[SurveyFacts]))
        usage = usage + outcome[1]
    return SurveyResult(facts, usage)
