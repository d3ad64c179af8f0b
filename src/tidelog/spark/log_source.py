"""``option("kind", "log")`` in a batch read: the records that a log has at ``load``.

The positions are chosen at ``load``, and stay the same, so both sides of a self-join see the same
records. The driver walks the log. Tasks get paths and ranges, and check the bytes like every
reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidelog.core.clock import Clock, SystemClock
from tidelog.errors import NoSuchLog, UsageError
from tidelog.location import open_location
from tidelog.spark.log_options import LogSettings
from tidelog.spark.log_share import LogPlace, LogShare, read_share, share_log
from tidelog.spark.log_view import LogView, open_view
from tidelog.spark.options import told_as_spark_tells
from tidelog.spark.place import url_for_executors
from tidelog.spark.types import arrow_schema, spark_schema
from tidelog.spark.worker import use_one_core
from tidelog.store.keys import Within
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.log import LOG_RECORDS
from tidelog.wal.logs import log_folder

LOG_SCHEMA: Final = spark_schema(LOG_RECORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPin:
    """The contents of a DataFrame, fixed at ``load``: positions, and fragments past a manifest."""

    place: LogPlace
    start: int
    limit: int
    beyond: tuple[Fragment, ...]
    key: bytes | None = None


class LogPartition(InputPartition):
    """A partition for Spark, with its encoded share."""

    def __init__(self, value: bytes) -> None:
        super().__init__(value)


class LogReader(DataSourceReader):
    """The reader, which plans on the driver and reads in executors."""

    def __init__(self, pin: LogPin) -> None:
        self._pin = pin

    def __getstate__(self) -> dict[str, object]:
        return {}  # A partition holds all that its task needs.

    def partitions(self) -> list[InputPartition]:
        with told_as_spark_tells():
            return partitions_of(asyncio.run(plan_pin(self._pin)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)


async def open_log_view(
    settings: LogSettings, *, clock: Clock | None = None
) -> tuple[LogPlace, LogView]:
    """Open a log, and view it up to its present end.

    Raises:
        NoSuchLocation, NoSuchLog, UsageError: an option is wrong.
        CorruptionError: the log is damaged.
        LocationError: the store failed.
    """
    location = await open_location(settings.location_url, clock=clock)
    store = Within(location.store, log_folder(settings.name))
    view = await open_view(store, clock=location.clock)
    await view.renew()
    if settings.key is not None and not view.is_slots:
        raise UsageError(
            f"the log {settings.name!r} has the manifest protocol, whose records have no keys: "
            "remove the option 'key'"
        )
    place = LogPlace(
        location_url=url_for_executors(location.executor_url, location.store),
        name=settings.name,
        is_slots=view.is_slots,
    )
    return place, view


async def choose_log_pin(settings: LogSettings) -> LogPin:
    """Open the log, and choose the positions to read; see `open_log_view`."""
    place, view = await open_log_view(settings)
    start = settings.start or view.oldest
    refuse_beyond(start, view)
    limit = view.next if settings.limit is None else min(settings.limit, view.next)
    beyond = tuple(f for f in view.beyond if f.start < limit and f.limit > start)
    return LogPin(place=place, start=start, limit=limit, beyond=beyond, key=settings.key)


def refuse_beyond(start: int, view: LogView) -> None:
    """Check that a position is not after the end of the log.

    Raises:
        UsageError: it is.
    """
    if start > view.next:
        raise UsageError(
            f"start {start} is after the end of the log: start at {view.next}, its next position, "
            "or earlier"
        )


async def plan_pin(pin: LogPin) -> list[LogShare]:
    """Divide the positions into shares.

    Raises:
        NoSuchLog: another log has replaced it since ``load``.
        PositionCollected: see `LogView`.
    """
    if pin.start >= pin.limit:
        return []
    clock = SystemClock()
    view = await open_view(pin.place.open(clock), clock=clock, beyond=pin.beyond)
    if view.next < pin.limit or view.is_slots != pin.place.is_slots:
        raise NoSuchLog(
            f"another log has replaced {pin.place.name!r} since it was loaded: load it again"
        )
    fragments = await view.fragments(pin.start, pin.limit)
    return share_log(fragments, pin.start, pin.limit, place=pin.place, key=pin.key)


def partitions_of(shares: list[LogShare]) -> list[InputPartition]:
    """Return shares as partitions for Spark."""
    return [LogPartition(msgspec.msgpack.encode(share)) for share in shares]


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition, in an executor."""
    if partition.value is None:  # Spark makes one empty partition if a plan has none.
        return
    use_one_core()
    with told_as_spark_tells():
        share = msgspec.msgpack.decode(partition.value, type=LogShare)
        yield from read_share(share, arrow_schema(LOG_SCHEMA))
