"""Read row groups of parts with Arrow, for reads of many rows.

A part's footer is read once and cached. Consecutive row groups are read in one request. Each is
checked against its checksum in the directory before it is decoded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tidelog.core.clock import Clock
from tidelog.core.lookahead import in_order
from tidelog.keyed.format.directory import DirectoryHead
from tidelog.keyed.format.pages import decode_groups, read_metadata
from tidelog.keyed.format.part import PartLayout, PartRows, RunPart, Span
from tidelog.keyed.format.records import KEYED_RECORDS
from tidelog.keyed.read.run_objects import (
    METADATA_RATIO,
    DirectoryCache,
    check_sum,
    get_checked,
    told_as_damage,
)
from tidelog.store.port import Store

TABLE_ROWS: Final = 65_536
TABLE_BYTES: Final = 8 * 1024 * 1024
_FOOTER: Final = -2  # The cache key of a footer, next to the pieces of directories.
_WHAT: Final = "a part of a run"
_AHEAD: Final = 3  # One table that waits for the reader, and two that are being decoded.
_AHEAD_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _PartFooter:
    metadata: pq.FileMetaData

    @property
    def nbytes(self) -> int:
        return METADATA_RATIO * self.metadata.serialized_size


@dataclass(frozen=True, slots=True)
class _Groups:
    """Row groups ``[first, limit)``, and their decoded size in bytes."""

    first: int
    limit: int
    size_bytes: int


class GroupReader:
    """Reads whole row groups, a few requests ahead of the reader."""

    def __init__(self, store: Store, clock: Clock, cache: DirectoryCache) -> None:
        self._store = store
        self._clock = clock
        self._cache = cache

    async def read(
        self, part: RunPart, head: DirectoryHead, rows: PartRows, *, newest_first: bool = False
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield rows of a part in tables of bounded size: in order, or the last table first.

        Raises:
            ObjectNotFound: the part is missing. CorruptionError: a row group was changed.
                LocationError: the store failed.
        """
        if not rows.rows:
            return
        metadata = (await self._footer(part, head)).metadata
        chosen = _groups_of(head.layout, rows, newest_first=newest_first)

        async def source() -> AsyncGenerator[_Groups, None]:
            for groups in chosen:
                yield groups

        load = partial(self._load, part, head, metadata)
        ahead = in_order(
            source(),
            load,
            size_of=lambda groups: groups.size_bytes,
            at_once=_AHEAD,
            bytes_max=_AHEAD_BYTES,
        )
        async with aclosing(ahead) as loaded:
            async for groups, table in loaded:
                begin = int(head.layout.group_rows[groups.first])
                first = max(rows.first - begin, 0)
                yield table.slice(first, min(rows.limit - begin, table.num_rows) - first)

    async def _footer(self, part: RunPart, head: DirectoryHead) -> _PartFooter:
        return await self._cache.get(part, _FOOTER, partial(self._load_footer, part, head))

    async def _load_footer(self, part: RunPart, head: DirectoryHead) -> _PartFooter:
        async def check(data: bytes) -> _PartFooter:
            checksum = xxhash.xxh3_128_digest(data)
            check_sum(head.footer_xxh3, checksum, part.path, "the footer of a run's part")
            with told_as_damage(part.path, _WHAT):
                return _PartFooter(await self._clock.offload(partial(read_metadata, data)))

        span = Span(part.num_bytes - head.footer_bytes, part.num_bytes)
        return await get_checked(self._store, part.path, span, check)

    async def _load(
        self, part: RunPart, head: DirectoryHead, metadata: pq.FileMetaData, groups: _Groups
    ) -> pa.Table:
        async def check(data: bytes) -> pa.Table:
            return await self._clock.offload(
                partial(_decode, part, head.layout, metadata, groups, data)
            )

        span = head.layout.group_span(groups.first, groups.limit)
        return await get_checked(self._store, part.path, span, check)


def _decode(
    part: RunPart, layout: PartLayout, metadata: pq.FileMetaData, groups: _Groups, data: bytes
) -> pa.Table:
    span = layout.group_span(groups.first, groups.limit)
    view = memoryview(data)
    numbers = range(groups.first, groups.limit)
    for group in numbers:
        own = layout.group_span(group, group + 1)
        checksum = xxhash.xxh3_64_intdigest(view[own.start - span.start : own.limit - span.start])
        check_sum(int(layout.group_xxh3[group]), checksum, part.path, _WHAT)
    with told_as_damage(part.path, _WHAT):
        table = decode_groups(metadata, span, data, numbers)
        return table.select(KEYED_RECORDS.names).cast(KEYED_RECORDS)


def _groups_of(layout: PartLayout, rows: PartRows, *, newest_first: bool) -> list[_Groups]:
    """Return the row groups with some of the rows, a few together, in reading order."""
    first, last = layout.group_of(rows.first), layout.group_of(rows.limit - 1)
    groups = list[_Groups]()
    begin, size = first, 0
    for group in range(first, last + 1):
        more = int(layout.group_sizes[group])
        rows_count = int(layout.group_rows[group + 1] - layout.group_rows[begin])
        if group > begin and (size + more > TABLE_BYTES or rows_count > TABLE_ROWS):
            groups.append(_Groups(begin, group, size))
            begin, size = group, 0
        size += more
    groups.append(_Groups(begin, last + 1, size))
    return groups[::-1] if newest_first else groups
