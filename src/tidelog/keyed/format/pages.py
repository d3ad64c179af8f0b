"""The pages and row groups of a Parquet file, found and decoded from their bytes alone. Pure.

Arrow writes a page index but cannot read it. It reads whole columns of row groups, but a key of a
hundred records has one page of each. Only pages in our writer's form are supported: required
columns, PLAIN, zstd, with a checksum.
Invariants: every field of a page's header that affects the read is checked against its expected
    value. The checksum covers the bytes as stored.
Source: the Parquet format, parquet.thrift, "Data Pages" and "Page Index"; Thrift,
"Thrift Compact protocol encoding".
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.keyed.format.part import Span
from tidelog.keyed.format.records import Numbers
from tidelog.wal.format.parquet_meta import I32, I64, PLAIN, Shape, footer_bytes, read_struct

_CHUNK: Final[Shape] = {3: {7: I64, 9: I64, 11: I64}, 4: I64, 5: I32}
_FOOTER: Final[Shape] = {4: ({1: (_CHUNK,), 2: I64, 3: I64},)}
_LOCATIONS: Final = 1
_STRUCTS: Final = 12
# A page location has three fields, each a header byte and a number, and an end marker.
_SPELLED: Final = (0x16, None, 0x15, None, 0x16, None, 0)

# A row group of many records has 8 MiB, a single value up to 64 MiB.
SIZE_MAX: Final = 128 * 1024 * 1024
_DATA_PAGE: Final = 0
_PAGE: Final[Shape] = {1: I32, 2: I32, 3: I32, 4: I32, 5: {1: I32, 2: I32}}
_ZSTD: Final = pa.Codec("zstd")


class IndexedChunk(NamedTuple):
    """A column of a row group: its start, and the place, size and first row of each page."""

    start: int
    places: Numbers
    page_bytes: Numbers
    first_rows: Numbers


class IndexedGroup(NamedTuple):
    """A row group: its number of rows, its decoded bytes, and its columns."""

    rows: int
    size_bytes: int
    columns: Sequence[IndexedChunk]


def read_page_index(data: bytes) -> list[IndexedGroup]:
    """Return the row groups of a whole file that has a page index.

    Raises:
        ValueError: the file has no index, or is not Parquet.
    """
    footer, _ = read_struct(data, len(data) - footer_bytes(data), _FOOTER)
    return [
        IndexedGroup(group[3], group[2], [_chunk(data, chunk) for chunk in group[1]])
        for group in footer[4]
    ]


def _chunk(data: bytes, chunk: dict[int, Any]) -> IndexedChunk:
    if 4 not in chunk:
        raise ValueError("a file has no page index")
    pages = _locations(data[chunk[4] : chunk[4] + chunk[5]])
    return IndexedChunk(chunk[3].get(11) or chunk[3][9], *pages)


def _locations(index: bytes) -> tuple[Numbers, Numbers, Numbers]:
    """Decode a list of locations at once: each is seven numbers, including headers and end."""
    if index[0] != _LOCATIONS << 4 | 9 or index[1] & 15 != _STRUCTS:
        raise ValueError("a page index has a wrong header")
    count, start = index[1] >> 4, 2
    if count == 15:
        count = 0
        for shift in range(0, 35, 7):
            count |= (index[start] & 127) << shift
            start += 1
            if index[start - 1] < 128:
                break
    numbers = _varints(np.frombuffer(index, np.uint8)[start:], count * len(_SPELLED))
    rows = numbers.reshape(count, len(_SPELLED))
    for column, expected in enumerate(_SPELLED):
        if expected is not None and not (rows[:, column] == expected).all():
            raise ValueError("a page index has an unexpected field")
    return rows[:, 1] >> 1, rows[:, 3] >> 1, rows[:, 5] >> 1


def _varints(data: np.ndarray[Any, np.dtype[np.uint8]], count: int) -> Numbers:
    limits = np.flatnonzero(data < 128)[:count] + 1
    if len(limits) < count:
        raise ValueError("a page index is truncated")
    starts = np.concatenate([np.zeros(1, np.int64), limits[:-1]])
    used = data[: limits[-1]]
    place = np.arange(len(used)) - np.repeat(starts, limits - starts)
    parts = (used & 127).astype(np.int64) << (7 * place)
    return np.add.reduceat(parts, starts)


def decode_page(stored: bytes | memoryview, rows: int) -> bytes:
    """Return the decompressed contents of a page; ``stored`` includes its header.

    Raises:
        ValueError: it is not the page that was written.
    """
    data = bytes(stored)
    header, start = read_struct(data, 0, _PAGE)
    own = header.get(5, {})
    body = data[start:]
    if header.get(1) != _DATA_PAGE or own.get(1) != rows or own.get(2) != PLAIN:
        raise ValueError("a page has the wrong type, encoding or number of rows")
    if header.get(3) != len(body) or header.get(4, 0) & 0xFFFFFFFF != zlib.crc32(body):
        raise ValueError("a page has the wrong length or checksum")
    size = header.get(2, -1)
    if not 0 <= size <= SIZE_MAX:
        raise ValueError("a page is too large")
    try:
        plain: Any = _ZSTD.decompress(body, size, asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise ValueError("a page cannot be decompressed") from error
    if len(plain) != size:
        raise ValueError("a page's size differs from its header")
    return bytes(plain)


def integers_of(plain: bytes, rows: int) -> Numbers:
    """Return the values of an int64 page. Raises: ValueError: they are not ``rows`` numbers."""
    if len(plain) != 8 * rows:
        raise ValueError("a page of numbers has the wrong length")
    return np.frombuffer(plain, "<i8").astype(np.int64, copy=False)


def values_of(plain: bytes, start: int, limit: int) -> list[bytes]:
    """Return the values ``[start, limit)`` of a page of byte arrays.

    Raises:
        ValueError: the page has fewer values.
    """
    at, values = 0, list[bytes]()
    for row in range(limit):
        begin = at + 4
        at = begin + int.from_bytes(plain[at:begin], "little")
        if row >= start:
            values.append(plain[begin:at])
    if at > len(plain) or (limit and begin > len(plain)):
        raise ValueError("a page of values is truncated")
    return values


def read_metadata(tail: bytes) -> pq.FileMetaData:
    """Decode a footer from a file's last bytes. Raises: Arrow's errors for other bytes."""
    return pq.read_metadata(pa.BufferReader(tail))


def decode_groups(
    metadata: pq.FileMetaData, span: Span, data: bytes, groups: Sequence[int]
) -> pa.Table:
    """Decode row groups that lie in ``span`` of a file; ``data`` is the contents of that span.

    Raises:
        Arrow's errors for damaged bytes; callers check the bytes first.
    """
    source = pa.PythonFile(_Window(span, data), mode="r")
    file = pq.ParquetFile(source, metadata=metadata, pre_buffer=False)
    return file.read_row_groups(list(groups), use_threads=False)


class _Window(io.RawIOBase):
    """A file of which only a span is loaded; Arrow reads no other bytes."""

    def __init__(self, span: Span, data: bytes) -> None:
        super().__init__()
        self._span = span
        self._data = memoryview(data)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        # Arrow seeks to the end to find the file's size, but does not read there.
        self._at = offset + (self._at if whence == 1 else self._span.limit if whence == 2 else 0)
        return self._at

    def read(self, size: int = -1) -> Any:
        start = self._at - self._span.start
        if start < 0 or size < 0 or start + size > len(self._data):
            raise ValueError("a row group is outside the bytes read")
        self._at += size
        return bytes(self._data[start : start + size])
