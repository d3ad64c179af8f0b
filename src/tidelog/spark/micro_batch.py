"""The names of micro-batches: a sink writes each name once.

A task reports the id of its query, because the driver's side of a sink does not get it from Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark import TaskContext

from tidelog.errors import UsageError

QUERY_ID: Final = "sql.streaming.queryId"


def query_of_task() -> str | None:
    """Return the id of the streaming query to which the running task belongs, if there is one."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(QUERY_ID)


def name_of_batch(reported: Iterable[str | None], number: int) -> tuple[str, int]:
    """Return the name and the number of a micro-batch, from the ids that its tasks reported.

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
    return f"query:{query}", number
