"""A merge on a cluster: its driver dies after the work, or its tasks die in each stage.

``python -m cluster.merging MASTER URL NAME driver|tasks SETTING=VALUE...``. A task dies with -9
after all its work, so that its second attempt repeats the work.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from pyspark import TaskContext
from pyspark.sql import SparkSession

from tidelog.location import open_location
from tidelog.persist.handle.port import ShardHandle
from tidelog.persist.maintenance.compactor import compact
from tidelog.persist.maintenance.merger import MergedParts
from tidelog.persist.maintenance.merging import MergeRequest
from tidelog.spark import merge_plan, merge_task, merger
from tidelog.spark.merge_plan import MergeJob
from tidelog.spark.merger import SparkMerger
from tidelog.spark.session import session, stop


# This module is __main__, so its functions are sent by value: executors have no tests.
def cut_and_die(items: Iterable[Any], *, job: MergeJob) -> Iterator[Any]:
    yield from dying(list(merge_task.cut_parts(items, job=job)))


def merge_and_die(items: Iterable[Any], *, job: MergeJob) -> Iterator[Any]:
    yield from dying(list(merge_task.merge_places(items, job=job)))


def dying(done: list[Any]) -> list[Any]:
    """Return a task's result if it is the second attempt."""
    task = TaskContext.get()
    assert task is not None
    if task.partitionId() == 1 and task.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return done


@dataclass
class DiesAfterwards:
    """A merger that dies before its results are applied."""

    inner: SparkMerger

    async def write(self, shard: ShardHandle, request: MergeRequest) -> MergedParts:
        found = await self.inner.write(shard, request)
        print(json.dumps({"written": len(found.parts)}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        return found


async def merge(spark: SparkSession, url: str, name: str, who_dies: str) -> None:
    shard = (await open_location(url)).shard(name)
    inner = SparkMerger(spark, least_bytes=0)
    await shard.refresh()
    if who_dies == "driver":
        await compact(shard, full=True, merger=DiesAfterwards(inner))
    with (
        patch.object(merger, "cut_parts", cut_and_die),
        patch.object(merger, "merge_places", merge_and_die),
    ):
        done = await compact(shard, full=True, merger=inner)
    parts = [part for batch in shard.state.batches for part in batch.parts]
    print(json.dumps({"merges": done.merges, "parts": len(parts)}), flush=True)


def main(master: str, url: str, name: str, who_dies: str, settings: list[str]) -> None:
    extra = dict(setting.split("=", 1) for setting in settings)
    spark = session(master=master, extra=extra)
    with patch.object(merge_plan, "READ_BYTES", 1), patch.object(merge_plan, "MERGED_BYTES", 1_000):
        asyncio.run(merge(spark, url, name, who_dies))
    stop(spark)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
