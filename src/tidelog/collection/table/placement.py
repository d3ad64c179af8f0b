"""Placement: the shard of each row, by the hash of its key. Pure.

The ingester and the writers of tables use it, so a row is always in the same shard of a rendition.
Source: design page 6, "Collection, rendition, handover".
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidelog.persist.format.part import taken
from tidelog.persist.format.schema import ShardSchema
from tidelog.rowhash import bucket_of, hash_rows

Buckets = np.ndarray[tuple[int], np.dtype[np.int64]]


def buckets_of(rows: pa.Table, schema: ShardSchema, shards: int) -> Buckets:
    """Return the index of each row's shard, by the hash of the key of the shards' ``schema``.

    A new column is not in this key, so a row stays in its shard when its table gets one.
    """
    names = schema.key or schema.names
    hashes = hash_rows([rows.column(name) for name in names], rows=rows.num_rows)
    found: Buckets = bucket_of(hashes, shards)
    return found


def placed(rows: pa.Table, schema: ShardSchema, shards: int) -> list[pa.Table]:
    """Return the rows of each shard, in their given order; the columns are those of ``schema``.

    Shape: ``rows`` may have more columns, such as ``_diff``.
    """
    if shards == 1:
        return [rows]
    buckets = buckets_of(rows, schema, shards)
    return [taken(rows, np.flatnonzero(buckets == number)) for number in range(shards)]
