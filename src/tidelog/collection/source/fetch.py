"""Reads of bound ranges: the records of a range, or of a part of it, in any process.

Tasks may split text anywhere. A task begins at the first record that starts in its part, and reads
its last record to the end. For parquet, a task reads the footer, and the row groups whose first
byte is in its part. For avro, it reads the header and these blocks. Json arrays, csv with line
breaks in quotes and compressed text cannot be split, so one task reads the whole range: see
`can_be_shared`. A file is read in the version that a listing showed, or with the bound bytes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.avro.container import (
    AVRO_FORMAT,
    MARKER_BYTES,
    AvroHeader,
    marker_end,
    pack_blocks,
    read_header,
)
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT
from tidelog.collection.formats.packed.packed import is_packed
from tidelog.collection.formats.parquet import (
    footer_bytes,
    group_span,
    groups_between,
    pack_range,
    read_footer,
)
from tidelog.collection.source.binding import FileRange, are_blocks, covering, sum_of
from tidelog.errors import CorruptionError, GoneError, ObjectNotFound, SourceRewritten
from tidelog.store.keys import is_version
from tidelog.store.port import Store


@dataclass(slots=True, kw_only=True)
class OpenedFile:
    """A file. If ``e_tag`` is given, all bytes read are of that version.

    ``kept`` are cached spans of the file: the offset of each, and its bytes. ``source`` is the name
    of the file's source, for messages.
    """

    store: Store
    path: str
    e_tag: str | None = None
    source: str = ""
    kept: Sequence[tuple[int, bytes]] = field(default_factory=list)

    async def get(self, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)``, or fewer if the file ends before ``limit``.

        Raises:
            GoneError: the file no longer exists. SourceRewritten: it has another version now.
        """
        if start >= limit:
            return b""
        kept = join_kept(self.kept, start, limit)
        if kept is not None:
            return kept
        try:
            found = await self.store.get(self.path, start=start, limit=limit)
        except ObjectNotFound as error:
            raise self.gone() from error
        if self.e_tag is not None and not is_version(self.e_tag, found.e_tag):
            raise self.rewritten()
        return found.data

    def rewritten(self) -> SourceRewritten:
        """Return the error for a file whose ingested bytes have changed."""
        return SourceRewritten(
            f"the file {self.path!r} was rewritten after some of its rows were ingested: restore "
            f"it, or continue without it: {self._skip}"
        )

    def gone(self) -> GoneError:
        """Return the error for a bound file that no longer exists."""
        return GoneError(
            f"the file {self.path!r} no longer exists, but an unfinished tick needs its rows: "
            "restore it, or "
            f"continue without it: {self._skip}"
        )

    @property
    def _skip(self) -> str:
        return f"tidelog source skip {self.source} {shlex.quote(self.path)}"


@dataclass(slots=True, kw_only=True)
class BoundFile:
    """The file of a bound range. A read returns the bound bytes, or fails."""

    file: OpenedFile
    found: FileRange

    async def get(self, start: int, limit: int) -> tuple[int, bytes]:
        """Return the offset and the bytes of a span that covers ``[start, limit)``.

        If the range has sums, the span consists of whole blocks of it, and they are checked.

        Raises:
            SourceRewritten: the bytes are not those bound. GoneError: the file no longer exists.
        """
        found = self.found
        if not found.is_summed:
            return start, await self.file.get(start, limit)
        low, high = covering(found.start, found.limit, start, limit, found.block_bytes)
        data = await self.file.get(low, high)
        proven = are_blocks(
            data, low, start=found.start, sums=found.sums, block_bytes=found.block_bytes
        )
        if not proven or len(data) != max(0, high - low):
            raise self.file.rewritten()
        return low, data


def join_kept(kept: Sequence[tuple[int, bytes]], start: int, limit: int) -> bytes | None:
    """Return the bytes ``[start, limit)`` from sorted spans; None if some bytes are missing."""
    found: list[bytes] = []
    at = start
    for begin, data in kept:
        if begin <= at < begin + len(data):
            found.append(data[at - begin : limit - begin])
            at += len(found[-1])
    return b"".join(found) if at >= limit else None


READ_ON_BYTES: Final = 64 * 1024
FOOTER_GUESS_BYTES: Final = 64 * 1024


def is_divisible(source: SourceInfo) -> bool:
    """Return True if a reader can find the start of the next record from any offset of a file."""
    dialect = source.dialect
    if source.format == ARRAY_FORMAT:
        return False
    return dialect is None or not (dialect.multiline and dialect.quote)


def can_be_shared(source: SourceInfo, path: str) -> bool:
    """Return True if several tasks can read parts of a file: it is divisible and not compressed."""
    return is_divisible(source) and not is_packed(path, source.format)


async def read_share(
    file: OpenedFile, found: FileRange, low: int, high: int, *, source: SourceInfo
) -> tuple[FileRange, bytes]:
    """Return the records of a range that start in ``[low, high)``, with a range that has only them.

    Raises:
        SourceRewritten: the bytes are not those bound. GoneError: the file no longer exists.
    """
    bound = BoundFile(file=file, found=found)
    if source.format == "parquet":
        data = await _read_groups(bound, low, high)
        return msgspec.structs.replace(found, start=low, limit=high), data
    if source.format == AVRO_FORMAT:
        start, limit, data = await _read_blocks(bound, low, high)
        return msgspec.structs.replace(found, start=start, limit=limit), data
    if not is_divisible(source):
        at, data = await bound.get(found.start, found.limit)
        return found, data[found.start - at : found.limit - at]
    start, data = await _read_text(bound, low, high)
    return msgspec.structs.replace(found, start=start, limit=start + len(data)), data


async def _read_text(bound: BoundFile, low: int, high: int) -> tuple[int, bytes]:
    found = bound.found
    begins = low == 0 or (found.is_summed and low == found.start)
    end = found.limit if found.is_summed else found.size_bytes
    at, data = await bound.get(low if begins else low - 1, high)
    start = low if begins else _after_line(data, low - 1 - at, at)
    if start is None or start >= high:
        return high, b""
    if high >= end:
        return start, data[start - at : end - at]
    limit, looked, more = _after_line(data, high - 1 - at, at), len(data), READ_ON_BYTES
    while limit is None and at + len(data) < end:
        begin, next_ = await bound.get(at + len(data), min(end, at + len(data) + more))
        data += next_[at + len(data) - begin :]
        limit, looked, more = _after_line(data, looked, at), len(data), more * 4
    return start, data[start - at : (end if limit is None else limit) - at]


def _after_line(data: bytes, place: int, at: int) -> int | None:
    """Return the offset right after the first line end at or after a place of ``data``."""
    line = data.find(b"\n", max(0, place))
    return None if line < 0 else at + line + 1


async def _read_groups(bound: BoundFile, low: int, high: int) -> bytes:
    """Return the row groups whose first byte is in ``[low, high)``, packed with the footer.

    A footer that cannot be decoded is packed too: the decoder turns it into a bad row.
    """
    found = bound.found
    footer = await read_footer_of(bound.file, found.size_bytes, known_bytes=found.head_bytes)
    if found.head and sum_of(footer) != found.head:
        raise bound.file.rewritten()
    try:
        metadata = read_footer(footer)
    except CorruptionError:
        return pack_range(footer, b"")
    first, last = groups_between(metadata, low, high)
    start, limit = group_span(metadata, first, last)
    if start >= limit:
        return pack_range(footer, b"")
    at, data = await bound.get(start, limit)
    return pack_range(footer, data[start - at : limit - at])


async def _read_blocks(bound: BoundFile, low: int, high: int) -> tuple[int, int, bytes]:
    """Return the bounds of the blocks whose first byte is in ``[low, high)``, and these, packed.

    A header that cannot be read is packed too: the decoder turns it into a bad row.
    """
    found = bound.found
    data = await bound.file.get(0, found.head_bytes or READ_ON_BYTES)
    if found.head and sum_of(data) != found.head:
        raise bound.file.rewritten()
    try:
        header = read_header(data)
    except CorruptionError:
        header = None
    if header is None:
        return low, high, pack_blocks(data, b"")
    data = data[: header.size]
    marker, end = header.marker, found.limit if found.is_summed else found.size_bytes
    at = max(header.size, low)
    # The range of a file on a disk begins with a block. Otherwise, a marker is before each block.
    begins = at == header.size or (found.is_summed and at == found.start)
    base, blocks = await bound.get(at if begins else at - MARKER_BYTES, max(at, high))
    start: int | None = at
    if not begins:
        start = marker_end(blocks, marker, at, base=base)
    if start is None or start >= high:
        return high, high, pack_blocks(data, b"")
    limit, looked, more = None, high, READ_ON_BYTES
    while high < end and (limit := marker_end(blocks, marker, looked, base=base)) is None:
        if base + len(blocks) >= end:
            break
        looked = max(high, base + len(blocks))
        begin, next_ = await bound.get(looked, min(end, looked + more))
        blocks, more = blocks + next_[base + len(blocks) - begin :], more * 4
    limit = end if limit is None else limit
    return start, limit, pack_blocks(data, blocks[start - base : limit - base])


async def read_avro_header(
    file: OpenedFile, size_bytes: int, *, known_bytes: int = 0
) -> tuple[AvroHeader, bytes]:
    """Return the header of an avro file, and its bytes.

    Raises:
        CorruptionError: the file is not avro, or ends within its header.
    """
    wanted = known_bytes or READ_ON_BYTES
    while True:
        data = await file.get(0, min(wanted, size_bytes))
        found = read_header(data)
        if found is not None:
            return found, data[: found.size]
        if wanted >= size_bytes:
            raise CorruptionError(
                "the header of the avro file is not complete: wait for its writer"
            )
        wanted *= 4


async def read_footer_of(file: OpenedFile, size_bytes: int, *, known_bytes: int = 0) -> bytes:
    """Return the footer of a parquet file; one request, unless the footer exceeds the guess.

    If the file does not end like parquet, return its last 8 bytes; decoding them raises the error.
    """
    guess = min(size_bytes, known_bytes or FOOTER_GUESS_BYTES)
    tail = await file.get(size_bytes - guess, size_bytes)
    try:
        length = footer_bytes(tail[-8:])
    except CorruptionError:
        return tail[-8:]
    if length <= len(tail):
        return tail[len(tail) - length :]
    return await file.get(max(0, size_bytes - length), size_bytes)
