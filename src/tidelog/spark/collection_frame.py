"""DataFrames of a collection at one time. The driver reads no part.

If each update is +1, so that no row takes back another, and all parts are on a disk, Spark itself
scans the Parquet parts. Then it skips columns, row groups and pages. If only few parts have other
updates, it scans the others: see `overlay_frame`. Otherwise tasks read the parts as
``format("tidelog")`` does.
Source: design page 6, "Reading on Spark".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelog.core.arguments import joined_names
from tidelog.errors import UsageError
from tidelog.spark.datasource import register_source
from tidelog.spark.overlay_frame import overlay_frame, overlay_of
from tidelog.spark.place import url_for_executors
from tidelog.spark.shard_frame import can_scan, is_plain, quoted, scan_of_parts
from tidelog.store.wrappers.read_only import is_read_only, write_refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.collection.collection import Collection
    from tidelog.persist.format.part import Part
    from tidelog.persist.read.selection import CheckedSelection


async def frame_of_contents(
    spark: SparkSession,
    collection: Collection,
    selection: CheckedSelection,
    as_of: int,
    *,
    hold: str | None = None,
) -> DataFrame:
    """Return selected rows of a collection at a resolved time, each repeated by its count.

    Raises:
        UsageError: the selection has a limit, the store is this process's memory, Spark has no
            type for a column, or ``hold`` is not a duration, or the connection is read-only.
        SchemaEvolved: a column of the handle was dropped; open the collection again.
        AsOfBeforeSince, LocationError: see `Collection.refresh`.
    """
    if selection.limit is not None:
        raise UsageError(
            "a Spark DataFrame has no first rows: leave out limit=, and call limit() of the "
            "DataFrame",
            limit=selection.limit,
        )
    if hold is not None and is_read_only(collection.store):
        raise write_refused()  # The frame has a connection of its own, which would place the hold.
    await collection.refresh()  # Parts named by an old state may be deleted.
    collection.check_since(as_of)
    collection = collection.era_at(as_of)
    schema = collection.served(collection.schema)
    store, parts = collection.store, collection.parts_until(as_of)
    url = url_for_executors(store.url, store)
    shown = pa.schema([schema.data.field(name) for name in selection.columns])
    is_whole = selection.predicate is None and hold is None
    if is_whole and url.startswith("file:") and can_scan(shown):
        if _can_scan_all(parts):
            scan = scan_of_parts(spark, parts, schema, as_of, url)
            return scan.select(*[quoted(name) for name in selection.columns])
        key = collection.unique_key
        overlay = overlay_of(collection.states, key, as_of) if key else None
        if overlay is not None:
            return await overlay_frame(spark, collection, overlay, selection.columns, as_of)
    options = {"location": url, "asOf": str(as_of), "columns": joined_names(selection.columns)}
    if selection.predicate is not None:
        options["where"] = selection.predicate.sql
    if hold is not None:
        options["hold"] = hold
    register_source(spark)
    return spark.read.format("tidelog").options(**options).load(collection.name)


def _can_scan_all(parts: Sequence[Part]) -> bool:
    """Return True if the rows of the parts are the contents, and all parts are objects."""
    return bool(parts) and is_plain(parts) and all(part.path is not None for part in parts)
