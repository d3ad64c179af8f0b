"""Single Parquet pages: decode the values of a page from its stored bytes. Pure.

Arrow reads whole columns of row groups, but a key of a hundred records has one page of each. Only
pages in our writer's form are supported: required columns, PLAIN, zstd, with a checksum.
Invariants: every header field that affects the read is checked against its expected value. The
    checksum covers the bytes as stored.
Source: the Parquet format, parquet.thrift and "Data Pages".
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.keyed.format.records import Numbers
from tidelog.wal.format.parquet_meta import PLAIN
from tidelog.wal.format.thrift import I32, Shape, read_struct

# A row group of many records has 8 MiB, a single value up to 64 MiB.
SIZE_MAX: Final = 128 * 1024 * 1024
_DATA_PAGE: Final = 0
_PAGE: Final[Shape] = {1: I32, 2: I32, 3: I32, 4: I32, 5: {1: I32, 2: I32}}
_ZSTD: Final = pa.Codec("zstd")


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
    at, found = 0, list[bytes]()
    for row in range(limit):
        begin = at + 4
        at = begin + int.from_bytes(plain[at:begin], "little")
        if row >= start:
            found.append(plain[begin:at])
    if at > len(plain) or (limit and begin > len(plain)):
        raise ValueError("a page of values is truncated")
    return found
