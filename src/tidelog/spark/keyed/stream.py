"""``option("kind", "keyed")`` in a stream: new records, each once, by their sequences.

An offset is the next sequence. Spark stores the end of a micro-batch before it reads the batch, and
reads the same sequences again after a failure. A sequence's record never changes, also when
compaction moves it to a run. So a sink that commits each micro-batch once gets each record once. In
a stream of one key, the offset also advances with the records of other keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidelog.core.clock import Clock
from tidelog.keyed.read.state_handle import KeyedStateHandle
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
from tidelog.spark.stream_reader import OffsetStreamReader

SEQUENCE: Final = "sequence"


class KeyedStreamReader(OffsetStreamReader[KeyedLogPlace, KeyedStateHandle]):
    """The reader of a stream: it finds offsets on the driver, and reads in executors."""

    FIELD = SEQUENCE

    def __init__(self, settings: KeyedReadSettings, *, clock: Clock | None = None) -> None:
        super().__init__(settings.batch_records_max, clock=clock)
        self._settings = settings

    async def _open(self) -> tuple[KeyedLogPlace, KeyedStateHandle]:
        return await open_keyed(self._settings, clock=self._clock)

    async def _renew(self, view: KeyedStateHandle) -> None:
        await view.refresh()

    def _next(self, view: KeyedStateHandle) -> int:
        return view.view().next

    def _begin(self, view: KeyedStateHandle) -> int:
        wanted = self._settings.wanted.start or view.state.retired
        start = self._next(view) if self._settings.from_latest else wanted
        self._refuse_beyond(start, view)
        check_readable(view.state, start)
        return start

    def _refuse_beyond(self, number: int, view: KeyedStateHandle) -> None:
        refuse_start_beyond(number, self._next(view))

    def _refuse_gone(self, first: int, end: int, view: KeyedStateHandle) -> None:
        if first < end:
            check_readable(view.state, first)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with told_as_spark_tells():
            first, limit, place, view = self._planned(start, end)
            return keyed_partitions(asyncio.run(self._plan(place, view, first, limit)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_keyed_partition(partition)

    async def _plan(
        self, place: KeyedLogPlace, state_handle: KeyedStateHandle, first: int, limit: int
    ) -> list[KeyedShare]:
        if first >= limit:
            return []
        wanted = self._settings.wanted.between(first, limit)
        return await plan_shares(pin_view(place, state_handle.view(), wanted))
