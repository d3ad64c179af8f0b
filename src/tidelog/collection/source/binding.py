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
    ``sums``, the checksums of its blocks, or without them the object's version, ``e_tag``. A block
    is the part of a range between two multiples of the block size, counted from the file's
    beginning. A task that reads a part of a range checks only the blocks of that part.
Source: persist, "Bindings"; storage, "Reclock"; design page 6, "The recipe, as it runs".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from tidelog.collection.formats.lines import Int64s
from tidelog.collection.formats.packed.packed import decode_packed
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, shard_schema

ANY_TIME: Final = 2**63 - 1
CLOSED: Final = -1
_WIRE: Final[Mapping[type, pa.DataType]] = {
    str: pa.string(),
    int: pa.int64(),
    bytes: pa.binary(),
}
BLOCK_BYTES: Final = 1024 * 1024
SUM_BYTES: Final = 16
SCHEMA_ID: Final = "schema_id"


class AddressRange(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses ``[start, limit)`` of one path of a source: the fields of every kind's ranges.

    If the readers of a kind need more facts, the kind subclasses it, with more fields of text,
    whole numbers or bytes. All fields are columns of the remap shard.

    Units: a path is a file, a table or a partition. Addresses count within a path; the kind defines
        their unit. ``late`` counts the late messages of this path in all bindings so far. Messages
        with a time after ``time_max`` (milliseconds) are bad. ``reached`` is the greatest time of
        the range's messages if some may be held back, and else `CLOSED`. ``schema_id`` is the index
        among the rendition's schemas of the one in which the messages are decoded.
    """

    path: str
    start: int
    limit: int
    late: int = 0
    time_max: int = ANY_TIME
    reached: int = CLOSED
    schema_id: int = 0

    @property
    def is_read(self) -> bool:
        """Return True if the range has messages to read."""
        return True

    @property
    def weight_bytes(self) -> int:
        """Return about how many bytes a read costs; a kind without byte addresses overrides it."""
        return self.limit - self.start

    @property
    def first(self) -> int:
        """Return the address after the messages at its start that the range gives up."""
        return self.start

    @property
    def given_up(self) -> AddressRange | None:
        """Return the messages that the range gives up: they were lost before it was bound."""
        return None

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
    def schema_id(self) -> int:
        """Return the greatest id of a schema in which any of these ranges is decoded."""
        found = (*self.taken.values(), *self.held)
        return max((one.schema_id for one in found), default=0)

    @property
    def needed(self) -> Taken:
        """Return the progress before which the source may delete its messages.

        Ranges with held messages are read again, so it ends where the first of them starts.
        """
        needed = dict(self.taken)
        for found in self.held:
            if found.first < needed[found.path].limit:
                needed[found.path] = msgspec.structs.replace(found, limit=found.first)
        return needed


@dataclass(frozen=True, slots=True)
class Binding:
    """The new ranges that are ingested at the times ``[lower, upper)``."""

    lower: int
    upper: int
    ranges: tuple[AddressRange, ...]


@lru_cache(maxsize=32)
def _columns_of(kind: type[AddressRange]) -> Mapping[str, pa.DataType]:
    # The last column is new in the remap shard of an altered source, and new columns come last.
    fields = [one for one in msgspec.structs.fields(kind) if one.name != SCHEMA_ID]
    return {**{one.name: _WIRE[one.type] for one in fields}, SCHEMA_ID: pa.int64()}


@lru_cache(maxsize=32)
def remap_schema(kind: type[AddressRange], *, altered: bool = False) -> ShardSchema:
    """Return the schema of a remap shard for ranges of a kind.

    A source without an alteration has one schema, so its remap shard does not record the ids.
    """
    columns = dict(_columns_of(kind))
    if not altered:
        del columns[SCHEMA_ID]
    return shard_schema(pa.schema(columns), key=["path", "start"])


def next_binding(
    tables: Sequence[pa.Table], lower: int, upper: int, kind: type[AddressRange]
) -> Binding:
    """Return the first binding at or after ``lower``; see `bindings_in`."""
    return next(bindings_in(tables, lower, upper, kind))


def bindings_in(
    tables: Sequence[pa.Table], lower: int, upper: int, kind: type[AddressRange]
) -> Iterator[Binding]:
    """Yield the bindings from ``lower`` on; the remap shard is complete below ``upper``.

    The last one has no ranges if the source had no new data up to ``upper``.

    Shape: ``tables`` have all updates of the shard at these times; equal ones may be separate.
    """
    filled = [table for table in tables if table.num_rows]
    rows = pa.concat_tables(filled) if filled else None
    if rows is not None:
        times, diffs = (rows.column(name).to_numpy() for name in (TIME, DIFF))
        for time in np.unique(times[(lower <= times) & (times < upper)]).tolist():
            places = np.flatnonzero(times == time)
            counts: Counter[AddressRange] = Counter()
            ranges = _ranges_in(rows.take(places), kind)
            for found, diff in zip(ranges, diffs[places].tolist(), strict=True):
                counts[found] += diff
            # A closed copy of a removed range is not new. Compare whole ranges, not their
            # addresses: if another file has taken the path, its first range may start at the same
            # address.
            gone = {closed(found) for found, count in counts.items() if count < 0}
            added = [found for found, count in counts.items() if count > 0]
            if gone or added:
                new = (found for found in sorted(added, key=_place_of) if found not in gone)
                yield Binding(lower, time + 1, tuple(new))
                lower = time + 1
    if lower < upper:
        yield Binding(lower, upper, ())


def _ranges_in(rows: pa.Table, kind: type[R]) -> Iterator[R]:
    names = [name for name in _columns_of(kind) if name in rows.column_names]
    # Convert by columns. There may be 100,000 files, and a dict per row takes twice as long.
    columns = [rows.column(name).to_pylist() for name in names]
    if SCHEMA_ID in names:
        columns[-1] = [found or 0 for found in columns[-1]]  # See `_stored`.
    return (kind(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))


def _place_of(found: AddressRange) -> tuple[str, int]:
    return found.path, found.start


def progress_at(rows: pa.Table, kind: type[AddressRange], upper: int) -> SourceProgress:
    """Return the progress at an upper of the output; ``rows`` are the remap shard's before it."""
    ranges = sorted(_ranges_in(rows, kind), key=_place_of)
    # The ranges of a path are in order, so the newest one wins in the dict.
    return SourceProgress(
        {r.path: r for r in ranges}, tuple(r for r in ranges if r.reached >= upper)
    )


def plan_updates(
    progress: SourceProgress,
    ranges: Iterable[AddressRange],
    schema: ShardSchema,
    *,
    upper: int,
) -> pa.Table:
    """Return the updates of the remap shard that record a binding which ends at ``upper``.

    ``schema`` is that of the remap shard.
    """
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
    columns = [pa.array([_stored(r, f.name) for r in rows], f.type) for f in schema.data]
    times = pa.array(np.full(len(rows), upper - 1, np.int64))
    diffs = pa.array(np.repeat(np.array([-1, 1]), [len(removed), len(added)]))
    return pa.table([*columns, times, diffs], schema=schema.updates)


def _stored(found: AddressRange, name: str) -> object:
    value = getattr(found, name)
    # A row that was stored before the first alteration has a null there. It is removed as it is.
    return None if name == SCHEMA_ID and value == 0 else value


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


def reached_before(ranges: Iterable[AddressRange], progress: SourceProgress) -> int | None:
    """Return the time that the upper must pass before ranges are bound; None to bind them now.

    A new file may have taken the path of a range whose rows are held back. Ranges of two files
    cannot share one path, so the rows held back are released first.
    """
    others = {
        found.path
        for found in ranges
        if isinstance(found, FileRange)
        and (before := progress.taken.get(found.path)) is not None
        and (found.unread or found.start != before.limit)
    }
    return max((found.reached for found in progress.held if found.path in others), default=None)


def block_bounds(start: int, limit: int, block_bytes: int) -> list[int]:
    """Return the start of each block of ``[start, limit)``, and the end of the last one."""
    first = (start // block_bytes + 1) * block_bytes
    return [start, *range(first, limit, block_bytes), limit] if start < limit else [start]


def sum_blocks(data: bytes | memoryview, start: int, block_bytes: int) -> bytes:
    """Return the sums of the blocks of ``data``, which begins at offset ``start`` of its file."""
    view = memoryview(data)
    bounds = block_bounds(start, start + len(view), block_bytes)
    return b"".join(sum_of(view[low - start : high - start]) for low, high in pairwise(bounds))


def sum_of(data: bytes | memoryview) -> bytes:
    """Return the sum of some bytes."""
    return xxhash.xxh3_128_digest(data)


def sum_of_rest(data: bytes | memoryview, start: int, limit: int, block_bytes: int) -> bytes:
    """Return the sum of the last block of a range that ends at ``limit``; b"" if it is whole.

    Shape: ``data`` begins at offset ``start``: the start of the range, or of a block.
    """
    low = max(start, limit // block_bytes * block_bytes)
    return sum_of(memoryview(data)[low - start : limit - start]) if low < limit else b""


def sums_until(sums: bytes, start: int, limit: int, rest: bytes, block_bytes: int) -> bytes:
    """Return the sums of ``[start, limit)``, given those of a longer range with the same start.

    ``rest`` is the sum of its last, partial block; see `sum_of_rest`.
    """
    whole = limit // block_bytes - start // block_bytes
    return sums[: max(0, whole) * SUM_BYTES] + rest


def covering(start: int, limit: int, low: int, high: int, block_bytes: int) -> tuple[int, int]:
    """Return the bounds of the least whole blocks of ``[start, limit)`` around ``[low, high)``."""
    first = max(start, low // block_bytes * block_bytes)
    return first, min(limit, -(-high // block_bytes) * block_bytes)


def are_blocks(data: bytes, at: int, *, start: int, sums: bytes, block_bytes: int) -> bool:
    """Return True if ``data`` matches the sums of the range's blocks that begin at offset ``at``.

    Shape: ``sums`` are those of the range, which begins at ``start``. ``data`` is whole blocks.
    """
    first = (at // block_bytes - start // block_bytes) * SUM_BYTES
    found = sum_blocks(data, at, block_bytes)
    return found == sums[first : first + len(found)]
