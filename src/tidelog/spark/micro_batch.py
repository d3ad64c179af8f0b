"""The names of micro-batches: a sink writes each name once.

A task reports the id of its query, because the driver's side of a sink does not get it from Spark.

A copied checkpoint has the id of its query, so its next batch has a number that the query wrote.
Before Spark runs a batch, it plans the batch in the file ``offsets/N`` of the checkpoint, with the
time of the plan. A replay of the batch uses this file. So its digest tells a replay from another
batch of that number. A sink stores a few bits of the digest in the number of its write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import xxhash
from pyspark import TaskContext

from tidelog.errors import CheckpointCopied, UsageError

QUERY_ID: Final = "sql.streaming.queryId"
PREFIX: Final = "query:"
PLAN_BITS: Final = 22


def query_of_task() -> str | None:
    """Return the id of the streaming query to which the running task belongs, if there is one."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(QUERY_ID)


def name_of_batch(
    reported: Iterable[str | None], number: int, checkpoint: str | None
) -> tuple[str, int]:
    """Return the name and the number of a micro-batch, from the ids that its tasks reported.

    The number rises with the batches, and has the digest of the batch's plan (see `is_repeat`).

    Raises:
        UsageError: the tasks reported no id, or several.
    """
    queries = set(reported)
    query = queries.pop() if len(queries) == 1 else None
    if query is None:
        raise UsageError(
            "Spark did not report the query of this batch, so a repeat could write it twice: write "
            "it with df.write in foreachBatch"
        )
    return f"{PREFIX}{query}", number << PLAN_BITS | _plan_of(query, number, checkpoint)


def is_repeat(last: int | None, number: int) -> bool:
    """Return True if a micro-batch is the last one of its query, and False if it is a later one.

    ``last`` and ``number`` are numbers of `name_of_batch`; ``last`` is None before the first batch.

    Raises:
        CheckpointCopied: the query wrote another batch of this number, or later batches.
    """
    if last is None:
        return False
    stored, given = last >> PLAN_BITS, number >> PLAN_BITS
    plans = {plan for plan in (_plan_in(last), _plan_in(number)) if plan}
    if given < stored or (given == stored and len(plans) > 1):
        raise CheckpointCopied(
            "the checkpoint of this query is a copy, or an old version: another run of the query "
            "has written its own batch of this number, or later ones. Nothing was written: start "
            "this query with a new checkpointLocation",
            batch=given,
            newest=stored,
        )
    return given == stored


def _plan_in(number: int) -> int:
    return number & ((1 << PLAN_BITS) - 1)


def _plan_of(query: str, number: int, checkpoint: str | None) -> int:
    """Return a digest of a batch's plan; 0 if this process does not find the checkpoint's files."""
    if checkpoint is None or (":" in checkpoint and not checkpoint.startswith("file:")):
        return 0
    path = checkpoint.removeprefix("file:")
    folder = Path(f"/{path.lstrip('/')}" if path.startswith("/") else path)
    try:
        # A folder of this name could be on another machine than Spark's checkpoint.
        if json.loads((folder / "metadata").read_bytes()).get("id") != query:
            return 0
        plan = (folder / "offsets" / str(number)).read_bytes()
    except (OSError, ValueError):
        return 0
    return xxhash.xxh3_64_intdigest(plan) % ((1 << PLAN_BITS) - 1) + 1
