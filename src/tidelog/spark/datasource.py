"""``spark.read.format("tidelog")``: a collection at one time; with ``kind``, changes, or a log.

The time is chosen at ``load``, and stays the same. Spark plans a join of a DataFrame with itself
twice, and both sides must see the same rows, whatever is committed concurrently. Plans (see
`scan_plan`) are plain values. Each task opens its own store, and consolidates its share without a
shuffle.

Spark does not report the columns that a query needs, so the option ``columns`` names them, and the
option ``where`` is a condition that prunes parts and row groups. No reader has ``pushFilters``:
Spark keeps the plan with the filters of one query for other queries of the same DataFrame, which
then lose rows (seen in PySpark 4.3.0). `log_source` and `log_stream` read logs. `keyed` reads
keyed logs and writes them; `table_sink` writes tables. Spark cannot write a log.
Source: design page 6, "Reading on Spark".
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tidelog.collection.formats.times import is_now
from tidelog.core.arguments import joined_names
from tidelog.errors import AsOfBeforeSince, UsageError
from tidelog.spark.keyed.options import (
    check_keyed_for_batch,
    check_keyed_for_stream,
    read_keyed_settings,
    read_keyed_write_settings,
)
from tidelog.spark.keyed.pin import KEYED_SCHEMA, KeyedPin, choose_keyed_pin
from tidelog.spark.keyed.sink import KeyedBatchWriter, KeyedStreamWriter, open_sink
from tidelog.spark.keyed.source import KeyedSourceReader
from tidelog.spark.log_options import check_for_batch as check_log_for_batch
from tidelog.spark.log_options import check_for_stream as check_log_for_stream
from tidelog.spark.log_options import read_log_settings
from tidelog.spark.log_source import LOG_SCHEMA, LogPin, LogReader, choose_log_pin
from tidelog.spark.options import (
    ReadSettings,
    check_for_batch,
    check_for_stream,
    read_kind,
    read_settings,
    told_as_spark_tells,
)
from tidelog.spark.scan_plan import (
    PinnedRead,
    choose_pin,
)
from tidelog.spark.scan_reader import TidelogReader
from tidelog.spark.ship import ship
from tidelog.spark.sql_table import (
    check_unchanged,
    options_of_table,
    options_stored_in,
    stored_in,
)
from tidelog.spark.table_sink import (
    TableBatchWriter,
    TableSink,
    TableStreamWriter,
    open_table_sink,
    read_table_write_settings,
)
from tidelog.spark.types import spark_schema

CANNOT_WRITE: Final = {
    # Each task would open the log, and so fence the others; in wal3's form they would contend.
    "log": "Spark cannot write a log: append on the driver, in foreachBatch, never in tasks, since "
    "each task would fence the others. Keep batch_id in the records: Spark may repeat a batch",
    "changes": "Spark cannot write changes: remove the option 'kind', and write rows into a table",
}
LOG_SCHEMA_IS_ITS_OWN: Final = "a log has a fixed schema: remove schema(), and use select()"
ITS_OWN_SCHEMA: Final = (
    "a collection has a fixed schema: remove schema(), and choose columns with the option 'columns'"
)
LOGS: Final = ("log", "keyed")


class RefusedStream(DataSourceStreamReader):
    """A stream that was refused: it raises the error at its start.

    If `DataSource.streamReader` raises, PySpark 4.3.0 replaces the error by one of its own.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
        raise self._error

    def partitions(self, start: Any, end: Any) -> Any:
        raise self._error

    def read(self, partition: Any) -> Any:
        raise self._error


class TidelogDataSource(DataSource):
    """The data source of collections; with the option ``kind``, of changes and logs."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._pin: PinnedRead | LogPin | KeyedPin | None = None
        self._refused: UsageError | None = None

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        with told_as_spark_tells():
            of_table = options_of_table(self.options)
            if of_table is None:
                return self._pinned()
            self.options = of_table
            schema = self._pinned()
            if isinstance(self._pin, PinnedRead):
                # Later queries read the columns of today, also after the collection gets more.
                of_table["columns"] = joined_names(self._pin.selection.columns)
            return stored_in(schema, of_table)

    def _pinned(self) -> StructType:
        """Choose the contents that this source reads, and return their schema."""
        kind = read_kind(self.options)
        if kind == "keyed":
            keyed = read_keyed_settings(self.options, os.environ)
            self._pin = asyncio.run(choose_keyed_pin(keyed))
            return KEYED_SCHEMA
        if kind == "log":
            self._pin = asyncio.run(choose_log_pin(read_log_settings(self.options, os.environ)))
            return LOG_SCHEMA
        pin = self._pin = self._pinned_collection(read_settings(self.options, os.environ))
        return spark_schema(pin.shown)

    def _pinned_collection(self, settings: ReadSettings) -> PinnedRead:
        """Choose the contents of a collection, or the changes between two times.

        Spark asks for the schema before it tells streams from reads. A stream may start now. A
        stream that continues has the start of its checkpoint, although the time of its option
        ``since`` may be given up. So only a read raises the error of such a time, in `reader`.
        """
        self._refused = None
        try:
            return asyncio.run(choose_pin(settings))
        except UsageError as error:
            if settings.since is None or not (
                isinstance(error, AsOfBeforeSince) or is_now(settings.since)
            ):
                raise
            self._refused = error
            return asyncio.run(choose_pin(replace(settings, since=None, hold_ms=None)))

    def reader(self, schema: StructType) -> DataSourceReader:
        with told_as_spark_tells():
            stored, schema = options_stored_in(schema)
            if stored is not None:
                self.options = stored
                check_unchanged(schema, self._pinned())
            is_log = read_kind(self.options) in LOGS
            if self._pin is None:
                raise UsageError(LOG_SCHEMA_IS_ITS_OWN if is_log else ITS_OWN_SCHEMA)
            if isinstance(self._pin, PinnedRead):
                check_for_batch(read_settings(self.options, os.environ))
                if self._refused is not None:
                    raise self._refused
                return TidelogReader(self._pin, schema)
            if isinstance(self._pin, LogPin):
                check_log_for_batch(read_log_settings(self.options, os.environ))
                return LogReader(self._pin)
            check_keyed_for_batch(read_keyed_settings(self.options, os.environ))
            return KeyedSourceReader(self._pin)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except Exception as error:  # noqa: BLE001 - the reader raises it
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with told_as_spark_tells():
            if self._written_kind() == "collection":
                return TableBatchWriter(self._table_sink(schema, overwrite))
            settings = read_keyed_write_settings(self.options, os.environ)
            return KeyedBatchWriter(open_sink(settings, schema, overwrite), settings)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        with told_as_spark_tells():
            if self._written_kind() == "collection":
                return TableStreamWriter(self._table_sink(schema, overwrite))
            settings = read_keyed_write_settings(self.options, os.environ)
            return KeyedStreamWriter(open_sink(settings, schema, overwrite), settings)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        with told_as_spark_tells():
            stored, schema = options_stored_in(schema)
            self.options = self.options if stored is None else stored
            kind = read_kind(self.options)
            if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
                raise UsageError("streams need PySpark 4.2 or newer: upgrade PySpark")
            if kind not in LOGS:
                return self._changes_stream(schema)
            if kind == "keyed":
                return self._keyed_stream(schema)
            from tidelog.spark.log_stream import LogStreamReader

            settings = read_log_settings(self.options, os.environ)
            check_log_for_stream(settings)
            if schema != LOG_SCHEMA:
                raise UsageError(LOG_SCHEMA_IS_ITS_OWN)
            return LogStreamReader(settings)

    def _keyed_stream(self, schema: StructType) -> DataSourceStreamReader:
        from tidelog.spark.keyed.stream import KeyedStreamReader

        settings = read_keyed_settings(self.options, os.environ)
        check_keyed_for_stream(settings)
        if schema != KEYED_SCHEMA:
            raise UsageError(LOG_SCHEMA_IS_ITS_OWN)
        return KeyedStreamReader(settings)

    def _changes_stream(self, schema: StructType) -> DataSourceStreamReader:
        from tidelog.spark.collection_stream import ChangesStreamReader

        settings = read_settings(self.options, os.environ)
        check_for_stream(settings)
        reader = ChangesStreamReader(settings)
        if schema != reader.schema:
            raise UsageError(ITS_OWN_SCHEMA)
        return reader

    def _table_sink(self, schema: StructType, overwrite: bool) -> TableSink:
        stored, schema = options_stored_in(schema)
        options = self.options
        if stored is not None:
            # `schema` has added the columns for the reads of a table of Spark's catalog.
            options = {name: value for name, value in stored.items() if name != "columns"}
        return open_table_sink(read_table_write_settings(options, os.environ), schema, overwrite)

    def _written_kind(self) -> str:
        """Return the kind of the written object.

        Raises:
            UsageError: Spark cannot write this kind.
        """
        kind = read_kind(self.options)
        if kind in CANNOT_WRITE:
            raise UsageError(CANNOT_WRITE[kind])
        return kind


def register_source(spark: SparkSession) -> None:
    """Register ``format("tidelog")`` with a session; see `tidelog.spark.register`."""
    ship(spark)
    spark.dataSource.register(TidelogDataSource)
