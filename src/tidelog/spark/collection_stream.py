"""``option("kind", "changes")`` in a stream: each change of a collection once, by its time.

An offset is a time up to which the changes were read, and the rendition that has them. Spark stores
the end of a micro-batch before it reads the batch, and reads the same times again after a failure.
The updates of a complete time never change. So a sink that commits each micro-batch once gets each
change once. Without ``since``, the first micro-batch is the contents at its end.

A hold keeps the times that the checkpoint has yet to read, while the query is stopped: see
`CheckpointHold`. Its name is in the offsets.

Invariants: offsets only rise. A micro-batch has whole times. The hold is placed before Spark stores
the first offset.
Source: design page 6, "Following"; PySpark's ``DataSourceStreamReader``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles
from pyspark.sql.types import StructType

from tidelog.collection.collection import Collection
from tidelog.collection.formats.times import format_time
from tidelog.core.clock import Clock
from tidelog.core.frontier import TIME_MAX
from tidelog.errors import AsOfBeforeSince, NoSuchCollection, UsageError
from tidelog.location import open_location
from tidelog.persist.format.part import Part
from tidelog.spark.checkpoint_hold import CheckpointHold
from tidelog.spark.options import STREAM_HOLD_MS, ReadSettings, told_as_spark_tells
from tidelog.spark.scan_plan import PinnedRead, choose_pin
from tidelog.spark.scan_reader import TidelogReader
from tidelog.spark.stream_reader import OffsetStreamReader
from tidelog.spark.types import spark_schema

TIME: Final = "time"
RENDITION: Final = "rendition"
HOLD: Final = "hold"
FROM_CONTENTS: Final = -1  # The offset before all contents.


def end_of_batch(
    parts: Sequence[Part], newest: int, *, times_max: int | None, bytes_max: int | None
) -> int:
    """Return the time at which a micro-batch ends, at most ``newest``.

    A part belongs to the batch that reaches its last time, so a merge makes batches larger. Each
    batch has at least one part, if there is one. Pure.
    """
    ends = sorted({part.time_max for part in parts if part.time_max <= newest})
    sizes = (sum(p.size_bytes for p in parts if p.time_max == end) for end in ends)
    fitting = sum(1 for total in accumulate(sizes) if bytes_max is None or total <= bytes_max)
    count = min(max(1, fitting), len(ends) if times_max is None else times_max)
    return newest if count >= len(ends) else ends[count - 1]


class ChangesStreamReader(OffsetStreamReader[PinnedRead, Collection]):
    """The reader of a stream: it finds offsets on the driver, and reads in executors."""

    FIELD = TIME

    def __init__(self, settings: ReadSettings, *, clock: Clock | None = None) -> None:
        super().__init__(None, clock=clock)
        self._settings = settings
        self._pin = asyncio.run(choose_pin(replace(settings, since=None)))
        wanted_ms = settings.checkpoint_ms
        self._hold_us = 1_000 * (STREAM_HOLD_MS if wanted_ms is None else wanted_ms)
        self._hold: CheckpointHold | None = None

    @property
    def schema(self) -> StructType:
        return spark_schema(self._pin.shown)

    async def _open(self) -> tuple[PinnedRead, Collection]:
        location = await open_location(self._settings.location_url, clock=self._clock)
        collection = await location.collection(self._settings.name)
        await collection.refresh()
        return self._pin, collection

    async def _renew(self, view: Collection) -> None:
        await view.refresh()

    def _next(self, view: Collection) -> int:
        if not view.upper.is_empty:
            return view.upper.time - 1
        return max((part.time_max for part in view.parts_until(TIME_MAX)), default=0)

    def _begin(self, view: Collection) -> int:
        since = self._settings.since
        return FROM_CONTENTS if since is None else asyncio.run(view.resolve_start(since))

    def _refuse_beyond(self, number: int, view: Collection) -> None:
        if number > self._next(view):
            raise _replaced_error(self._settings.name)

    def _refuse_gone(self, first: int, end: int, view: Collection) -> None:
        if first >= end:
            return
        start = end if first == FROM_CONTENTS else first
        try:
            view.check_since(start)
        except AsOfBeforeSince:
            raise AsOfBeforeSince(
                f"{self._settings.name!r} is readable since {format_time(view.since.time)}, and "
                "the checkpoint of the stream has yet to read earlier changes: start the query "
                "with a new checkpoint, and with a longer option 'checkpointHold'",
                asked=format_time(start),
            ) from None

    def _offset(self, number: int) -> dict[str, Any]:
        hold = {} if self._hold is None else {HOLD: self._hold.name}
        rendition = self._pin.rendition
        if self._opened is not None and number >= 0:
            rendition = self._opened[1].era_at(number).rendition.id
        return {RENDITION: rendition, TIME: number, **hold}

    def _number(self, offset: dict[str, Any]) -> int:
        if self._opened is None:
            self._opened = asyncio.run(self._open())
        known = {one.rendition.id for one in self._opened[1].eras} | {self._pin.rendition}
        if offset[RENDITION] not in known:
            raise _replaced_error(self._settings.name)
        return super()._number(offset)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._settings.times_max
        if most is None and self._settings.bytes_max is None:
            return ReadAllAvailable()
        return ReadMaxFiles(most or 1)  # `_limited` uses the settings, which are two limits.

    def _limited(self, first: int, end: int, limit: ReadLimit, view: Collection) -> int:
        if isinstance(limit, ReadAllAvailable) or first == FROM_CONTENTS or first >= end:
            return end
        return end_of_batch(
            [p for one in view.eras for p in one.parts_between(first, end)],
            end,
            times_max=self._settings.times_max,
            bytes_max=self._settings.bytes_max,
        )

    def initialOffset(self) -> dict[str, Any]:
        self._find_hold({})
        return super().initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._find_hold(start)
        end = super().latestOffset(start, limit)
        if self._is_idle(int(start[TIME]), int(end[TIME])):
            end = start
        self._keep(int(start[TIME]), int(end[TIME]))
        return end

    def _is_idle(self, first: int, end: int) -> bool:
        """Return True if only the upper of a table has moved, as commits of other tables move it.

        An empty micro-batch into a table of the same location would move it again, without an end.
        The checkpoint then stays behind, so its hold must keep the time.
        """
        if first == FROM_CONTENTS or self._opened is None or self._hold is None:
            return False
        view = self._opened[1]
        return view.table is not None and not view.parts_between(first, end)

    def commit(self, end: dict[str, Any]) -> None:
        self._find_hold(end)
        if self._hold is not None:
            self._hold.committed = int(end[TIME])
        self._keep(int(end[TIME]), int(end[TIME]))

    def _find_hold(self, offset: dict[str, Any]) -> None:
        """Take the hold that an offset names, or a new one if the query has none yet."""
        if not self._hold_us:
            return
        name = offset.get(HOLD) or (self._hold and self._hold.name)
        if self._hold is None or self._hold.name != name:
            self._hold = CheckpointHold(
                name=name or f"stream-{self._clock.unique()}",
                lease_us=self._hold_us,
                clock=self._clock,
            )

    def _keep(self, first: int, end: int) -> None:
        """Place, renew or move the hold, if that is due, for a checkpoint at ``first``."""
        start = end if first == FROM_CONTENTS else first
        if self._hold is None or self._opened is None or start < 0:
            return
        view = self._opened[1]
        with told_as_spark_tells():
            try:
                asyncio.run(self._hold.keep(view.eras, start))
            except UsageError:  # The past was given up since the last refresh.
                asyncio.run(view.refresh())
                self._refuse_gone(first, end, view)
                raise

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._find_hold(end)
        with told_as_spark_tells():
            first, limit, pin, view = self._planned(start, end)
            if first >= limit:
                return []
            self._refuse_gone(first, limit, view)
            after = None if first == FROM_CONTENTS else first
            return TidelogReader(replace(pin, after=after, as_of=limit), self.schema).partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return TidelogReader(self._pin, self.schema).read(partition)


def _replaced_error(name: str) -> NoSuchCollection:
    return NoSuchCollection(
        f"the checkpoint of the stream belongs to another collection than the present {name!r}, or "
        "the collection lost times: start the query with a new checkpoint"
    )
