"""How a merge is shared out over tasks. Pure.

Updates of one row must meet, since one may take back another. So a first stage reads parts, each
once and whole, and cuts their rows into as many pieces as there are tasks of a second, each of
which merges the pieces of one place: a range of the first column, so that what the places come to
stands in order, one behind the other; or, where that column has no plain order, or nearly all rows
one value in it, the rows whose hash is of one residue. Where nothing can be taken back there is one
stage: parts are joined as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.persist.format.bounds import is_ordered, ordered
from tidelog.persist.format.part import Part, int64_array
from tidelog.persist.format.schema import ShardSchema
from tidelog.rowhash import bucket_of, hash_rows

READ_BYTES: Final = 16 * 1024 * 1024  # Of parts, that a task of the first stage reads.
MERGED_BYTES: Final = 64 * 1024 * 1024  # Of parts, that come to a task of the second.
MERGED_BYTES_MIN: Final = 8 * 1024 * 1024  # For less, a task more is not worth its start.


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """What tasks have to know of a merge, as a plain value.

    Shape: ``schema`` is the shard's newest, encoded. ``cuts`` are values of its first column, each
        of which a place begins with, that of the first place left out; with none, rows are shared
        out by their hash. With ``is_plain`` none takes back another.
    Units: of what a task sorts, ``memory_bytes`` are in memory at most.
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
        """Say whether what the places come to is one run, in the order of the places."""
        return self.is_plain or bool(self.cuts) or self.places == 1


def shares_of(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Share parts out over tasks that read them, in their order."""
    shares: list[list[Part]] = [[]]
    for part in parts:
        if shares[-1] and sum(p.size_bytes for p in [*shares[-1], part]) > READ_BYTES:
            shares.append([])
        shares[-1].append(part)
    return [tuple(share) for share in shares]


def places_count(size_bytes: int, cores: int) -> int:
    """Return by how many tasks parts of ``size_bytes`` are merged."""
    by_size = -(-size_bytes // MERGED_BYTES)
    return max(1, by_size, min(cores, size_bytes // MERGED_BYTES_MIN))


def can_cut(schema: ShardSchema) -> bool:
    """Say whether rows can be shared out by ranges of their first column."""
    return is_ordered(schema.data.field(0).type)


def pieces_of(
    table: pa.Table, job: MergeJob, schema: ShardSchema
) -> Iterator[tuple[int, pa.Table]]:
    """Cut updates into those of each place; yield places and their rows, no empty ones."""
    if not table.num_rows:
        return
    if job.places == 1:
        found: Iterator[pa.Table] = iter([table])
    elif job.cuts:
        found = _by_range(table, schema.names[0], job.cuts)
    else:
        found = _by_hash(table, schema, job.places)
    yield from ((place, piece) for place, piece in enumerate(found) if piece.num_rows)


def _by_range(table: pa.Table, name: str, cuts: Sequence[Any]) -> Iterator[pa.Table]:
    column = ordered(table.column(name)).combine_chunks()
    if column.null_count or not _rises(column):
        places = pc.sort_indices(column)  # Which has nulls at the end, as all order here does.
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
    """Return the place of the first value that is not less than ``cut``, in a sorted column."""
    while low < high:
        middle = (low + high) // 2
        if column[middle].as_py() < cut:
            low = middle + 1
        else:
            high = middle
    return low


def _by_hash(table: pa.Table, schema: ShardSchema, places: int) -> Iterator[pa.Table]:
    hashes = hash_rows([table.column(name) for name in schema.names], rows=table.num_rows)
    found = bucket_of(hashes, places)
    for place in range(places):
        yield table.take(int64_array(np.flatnonzero(found == place)))
