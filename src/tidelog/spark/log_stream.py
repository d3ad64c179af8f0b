"""``option("kind", "log")`` in a stream: records as they come, each once, by their positions.

An offset is the position of the next record. Spark writes down where a micro-batch ends before it
is read, and reads the same positions again after a failure; what a position holds never changes. So
a sink that Spark can commit to once has each record once.
Invariants: offsets only rise; a sealed log gives no more of them.
Source: PySpark's ``DataSourceStreamReader``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidelog.clock import Clock, SystemClock
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
from tidelog.wal.read.bounds import POLL_FIRST_US, POLL_MOST_US

POSITION: Final = "position"


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says on the driver what there is, and reads in executors.

    Spark keeps one for a query, in a process of its own, and gives it to tasks before it is used.
    """

    def __init__(self, settings: LogSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._opened: tuple[LogPlace, LogView] | None = None
        self._target: int | None = None
        self._looked_us = 0
        self._wait_us = POLL_FIRST_US

    def initialOffset(self) -> dict[str, Any]:
        with told_as_spark_tells():
            _, view = self._look()
            start = view.next if self._settings.from_latest else self._settings.start or view.oldest
            refuse_beyond(start, view)
            return {POSITION: start}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._settings.batch_records_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with told_as_spark_tells():
            first = int(start[POSITION])
            _, view = self._look(up_to=None if self._is_due(first) else first)
            end = view.next if self._target is None else min(view.next, self._target)
            if first > view.next:
                raise _made_anew(first, view)
            if isinstance(limit, ReadMaxRows):
                end = min(end, first + limit.max_rows)
            if first < min(end, view.oldest):
                raise collected_error(first, view.head.manifest)
            return {POSITION: max(first, end)}

    def prepareForTriggerAvailableNow(self) -> None:
        with told_as_spark_tells():
            self._target = self._look()[1].next

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._opened is None else {POSITION: self._opened[1].next}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, limit = int(start[POSITION]), int(end[POSITION])
        with told_as_spark_tells():
            # After a restart, what was planned before it comes first.
            place, view = self._look(up_to=limit)
            if view.next < limit:
                raise _made_anew(limit, view)
            found = asyncio.run(view.fragments(first, limit))
            key = self._settings.key
            return partitions_of(share_log(found, first, limit, place=place, key=key))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)

    def _is_due(self, first: int) -> bool:
        """Say whether to look at the log again; Spark asks an idle query every 10 ms."""
        if self._opened is None or self._opened[1].next != first:
            self._wait_us = POLL_FIRST_US
            return True
        if self._clock.monotonic_us() - self._looked_us < self._wait_us:
            return False
        self._wait_us = min(2 * self._wait_us, POLL_MOST_US)
        return True

    def _look(self, *, up_to: int | None = None) -> tuple[LogPlace, LogView]:
        """Return the log as it is now, or as it was last seen if that was past ``up_to``."""
        if self._opened is None:
            self._opened = asyncio.run(open_log_view(self._settings, clock=self._clock))
        elif up_to is None or self._opened[1].next < up_to:
            asyncio.run(self._opened[1].renew())
        else:
            return self._opened
        self._looked_us = self._clock.monotonic_us()
        return self._opened


def _made_anew(position: int, view: LogView) -> NoSuchLog:
    return NoSuchLog(
        f"the log ends at {view.next}, before {position}, which was read already: it was made "
        "anew, or lost records; a new checkpoint starts from what is there"
    )
