"""Merges of runs on Spark: a task reads, merges and writes each range of keys.

The driver cuts the keys by the directories of the runs. After all tasks have ended, it adds the
merged run to the state by one commit, like any merge. A task that runs twice writes its parts
twice, under unique names. A sweep deletes the parts that no state names, by the write epoch in
their path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.core.clock import SystemClock, run_all
from tidelog.errors import ObjectNotFound, TidelogError, UsageError
from tidelog.keyed.format.part import RunPart
from tidelog.keyed.maintenance.compactor import HereMerger, write_parts
from tidelog.keyed.maintenance.merge import merged_records
from tidelog.keyed.maintenance.plan import RunMergeJob
from tidelog.keyed.read.key_ranges import key_ranges
from tidelog.keyed.read.listing import merged_keys
from tidelog.keyed.read.sources import RunSource
from tidelog.keyed.read.state_handle import KeyedStateHandle
from tidelog.keyed.states.run import Run
from tidelog.spark.job import portable, run_job
from tidelog.spark.keyed.share import KeyedLogPlace
from tidelog.spark.place import url_for_executors
from tidelog.spark.reach import check_executors
from tidelog.spark.tasks import SparkTasks, tasks_of
from tidelog.spark.worker import use_one_core

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_BYTES: Final = 64 * 1024 * 1024  # For less, one process is faster than tasks.
TASK_BYTES: Final = 64 * 1024 * 1024  # Stored bytes of runs.
LOOKS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedMergeTask:
    """The work of a task: merge the keys ``[first, last)`` of runs into parts of a run."""

    place: KeyedLogPlace
    runs: tuple[Run, ...]
    run: Run
    number: int
    first: bytes
    last: bytes | None


KeyedMerged = tuple[int, tuple[RunPart, ...]] | TidelogError


@dataclass(slots=True)
class SparkRunMerger:
    """A merger on the executors of a Spark session, which must reach the location.

    Units: this process itself merges less than ``least_bytes`` of runs. A task merges about
        ``task_bytes``. A key is never cut, so a larger key has a task of its own.
    """

    spark: SparkSession
    _: KW_ONLY
    least_bytes: int = LEAST_BYTES
    task_bytes: int = TASK_BYTES
    _here: HereMerger = field(default_factory=HereMerger)
    _checked: set[str] = field(default_factory=set)

    async def merge(
        self, state_handle: KeyedStateHandle, job: RunMergeJob, run: Run
    ) -> tuple[RunPart, ...]:
        """Write the parts of a merged run; see `tidelog.keyed.maintenance.compactor.RunMerger`.

        Raises:
            UsageError: executors do not reach the location.
            LocationError: Spark failed.
        """
        size = sum(input_run.bytes for input_run in job.runs)
        if size < self.least_bytes:
            return await self._here.merge(state_handle, job, run)
        store = state_handle.store
        url = url_for_executors(state_handle.location_url or store.url, store)
        tasks = tasks_of(self.spark)
        await self._check(tasks, url, state_handle)
        work = await self._plan(
            state_handle, job, run, KeyedLogPlace(location_url=url, name=state_handle.name)
        )
        outcomes = await run_job(
            tasks.tags,
            lambda: tasks.run(merge_key_ranges, work),
            clock=state_handle.clock,
            what="the merge",
        )
        parts = _gathered(outcomes)
        await self._see(parts, tasks, url, state_handle)
        return parts

    async def _plan(
        self, state_handle: KeyedStateHandle, job: RunMergeJob, run: Run, place: KeyedLogPlace
    ) -> list[KeyedMergeTask]:
        size = max(1, sum(input_run.bytes for input_run in job.runs))
        rows = max(1, job.records * self.task_bytes // size)
        sources = [RunSource(input_run, state_handle.parts) for input_run in job.runs]
        pages = merged_keys(sources, b"", None, 0, None)
        ranges = [(a, b) async for a, b, _ in key_ranges(pages, b"", None, rows)]
        return [
            KeyedMergeTask(
                place=place, runs=job.runs, run=run, number=number, first=first, last=last
            )
            for number, (first, last) in enumerate(ranges)
        ]

    async def _check(self, tasks: SparkTasks, url: str, state_handle: KeyedStateHandle) -> None:
        """Check the executors once per location, if they are not threads of this process."""
        if url in self._checked:
            return
        if tasks.is_elsewhere:
            await check_executors(
                self.spark,
                tasks,
                location_url=url,
                source_url=url,
                paths=[],
                clock=state_handle.clock,
            )
        self._checked.add(url)

    async def _see(
        self, parts: Sequence[RunPart], tasks: SparkTasks, url: str, state_handle: KeyedStateHandle
    ) -> None:
        """Check that the driver sees the parts: a new executor may use another machine's disk."""
        if not (url.startswith("file:") and tasks.is_elsewhere):
            return
        work = [partial(state_handle.store.get, part.path, limit=1) for part in parts]
        try:
            await run_all(work, at_once=LOOKS_AT_ONCE)
        except ObjectNotFound as error:
            raise UsageError(
                f"one of Spark's executors wrote to another directory than this process's {url}: "
                "use a bucket (s3://, gs://, az://), or a path that all machines share"
            ) from error


def merge_key_ranges(items: Iterable[KeyedMergeTask]) -> Iterator[KeyedMerged]:
    """Merge ranges of keys in an executor; yield a TidelogError instead of raising it."""
    use_one_core()
    for item in items:
        try:
            yield item.number, asyncio.run(_merge(item))
        except TidelogError as error:
            yield portable(error)


async def _merge(item: KeyedMergeTask) -> tuple[RunPart, ...]:
    clock = SystemClock()
    state_handle = await item.place.state_handle(clock)
    records = merged_records(state_handle.parts, clock, item.runs, first=item.first, last=item.last)
    within = f"{item.number:04x}-{clock.unique()[:12]}-"
    return await write_parts(state_handle, item.run, records, within=within)


def _gathered(outcomes: Sequence[KeyedMerged]) -> tuple[RunPart, ...]:
    """Combine the parts that tasks wrote, in the order of keys.

    Raises:
        TidelogError: the first error among the results.
    """
    by_number: dict[int, tuple[RunPart, ...]] = {}
    for outcome in outcomes:
        if isinstance(outcome, TidelogError):
            raise outcome
        by_number[outcome[0]] = outcome[1]
    return tuple(part for number in sorted(by_number) for part in by_number[number])
