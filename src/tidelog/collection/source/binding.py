"""Bindings: which addresses of a source are in, at which upper of the output.

Shape: the remap shard holds one row a file, or whatever else a kind of source has several of: the
    range of it that was taken last, and proofs of what was read. Its columns are the fields of the
    kind's ranges. A binding for ``[lower, upper)`` replaces the rows of the files it takes from,
    at the time ``upper - 1``; so its ranges are just the rows that appear then, and the frontier
    at any upper is the shard's contents before it. An interval in which no row appears took
    nothing. Where upper is held back (``--lateness``), the rows of ranges that hold messages which
    are not in yet stay beside the last ones, until all of them are; one that has no successor is
    then replaced by itself, closed, and appears anew, but takes nothing.
Invariants: a file's ranges follow each other without a gap. The messages of a range are those that
    start in it. Who reads a range again, reads the same bytes or fails: ``sums`` are those of its
    blocks (see `blocks`); where there are none, the object's version ``e_tag`` is the proof.
Source: persist, "Bindings"; storage, "Reclock"; design page 6, "The recipe, as it runs".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.formats.packed.packed import decode_packed
from tidelog.collection.formats.places import Int64s
from tidelog.collection.source.blocks import BLOCK_BYTES
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, shard_schema

ANY_TIME: Final = 2**63 - 1
CLOSED: Final = -1
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
        (milliseconds) are bad ones. ``reached`` is the greatest time of its messages, where some
        may be held back, and else `CLOSED`.
    """

    path: str
    start: int
    limit: int
    late: int = 0
    time_max: int = ANY_TIME
    reached: int = CLOSED

    @property
    def is_read(self) -> bool:
        """Say whether there is anything to be read of it."""
        return True

    @property
    def weight_bytes(self) -> int:
        """Return about how many bytes are read for it; where addresses are none, a kind says."""
        return self.limit - self.start

    def cut_at(self, places: Int64s) -> Int64s:
        """Return where tasks that share it begin, near ``places``; anywhere, unless a kind says."""
        return places


class FileRange(AddressRange, frozen=True, kw_only=True):
    """A range of one file: a plain value by which any process reads the same messages.

    Units: ``start`` and ``limit`` are byte offsets, of parquet too, whose row groups lie where
        their first byte does. ``size_bytes`` and ``e_tag`` are those of the file when it was bound.
        ``head`` is the sum of the file's first ``head_bytes`` (of parquet, of its last ones: the
        footer); ``header`` is csv's. Of a compressed file, offsets are those of its text, and
        ``packed`` says where that lies (see `packed`). A file that was taken as ``moved`` first
        has the range that it had under that name, ``unread``: of it nothing is taken again.
    """

    size_bytes: int = 0
    e_tag: str = ""
    sums: bytes = b""
    block_bytes: int = BLOCK_BYTES
    head: bytes = b""
    head_bytes: int = 0
    header: bytes = b""
    packed: bytes = b""
    moved: str = ""
    unread: int = 0

    @property
    def is_read(self) -> bool:
        return not self.unread

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
class Standing:
    """The frontier of a source, and the ranges that hold messages which are not in yet."""

    taken: Taken = field(default_factory=dict)
    held: tuple[AddressRange, ...] = ()

    @property
    def needed(self) -> Taken:
        """Return the frontier from which on the source is still needed."""
        needed = dict(self.taken)
        for found in self.held:
            if found.start < needed[found.path].limit:
                needed[found.path] = msgspec.structs.replace(found, limit=found.start)
        return needed


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
    return shard_schema(pa.schema(dict(_columns_of(kind))), key=["path", "start"])


def next_binding(updates: pa.Table, lower: int, upper: int, kind: type[AddressRange]) -> Binding:
    """Return the first binding from ``lower`` on, of a remap shard complete below ``upper``.

    Shape: ``updates`` are the shard's updates at times from ``lower`` on.
    """
    if not updates.num_rows:
        return Binding(lower, upper, ())
    times, diffs = (updates.column(n).to_numpy() for n in (TIME, DIFF))
    time = int(times.min())
    found = read_ranges(updates.take(np.flatnonzero((times == time) & (diffs > 0))), kind)
    gone = read_ranges(updates.take(np.flatnonzero((times == time) & (diffs < 0))), kind)
    # A path may have another file now, whose first range starts where one of the former file did.
    rest = {closed(r) for r in gone}
    new = (r for r in found if r not in rest)
    return Binding(lower, time + 1, tuple(new))


def read_ranges(rows: pa.Table, kind: type[R]) -> list[R]:
    """Return the ranges that rows of the remap shard stand for, in the order of their paths."""
    names = _columns_of(kind)
    # By columns: there may be a hundred thousand files, and a dict a row takes twice as long.
    columns = [rows.column(name).to_pylist() for name in names]
    values = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return sorted((kind(**row) for row in values), key=lambda r: (r.path, r.start))


def standing_at(rows: pa.Table, kind: type[AddressRange], upper: int) -> Standing:
    """Return what rows of the remap shard say at an upper of the output."""
    ranges = read_ranges(rows, kind)
    # Those of one path come in order, the last one last.
    return Standing({r.path: r for r in ranges}, tuple(r for r in ranges if r.reached >= upper))


def plan_updates(
    standing: Standing, ranges: Iterable[AddressRange], kind: type[AddressRange], *, upper: int
) -> pa.Table:
    """Return the remap updates by which ranges become the binding that ends at ``upper``."""
    added = list(ranges)
    befores = (standing.taken.get(r.path) for r in added)
    removed = [r for r in befores if r is not None and r.reached < upper]
    known, followed = set(removed), {r.path for r in added}
    for found in standing.held:
        if found.reached < upper and found not in known:
            removed.append(found)
            if found.path not in followed and standing.taken[found.path] == found:
                added.append(closed(found))
    rows = [*removed, *added]
    wanted = remap_schema(kind).updates
    names = _columns_of(kind)
    columns = [pa.array([getattr(r, name) for r in rows], dtype) for name, dtype in names.items()]
    times = pa.array(np.full(len(rows), upper - 1, np.int64))
    diffs = pa.array(np.repeat(np.array([-1, 1]), [len(removed), len(added)]))
    table = pa.table([*columns, times, diffs], names=[*names, TIME, DIFF])
    return table.select(wanted.names).cast(wanted)


def closed(found: R) -> R:
    """Return a range all of whose messages are in."""
    return msgspec.structs.replace(found, reached=CLOSED)


def advance(standing: Standing, binding: Binding) -> Standing:
    """Return what stands after a binding."""
    upper = binding.upper
    taken = {**standing.taken, **{r.path: r for r in binding.ranges}}
    for found in standing.held:
        if found.reached < upper and taken[found.path] == found:
            taken[found.path] = closed(found)
    held = (r for r in (*standing.held, *binding.ranges) if r.reached >= upper)
    return Standing(taken, tuple(held))
