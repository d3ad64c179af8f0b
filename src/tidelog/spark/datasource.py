"""``spark.read.format("tidelog")``: a collection at one time; with ``kind``, changes, or a log.

The time is chosen at ``load``, and stays the same. Spark plans a join of a DataFrame with itself
twice, and both sides must see the same rows, whatever is committed concurrently. Plans (see
`scan_plan`) are plain values. Each task opens its own store, and consolidates its share without a
shuffle.

Spark does not report the columns that a query needs, so the option ``columns`` names them. Its
filters prune parts and row groups if the session sets
``spark.sql.python.filterPushdown.enabled``. `log_source` and `log_stream` read logs. `keyed` reads
keyed logs and writes them; a write of another kind raises an error.
Source: design page 6, "Reading on Spark".
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from types import FrameType
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from tidelog.errors import PartMissing, UsageError
from tidelog.persist.format.bounds import Interval, meet, whole_range
from tidelog.persist.format.schema import decode_schema
from tidelog.spark.kept_store import reading_from
from tidelog.spark.keyed.options import (
    check_keyed_for_batch,
    check_keyed_for_stream,
    read_keyed_settings,
    read_keyed_write_settings,
)
from tidelog.spark.keyed.pin import KEYED_SCHEMA, KeyedPin, choose_keyed_pin
from tidelog.spark.keyed.sink import KeyedBatchWriter, KeyedStreamWriter, open_sink
from tidelog.spark.keyed.source import FilteringKeyedReader, KeyedSourceReader
from tidelog.spark.log_options import check_for_batch, check_for_stream, read_log_settings
from tidelog.spark.log_source import LOG_SCHEMA, LogPin, LogReader, choose_log_pin
from tidelog.spark.options import read_kind, read_settings, told_as_spark_tells
from tidelog.spark.scan import (
    Scan,
    batches_of,
    batches_of_changes,
    changes_of,
    contents,
    pack_scans,
)
from tidelog.spark.scan_plan import (
    PinnedRead,
    choose_pin,
    load_tables,
    plan_scans,
    why_missing,
)
from tidelog.spark.ship import ship
from tidelog.spark.types import arrow_schema, spark_schema
from tidelog.spark.worker import use_one_core

CANNOT_WRITE: Final = {
    # Each task would open the log, and so fence the others; in wal3's form they would contend.
    "log": "Spark cannot write a log: append on the driver, in foreachBatch, never in tasks, since "
    "each task would fence the others. Keep batch_id in the records: Spark may repeat a batch",
    "collection": "Spark cannot write a collection: write files, make a source of them with "
    "'tidelog source create', and ingest it",
}
LOG_SCHEMA_IS_ITS_OWN: Final = "a log has a fixed schema: remove schema(), and use select()"
STREAMS: Final = ("log", "keyed")

Bound: TypeAlias = "int | str | None"
PUSHING: Final = "data_source_pushdown_filters"  # PySpark's worker module for plans with filters.
_EPOCH: Final = date(1970, 1, 1).toordinal()


class TidelogDataSource(DataSource):
    """The data source of collections; with the option ``kind``, of changes and logs."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._pin: PinnedRead | LogPin | KeyedPin | None = None

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        with told_as_spark_tells():
            kind = read_kind(self.options)
            if kind == "keyed":
                keyed = read_keyed_settings(self.options, os.environ)
                self._pin = asyncio.run(choose_keyed_pin(keyed))
                return KEYED_SCHEMA
            if kind == "log":
                self._pin = asyncio.run(choose_log_pin(read_log_settings(self.options, os.environ)))
                return LOG_SCHEMA
            pin = self._pin = asyncio.run(choose_pin(read_settings(self.options, os.environ)))
            return spark_schema(pin.shown)

    def reader(self, schema: StructType) -> DataSourceReader:
        with told_as_spark_tells():
            is_log = read_kind(self.options) in STREAMS
            if self._pin is None:
                raise UsageError(
                    LOG_SCHEMA_IS_ITS_OWN
                    if is_log
                    else "a collection has a fixed schema: remove schema(), and choose columns "
                    "with the option 'columns'"
                )
            if isinstance(self._pin, LogPin):
                check_for_batch(read_log_settings(self.options, os.environ))
                return LogReader(self._pin)
            if isinstance(self._pin, KeyedPin):
                check_keyed_for_batch(read_keyed_settings(self.options, os.environ))
                taking = FilteringKeyedReader if is_asked_for_filters() else KeyedSourceReader
                return taking(self._pin)
            # If its setting is off, Spark refuses a reader that has `pushFilters`.
            made = FilteringReader if is_asked_for_filters() else TidelogReader
            return made(self._pin, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with told_as_spark_tells():
            if (kind := read_kind(self.options)) not in STREAMS:
                raise UsageError(
                    "a collection cannot be read as a stream: read it with spark.read and "
                    "option('asOf', TIME), its later changes with option('kind', 'changes'), "
                    "or stream a log with option('kind', 'log')"
                )
            if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
                raise UsageError("streams of a log need PySpark 4.2 or newer: upgrade PySpark")
            if kind == "keyed":
                return self._keyed_stream(schema)
            from tidelog.spark.log_stream import LogStreamReader

            settings = read_log_settings(self.options, os.environ)
            check_for_stream(settings)
            if schema != LOG_SCHEMA:
                raise UsageError(LOG_SCHEMA_IS_ITS_OWN)
            return LogStreamReader(settings)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with told_as_spark_tells():
            self._refuse_to_write()
            settings = read_keyed_write_settings(self.options, os.environ)
            return KeyedBatchWriter(open_sink(settings, schema, overwrite), settings)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        with told_as_spark_tells():
            self._refuse_to_write()
            settings = read_keyed_write_settings(self.options, os.environ)
            return KeyedStreamWriter(open_sink(settings, schema, overwrite))

    def _keyed_stream(self, schema: StructType) -> DataSourceStreamReader:
        from tidelog.spark.keyed.stream import KeyedStreamReader

        settings = read_keyed_settings(self.options, os.environ)
        check_keyed_for_stream(settings)
        if schema != KEYED_SCHEMA:
            raise UsageError(LOG_SCHEMA_IS_ITS_OWN)
        return KeyedStreamReader(settings)

    def _refuse_to_write(self) -> None:
        kind = read_kind(self.options)
        if kind != "keyed":
            raise UsageError(CANNOT_WRITE["log" if kind == "log" else "collection"])


def register(spark: SparkSession) -> None:
    """Register ``format("tidelog")`` with a session, and make its Python workers able to run it.

    Spark finds the source by itself only if ``PYSPARK_PYTHON`` names a Python that has tidelog.
    Without that variable, the workers of a local session run this process's Python after this
    call. The driver sends this tidelog to the executors of a cluster; they need its dependencies
    (docs/guides/cluster.md).
    """
    ship(spark)
    spark.dataSource.register(TidelogDataSource)


class ScanPartition(InputPartition):
    """A partition for Spark, with its encoded scans."""

    def __init__(self, value: bytes) -> None:
        super().__init__(value)


class TidelogReader(DataSourceReader):
    """The reader, which plans on the driver and reads in executors; Spark pickles it per task."""

    def __init__(self, pin: PinnedRead, schema: StructType) -> None:
        self._pin = pin
        self._schema = schema
        self._box: dict[str, tuple[Bound, Bound]] = {}

    def partitions(self) -> list[InputPartition]:
        with told_as_spark_tells():
            scans = asyncio.run(plan_scans(self._pin, self._box))
        return [ScanPartition(msgspec.msgpack.encode(packed)) for packed in pack_scans(scans)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark makes one empty partition if a plan has none.
            return
        use_one_core()
        target = arrow_schema(self._schema)
        scans = msgspec.msgpack.decode(partition.value, type=list[Scan])
        with told_as_spark_tells(), reading_from(self._pin.location_url, scans) as store:
            for scan in scans:
                try:
                    tables = asyncio.run(load_tables(scan, store))
                except PartMissing as error:
                    raise asyncio.run(why_missing(self._pin, error)) from error
                if scan.after is not None:
                    yield from batches_of_changes(changes_of(tables, scan), target)
                    continue
                for table in contents(tables, scan):
                    yield from batches_of(table, target)


class FilteringReader(TidelogReader):
    """A reader that gets Spark's filters, and skips the parts that cannot match them."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        data = decode_schema(self._pin.schema).data
        self._box = box_of_filters(filters, pa.schema([data.field(n) for n in self._pin.columns]))
        # Spark evaluates all filters again, since bounds may match more rows than a filter.
        yield from filters


def is_asked_for_filters() -> bool:
    """Return True if Spark's planning with filters is among the calling frames.

    PySpark 4.1 and later push filters down. They refuse a source with filters in a session whose
    setting ``spark.sql.python.filterPushdown.enabled`` is off. A reader cannot read the setting.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        name = getattr(spec, "name", None) or frame.f_globals.get("__name__", "")
        if name.endswith(PUSHING):
            return True
        frame = frame.f_back
    return False


def box_of_filters(filters: Iterable[Any], schema: pa.Schema) -> dict[str, tuple[Bound, Bound]]:
    """Return bounds that every row has which satisfies all filters.

    Spark evaluates each filter again, so bounds only skip rows that need no decoding. A filter of
    an unknown kind therefore adds no bound.
    """
    return meet(_bounds(filters, schema))


def _bounds(filters: Iterable[Any], schema: pa.Schema) -> Iterator[tuple[str, Interval]]:
    for each in filters:
        name, *inner = getattr(each, "attribute", None) or [""]
        if inner or name not in schema.names:
            continue
        kind = type(each).__name__
        given = list(each.value) if kind == "In" else [getattr(each, "value", None)]
        values: list[Any] = [_value(value, schema.field(name).type) for value in given]
        if not values or any(value is None for value in values):
            continue
        low, high = min(values), max(values)
        if kind in ("EqualTo", "In"):
            yield name, (low, high)
        elif kind in ("GreaterThan", "GreaterThanOrEqual"):
            yield name, (low, None)
        elif kind in ("LessThan", "LessThanOrEqual"):
            yield name, (None, high)


def _value(value: Any, dtype: pa.DataType) -> Bound:
    """Return a value in the form of bounds; None if its type is not its column's."""
    if pa.types.is_integer(dtype) and isinstance(value, int) and not isinstance(value, bool):
        return value if value in whole_range(dtype) else None
    if pa.types.is_string(dtype) and isinstance(value, str):
        return value
    if pa.types.is_date(dtype) and isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - _EPOCH
    return None
