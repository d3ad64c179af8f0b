"""``option("kind", "keyed")`` in a batch: the records that a keyed log has when it is loaded.

What is read is chosen at load, and stays, whatever is appended, sealed or compacted meanwhile. The
driver reads the log's state, and what is loose by links; tasks get parts and fragments, and check
what they read as every reader does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidelog.spark.keyed.pin import KEYED_SCHEMA, KeyedPin, keyed_partitions, plan_shares
from tidelog.spark.keyed.share import KeyedShare, read_keyed_share
from tidelog.spark.options import told_as_spark_tells
from tidelog.spark.types import arrow_schema
from tidelog.spark.worker import use_one_core


class KeyedSourceReader(DataSourceReader):
    """Plans on the driver, and reads in executors."""

    def __init__(self, pin: KeyedPin) -> None:
        self._pin = pin

    def __getstate__(self) -> dict[str, object]:
        return {}  # Tasks find all that they need in their partitions.

    def partitions(self) -> list[InputPartition]:
        with told_as_spark_tells():
            return keyed_partitions(asyncio.run(plan_shares(self._pin)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_keyed_partition(partition)


class FilteringKeyedReader(KeyedSourceReader):
    """A reader that is told which keys and sequences Spark will choose, and leaves out others."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        self._pin = self._pin.narrowed(self._pin.wanted.narrowed(filters))
        # Spark computes all of them itself: bounds may be wider than a condition.
        yield from filters


def read_keyed_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition, in an executor."""
    if partition.value is None:  # Spark makes such a partition where there are none.
        return
    use_one_core()
    with told_as_spark_tells():
        share = msgspec.msgpack.decode(partition.value, type=KeyedShare)
        yield from read_keyed_share(share, arrow_schema(KEYED_SCHEMA))
