"""The places of a Parquet file's pages, read from its page index. Pure.

Arrow writes this index but cannot read it.
Source: the Parquet format, "Page Index"; Thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tidelog.keyed.format.records import Numbers
from tidelog.wal.format.parquet_meta import footer_bytes
from tidelog.wal.format.thrift import I32, I64, Shape, read_struct

_CHUNK: Final[Shape] = {3: {7: I64, 9: I64, 11: I64}, 4: I64, 5: I32}
_FOOTER: Final[Shape] = {4: ({1: (_CHUNK,), 2: I64, 3: I64},)}
_LOCATIONS: Final = 1
_STRUCTS: Final = 12
# A page location has three fields, each a header byte and a number, and an end marker.
_SPELLED: Final = (0x16, None, 0x15, None, 0x16, None, 0)


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
