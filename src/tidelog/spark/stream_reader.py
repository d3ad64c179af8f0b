"""The common part of streams of logs, keyed logs and collections: offsets, and polls.

An offset has a number: that of the next record of a log, or the last time of a collection. Spark
asks an idle query for new records every 10 ms; the reader polls at growing intervals.
Source: PySpark's ``DataSourceStreamReader``.
"""

from __future__ import annotations

import abc
import asyncio
from typing import Any, ClassVar, Generic, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidelog.core.clock import Clock, SystemClock
from tidelog.spark.options import told_as_spark_tells
from tidelog.wal.read.bounds import POLL_FIRST_US, POLL_MOST_US

P = TypeVar("P")
V = TypeVar("V")


class OffsetStreamReader(
    DataSourceStreamReader, SupportsTriggerAvailableNow, abc.ABC, Generic[P, V]
):
    """A reader of a log at a place ``P``, with a view ``V`` of it.

    Spark keeps one reader per query, in a process of its own, and pickles it for tasks before its
    first use. ``FIELD`` is the name of the number in an offset.
    """

    FIELD: ClassVar[str]

    def __init__(self, batch_records_max: int | None, *, clock: Clock | None = None) -> None:
        self._batch_records_max = batch_records_max
        self._clock = clock or SystemClock()
        self._opened: tuple[P, V] | None = None
        self._target: int | None = None
        self._looked_us = 0
        self._wait_us = POLL_FIRST_US

    @abc.abstractmethod
    async def _open(self) -> tuple[P, V]:
        """Open the log."""

    @abc.abstractmethod
    async def _renew(self, view: V) -> None:
        """Update the view to the present end of the log."""

    @abc.abstractmethod
    def _next(self, view: V) -> int:
        """Return the number of the next record."""

    @abc.abstractmethod
    def _begin(self, view: V) -> int:
        """Return the number at which a query without a checkpoint begins."""

    @abc.abstractmethod
    def _refuse_beyond(self, number: int, view: V) -> None:
        """Raise an error if the log ends before ``number``, which was already read."""

    @abc.abstractmethod
    def _refuse_gone(self, first: int, end: int, view: V) -> None:
        """Raise an error if records of ``[first, end)`` no longer exist."""

    def initialOffset(self) -> dict[str, Any]:
        with told_as_spark_tells():
            return self._offset(self._begin(self._look()[1]))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._batch_records_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with told_as_spark_tells():
            first = self._number(start)
            _, view = self._look(up_to=None if self._is_due(first) else first)
            following = self._next(view)
            self._refuse_beyond(first, view)
            end = following if self._target is None else min(following, self._target)
            end = self._limited(first, end, limit, view)
            self._refuse_gone(first, end, view)
            return self._offset(max(first, end))

    def prepareForTriggerAvailableNow(self) -> None:
        with told_as_spark_tells():
            self._target = self._next(self._look()[1])

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._opened is None else self._offset(self._next(self._opened[1]))

    def _offset(self, number: int) -> dict[str, Any]:
        """Return the offset of a number, with the same order of fields each time."""
        return {self.FIELD: number}

    def _number(self, offset: dict[str, Any]) -> int:
        """Return the number in an offset."""
        return int(offset[self.FIELD])

    def _limited(self, first: int, end: int, limit: ReadLimit, view: V) -> int:
        """Return the end of a micro-batch that begins at ``first``, within Spark's limit."""
        return min(end, first + limit.max_rows) if isinstance(limit, ReadMaxRows) else end

    def _planned(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[int, int, P, V]:
        """Return the range of a micro-batch, and a view that covers it.

        After a restart, Spark first runs the batch that it planned before the restart.
        """
        first, limit = self._number(start), self._number(end)
        place, view = self._look(up_to=limit)
        self._refuse_beyond(limit, view)
        return first, limit, place, view

    def _is_due(self, first: int) -> bool:
        """Return True if a poll is due; Spark asks an idle query every 10 ms."""
        if self._opened is None or self._next(self._opened[1]) != first:
            self._wait_us = POLL_FIRST_US
            return True
        if self._clock.monotonic_us() - self._looked_us < self._wait_us:
            return False
        self._wait_us = min(2 * self._wait_us, POLL_MOST_US)
        return True

    def _look(self, *, up_to: int | None = None) -> tuple[P, V]:
        """Return the present view, or the previous one if it already reaches ``up_to``."""
        if self._opened is None:
            self._opened = asyncio.run(self._open())
        elif up_to is None or self._next(self._opened[1]) < up_to:
            asyncio.run(self._renew(self._opened[1]))
        else:
            return self._opened
        self._looked_us = self._clock.monotonic_us()
        return self._opened
