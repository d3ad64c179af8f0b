"""A write of a table in which each task is killed once, after it has written its parts.

``python -m kit.retried_tasks URL NAME OPERATION`` writes the rows of `KEYS` in `TASKS` tasks.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.session import session, stop
from tidelog.spark.table_sink import TableBatchWriter, TableTask

KEYS: Final = range(60)
TASKS: Final = 3


class KilledOnce(TableBatchWriter):
    """A writer whose process dies in the first attempt of each task, before it answers."""

    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TableTask:
        written = super().write(iterator)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return written


class KilledOnceSource(TidelogDataSource):
    def writer(self, schema: Any, overwrite: bool) -> KilledOnce:
        writer = super().writer(schema, overwrite)
        assert isinstance(writer, TableBatchWriter)
        return KilledOnce(writer._sink)


def write(url: str, name: str, operation: str) -> None:
    spark = session(master=f"local[2,{TASKS}]", quick=True)
    spark.dataSource.register(KilledOnceSource)
    rows = spark.range(KEYS.start, KEYS.stop, 1, TASKS).selectExpr("id AS a", "'new' AS b")
    writer = rows.write.format("tidelog").options(location=url, operation=operation)
    writer.mode("append").save(name)
    stop(spark)


if __name__ == "__main__":
    write(*sys.argv[1:])
