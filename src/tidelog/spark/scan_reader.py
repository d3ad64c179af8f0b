"""The reader of a collection's contents or changes, for batch reads and micro-batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.errors import PartMissing
from tidelog.persist.format.schema import TIME, decode_schema
from tidelog.spark.kept_store import reading_from
from tidelog.spark.options import told_as_spark_tells
from tidelog.spark.scan import (
    Scan,
    batches_of,
    batches_of_changes,
    changes_of,
    contents,
    pack_scans,
    with_change_types,
)
from tidelog.spark.scan_plan import PinnedRead, load_scan, plan_scans, why_missing
from tidelog.spark.types import arrow_schema
from tidelog.spark.worker import use_one_core


class ScanPartition(InputPartition):
    """A partition for Spark, with its encoded scans."""

    def __init__(self, value: bytes) -> None:
        super().__init__(value)


class TidelogReader(DataSourceReader):
    """The reader, which plans on the driver and reads in executors; Spark pickles it per task."""

    def __init__(self, pin: PinnedRead, schema: StructType) -> None:
        self._pin = pin
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        with told_as_spark_tells():
            scans = asyncio.run(plan_scans(self._pin))
        return [ScanPartition(msgspec.msgpack.encode(packed)) for packed in pack_scans(scans)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark makes one empty partition if a plan has none.
            return
        use_one_core()
        target = arrow_schema(self._schema)
        scans = msgspec.msgpack.decode(partition.value, type=list[Scan])
        wanted = self._pin.selection
        with (
            told_as_spark_tells(),
            wanted.sandbox() as sandbox,
            reading_from(self._pin.location_url, scans) as store,
        ):
            for scan in scans:
                try:
                    tables = asyncio.run(load_scan(scan, store))
                except PartMissing as error:
                    raise asyncio.run(why_missing(self._pin, error)) from error
                if scan.has_changes:
                    found = changes_of(tables, scan)
                    chosen = wanted.chosen_changes(found, sandbox, data=self._pin.data)
                    yield from batches_of_changes(self._typed(chosen), target)
                    continue
                for table in contents(tables, scan):
                    rows = wanted.filtered(table, sandbox)
                    if not self._pin.is_changes:
                        yield from batches_of(rows, target)
                        continue
                    times = pa.repeat(pa.scalar(scan.as_of, pa.int64()), rows.num_rows)
                    dated = rows.append_column(TIME, times)
                    yield from batches_of_changes(self._typed(dated), target)

    def _typed(self, changes: pa.Table) -> pa.Table:
        if not self._pin.has_types:
            return changes
        return with_change_types(changes, decode_schema(self._pin.schema).key)
