"""``spark.read.format("tidelog")``: a collection as it is at one time, or with ``kind`` a log.

The time is chosen when a DataFrame is loaded, and stays: Spark plans a join of a DataFrame with
itself twice, and both sides must see the same, whatever is committed meanwhile. What is planned are
plain values; each task opens its own store, and consolidates its share without a shuffle.

Does not write, and says so; prunes no columns by itself: Spark does not say which ones a query
needs, so they are named by the option ``columns``. What it says of conditions prunes parts and row
groups, where the session's ``spark.sql.python.filterPushdown.enabled`` is on. Logs are read by
`log_source` and `log_stream`.
Source: design page 6, "Reading on Spark".
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from tidelog.clock import SystemClock, run_all
from tidelog.collection.decode_parquet import footer_bytes, read_footer
from tidelog.errors import (
    CorruptionError,
    NoSuchCollection,
    ObjectNotFound,
    UsageError,
)
from tidelog.location import open_location
from tidelog.persist.bounds import part_reaches
from tidelog.persist.part import Part
from tidelog.persist.schema import decode_schema, encode_schema
from tidelog.spark.filters import Bound, box_of_filters, is_asked_for_filters
from tidelog.spark.log_options import check_for_batch, check_for_stream, read_log_settings
from tidelog.spark.log_source import LOG_SCHEMA, LogPin, LogReader, choose_log_pin
from tidelog.spark.options import (
    ReadSettings,
    check_columns,
    read_kind,
    read_settings,
    told_as_spark_tells,
)
from tidelog.spark.place import url_for_executors
from tidelog.spark.scan import (
    PARTITION_BYTES,
    Scan,
    batches_of,
    can_share_keys,
    contents,
    decode_share,
    pack_scans,
    read_groups,
    share_keys,
    share_parts,
)
from tidelog.spark.types import arrow_schema, spark_schema
from tidelog.spark.worker import use_one_core
from tidelog.store.port import Store
from tidelog.store.urls import open_store

FOOTERS_MAX: Final = 16
FOOTER_BYTES: Final = 64 * 1024
READS_MAX: Final = 8
CANNOT_WRITE: Final = {
    # Tasks that append would each end the turn of another, or in wal3's form contend with it.
    "log": "Spark cannot write a log: append on the driver, in foreachBatch, never in tasks, for "
    "each would be another writer; keep batch_id in the records, for a batch may come twice",
    "collection": "Spark cannot write a collection: write files, make a source of them with "
    "'tidelog source create', and ingest that",
}
LOG_SCHEMA_IS_ITS_OWN: Final = "a log has a schema of its own: leave schema() out, and select()"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRead:
    """What a DataFrame stands for, decided once: a time of one rendition, and columns of it."""

    location_url: str
    name: str
    rendition: str
    as_of: int
    schema: bytes
    columns: tuple[str, ...]
    appended: bool


class TidelogDataSource(DataSource):
    """The source of collections, and with the option ``kind`` of logs; see the module."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._pin: PinnedRead | LogPin | None = None

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        with told_as_spark_tells():
            if read_kind(self.options) == "log":
                self._pin = asyncio.run(choose_log_pin(read_log_settings(self.options, os.environ)))
                return LOG_SCHEMA
            pin = self._pin = asyncio.run(choose_pin(read_settings(self.options, os.environ)))
            data = decode_schema(pin.schema).data
            return spark_schema(pa.schema([data.field(name) for name in pin.columns]))

    def reader(self, schema: StructType) -> DataSourceReader:
        with told_as_spark_tells():
            is_log = read_kind(self.options) == "log"
            if self._pin is None:
                raise UsageError(
                    LOG_SCHEMA_IS_ITS_OWN
                    if is_log
                    else "a collection has a schema of its own: leave schema() out, and name the "
                    "columns that you want with the option 'columns'"
                )
            if isinstance(self._pin, LogPin):
                check_for_batch(read_log_settings(self.options, os.environ))
                return LogReader(self._pin)
            # With its setting off, Spark refuses a reader that could take filters.
            made = FilteringReader if is_asked_for_filters() else TidelogReader
            return made(self._pin, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with told_as_spark_tells():
            if read_kind(self.options) != "log":
                raise UsageError(
                    "a collection is not read as a stream: read it at a time with spark.read and "
                    "option('asOf', ...), or a log as a stream with option('kind', 'log')"
                )
            if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
                raise UsageError("to read a log as a stream needs PySpark 4.2 or newer: upgrade it")
            from tidelog.spark.log_stream import LogStreamReader

            settings = read_log_settings(self.options, os.environ)
            check_for_stream(settings)
            if schema != LOG_SCHEMA:
                raise UsageError(LOG_SCHEMA_IS_ITS_OWN)
            return LogStreamReader(settings)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        self._refuse_to_write()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        self._refuse_to_write()

    def _refuse_to_write(self) -> NoReturn:
        with told_as_spark_tells():
            raise UsageError(CANNOT_WRITE[read_kind(self.options)])


def register(spark: SparkSession) -> None:
    """Make ``format("tidelog")`` known to a session.

    Spark finds it by itself where tidelog is installed, unless another package breaks the search.
    """
    spark.dataSource.register(TidelogDataSource)


class ScanPartition(InputPartition):
    """A partition of Spark's: encoded scans."""

    def __init__(self, value: bytes) -> None:
        super().__init__(value)


class TidelogReader(DataSourceReader):
    """Plans on the driver, and reads in executors; it goes with every task, so it is small."""

    def __init__(self, pin: PinnedRead, schema: StructType) -> None:
        self._pin = pin
        self._schema = schema
        self._box: dict[str, tuple[Bound, Bound]] = {}

    def partitions(self) -> list[InputPartition]:
        with told_as_spark_tells():
            scans = asyncio.run(plan_scans(self._pin, self._box))
        return [ScanPartition(msgspec.msgpack.encode(packed)) for packed in pack_scans(scans)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark makes such a partition where there are none.
            return
        use_one_core()
        target = arrow_schema(self._schema)
        store = open_store(self._pin.location_url, clock=SystemClock())
        with told_as_spark_tells():
            for scan in msgspec.msgpack.decode(partition.value, type=list[Scan]):
                for table in contents(asyncio.run(load_tables(scan, store)), scan):
                    yield from batches_of(table, target)


class FilteringReader(TidelogReader):
    """A reader that is told what Spark will choose by, and leaves out what cannot be chosen."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        data = decode_schema(self._pin.schema).data
        self._box = box_of_filters(filters, pa.schema([data.field(n) for n in self._pin.columns]))
        # Spark computes all of them itself: bounds may be wider than a condition.
        yield from filters


async def choose_pin(settings: ReadSettings) -> PinnedRead:
    """Find the collection, and choose the time to be read.

    Raises:
        NoSuchLocation, NoSuchCollection, UsageError: an option is to be corrected.
        AsOfBeforeSince, AsOfNotComplete: the message says which times can be read.
    """
    location = await open_location(settings.location_url)
    collection = await location.collection(settings.name)
    as_of = await collection.resolve_as_of(settings.as_of)
    columns = tuple(collection.schema.names) if settings.columns is None else settings.columns
    check_columns(columns, collection.schema.names)
    return PinnedRead(
        location_url=url_for_executors(settings.location_url, location.store),
        name=settings.name,
        rendition=collection.rendition.id,
        as_of=as_of,
        schema=encode_schema(collection.schema),
        columns=columns,
        appended=collection.appended,
    )


async def plan_scans(
    pin: PinnedRead, box: dict[str, tuple[Bound, Bound]] | None = None
) -> list[Scan]:
    """Share out what of the snapshot lies within a box.

    Raises:
        NoSuchCollection: it was dropped, or made anew, since it was loaded.
        AsOfBeforeSince: its time is no longer kept.
    """
    location = await open_location(pin.location_url)
    collection = await location.collection(pin.name)
    if collection.rendition.id != pin.rendition:
        raise NoSuchCollection(
            f"the collection {pin.name!r} was made anew since it was loaded: load it again"
        )
    scans: list[Scan] = []
    for snapshot in await collection.snapshots(pin.as_of):
        scan = Scan(
            schema=pin.schema,
            columns=pin.columns,
            as_of=pin.as_of,
            parts=tuple(part for part in snapshot.parts if part_reaches(part, box or {})),
            appended=pin.appended,
            box=box or {},
        )
        scans.extend(await _share(scan, location.store))
    return scans


async def load_tables(scan: Scan, store: Store) -> list[pa.Table]:
    """Read a scan's parts.

    Raises:
        CorruptionError: bytes are missing, or not those that were written.
        LocationError: the store failed.
    """

    async def load(part: Part) -> pa.Table:
        try:
            data = part.inline or (await store.get(part.path or "")).data
        except ObjectNotFound as error:
            raise CorruptionError(
                "a part that the shard names is missing: restore the object", path=part.path
            ) from error
        return decode_share(part, data, scan)

    return await run_all([partial(load, part) for part in scan.parts], at_once=READS_MAX)


async def _share(scan: Scan, store: Store) -> list[Scan]:
    if not scan.parts or scan.appended:
        return share_parts(scan) if scan.parts else []
    if scan.size_bytes < 3 * PARTITION_BYTES // 2 or not can_share_keys(decode_schema(scan.schema)):
        return [scan]
    largest = sorted((p for p in scan.parts if p.path), key=lambda p: -p.size_bytes)[:FOOTERS_MAX]
    work = [partial(_load_groups, part, store) for part in largest]
    groups = await run_all(work, at_once=READS_MAX)
    return share_keys(scan, [group for of_part in groups for group in of_part])


async def _load_groups(part: Part, store: Store) -> list[tuple[Any, int]]:
    """Read which keys lie where in a part. Nothing is proven: it only says where to cut."""
    path, end = part.path or "", part.size_bytes
    tail = (await store.get(path, start=max(0, end - FOOTER_BYTES), limit=end)).data
    length = footer_bytes(tail[-8:])
    if length > len(tail):
        tail = (await store.get(path, start=end - length, limit=end)).data
    return list(read_groups(read_footer(tail[-length:])))
