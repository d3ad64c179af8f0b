"""A snapshot or changes in pieces: by row groups or by times, never all in memory.

An update can cancel another, so a piece must contain all updates of its rows. If no update has a
negative diff, each row group is a piece; otherwise see `sweep`. For changes, all updates of one
time are a piece. A reader may stop early, and the rest is not read.
Invariants: the sum of the pieces is the snapshot.
Source: persist, "Snapshot".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.lookahead import BYTES_MAX, in_order
from tidelog.errors import CorruptionError
from tidelog.persist.format.bounds import (
    Box,
    part_reaches,
    rows_within,
)
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.format.updates import consolidate
from tidelog.persist.read.opened import OpenPart, PartOpener

PIECE_ROWS: Final = 65_536
# The limit for the bytes of open parts in memory; further parts are kept in files.
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
AHEAD_MAX: Final = 8
DECODES: Final = 3  # One piece that waits for the reader, and two that are being decoded.
DECODED: Final = 4  # The approximate ratio of decoded rows to their Parquet bytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotQuery:
    """The part of a snapshot that a reader wants.

    Shape: ``columns`` are the columns that are needed; rows outside ``box`` are omitted.

    For changes, only those after ``after`` are wanted. About ``piece_rows`` updates are decoded at
    once. With ``is_grouped``, equal rows are combined even if no diff is negative. With
    ``is_at_once``, the reader wants all rows, so all cores work from the first piece.
    """

    as_of: int
    after: int = -1
    columns: tuple[str, ...]
    box: Box
    piece_rows: int = PIECE_ROWS
    is_grouped: bool = False
    is_at_once: bool = False


async def pieces_as_written(
    parts: Sequence[Part], wanted: SnapshotQuery, opener: PartOpener, *, bytes_max: int = BYTES_MAX
) -> AsyncGenerator[pa.Table, None]:
    """Yield columns and ``_diff`` of an append-only collection, in the order of the parts.

    Units: row groups that are decoded ahead take about ``bytes_max`` of memory at most.

    Raises:
        CorruptionError: an update has a negative diff; or see `PartOpener.open`.
        LocationError: the store failed.
    """
    names = list(dict.fromkeys([*wanted.columns, *wanted.box, DIFF]))

    async def decode(group: tuple[OpenPart, int]) -> pa.Table:
        opened, index = group
        read = partial(opened.read, [index], names, as_of=wanted.as_of)
        return rows_within(await opener.clock.offload(read), wanted.box)

    decoded = in_order(
        _groups_as_written(parts, wanted, opener),
        decode,
        size_of=_size_of,
        at_once=DECODES,
        bytes_max=bytes_max,
    )
    async with aclosing(decoded) as tables:
        async for _, table in tables:
            if not table.num_rows:
                continue
            if pc.min(table.column(DIFF)).as_py() < 0:
                raise CorruptionError(
                    "a shard of an append-only collection has a negative diff: scrub the "
                    "collection, and restore the object that the scrub names"
                )
            yield table.select([*wanted.columns, DIFF])


async def _groups_as_written(
    parts: Sequence[Part], wanted: SnapshotQuery, opener: PartOpener
) -> AsyncGenerator[tuple[OpenPart, int], None]:
    """Yield the row groups that can hold wanted rows, in the order of the parts."""
    waiting = [part for part in parts if part_reaches(part, wanted.box)]
    ahead = 1
    while waiting:
        now = _first_few(waiting, ahead)
        del waiting[: len(now)]
        # Start with one part, because it is enough for a reader of few rows.
        ahead = min(2 * ahead, AHEAD_MAX)
        for opened in await opener.open(now):
            for index, group in enumerate(opened.groups):
                if group.reaches(wanted.box):
                    yield opened, index


def _size_of(group: tuple[OpenPart, int]) -> int:
    """Return the approximate decoded size of a row group, in bytes."""
    opened, index = group
    return DECODED * opened.part.size_bytes * opened.groups[index].rows // opened.part.rows


async def changes_in_pieces(
    parts: Sequence[Part], wanted: SnapshotQuery, opener: PartOpener
) -> AsyncGenerator[pa.Table, None]:
    """Yield columns, ``_time`` and ``_diff``, consolidated, in time order.

    Only updates of the same time cancel. Parts whose times overlap, such as those of one tick, are
    therefore read together, and other parts separately.

    Raises:
        CorruptionError, LocationError: see `PartOpener.open`.
    """
    names = list(dict.fromkeys([*wanted.columns, *wanted.box]))
    data = opener.schema.data
    narrow = ShardSchema(pa.schema([data.field(n) for n in names]), 0)
    reached = [part for part in parts if part_reaches(part, wanted.box)]
    for together in parts_by_time(reached):

        def read(opened: Sequence[OpenPart]) -> pa.Table:
            found = [_updates_of(one, wanted, names) for one in opened]
            return consolidate(found, narrow, after=wanted.after, until=wanted.as_of)

        found = await opener.clock.offload(partial(read, await opener.open(together)))
        if found.num_rows:
            yield found


def parts_by_time(parts: Sequence[Part]) -> list[list[Part]]:
    """Group parts whose times overlap, in time order."""
    groups: list[list[Part]] = []
    until = -1
    for part in sorted(parts, key=lambda p: p.time_min):
        if groups and part.time_min <= until:
            groups[-1].append(part)
        else:
            groups.append([part])
        until = max(until, part.time_max)
    return groups


def _updates_of(opened: OpenPart, wanted: SnapshotQuery, names: Sequence[str]) -> pa.Table:
    groups = [n for n, group in enumerate(opened.groups) if group.reaches(wanted.box)]
    return rows_within(opened.read(groups, [*names, TIME, DIFF], as_of=wanted.as_of), wanted.box)


def _first_few(parts: Sequence[Part], count: int) -> list[Part]:
    found: list[Part] = []
    for part in parts[:count]:
        if found and sum(p.size_bytes for p in [*found, part]) > HELD_BYTES_MAX:
            break
        found.append(part)
    return found


def opener_names(schema: ShardSchema, box: Iterable[str]) -> frozenset[str]:
    """Return the columns whose bounds a reader in pieces needs."""
    return frozenset([*schema.names[:1], *box])
