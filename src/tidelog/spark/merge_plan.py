"""The division of a merge among tasks. Pure.

Updates of one row must meet, since one may retract another. So a merge has two stages:

- A task of the first stage reads parts, each once and whole, and cuts their rows into pieces, one
  for each place.
- A task of the second stage merges the pieces of one place.

A place is a range of the first column, so the results of the places are in order. If that column
has no plain order, or one value in nearly all rows, a place is a residue of the rows' hashes. If no
update can retract another, one stage joins parts as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.grouping import groups_by_size
from tidelog.persist.format.bounds import is_ordered, ordered
from tidelog.persist.format.part import Part, int64_array
from tidelog.persist.format.schema import ShardSchema
from tidelog.rowhash import bucket_of, hash_rows

READ_BYTES: Final = 16 * 1024 * 1024  # Bytes of parts per task of the first stage.
MERGED_BYTES: Final = 64 * 1024 * 1024  # Bytes of parts per task of the second stage.
MERGED_BYTES_MIN: Final = 8 * 1024 * 1024  # With less, another task costs more than it saves.


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """The facts of a merge that its tasks need, as a plain value.

    Shape: ``schema`` is the shard's newest, encoded. ``cuts`` are the values of its first column at
        which the places after the first begin. Without cuts, places are residues of hashes. With
        ``is_plain``, no update retracts another.
    Units: ``memory_bytes`` limits the rows that a task sorts in memory.
    """

    location_url: str
    shard: str
    schema: bytes
    write_epoch: int
    part_bytes: int
    advanced_to: int
    memory_bytes: int
    places: int
    cuts: tuple[Any, ...] = ()
    is_plain: bool = False

    @property
    def is_ordered(self) -> bool:
        """Return True if the places' results, one after the other, are one sorted run."""
        return self.is_plain or bool(self.cuts) or self.places == 1


def shares_of(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Divide parts among the tasks that read them, in their order."""
    shares = groups_by_size(parts, lambda part: part.size_bytes, most=READ_BYTES)
    return [tuple(share) for share in shares] or [()]


def places_count(size_bytes: int, cores: int) -> int:
    """Return the number of tasks that merge parts of ``size_bytes``."""
    by_size = -(-size_bytes // MERGED_BYTES)
    return max(1, by_size, min(cores, size_bytes // MERGED_BYTES_MIN))


def can_cut(schema: ShardSchema) -> bool:
    """Return True if ranges of the first column can divide the rows."""
    return is_ordered(schema.data.field(0).type)


def pieces_of(
    table: pa.Table, job: MergeJob, schema: ShardSchema
) -> Iterator[tuple[int, pa.Table]]:
    """Yield each place that has rows of the table, with these rows."""
    if not table.num_rows:
        return
    if job.places == 1:
        pieces: Iterator[pa.Table] = iter([table])
    elif job.cuts:
        pieces = _by_range(table, schema.names[0], job.cuts)
    else:
        pieces = _by_hash(table, schema, job.places)
    yield from ((place, piece) for place, piece in enumerate(pieces) if piece.num_rows)


def _by_range(table: pa.Table, name: str, cuts: Sequence[Any]) -> Iterator[pa.Table]:
    column = ordered(table.column(name)).combine_chunks()
    if column.null_count or not _rises(column):
        places = pc.sort_indices(column)  # Nulls go last, as in all of tidelog's orders.
        table, column = table.take(places), column.take(places)
    known = len(column) - column.null_count
    start = 0
    for cut in cuts:
        limit = _first_from(column, cut, start, known)
        yield table.slice(start, limit - start)
        start = limit
    yield table.slice(start)


def _rises(column: pa.Array[Any]) -> bool:
    before, after = column.slice(0, len(column) - 1), column.slice(1)
    return bool(pc.all(pc.less_equal(before, after), min_count=0).as_py())


def _first_from(column: pa.Array[Any], cut: Any, low: int, high: int) -> int:
    """Return the index of the first value >= ``cut`` in a sorted column."""
    while low < high:
        middle = (low + high) // 2
        if column[middle].as_py() < cut:
            low = middle + 1
        else:
            high = middle
    return low


def _by_hash(table: pa.Table, schema: ShardSchema, places: int) -> Iterator[pa.Table]:
    hashes = hash_rows([table.column(name) for name in schema.names], rows=table.num_rows)
    buckets = bucket_of(hashes, places)
    for place in range(places):
        yield table.take(int64_array(np.flatnonzero(buckets == place)))
