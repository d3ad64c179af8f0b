"""Verifications on Spark: each task verifies a log of its own, on the machine of its executor.

It is the verification of `tidelog.verify`. So the run shows whether each machine of a cluster
reaches the store, how fast, and whether the store keeps its promises to all of them at one time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidelog.blocking.portal import Portal
from tidelog.core.arguments import check_whole
from tidelog.core.clock import run_all
from tidelog.errors import TidelogError, UsageError
from tidelog.location import Location, open_location
from tidelog.location.location import writer_name
from tidelog.spark.job import portable, run_job
from tidelog.spark.place import url_for_executors
from tidelog.spark.reach import check_once
from tidelog.spark.ship import ship
from tidelog.spark.tasks import tasks_of
from tidelog.spark.worker import use_one_core
from tidelog.verify.run import Report, Settings, Verification, new_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_MAX: Final = 10_000
DROPS_AT_ONCE: Final = 8


def verify(
    spark: SparkSession,
    location_url: str,
    settings: Settings | None = None,
    *,
    tasks: int | None = None,
    keep: bool = False,
) -> list[Report]:
    """Verify the store of a location in the executors of a session; return a report for each task.

    Each task has a log of its own, with a seed of its own: the first seed is that of ``settings``,
    the next ones follow it. By default there is a task for each core of the session. With more
    tasks than cores, the others wait. The driver drops the logs at the end, unless ``keep`` is True
    or a log is wrong. A task that Spark repeats continues with the log of its first try.

    Raises:
        UsageError: an argument is wrong, or the executors cannot reach the location. NOT_APPLIED.
        NoSuchLocation: the location does not exist. NOT_APPLIED.
        LocationError: the store failed at every try, or Spark. Logs may be left.
    """
    first = settings or Settings(seed=new_seed())
    check_tasks(tasks, first)
    with closing(Portal()) as portal:  # A notebook's own loop is already running.
        return portal.run(_verify(spark, location_url, first, tasks=tasks, keep=keep))


def check_tasks(tasks: int | None, first: Settings) -> None:
    """Check the number of tasks, whose seeds follow the one of ``first``.

    Raises:
        UsageError: it is wrong, or the last seed would be too great.
    """
    if tasks is None:
        return
    check_whole(tasks, "tasks")
    if not 1 <= tasks <= TASKS_MAX:
        raise UsageError(f"tasks must be from 1 to {TASKS_MAX:,}, not {tasks:,}")
    replace(first, seed=first.seed + tasks - 1)


async def _verify(
    spark: SparkSession, location_url: str, first: Settings, *, tasks: int | None, keep: bool
) -> list[Report]:
    location = await open_location(location_url)
    url = url_for_executors(location.executor_url, location.store)
    runner = tasks_of(spark)
    count = runner.cores_count() if tasks is None else tasks
    asked = [replace(first, seed=first.seed + number) for number in range(count)]
    ship(spark)
    await check_once(spark, runner, url, set(), clock=location.clock)
    work = partial(verify_logs, location_url=url)
    answers = await run_job(
        runner.tags, lambda: runner.run(work, asked), clock=location.clock, what="the verification"
    )
    if not keep:
        clean = [one for one in answers if isinstance(one, Report) and one.is_clean]
        drops = [_verification(location, one.settings).drop for one in clean]
        await run_all(drops, at_once=DROPS_AT_ONCE)
    return _in_order(answers)


def verify_logs(asked: Iterable[Settings], *, location_url: str) -> Iterator[Report | TidelogError]:
    """Run verifications in an executor; return a TidelogError instead of raising it."""
    use_one_core()
    for settings in asked:
        try:
            yield asyncio.run(_run(settings, location_url))
        except TidelogError as error:
            yield portable(error)


async def _run(settings: Settings, location_url: str) -> Report:
    # Spark may repeat a task that has ended, so no task drops its logs.
    return await _verification(await open_location(location_url), settings).run(keep=True)


def _verification(location: Location, settings: Settings) -> Verification:
    return Verification(
        store=location.store, clock=location.clock, writer=writer_name(), settings=settings
    )


def _in_order(answers: Sequence[Any]) -> list[Report]:
    """Return the reports of all tasks, by their seeds.

    Raises:
        TidelogError: the first error among them.
    """
    reports: list[Report] = []
    for answer in answers:
        if isinstance(answer, TidelogError):
            raise answer
        reports.append(answer)
    return sorted(reports, key=lambda one: one.settings.seed)
