"""Bindings: which addresses of a source are in, at which upper of the output.

Shape: the remap shard holds one row a file, or whatever else a kind of source has several of: the
    range of it that was taken last, and proofs of what was read. Its columns are the fields of the
    kind's ranges. A binding for ``[lower, upper)`` replaces the rows of the files it takes from,
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
from functools import lru_cache
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.places import Int64s
from tidelog.collection.source.blocks import BLOCK_BYTES
from tidelog.collection.source.packed import decode_packed
from tidelog.persist.schema import DIFF, TIME, ShardSchema, shard_schema

ANY_TIME: Final = 2**63 - 1
_WIRE: Final[Mapping[type, pa.DataType]] = {
    str: pa.string(),
    int: pa.int64(),
    bytes: pa.binary(),
}


class AddressRange(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses ``[start, limit)`` of one path of a source: what every kind's ranges have.

    A kind whose readers need to know more makes a range of its own, with more fields of text, whole
    numbers or bytes: they are columns of its remap shard.

    Units: a path is a file, a table or a partition, and addresses count within it: what one stands
        for, the kind of the source says. ``late`` counts messages of this path, over all bindings
        so far, that came after their time was complete; those with a time past ``time_max``
        (milliseconds) are bad ones.
    """

    path: str
    start: int
    limit: int
    late: int = 0
    time_max: int = ANY_TIME

    @property
    def weight_bytes(self) -> int:
        """Return about how many bytes are read for it; where addresses are none, a kind says."""
        return self.limit - self.start

    def cut_at(self, places: Int64s) -> Int64s:
        """Return where tasks that share it begin, near ``places``; anywhere, unless a kind says."""
        return places


class SourceRange(AddressRange, frozen=True, kw_only=True):
    """A range of one file: a plain value by which any process reads the same messages.

    Units: ``start`` and ``limit`` are byte offsets, of parquet too, whose row groups lie where
        their first byte does. ``size_bytes`` and ``e_tag`` are those of the file when it was bound.
        ``head`` is the sum of the file's first ``head_bytes`` (of parquet, of its last ones: the
        footer); ``header`` is csv's. Of a compressed file, offsets are those of its text, and
        ``packed`` says where that lies (see `packed`).
    """

    size_bytes: int = 0
    e_tag: str = ""
    sums: bytes = b""
    block_bytes: int = BLOCK_BYTES
    head: bytes = b""
    head_bytes: int = 0
    header: bytes = b""
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

    def cut_at(self, places: Int64s) -> Int64s:
        """Return places right behind the first byte of a block, where there are sums.

        Whoever reads a piece looks for a line end from the byte before it on, and that is in a
        block which it checks anyway.
        """
        if not self.is_summed:
            return places
        return places // self.block_bytes * self.block_bytes + 1


R = TypeVar("R", bound=AddressRange)
Taken = Mapping[str, AddressRange]  # by path, the range that was taken last


@dataclass(frozen=True, slots=True)
class Binding:
    """The ranges whose messages belong to the times ``[lower, upper)``."""

    lower: int
    upper: int
    ranges: tuple[AddressRange, ...]


@lru_cache(maxsize=32)
def _columns_of(kind: type[AddressRange]) -> Mapping[str, pa.DataType]:
    return {field.name: _WIRE[field.type] for field in msgspec.structs.fields(kind)}


@lru_cache(maxsize=32)
def remap_schema(kind: type[AddressRange]) -> ShardSchema:
    """Return the schema of a remap shard for ranges of a kind."""
    return shard_schema(pa.schema(dict(_columns_of(kind))), key=["path"])


def next_binding(updates: pa.Table, lower: int, upper: int, kind: type[AddressRange]) -> Binding:
    """Return the first binding from ``lower`` on, of a remap shard complete below ``upper``.

    Shape: ``updates`` are the shard's updates at times from ``lower`` on.
    """
    if not updates.num_rows:
        return Binding(lower, upper, ())
    times, diffs = (updates.column(n).to_numpy() for n in (TIME, DIFF))
    time = int(times.min())
    taken = updates.take(np.flatnonzero((times == time) & (diffs > 0)))
    return Binding(lower, time + 1, tuple(read_ranges(taken, kind)))


def read_ranges(rows: pa.Table, kind: type[R]) -> list[R]:
    """Return the ranges that rows of the remap shard stand for, in the order of their paths."""
    names = _columns_of(kind)
    # By columns: there may be a hundred thousand files, and a dict a row takes twice as long.
    columns = [rows.column(name).to_pylist() for name in names]
    values = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return sorted((kind(**row) for row in values), key=lambda r: r.path)


def plan_updates(
    taken: Taken, ranges: Iterable[AddressRange], kind: type[AddressRange], *, time: int
) -> pa.Table:
    """Return the remap updates by which ranges become the binding that ends after ``time``."""
    added = list(ranges)
    removed = [before for r in added if (before := taken.get(r.path)) is not None]
    rows = [*removed, *added]
    wanted = remap_schema(kind).updates
    found = _columns_of(kind).items()
    columns = [pa.array([getattr(r, name) for r in rows], dtype) for name, dtype in found]
    times = pa.array(np.full(len(rows), time, np.int64))
    diffs = pa.array(np.repeat(np.array([-1, 1]), [len(removed), len(added)]))
    names = [*(name for name, _ in found), TIME, DIFF]
    return pa.table([*columns, times, diffs], names=names).select(wanted.names).cast(wanted)


def advance_taken(taken: Taken, binding: Binding) -> dict[str, AddressRange]:
    """Return the frontier after a binding."""
    return {**taken, **{r.path: r for r in binding.ranges}}
