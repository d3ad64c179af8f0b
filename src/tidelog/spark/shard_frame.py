"""DataFrames of a shard's snapshot: its columns and ``_diff``.

On a local disk, Spark itself scans the Parquet parts, and checks the checksum of each page. If each
update is +1, that is all; otherwise Spark groups the updates in a shuffle. In other stores, or if
Spark cannot read a column's type from Parquet, tasks read the parts like those of a collection, and
group their own rows without a shuffle.

Tasks evaluate a snapshot's condition with the code of every other reader, in its dialect, after
they skipped parts and row groups. Spark evaluates only the conditions that users add to the frame.

A frame reads the parts that existed when it was made. A held frame raises an error once its term is
over. On a disk a subquery does that, because Spark runs it before it opens a file.
Source: persist, "Snapshot"; design page 4, "Reading".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.clock import SystemClock, wall_us
from tidelog.errors import HoldExpired
from tidelog.persist.format.bounds import part_reaches, scalar_of
from tidelog.persist.format.part import Part, decode_part, int64_of
from tidelog.persist.format.schema import (
    DIFF,
    TIME,
    ShardSchema,
    decode_schema,
    encode_with_known,
)
from tidelog.persist.format.updates import accumulate
from tidelog.persist.read.selection import CheckedSelection
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.spark.kept_store import reading_from
from tidelog.spark.options import hold_length_ms, told_as_spark_tells
from tidelog.spark.place import path_for_spark, url_for_executors
from tidelog.spark.scan import Scan, batches_of_changes, narrowed, pack_scans
from tidelog.spark.scan_plan import load_tables, share
from tidelog.spark.ship import ship
from tidelog.spark.types import arrow_schema, spark_schema
from tidelog.spark.worker import guarded, use_one_core

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidelog.predicate.predicate import Predicate

VERIFY: Final = "parquet.page.verify-checksum.enabled"
OVER: Final = "the hold of this DataFrame has ended: create it again, with a longer hold"


async def frame_of(
    spark: SparkSession, snapshot: ShardSnapshot, *, native: bool = True, hold: str | None = None
) -> DataFrame:
    """Return a snapshot as a DataFrame: its columns, and ``_diff``, a row's multiplicity.

    The frame contains no retracted row. Equal rows may occur several times; their diffs add up.

    Raises:
        UsageError: the store is this process's memory, Spark has no type for a column, or ``hold``
            is not a duration.
        AsOfBeforeSince: the snapshot's time can no longer be held.
        LocationError: the store failed.
    """
    store = snapshot.reader.store
    url = url_for_executors(snapshot.location_url or store.url, store)
    shown = spark_schema(_shown(snapshot))
    lease_us = None if hold is None else 1_000 * hold_length_ms(hold)
    until_us = None
    if lease_us is not None:
        snapshot, until_us = await snapshot.held(lease_us, "a Spark DataFrame")
    ship(spark)
    selection = snapshot.selection
    is_here = selection.predicate is None and url.startswith("file:")
    if native and is_here and can_scan(_shown(snapshot)):
        frame = _scanned(spark, snapshot, url)
        return frame if until_us is None else frame.where(_in_term(spark, until_us))
    box = selection.box
    scan = Scan(
        schema=encode_with_known(snapshot.schema),
        columns=selection.needed,
        as_of=snapshot.as_of,
        parts=tuple(part for part in snapshot.parts if part_reaches(part, box)),
        appended=is_plain(snapshot.parts),
        box=dict(box),
    )
    chosen = TaskSelection(selection.columns, selection.predicate, until_us)
    return updates_frame(spark, await share(scan, store), url, chosen, shown)


def updates_frame(
    spark: SparkSession, scans: Sequence[Scan], url: str, chosen: TaskSelection, shown: StructType
) -> DataFrame:
    """Return the consolidated updates of scans, which tasks read and filter."""
    shares = [msgspec.msgpack.encode(packed) for packed in pack_scans(scans)]
    read = _reader(shares, url, chosen)
    # One partition for each share; the row of a partition is the number of its share.
    return spark.range(0, len(shares), 1, max(1, len(shares))).mapInArrow(guarded(read), shown)


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """The rows and columns that tasks return, and the end of the term in which they may read."""

    columns: tuple[str, ...]
    predicate: Predicate | None
    until_us: int | None

    def check_term(self) -> None:
        if self.until_us is not None and wall_us(SystemClock()) >= self.until_us:
            raise HoldExpired(OVER)


def _in_term(spark: SparkSession, until_us: int) -> Column:
    """Return an expression that is true until the term is over, and raises an error afterwards."""
    # current_timestamp() is the time of each query, so Spark cannot fold it when the frame is made.
    over = f"raise_error('[TIDELOG_HOLD_EXPIRED] {OVER}')"
    expression = f"if(unix_micros(current_timestamp()) < {until_us}, true, {over}) AS in_term"
    return spark.range(1).selectExpr(expression).scalar()


def is_plain(parts: Sequence[Part]) -> bool:
    """Return True if each update of the parts is +1, so that none retracts another."""
    return all(part.plain for part in parts)


def _shown(snapshot: ShardSnapshot) -> pa.Schema:
    return shown_updates(snapshot.schema, snapshot.selection.columns)


def shown_updates(schema: ShardSchema, columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of columns and ``_diff``."""
    return pa.schema([*(schema.data.field(n) for n in columns), pa.field(DIFF, pa.int64())])


def can_scan(schema: pa.Schema) -> bool:
    """Return True if Spark reads the types of all columns from Parquet unchanged."""
    # Arrow stores times of day as adjusted to UTC, which Spark refuses to read.
    return not any("time64" in str(field.type) for field in schema)


def _scanned(spark: SparkSession, snapshot: ShardSnapshot, url: str) -> DataFrame:
    names = list(snapshot.selection.columns)
    plain = is_plain(snapshot.parts)
    diff = f"CAST(1 AS BIGINT) AS {DIFF}" if plain else DIFF
    shown = spark_schema(_shown(snapshot))
    frame = spark.createDataFrame(_inline(snapshot), schema=shown)
    if any(part.path is not None for part in snapshot.parts):
        stored = scan_of_parts(spark, snapshot.parts, snapshot.schema, snapshot.as_of, url)
        stored = stored.selectExpr(*[quoted(name) for name in names], diff)
        is_all = all(part.inline is None for part in snapshot.parts)
        frame = stored if is_all else stored.unionAll(frame)
    if plain:
        return frame
    grouped = frame.groupBy(*[quoted(name) for name in names]).agg({DIFF: "sum"})
    return grouped.withColumnRenamed(f"sum({DIFF})", DIFF).where(f"{DIFF} <> 0")


def scan_of_parts(
    spark: SparkSession, parts: Sequence[Part], schema: ShardSchema, as_of: int, url: str
) -> DataFrame:
    """Return Spark's own scan of the updates up to a time, in the parts that are objects."""
    paths = [path_for_spark(url, part.path) for part in parts if part.path is not None]
    frame = spark.read.schema(spark_schema(schema.updates)).option(VERIFY, "true").parquet(*paths)
    if any(part.time_max > as_of for part in parts):
        frame = frame.where(f"{TIME} <= {as_of}")
    return frame


def _inline(snapshot: ShardSnapshot) -> pa.Table:
    """Return the rows stored inline in the state, up to the snapshot's time."""
    inline = (part for part in snapshot.parts if part.inline is not None)
    tables = [decode_part(part, part.inline or b"", snapshot.schema) for part in inline]
    table = pa.concat_tables([snapshot.schema.updates.empty_table(), *tables])
    table = table.filter(pc.less_equal(table.column(TIME), scalar_of(snapshot.as_of, pa.int64())))
    shown = _shown(snapshot)
    return table.select(shown.names).cast(arrow_schema(spark_schema(shown)))


def quoted(name: str) -> str:
    """Return a name as an identifier of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def _reader(
    shares: list[bytes], url: str, chosen: TaskSelection
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_one_core()
        for batch in numbers:
            for number in int64_of(pa.Table.from_batches([batch]), "id").tolist():
                scans = msgspec.msgpack.decode(shares[number], type=list[Scan])
                with told_as_spark_tells(), reading_from(url, scans) as store:
                    chosen.check_term()
                    for scan in scans:
                        tables = asyncio.run(load_tables(scan, store))
                        yield from _rows(tables, scan, chosen)

    return read


def _rows(tables: list[pa.Table], scan: Scan, chosen: TaskSelection) -> Iterator[pa.RecordBatch]:
    shown = shown_updates(decode_schema(scan.schema), chosen.columns)
    target = arrow_schema(spark_schema(shown))
    updates = tables if scan.appended else [accumulate(tables, narrowed(scan), as_of=scan.as_of)]
    selection = CheckedSelection(columns=chosen.columns, predicate=chosen.predicate, limit=None)
    with selection.sandbox() as sandbox:
        for table in updates:
            yield from batches_of_changes(selection.filtered(table, sandbox), target)
