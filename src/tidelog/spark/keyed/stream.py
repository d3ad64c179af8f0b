"""``option("kind", "keyed")`` in a stream: records as they come, each once, by their sequences.

An offset is a sequence: all before it was given. Spark writes down where a micro-batch ends before
it is read, and reads the same sequences again after a failure; a sequence's record never changes,
be it loose or in a run by then. So a sink that Spark can commit to once has each record once. Of
one key, the offset moves on with what other keys get.
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
from tidelog.keyed.read.standing import KeyedStanding
from tidelog.keyed.states.transition import check_readable
from tidelog.spark.keyed.options import KeyedReadSettings
from tidelog.spark.keyed.pin import (
    keyed_partitions,
    open_keyed,
    pin_view,
    plan_shares,
    refuse_start_beyond,
)
from tidelog.spark.keyed.share import KeyedLogPlace, KeyedShare
from tidelog.spark.keyed.source import read_keyed_partition
from tidelog.spark.options import told_as_spark_tells
from tidelog.wal.read.bounds import POLL_FIRST_US, POLL_MOST_US

SEQUENCE: Final = "sequence"


class KeyedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says on the driver what there is, and reads in executors.

    Spark keeps one for a query, in a process of its own, and gives it to tasks before it is used.
    """

    def __init__(self, settings: KeyedReadSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._opened: tuple[KeyedLogPlace, KeyedStanding] | None = None
        self._target: int | None = None
        self._looked_us = 0
        self._wait_us = POLL_FIRST_US

    def initialOffset(self) -> dict[str, Any]:
        with told_as_spark_tells():
            _, standing = self._look()
            following = standing.view().next
            wanted = self._settings.wanted.start or standing.state.retired
            start = following if self._settings.from_latest else wanted
            refuse_start_beyond(start, following)
            check_readable(standing.state, start)
            return {SEQUENCE: start}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._settings.batch_records_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with told_as_spark_tells():
            first = int(start[SEQUENCE])
            _, standing = self._look(up_to=None if self._is_due(first) else first)
            following = standing.view().next
            refuse_start_beyond(first, following)
            end = following if self._target is None else min(following, self._target)
            if isinstance(limit, ReadMaxRows):
                end = min(end, first + limit.max_rows)
            if first < end:
                check_readable(standing.state, first)
            return {SEQUENCE: max(first, end)}

    def prepareForTriggerAvailableNow(self) -> None:
        with told_as_spark_tells():
            self._target = self._look()[1].view().next

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._opened is None else {SEQUENCE: self._opened[1].view().next}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, limit = int(start[SEQUENCE]), int(end[SEQUENCE])
        with told_as_spark_tells():
            # After a restart, what was planned before it comes first.
            place, standing = self._look(up_to=limit)
            refuse_start_beyond(limit, standing.view().next)
            return keyed_partitions(asyncio.run(self._plan(place, standing, first, limit)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_keyed_partition(partition)

    async def _plan(
        self, place: KeyedLogPlace, standing: KeyedStanding, first: int, limit: int
    ) -> list[KeyedShare]:
        if first >= limit:
            return []
        wanted = self._settings.wanted.between(first, limit)
        return await plan_shares(pin_view(place, standing.view(), wanted))

    def _is_due(self, first: int) -> bool:
        """Say whether to look at the log again; Spark asks an idle query every 10 ms."""
        if self._opened is None or self._opened[1].view().next != first:
            self._wait_us = POLL_FIRST_US
            return True
        if self._clock.monotonic_us() - self._looked_us < self._wait_us:
            return False
        self._wait_us = min(2 * self._wait_us, POLL_MOST_US)
        return True

    def _look(self, *, up_to: int | None = None) -> tuple[KeyedLogPlace, KeyedStanding]:
        """Return the log as it is now, or as it was last seen if that was past ``up_to``."""
        if self._opened is None:
            self._opened = asyncio.run(open_keyed(self._settings, clock=self._clock))
        elif up_to is None or self._opened[1].view().next < up_to:
            asyncio.run(self._opened[1].refresh())
        else:
            return self._opened
        self._looked_us = self._clock.monotonic_us()
        return self._opened
