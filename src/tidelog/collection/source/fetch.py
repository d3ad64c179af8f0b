"""Reads of bound ranges: the records of a range, or of a part of it, in any process.

Tasks may split text anywhere. A task begins at the first record that starts in its part, and reads
its last record to the end. For parquet, a task reads the footer, and the row groups whose first
byte is in its part. Json arrays, csv with line breaks in quotes and compressed text cannot be
split, so one task reads the whole range: see `can_be_shared`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT
from tidelog.collection.formats.packed.packed import is_packed
from tidelog.collection.formats.parquet import (
    footer_bytes,
    group_span,
    groups_between,
    pack_range,
    read_footer,
)
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.blocks import sum_of
from tidelog.collection.source.opened import BoundFile, OpenedFile
from tidelog.errors import CorruptionError

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
