"""DataFrames of a shard's snapshot: its columns and ``_diff``.

On a disk, Spark scans the parts by itself: Parquet, with the checksum of each page looked at. Where
each update is +1, that is all; else it groups them, which is a shuffle. Elsewhere, and where a
column's type is one that Spark does not take from Parquet as it is, tasks read parts as those of a
collection are read, and group what is theirs without a shuffle.

A frame stands for the parts that were named when it was made.
Source: persist, "Snapshot"; design page 4, "Reading".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import UsageError
from tidelog.persist.format.bounds import scalar_of
from tidelog.persist.format.part import Part, decode_part, int64_of
from tidelog.persist.format.schema import DIFF, TIME, encode_schema
from tidelog.persist.format.updates import accumulate
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.spark.kept_store import reading_from
from tidelog.spark.options import told_as_spark_tells
from tidelog.spark.place import url_for_executors
from tidelog.spark.scan import Scan, batches_of_changes, narrowed, pack_scans
from tidelog.spark.scan_plan import load_tables, share
from tidelog.spark.types import arrow_schema, spark_schema
from tidelog.spark.worker import use_one_core
from tidelog.store.urls import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERIFY: Final = "parquet.page.verify-checksum.enabled"


async def frame_of(
    spark: SparkSession, snapshot: ShardSnapshot, *, native: bool = True
) -> DataFrame:
    """Return a snapshot as a DataFrame: columns and ``_diff``, which says how often a row is there.

    No row is there that was taken back; equal rows may come apart, and their sum counts.

    Raises:
        UsageError: it has a condition, its store is this process's memory, or Spark has no type for
            a column. LocationError: the store failed.
    """
    if snapshot.selection.predicate is not None:
        raise UsageError(
            "on Spark, rows are chosen by Spark: leave where out, and use DataFrame.where()"
        )
    store = snapshot.reader.store
    url = url_for_executors(snapshot.location_url or store.url, store)
    shown = spark_schema(_shown(snapshot))
    if native and url.startswith("file:") and _is_taken(_shown(snapshot)):
        return _scanned(spark, snapshot, url)
    scan = Scan(
        schema=encode_schema(snapshot.schema),
        columns=snapshot.selection.columns,
        as_of=snapshot.as_of,
        parts=snapshot.parts,
        appended=is_plain(snapshot.parts),
    )
    packed = pack_scans(await share(scan, store))
    shares = [msgspec.msgpack.encode(scans) for scans in packed]
    read = _reader(shares, url)
    # As many partitions as there are shares, each of which has one number.
    return spark.range(0, len(shares), 1, max(1, len(shares))).mapInArrow(read, shown)


def is_plain(parts: Sequence[Part]) -> bool:
    """Say whether each update in some parts is +1, so that none takes back another."""
    return all(part.plain for part in parts)


def _shown(snapshot: ShardSnapshot) -> pa.Schema:
    fields = [snapshot.schema.data.field(name) for name in snapshot.selection.columns]
    return pa.schema([*fields, pa.field(DIFF, pa.int64())])


def _is_taken(schema: pa.Schema) -> bool:
    """Say whether Spark takes all columns from Parquet as what they are."""
    # Times of day are those of UTC to Arrow, which Spark refuses to read.
    return not any("time64" in str(field.type) for field in schema)


def _scanned(spark: SparkSession, snapshot: ShardSnapshot, url: str) -> DataFrame:
    names = list(snapshot.selection.columns)
    plain = is_plain(snapshot.parts)
    diff = f"CAST(1 AS BIGINT) AS {DIFF}" if plain else DIFF
    shown = spark_schema(_shown(snapshot))
    found = spark.createDataFrame(_inline(snapshot), schema=shown)
    paths = [_path(url, part.path) for part in snapshot.parts if part.path is not None]
    if paths:
        data = spark_schema(snapshot.schema.updates)
        stored = spark.read.schema(data).option(VERIFY, "true").parquet(*paths)
        if any(part.time_max > snapshot.as_of for part in snapshot.parts):
            stored = stored.where(f"{TIME} <= {snapshot.as_of}")
        stored = stored.selectExpr(*[_quoted(name) for name in names], diff)
        is_all = all(part.inline is None for part in snapshot.parts)
        found = stored if is_all else stored.unionAll(found)
    if plain:
        return found
    grouped = found.groupBy(*[_quoted(name) for name in names]).agg({DIFF: "sum"})
    return grouped.withColumnRenamed(f"sum({DIFF})", DIFF).where(f"{DIFF} <> 0")


def _inline(snapshot: ShardSnapshot) -> pa.Table:
    """Return what rides in descriptors, up to the snapshot's time."""
    inline = (part for part in snapshot.parts if part.inline is not None)
    tables = [decode_part(part, part.inline or b"", snapshot.schema) for part in inline]
    table = pa.concat_tables([snapshot.schema.updates.empty_table(), *tables])
    table = table.filter(pc.less_equal(table.column(TIME), scalar_of(snapshot.as_of, pa.int64())))
    shown = _shown(snapshot)
    return table.select(shown.names).cast(arrow_schema(spark_schema(shown)))


def _path(url: str, key: str) -> str:
    # Spark reads patterns in paths: what would be one is meant as it is.
    path = local_path(url, key)
    return "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in path)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _reader(
    shares: list[bytes], url: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_one_core()
        for batch in numbers:
            for number in int64_of(pa.Table.from_batches([batch]), "id").tolist():
                scans = msgspec.msgpack.decode(shares[number], type=list[Scan])
                with told_as_spark_tells(), reading_from(url, scans) as store:
                    for scan in scans:
                        tables = asyncio.run(load_tables(scan, store))
                        yield from _rows(tables, scan)

    return read


def _rows(tables: list[pa.Table], scan: Scan) -> Iterator[pa.RecordBatch]:
    narrow = narrowed(scan)
    shown = pa.schema([*narrow.data, pa.field(DIFF, pa.int64())])
    target = arrow_schema(spark_schema(shown))
    found = tables if scan.appended else [accumulate(tables, narrow, as_of=scan.as_of)]
    for table in found:
        yield from batches_of_changes(table, target)
