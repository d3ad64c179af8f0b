"""``option("kind", "log")`` in a stream: new records, each once, by their positions.

An offset is the position of the next record. Spark stores the end of a micro-batch before it reads
the batch, and reads the same positions again after a failure. The contents of a position never
change. So a sink that commits each micro-batch once gets each record once.
Invariants: offsets only rise; a sealed log has no further offsets.
Source: PySpark's ``DataSourceStreamReader``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidelog.core.clock import Clock
from tidelog.errors import NoSuchLog
from tidelog.spark.log_options import LogSettings
from tidelog.spark.log_share import LogPlace, share_log
from tidelog.spark.log_source import (
    open_log_view,
    partitions_of,
    read_partition,
    refuse_beyond,
)
from tidelog.spark.log_view import LogView, collected_error
from tidelog.spark.options import told_as_spark_tells
from tidelog.spark.stream_reader import OffsetStreamReader

POSITION: Final = "position"


class LogStreamReader(OffsetStreamReader[LogPlace, LogView]):
    """The reader of a stream: it finds offsets on the driver, and reads in executors."""

    FIELD = POSITION

    def __init__(self, settings: LogSettings, *, clock: Clock | None = None) -> None:
        super().__init__(settings.batch_records_max, clock=clock)
        self._settings = settings

    async def _open(self) -> tuple[LogPlace, LogView]:
        return await open_log_view(self._settings, clock=self._clock)

    async def _renew(self, view: LogView) -> None:
        await view.renew()

    def _next(self, view: LogView) -> int:
        return view.next

    def _begin(self, view: LogView) -> int:
        start = view.next if self._settings.from_latest else self._settings.start or view.oldest
        refuse_beyond(start, view)
        return start

    def _refuse_beyond(self, number: int, view: LogView) -> None:
        if number > view.next:
            raise _replaced_error(number, view)

    def _refuse_gone(self, first: int, end: int, view: LogView) -> None:
        if first < min(end, view.oldest):
            raise collected_error(first, view.head.manifest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with told_as_spark_tells():
            first, limit, place, view = self._planned(start, end)
            fragments = asyncio.run(view.fragments(first, limit))
            key = self._settings.key
            return partitions_of(share_log(fragments, first, limit, place=place, key=key))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)


def _replaced_error(position: int, view: LogView) -> NoSuchLog:
    return NoSuchLog(
        f"the stream has read up to {position}, but the log ends at {view.next}: the log was "
        "replaced, or lost records. Start the query with a new checkpoint"
    )
