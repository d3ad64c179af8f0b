"""Bindings: records of which addresses of a source belong to which times of the output.

Shape: the remap shard has one row per path (a file, or a table or log of another kind): its newest
    range, with proofs of the data. The columns are the fields of the kind's ranges. A binding for
    ``[lower, upper)`` replaces the rows of its paths, at the time ``upper - 1``. So its ranges are
    the rows added at that time, and the progress at an upper is the contents of the shard before
    it. If no row is added in an interval, its binding has no ranges.
    With ``--lateness``, the upper stays behind the data, and some messages of a range are held
    back. The row of such a range stays next to newer rows of its path until all of its messages are
    committed. If it has no newer row by then, a closed copy of itself replaces it. The copy is not
    a new range.
Invariants: the ranges of a file follow each other without a gap. The messages of a range are those
    that start in it. A later read of a range returns the same bytes, or fails. The proof is
    ``sums``, the checksums of its blocks (see `blocks`), or without them the object's version,
    ``e_tag``.
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
    """The addresses ``[start, limit)`` of one path of a source: the fields of every kind's ranges.

    If the readers of a kind need more facts, the kind subclasses it, with more fields of text,
    whole numbers or bytes. All fields are columns of the remap shard.

    Units: a path is a file, a table or a partition. Addresses count within a path; the kind defines
        their unit. ``late`` counts the late messages of this path in all bindings so far. Messages
        with a time after ``time_max`` (milliseconds) are bad. ``reached`` is the greatest time of
        the range's messages if some may be held back, and else `CLOSED`.
    """

    path: str
    start: int
    limit: int
    late: int = 0
    time_max: int = ANY_TIME
    reached: int = CLOSED

    @property
    def is_read(self) -> bool:
        """Return True if the range has messages to read."""
        return True

    @property
    def weight_bytes(self) -> int:
        """Return about how many bytes a read costs; a kind without byte addresses overrides it."""
        return self.limit - self.start

    def cut_at(self, places: Int64s) -> Int64s:
        """Return the addresses near ``places`` at which to split the range between tasks."""
        return places


class FileRange(AddressRange, frozen=True, kw_only=True):
    """A range of one file: a plain value by which any process reads the same messages.

    Shape: ``size_bytes`` and ``e_tag`` are those of the file when it was bound. ``head`` is the sum
        of the file's first ``head_bytes``; for parquet, it is the sum of the footer. ``header`` is
        the header line of csv, or the mark of a json array. ``packed`` locates the text in a
        compressed file (see `packed`). ``moved`` is the path under which the file was ingested
        before. Its range is then repeated under the new path with ``unread`` = 1: its messages are
        not ingested again.
    Units: ``start`` and ``limit`` are byte offsets, in the text of a compressed file. The offset of
        a row group of parquet is that of its first byte.
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
        """Return how many bytes of the file are bound up to the end of this range."""
        packed = decode_packed(self.packed)
        return self.limit if packed is None else packed.file_bytes(self.limit)

    @property
    def is_summed(self) -> bool:
        """Return True if sums prove its bytes; otherwise the object's version does."""
        return bool(self.sums)

    def cut_at(self, places: Int64s) -> Int64s:
        """Return places right after the first byte of a block, if the range has sums.

        A reader of a piece searches for a line end from the byte before the piece. That byte is
        then in a block of the piece, which the reader checks anyway.
        """
        if not self.is_summed:
            return places
        return places // self.block_bytes * self.block_bytes + 1


R = TypeVar("R", bound=AddressRange)
Taken = Mapping[str, AddressRange]  # The newest range of each path.


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The progress of a source: the newest range of each path, and the ranges with held messages.

    Messages are held back for ``--lateness``: they are bound, and come into the output later.
    """

    taken: Taken = field(default_factory=dict)
    held: tuple[AddressRange, ...] = ()

    @property
    def needed(self) -> Taken:
        """Return the progress before which the source may delete its messages.

        Ranges with held messages are read again, so it ends where the first of them starts.
        """
        needed = dict(self.taken)
        for found in self.held:
            if found.start < needed[found.path].limit:
                needed[found.path] = msgspec.structs.replace(found, limit=found.start)
        return needed


@dataclass(frozen=True, slots=True)
class Binding:
    """The new ranges that are ingested at the times ``[lower, upper)``."""

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
    """Return the first binding at or after ``lower``; the remap shard is complete below ``upper``.

    Shape: ``updates`` are the shard's updates at ``lower`` or later.
    """
    if not updates.num_rows:
        return Binding(lower, upper, ())
    times, diffs = (updates.column(n).to_numpy() for n in (TIME, DIFF))
    time = int(times.min())
    found = read_ranges(updates.take(np.flatnonzero((times == time) & (diffs > 0))), kind)
    gone = read_ranges(updates.take(np.flatnonzero((times == time) & (diffs < 0))), kind)
    # A closed copy of a removed range is not new. Compare whole ranges, not their addresses: if
    # another file has taken the path, its first range may start at the same address.
    rest = {closed(r) for r in gone}
    new = (r for r in found if r not in rest)
    return Binding(lower, time + 1, tuple(new))


def read_ranges(rows: pa.Table, kind: type[R]) -> list[R]:
    """Return the ranges in the rows of a remap shard, sorted by path and start."""
    names = _columns_of(kind)
    # Convert by columns. There may be 100,000 files, and a dict per row takes twice as long.
    columns = [rows.column(name).to_pylist() for name in names]
    values = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return sorted((kind(**row) for row in values), key=lambda r: (r.path, r.start))


def progress_at(rows: pa.Table, kind: type[AddressRange], upper: int) -> SourceProgress:
    """Return the progress at an upper of the output; ``rows`` are the remap shard's before it."""
    ranges = read_ranges(rows, kind)
    # The ranges of a path are in order, so the newest one wins in the dict.
    return SourceProgress(
        {r.path: r for r in ranges}, tuple(r for r in ranges if r.reached >= upper)
    )


def plan_updates(
    progress: SourceProgress,
    ranges: Iterable[AddressRange],
    kind: type[AddressRange],
    *,
    upper: int,
) -> pa.Table:
    """Return the updates of the remap shard that record a binding which ends at ``upper``."""
    added = list(ranges)
    # Replace the former row of each path, unless some of its messages are held back beyond upper.
    befores = (progress.taken.get(r.path) for r in added)
    removed = [r for r in befores if r is not None and r.reached < upper]
    known, followed = set(removed), {r.path for r in added}
    # Remove the rows whose last held message comes in with this binding. The newest row of a path
    # must stay, as its progress, so a closed copy replaces it.
    for found in progress.held:
        if found.reached < upper and found not in known:
            removed.append(found)
            if found.path not in followed and progress.taken[found.path] == found:
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
    """Return the range as one without held messages."""
    return msgspec.structs.replace(found, reached=CLOSED)


def advance(progress: SourceProgress, binding: Binding) -> SourceProgress:
    """Return the progress after a binding, as `plan_updates` records it."""
    upper = binding.upper
    taken = {**progress.taken, **{r.path: r for r in binding.ranges}}
    for found in progress.held:
        if found.reached < upper and taken[found.path] == found:
            taken[found.path] = closed(found)
    held = (r for r in (*progress.held, *binding.ranges) if r.reached >= upper)
    return SourceProgress(taken, tuple(held))
