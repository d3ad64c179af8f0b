"""Scans: a snapshot shared out over Spark's partitions, and the contents that each gives.

A collection that was only ever appended to is shared out by its parts. Otherwise all updates of a
row must meet, since one may take back another: rows are shared out by ranges of the first column of
their key, by which parts are sorted. Either way a shard is read by many tasks, and without a shuffle.

Invariants: each row of the snapshot is in exactly one scan, as often as it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.collection.collection import check_multiplicity
from tidelog.errors import CorruptionError
from tidelog.persist.part import Part, check_bytes, decode_part
from tidelog.persist.schema import DIFF, TIME, ShardSchema, decode_schema
from tidelog.persist.updates import accumulate

PARTITION_BYTES: Final = 8 * 1024 * 1024
BATCH_ROWS_MAX: Final = 65_536
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a shard's snapshot, as a plain value.

    Shape: ``bounds`` is an Arrow stream of two rows, the least value of the first key column and the
        one that ends the share (null: open); empty where the share is not by key.
    """

    schema: bytes
    columns: tuple[str, ...]
    as_of: int
    parts: tuple[Part, ...]
    appended: bool = False
    bounds: bytes = b""

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)
