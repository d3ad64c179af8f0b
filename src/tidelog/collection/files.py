"""Files as a raw source: json lines, csv with a header, parquet, in any store.

An address is a path and an offset. Files are taken in the order of their paths; new ones, and what
files have grown by, are found at every head. What was taken is proven by checksums in the binding:
a file that grew goes on, one that was rewritten is an error that names it.
Source: design page 6, "Raw sources".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import xxhash

from tidelog.clock import Clock, run_all
from tidelog.collection.binding import ANY_TIME, SourceRange, Taken
from tidelog.collection.catalog import SourceInfo
from tidelog.collection.chunk import Chunk, take_ranges, text_chunk, units_of
from tidelog.collection.decode_parquet import footer_bytes, group_span, pack_range, read_footer
from tidelog.collection.plan import (
    Cut,
    Units,
    choose_cut,
    choose_rough_cut,
    describe_cut,
    upper_after,
)
from tidelog.collection.source import Plan, SourceHead
from tidelog.errors import (
    CorruptionError,
    GoneError,
    InvariantError,
    ObjectNotFound,
    SourceRewritten,
)
from tidelog.persist.schema import ShardSchema
from tidelog.store.port import Entry, Store
from tidelog.store.urls import literal_prefix, matches
from tidelog.store.wrappers.metered import Usage, usage_of

ROUNDS_MAX = 3
DECODES_MAX = 4
_TORN: Final = "its last line has no line end yet; 'tidelog ingest --final' takes it as it is"
UNFINISHED: Final = (".tmp", "._COPYING_", ".crc", ".part", ".crdownload", ".inprogress")


@dataclass(frozen=True, slots=True)
class FilesHead:
    """The files there were, in the order of their paths, and how far each reached."""

    entries: tuple[Entry, ...]
    row_groups: Mapping[str, int]

    def left_bytes(self, taken: Taken) -> int:
        left = 0
        for entry in self.entries:
            before = taken.get(entry.key)
            if before is None:
                left += entry.size_bytes
            elif entry.key in self.row_groups:
                groups = self.row_groups[entry.key]
                left += entry.size_bytes * max(0, groups - before.limit) // max(1, groups)
            elif before.size_bytes != entry.size_bytes or before.limit < entry.size_bytes:
                left += max(0, entry.size_bytes - before.limit)
        return left


@dataclass(slots=True, kw_only=True)
class FilesSource:
    """Files that a pattern names, in one store.

    ``final`` says that a text file's last record is whole though it lacks a line end.
    The bytes that were planned last are kept for whoever reads them next, so that an ingester that
    computes what it minted reads them once.
    """

    store: Store
    clock: Clock
    info: SourceInfo
    schema: ShardSchema
    final: bool = False
    _planned: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    _verified: dict[str, str] = field(default_factory=dict)
    _row_groups: dict[str, int] = field(default_factory=dict)
    _waiting: dict[str, str] = field(default_factory=dict)

    async def head(self) -> FilesHead:
        pattern = self.info.pattern
        found = [
            entry
            async for entry in self.store.list(literal_prefix(pattern))
            if entry.size_bytes
            and matches(pattern, entry.key)
            and not is_passed_over(entry.key, pattern)
        ]
        return FilesHead(tuple(sorted(found, key=lambda e: e.key)), self._row_groups)

    async def left_bytes(self, taken: Taken) -> int:
        head = await self.head()
        if self.info.format == "parquet":
            for entry in head.entries:
                if entry.key in taken and entry.key not in self._row_groups:
                    footer = read_footer(await self._footer(entry))
                    self._row_groups[entry.key] = footer.num_row_groups
        return head.left_bytes(taken)

    async def plan(
        self, taken: Taken, head: SourceHead, *, lower: int, bytes_max: int
    ) -> Plan | None:
        if not isinstance(head, FilesHead):
            raise InvariantError("a files source was given another source's head")
        timed, time_max = self.info.time_column is not None, self._time_max(lower)
        for entry in head.entries:
            await self._check_unchanged(entry, taken.get(entry.key))
        budget = bytes_max
        for round_ in range(64):
            chunks, complete = await self._gather(taken, head, budget)
            if not chunks:
                return None
            units = await self._units(chunks, lower, time_max)
            cut: Cut | None = describe_cut(units, len(units))
            if timed:
                cut = choose_cut(units, complete=complete)
                if cut is None and round_ >= ROUNDS_MAX:
                    cut = choose_rough_cut(units)
            if cut is not None:
                return self._take(chunks, units, cut, lower, time_max)
            # All that was seen is of one time, or unordered: look further past the cut.
            budget *= 2
        return None

    def waiting(self) -> Mapping[str, str]:
        return dict(self._waiting)

    def usage(self) -> Usage:
        return usage_of(self.store)

    async def read(self, found: SourceRange) -> bytes:
        kept = self._planned.get((found.path, found.start, found.limit))
        if kept is not None and xxhash.xxh3_128_digest(kept) == found.sum:
            return kept
        return await read_range(self.store, found, format=self.info.format)

    def _time_max(self, lower: int) -> int:
        """Return the greatest time that a row may have: a mad one would move upper for good."""
        if self.info.time_column is None or self.info.max_ahead_ms is None:
            return ANY_TIME
        # What is complete already moves nothing, wherever the clock stands.
        return max(self.clock.now_us() // 1_000 + self.info.max_ahead_ms, lower)

    def _take(self, chunks: list[Chunk], units: Units, cut: Cut, lower: int, time_max: int) -> Plan:
        pairs = take_ranges(chunks, units.late, cut.units, time_max=time_max)
        self._planned = {(r.path, r.start, r.limit): data for r, data in pairs}
        timed = self.info.time_column is not None
        return Plan(tuple(r for r, _ in pairs), upper_after(cut, lower) if timed else None)

    async def _units(self, chunks: list[Chunk], lower: int, time_max: int) -> Units:
        schema = self.schema.data

        async def one(chunk: Chunk) -> Units:
            work = partial(units_of, chunk, self.info, schema, lower=lower, time_max=time_max)
            return await self.clock.offload(work)

        return Units.join(await run_all([partial(one, c) for c in chunks], at_once=DECODES_MAX))

    async def _gather(self, taken: Taken, head: FilesHead, budget: int) -> tuple[list[Chunk], bool]:
        """Read about ``budget`` bytes of what is new; say whether that is all there is."""
        self._waiting = {}
        chunks: list[Chunk] = []
        for entry in head.entries:
            before = taken.get(entry.key)
            if budget <= 0:
                if self._has_new(entry, before):
                    return chunks, False
                continue
            try:
                chunk, whole = await self._chunk(entry, before, budget)
            except (CorruptionError, GoneError) as error:
                if before is not None:
                    raise
                # It may be being written, or moved: it is looked at again, and stops no other.
                self._waiting[entry.key] = error.sentence
                continue
            if chunk is not None:
                chunks.append(chunk)
                budget -= len(chunk.data)
            if not whole:
                return chunks, False
        return chunks, True

    def _has_new(self, entry: Entry, before: SourceRange | None) -> bool:
        if before is None:
            return True
        if self.info.format == "parquet":
            return before.limit < self._row_groups.get(entry.key, 0)
        return before.limit < entry.size_bytes

    async def _chunk(
        self, entry: Entry, before: SourceRange | None, budget: int
    ) -> tuple[Chunk | None, bool]:
        if self.info.format == "parquet":
            return await self._parquet_chunk(entry, before, budget)
        return await self._text_chunk(entry, before, budget)

    async def _text_chunk(
        self, entry: Entry, before: SourceRange | None, budget: int
    ) -> tuple[Chunk | None, bool]:
        """Read a text file's next records; also say whether these are all it has now."""
        start = before.limit if before else 0
        size = max(budget, 1)
        while start < entry.size_bytes:
            limit = min(entry.size_bytes, start + size)
            data = await self._get(entry, start, limit)
            at_end = limit == entry.size_bytes
            chunk = text_chunk(
                entry,
                before,
                data,
                source=self.info,
                columns=self.schema.names,
                at_end=at_end,
                final=self.final,
            )
            if at_end and (int(chunk.limits[-1]) if chunk else start) < limit:
                self._waiting[entry.key] = _TORN
            if chunk is not None or at_end:
                return chunk, at_end
            # Not one record ends within what was read: a long line.
            size *= 4
        return None, True

    async def _parquet_chunk(
        self, entry: Entry, before: SourceRange | None, budget: int
    ) -> tuple[Chunk | None, bool]:
        if before is not None and before.limit == self._row_groups.get(entry.key):
            return None, True
        footer = await self._footer(entry)
        metadata = read_footer(footer)
        groups = metadata.num_row_groups
        self._row_groups[entry.key] = groups
        start = before.limit if before else 0
        limit = start
        while limit < groups and (limit == start or self._span(metadata, start, limit) < budget):
            limit += 1
        if limit == start:
            return None, True
        first, last = group_span(metadata, start, limit)
        data = await self._get(entry, first, last)
        limits = np.arange(start + 1, limit + 1, dtype=np.int64)
        return Chunk(entry, before, start, limits, data, footer=footer), limit == groups

    async def _footer(self, entry: Entry) -> bytes:
        tail = await self._get(entry, entry.size_bytes - 8, entry.size_bytes)
        length = footer_bytes(tail)
        return await self._get(entry, entry.size_bytes - length, entry.size_bytes)

    @staticmethod
    def _span(metadata: object, start: int, limit: int) -> int:
        first, last = group_span(metadata, start, limit)  # type: ignore[arg-type]
        return last - first

    async def _get(self, entry: Entry, start: int, limit: int) -> bytes:
        try:
            return (await self.store.get(entry.key, start=max(0, start), limit=limit)).data
        except ObjectNotFound as error:
            raise _gone(entry.key) from error

    async def _check_unchanged(self, entry: Entry, before: SourceRange | None) -> None:
        """Refuse a file that is not what it was when some of it was taken.

        Its first bytes and the range that was taken last are read again where the store shows
        another version; so a file that only grew costs what its last range does, not what it holds.
        """
        if before is None or self._verified.get(entry.key, before.e_tag) == entry.e_tag:
            return
        if self.info.format == "parquet":
            tail = await self._get(entry, entry.size_bytes - before.head_bytes, entry.size_bytes)
            same = xxhash.xxh3_128_digest(tail) == before.head
        else:
            # The entry's size proves nothing: the range may have been taken by another ingester,
            # after the listing that the entry is from.
            head = await self._get(entry, 0, before.head_bytes)
            last = await self._get(entry, before.start, before.limit)
            same = (
                xxhash.xxh3_128_digest(head) == before.head
                and xxhash.xxh3_128_digest(last) == before.sum
            )
        if not same:
            raise _rewritten(entry.key)
        self._verified[entry.key] = entry.e_tag


async def read_range(store: Store, found: SourceRange, *, format: str) -> bytes:
    """Return the bytes of a range, proven to be those that its binding names.

    Raises:
        SourceRewritten: they are others. GoneError: the file is gone.
    """
    try:
        if format == "parquet":
            end = found.size_bytes
            footer = (await store.get(found.path, start=end - found.head_bytes, limit=end)).data
            if xxhash.xxh3_128_digest(footer) != found.head:
                raise _rewritten(found.path)
            first, last = group_span(read_footer(footer), found.start, found.limit)
            data = pack_range(footer, (await store.get(found.path, start=first, limit=last)).data)
        else:
            data = (await store.get(found.path, start=found.start, limit=found.limit)).data
    except ObjectNotFound as error:
        raise _gone(found.path) from error
    if xxhash.xxh3_128_digest(data) != found.sum:
        raise _rewritten(found.path)
    return data


def is_passed_over(key: str, pattern: str) -> bool:
    """Say whether tools leave such files beside data, or are still writing them.

    A part of the path begins with ``.`` or ``_``; or it ends as one that is being written does,
    unless the pattern asks for just that.
    """
    if any(part.startswith((".", "_")) for part in key.split("/")):
        return True
    return key.endswith(UNFINISHED) and not pattern.endswith(UNFINISHED)


def _rewritten(path: str) -> SourceRewritten:
    return SourceRewritten(
        f"the file {path!r} was rewritten after some of it was taken: put it back as it was, or "
        "drop the source and create it again"
    )


def _gone(path: str) -> GoneError:
    return GoneError(
        f"the file {path!r} is gone, though its messages are bound to times: put it back, or drop "
        "the source and create it again"
    )
