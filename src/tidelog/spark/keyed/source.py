"""``option("kind", "keyed")`` in a batch read: the records that a keyed log has at ``load``.

The parts and fragments are chosen at ``load``, and stay the same, whatever is appended, sealed or
compacted concurrently. The driver reads the log's state, and finds the loose fragments by links.
Tasks get parts and fragments, and check the bytes like every reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidelog.spark.keyed.pin import KEYED_SCHEMA, KeyedPin, keyed_partitions, plan_shares
from tidelog.spark.keyed.share import KeyedShare, read_keyed_share
from tidelog.spark.options import told_as_spark_tells
from tidelog.spark.types import arrow_schema
from tidelog.spark.worker import use_one_core


class KeyedSourceReader(DataSourceReader):
    """The reader, which plans on the driver and reads in executors."""

    def __init__(self, pin: KeyedPin) -> None:
        self._pin = pin

    def __getstate__(self) -> dict[str, object]:
        return {}  # A partition holds all that its task needs.

    def partitions(self) -> list[InputPartition]:
        with told_as_spark_tells():
            return keyed_partitions(asyncio.run(plan_shares(self._pin)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_keyed_partition(partition)


def read_keyed_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition, in an executor."""
    if partition.value is None:  # Spark makes one empty partition if a plan has none.
        return
    use_one_core()
    with told_as_spark_tells():
        share = msgspec.msgpack.decode(partition.value, type=KeyedShare)
        yield from read_keyed_share(share, arrow_schema(KEYED_SCHEMA))
