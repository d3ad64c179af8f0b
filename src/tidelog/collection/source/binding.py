"""Bindings: which addresses of a source are in, at which upper of the output.

Shape: the remap shard holds one row a file: the range of it that was taken last, and proofs of
    what was read. A binding for ``[lower, upper)`` replaces the rows of the files it takes from,
    at the time ``upper - 1``; so its ranges are just the rows that appear then, and the frontier
    at any upper is the shard's contents before it. An interval in which no row appears took
    nothing.
Invariants: a file's ranges follow each other without a gap. The messages of a range are those that
    start in it. Who reads a range again, reads the same bytes or fails: ``sums`` are those of its
    blocks (see `blocks`); where there are none, the object's version ``e_tag`` is the proof.
Source: persist, "Bindings"; storage, "Reclock"; design page 6, "The recipe, as it runs".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.source.blocks import BLOCK_BYTES
from tidelog.collection.source.packed import decode_packed
from tidelog.persist.schema import DIFF, TIME, shard_schema

_COLUMNS: Final[dict[str, pa.DataType]] = {
    "path": pa.string(),
    "start": pa.int64(),
    "limit": pa.int64(),
    "size_bytes": pa.int64(),
    "e_tag": pa.string(),
    "sums": pa.binary(),
    "block_bytes": pa.int64(),
    "head": pa.binary(),
    "head_bytes": pa.int64(),
    "header": pa.binary(),
    "late": pa.int64(),
    "time_max": pa.int64(),
    "packed": pa.binary(),
}
ANY_TIME: Final = 2**63 - 1
REMAP_SCHEMA: Final = shard_schema(pa.schema(_COLUMNS), key=["path"])


class SourceRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of one file: a plain value by which any process reads the same messages.

    Units: ``start`` and ``limit`` are byte offsets, of parquet too, whose row groups lie where
        their first byte does. ``size_bytes`` and ``e_tag`` are those of the file when it was bound.
        ``head`` is the sum of the file's first ``head_bytes`` (of parquet, of its last ones: the
        footer); ``header`` is csv's. ``late`` counts rows of this file, over all bindings so far,
        that came after their time was complete; rows with a time past ``time_max`` (milliseconds)
        are bad ones. Of a compressed file, offsets are those of its text, and ``packed`` says where
        that lies (see `packed`).
    """

    path: str
    start: int
    limit: int
    size_bytes: int = 0
    e_tag: str = ""
    sums: bytes = b""
    block_bytes: int = BLOCK_BYTES
    head: bytes = b""
    head_bytes: int = 0
    header: bytes = b""
    late: int = 0
    time_max: int = ANY_TIME
    packed: bytes = b""

    @property
    def file_bytes(self) -> int:
        """How many of the file's bytes are taken, with what was taken before."""
        packed = decode_packed(self.packed)
        return self.limit if packed is None else packed.file_bytes(self.limit)

    @property
    def is_summed(self) -> bool:
        """Say whether its bytes are proven by sums; else the object's version proves them."""
        return bool(self.sums)


Taken = Mapping[str, SourceRange]  # by path, the range that was taken last


@dataclass(frozen=True, slots=True)
class Binding:
    """The ranges whose messages belong to the times ``[lower, upper)``."""

    lower: int
    upper: int
    ranges: tuple[SourceRange, ...]


def next_binding(updates: pa.Table, lower: int, upper: int) -> Binding:
    """Return the first binding from ``lower`` on, of a remap shard complete below ``upper``.

    Shape: ``updates`` are the shard's updates at times from ``lower`` on.
    """
    if not updates.num_rows:
        return Binding(lower, upper, ())
    times, diffs = (updates.column(n).to_numpy() for n in (TIME, DIFF))
    time = int(times.min())
    taken = updates.take(np.flatnonzero((times == time) & (diffs > 0)))
    return Binding(lower, time + 1, tuple(read_ranges(taken)))


def read_ranges(rows: pa.Table) -> list[SourceRange]:
    """Return the ranges that rows of the remap shard stand for, in the order of their paths."""
    # By columns: there may be a hundred thousand files, and a dict a row takes twice as long.
    columns = [rows.column(name).to_pylist() for name in _COLUMNS]
    values = (dict(zip(_COLUMNS, row, strict=True)) for row in zip(*columns, strict=True))
    return sorted((SourceRange(**row) for row in values), key=lambda r: r.path)


def plan_updates(taken: Taken, ranges: Iterable[SourceRange], *, time: int) -> pa.Table:
    """Return the remap updates by which ranges become the binding that ends after ``time``."""
    added = list(ranges)
    removed = [before for r in added if (before := taken.get(r.path)) is not None]
    rows = [*removed, *added]
    columns = [pa.array([getattr(r, name) for r in rows], _COLUMNS[name]) for name in _COLUMNS]
    times = pa.array(np.full(len(rows), time, np.int64))
    diffs = pa.array(np.repeat(np.array([-1, 1]), [len(removed), len(added)]))
    names = [*_COLUMNS, TIME, DIFF]
    return (
        pa.table([*columns, times, diffs], names=names)
        .select(REMAP_SCHEMA.updates.names)
        .cast(REMAP_SCHEMA.updates)
    )


def advance_taken(taken: Taken, binding: Binding) -> dict[str, SourceRange]:
    """Return the frontier after a binding."""
    return {**taken, **{r.path: r for r in binding.ranges}}
