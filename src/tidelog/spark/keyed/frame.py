"""DataFrames of a keyed log: ``key``, ``sequence``, ``timestamp_us`` and ``value``.

On a local disk, Spark itself scans the Parquet files of runs. It checks the checksum of each page,
and prunes pages by its own conditions on key and sequence. In other stores, tasks read parts like
every reader. Tasks read the loose records in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tidelog.keyed.format.part import RunPart
from tidelog.keyed.read.by_spark import SparkView
from tidelog.keyed.read.state_handle import KeyedStateHandle
from tidelog.keyed.values import KeyedQuery
from tidelog.persist.format.part import int64_of
from tidelog.spark.keyed.pin import KEYED_SCHEMA, KeyedPin, pin_view
from tidelog.spark.keyed.share import (
    KeyedLogPlace,
    KeyedShare,
    read_keyed_share,
    share_loose,
    share_parts,
)
from tidelog.spark.keyed.wanted import KeyedScope, scope_of
from tidelog.spark.options import told_as_spark_tells
from tidelog.spark.place import path_for_spark, url_for_executors
from tidelog.spark.shard_frame import VERIFY
from tidelog.spark.ship import ship
from tidelog.spark.types import arrow_schema
from tidelog.spark.worker import guarded, use_one_core

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


async def keyed_view(
    spark: SparkSession,
    state_handle: KeyedStateHandle,
    query: KeyedQuery,
    *,
    checkpoint: str | None = None,
    native: bool = True,
) -> SparkView:
    """Return the durable records of a keyed log, now or at a checkpoint, as a DataFrame.

    Raises:
        UsageError: executors do not reach the store.
        SequenceRetired: records from ``start`` were retired.
        LocationError: the store failed.
    """
    store = state_handle.store
    url = url_for_executors(state_handle.location_url or store.url, store)
    # Executors cannot read a writer's memory, so this reads the stored state.
    now = KeyedStateHandle(
        name=state_handle.name,
        store=store,
        consensus=state_handle.consensus,
        clock=state_handle.clock,
    )
    await now.refresh()
    view = now.view() if checkpoint is None else now.view_at(checkpoint)
    place = KeyedLogPlace(location_url=url, name=state_handle.name, wal=now.wal_name)
    pin = pin_view(place, view, scope_of(query))
    frames = []
    if native and url.startswith("file:"):
        shares: list[KeyedShare] = []
        if pin.parts:
            frames.append(_scanned(spark, pin, url))
    else:
        shares = await share_parts(pin.place, pin.parts, pin.wanted, store)
    shares += share_loose(pin.place, pin.loose, pin.wanted, pin.since)
    if shares or not frames:
        frames.append(_read_by_tasks(spark, shares))
    frame = frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
    return SparkView(frame, pin.next_sequence)


def _scanned(spark: SparkSession, pin: KeyedPin, url: str) -> DataFrame:
    paths = [path_for_spark(url, part.path) for part in pin.parts]
    stored = spark.read.schema(KEYED_SCHEMA).option(VERIFY, "true").parquet(*paths)
    for condition in conditions_of(pin.wanted, pin.parts):
        stored = stored.where(condition)
    return stored


def conditions_of(wanted: KeyedScope, parts: Sequence[RunPart]) -> Iterator[str]:
    """Yield the conditions that select the wanted rows of some parts, as few as possible."""
    if wanted.keys is not None:
        yield f"key IN ({', '.join(_literal(key) for key in wanted.keys)})"
    elif wanted.first and any(part.first_key < wanted.first for part in parts):
        yield f"key >= {_literal(wanted.first)}"
    if wanted.last is not None and any(part.last_key >= wanted.last for part in parts):
        yield f"key < {_literal(wanted.last)}"
    if any(part.min_sequence < wanted.start for part in parts):
        yield f"sequence >= {wanted.start}"
    if any(part.max_sequence >= wanted.limit for part in parts):
        yield f"sequence < {wanted.limit}"


def _literal(key: bytes) -> str:
    return f"X'{key.hex()}'"


def _read_by_tasks(spark: SparkSession, shares: Sequence[KeyedShare]) -> DataFrame:
    if not shares:
        return spark.createDataFrame([], KEYED_SCHEMA)
    encoded = [msgspec.msgpack.encode(share) for share in shares]
    # One partition for each share; the row of a partition is the number of its share.
    ship(spark)
    read = guarded(_reader(encoded))
    return spark.range(0, len(encoded), 1, len(encoded)).mapInArrow(read, KEYED_SCHEMA)


def _reader(
    shares: list[bytes],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_one_core()
        target = arrow_schema(KEYED_SCHEMA)
        for batch in numbers:
            for number in int64_of(pa.Table.from_batches([batch]), "id").tolist():
                share = msgspec.msgpack.decode(shares[number], type=KeyedShare)
                with told_as_spark_tells():
                    yield from read_keyed_share(share, target)

    return read
