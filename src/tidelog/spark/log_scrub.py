"""Scrubbing a log on Spark: the driver checks the structure of a log, executors its records.

It is the scrub of `tidelog.wal`, so it finds the same problems. But it collects the fragments, and
has executors check all of them in one job. The driver reads the manifest, snapshots, fences, and
the links past the manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import SparkSession

from tidelog.blocking.portal import Portal
from tidelog.core.clock import SystemClock, run_all
from tidelog.errors import TidelogError
from tidelog.location import open_location
from tidelog.spark.job import live_context, portable, run_job
from tidelog.spark.log_share import SHARE_BYTES, LogPlace, groups_of
from tidelog.spark.place import url_for_executors
from tidelog.spark.worker import use_one_core
from tidelog.store.keys import Within
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.logs import log_folder
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.read.head import TreeReader, read_head
from tidelog.wal.scrub.report import Before, ScrubReport
from tidelog.wal.scrub.slot_scrub import scrub_slots
from tidelog.wal.scrub.tree_scrub import Check, TreeScrub, scrub
from tidelog.wal.slot_protocol.reader import SlotReader


def scrub_log(spark: SparkSession, location_url: str, name: str) -> ScrubReport:
    """Read a whole log in the executors of a session, and check all of it.

    Raises:
        NoSuchLocation, NoSuchLog: the location or the log does not exist.
        UsageError: an argument is wrong.
        CorruptionError: the manifest cannot be read, so the expected contents are unknown.
        LocationError: the store failed, or Spark.
    """
    with closing(Portal()) as portal:  # A notebook's own loop is already running.
        return portal.run(_scrub(spark, location_url, name))


@dataclass(slots=True, kw_only=True)
class SparkScrub(TreeScrub):
    """A scrub that collects fragments, and has executors check them in `settle`."""

    spark: SparkSession
    place: LogPlace
    aside: dict[Fragment, Before] = field(default_factory=dict)

    async def fragment(self, fragment: Fragment, before: Before) -> None:
        """Collect a fragment for `settle`."""
        self.named.add(fragment.path)
        self.aside[fragment] = before

    async def bytes_of(self, fragment: Fragment, data: bytes, before: Before) -> None:
        """Collect a fragment: the driver read these bytes only for their link."""
        self.aside[fragment] = before

    async def settle(self) -> None:
        """Have executors check all collected fragments."""
        groups = [
            [(fragment, self.aside[fragment]) for fragment in group]
            for group in groups_of(list(self.aside), size_bytes=SHARE_BYTES)
        ]
        self.aside = {}
        if not groups:
            return
        context = live_context(self.spark)
        check = partial(check_fragments, place=self.place, check=self.check)
        outcomes = await run_job(
            context,
            lambda: context.parallelize(groups, len(groups)).map(check).collect(),
            clock=self.reader.clock,
            what="the scrub",
        )
        for outcome in outcomes:
            if isinstance(outcome, TidelogError):
                raise outcome
            self._add(outcome)

    def _add(self, report: ScrubReport) -> None:
        total = self.found
        total.problems += report.problems
        total.setsum = total.setsum + report.setsum
        total.records += report.records
        total.bytes_read += report.bytes_read
        total.fragments += report.fragments


def check_fragments(
    fragments: Sequence[tuple[Fragment, Before]], *, place: LogPlace, check: Check
) -> ScrubReport | TidelogError:
    """Check fragments in an executor; return a TidelogError instead of raising it."""
    use_one_core()
    clock = SystemClock()
    run = TreeScrub(TreeReader(store=place.open(clock), clock=clock), ScrubReport(), check)
    work = [partial(run.fragment, fragment, before) for fragment, before in fragments]
    try:
        asyncio.run(run_all(work, at_once=run.reader.reads))
    except TidelogError as error:
        return portable(error)
    return run.found


async def _scrub(spark: SparkSession, location_url: str, name: str) -> ScrubReport:
    location = await open_location(location_url)
    store, clock = Within(location.store, log_folder(name)), location.clock
    is_slots = (await read_head(store)).manifest.chain is not None
    place = LogPlace(
        location_url=url_for_executors(location.executor_url, location.store),
        name=name,
        is_slots=is_slots,
    )
    run_by = partial(SparkScrub, spark=spark, place=place)
    if is_slots:
        return await scrub_slots(SlotReader(store=store, clock=clock), run_by=run_by)
    return await scrub(Wal3Reader(store=store, clock=clock), run_by=run_by)
