"""Scrubs of shards on Spark: the driver checks the states, executors read and check the parts.

It is the scrub of `tidelog.persist`, so it finds the same damage. A task needs only the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.blocking.portal import Portal
from tidelog.collection.maintenance import GroupScrub
from tidelog.core.clock import SystemClock, run_all
from tidelog.core.grouping import groups_by_size
from tidelog.errors import TidelogError
from tidelog.location import open_location
from tidelog.persist.maintenance.part_checks import (
    AT_ONCE,
    HERE,
    PartCheck,
    PartOutcome,
    check_stored,
    is_small,
)
from tidelog.persist.read.reader import PartReader
from tidelog.spark.job import portable, run_job
from tidelog.spark.kept_store import open_fresh
from tidelog.spark.place import url_for_executors
from tidelog.spark.reach import check_once
from tidelog.spark.ship import ship
from tidelog.spark.tasks import tasks_of
from tidelog.spark.worker import use_one_core
from tidelog.store.wrappers.read_only import is_read_only

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.persist.handle.port import ShardHandle

TASK_BYTES: Final = 32 * 1024 * 1024


def scrub(spark: SparkSession, location_url: str, names: Sequence[str] = ()) -> list[GroupScrub]:
    """Read the data of collections and shards in the executors of a session, and check all of it.

    Return the result of each shard; without names, of all shards of the location. Keyed logs and
    logs have scrubs of their own. The driver checks the states, and shards of less than 8 MiB.

    Raises:
        NoSuchLocation, NoSuchCollection: the location or a name does not exist.
        UsageError: the executors cannot reach the location; the message names the remedy.
        LocationError: the store failed, or Spark.
    """
    with closing(Portal()) as portal:  # A notebook's own loop is already running.
        return portal.run(_scrub(spark, location_url, names))


async def _scrub(spark: SparkSession, location_url: str, names: Sequence[str]) -> list[GroupScrub]:
    location = await open_location(location_url)
    checker = SparkChecker(spark, location_url=location.executor_url)
    maintenance = location.maintenance
    groups = await maintenance.groups(names)
    return [found async for found in maintenance.scrub(groups, checker=checker)]


@dataclass(slots=True)
class SparkChecker:
    """A checker of parts in the executors of a session, which must reach the location."""

    spark: SparkSession
    _: KW_ONLY
    location_url: str
    _checked: set[str] = field(default_factory=set)

    async def check(self, shard: ShardHandle, checks: Sequence[PartCheck]) -> list[PartOutcome]:
        """See `tidelog.persist.maintenance.part_checks.PartChecker`.

        Raises:
            UsageError: the executors cannot reach the location.
            LocationError: the store failed, or Spark.
        """
        if is_small(checks):
            return await HERE.check(shard, checks)
        url = url_for_executors(self.location_url, shard.store)
        ship(self.spark)
        tasks = tasks_of(self.spark)
        if not is_read_only(shard.store):  # The check writes an object.
            await check_once(self.spark, tasks, url, self._checked, clock=shard.clock)
        shares = list(groups_by_size(checks, lambda one: one.part.size_bytes, most=TASK_BYTES))
        numbered = list(enumerate(shares))
        work = partial(check_shares, location_url=url)
        answers = await run_job(
            tasks.tags, lambda: tasks.run(work, numbered), clock=shard.clock, what="the scrub"
        )
        return _in_order(answers)


Share = tuple[int, list[PartCheck]]
Answer = tuple[int, list[PartOutcome] | TidelogError]


def check_shares(shares: Iterable[Share], *, location_url: str) -> Iterator[Answer]:
    """Run the checks of shares in an executor; return a TidelogError instead of raising it."""
    use_one_core()
    clock = SystemClock()
    for number, checks in shares:
        reader = PartReader(store=open_fresh(location_url), clock=clock)
        work = [partial(check_stored, reader, one) for one in checks]
        try:
            yield number, asyncio.run(run_all(work, at_once=AT_ONCE))
        except TidelogError as error:
            yield number, portable(error)


def _in_order(answers: Sequence[Answer]) -> list[PartOutcome]:
    """Return the results of all shares in the order of the checks.

    Raises:
        TidelogError: the first error among them.
    """
    outcomes: list[PartOutcome] = []
    for _, answer in sorted(answers, key=lambda each: each[0]):
        if isinstance(answer, TidelogError):
            raise answer
        outcomes += answer
    return outcomes
