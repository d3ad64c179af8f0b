"""Lines: where the records of a text file end. Pure.

A record ends at a line end; one of csv with line ends in quotes, as `csv_ends` says.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.collection.formats.csv_ends import multiline_ends
from tidelog.collection.formats.dialect import CsvDialect
from tidelog.collection.formats.doubt_casts import are_utf8, as_mask
from tidelog.collection.formats.places import PIECE_BYTES, Bools, Bytes, Int64s, places_of

_NEWLINE: Final = 10
STEPS_MAX: Final = 16
WHITE: Final = b" \t\r\n"


def record_ends(data: bytes, dialect: CsvDialect | None = None, *, final: bool = True) -> Int64s:
    """Return the offsets right after each complete record's line end.

    ``dialect`` is that of csv. ``final`` says that nothing follows ``data``: else a record whose
    last line is not there yet ends nowhere.
    """
    if dialect is not None and dialect.multiline and dialect.quote:
        return multiline_ends(data, dialect, final=final)
    return places_of(_NEWLINE, data) + 1


def split_records(data: bytes, dialect: CsvDialect | None = None) -> tuple[Int64s, Int64s]:
    """Return where the records of a range start and end; blank ones are left out.

    The last one may lack its line end: a range that was taken so ends with the file.
    """
    return split_at(data, record_ends(data, dialect), white=white_of(dialect))


def white_of(dialect: CsvDialect | None) -> bytes:
    """Return what a blank line consists of: a delimiter is none of it, as it stands for nulls."""
    return WHITE if dialect is None else WHITE.replace(dialect.delimiter.encode(), b"")


def split_at(
    data: bytes, ends: Int64s, *, start: int = 0, white: bytes = WHITE
) -> tuple[Int64s, Int64s]:
    """Return where the records from ``start`` on start and end; all ends but the last are known.

    Blank ones are left out.
    """
    ends = ends[np.searchsorted(ends, start, side="right") :]
    if start < len(data) and (not ends.size or ends[-1] < len(data)):
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.full(1, start, np.int64), ends[:-1]])[: ends.size]
    doubtful = np.flatnonzero(_are_white(data, starts, white))
    if not doubtful.size:
        return starts, ends
    first, _ = trim_records(data, starts[doubtful], ends[doubtful], white)
    there = np.ones(len(starts), dtype=np.bool_)
    there[doubtful] = first < ends[doubtful]
    return starts[there], ends[there]


def outer_bytes(data: bytes, starts: Int64s, ends: Int64s) -> tuple[Bytes, Bytes]:
    """Return the first and the last byte of each record that is not white space; none is blank."""
    raw = np.frombuffer(data, dtype=np.uint8)
    first, last = trim_records(data, starts, ends)
    return raw[first], raw[last]


def are_text(data: bytes, ends: Int64s) -> Bools:
    """Say of each record whether it is UTF-8; what lies between records is blank."""
    view = memoryview(data)
    found = np.ones(len(ends), dtype=np.bool_)
    at = 0
    while at < len(data):
        # Only in pieces with bad records is each record looked at.
        last = min(int(np.searchsorted(ends, at + PIECE_BYTES)), len(ends) - 1)
        limit = int(ends[last]) if last >= 0 and ends[last] > at else len(data)
        try:
            str(view[at:limit], "utf-8")
            at = limit
        except UnicodeDecodeError:
            first = int(np.searchsorted(ends, at, side="right"))
            offsets = np.append(at, ends[first : last + 1])
            found[first : last + 1] = as_mask(are_utf8(_spans(data, offsets)))
            at = limit
    return found


def _spans(data: bytes, offsets: Int64s) -> pa.Array[Any]:
    """Return the bytes between each two offsets, without a copy."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int64).tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def trim_records(
    data: bytes, starts: Int64s, ends: Int64s, white: bytes = WHITE
) -> tuple[Int64s, Int64s]:
    """Return where each record's first and last byte stand that are not white space.

    Of a blank record, the first is its end, and the last lies before its start.
    """
    first, last = starts.copy(), ends - 1
    low = np.flatnonzero(_are_white(data, first, white) & (first < ends))
    high = np.flatnonzero(_are_white(data, last, white) & (last >= starts))
    for _ in range(STEPS_MAX):
        if not low.size and not high.size:
            return first, last
        # Each step looks only at the records that still began, or ended, with white space.
        first[low] += 1
        last[high] -= 1
        low = low[_are_white(data, first[low], white) & (first[low] < ends[low])]
        high = high[_are_white(data, last[high], white) & (last[high] >= starts[high])]
    for row in np.union1d(low, high).tolist():
        record = data[starts[row] : ends[row]]
        first[row] = ends[row] - len(record.lstrip(white))
        last[row] = starts[row] + len(record.rstrip(white)) - 1
    return first, last


def _are_white(data: bytes, places: Int64s, white: bytes) -> Bools:
    """Say of each place whether a byte of white space stands there, or at the nearest end."""
    blank = np.zeros(256, dtype=np.bool_)
    blank[list(white)] = True
    raw = np.frombuffer(data, dtype=np.uint8)
    found: Bools = (
        blank[raw.take(places, mode="clip")] if len(raw) else np.zeros(len(places), np.bool_)
    )
    return found
