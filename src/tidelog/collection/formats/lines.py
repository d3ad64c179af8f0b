"""Lines: the boundaries of the records of a text file. Pure.

A record ends at a line end. For csv with line breaks in quotes, see `csv_ends`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.collection.formats.csv_ends import multiline_ends
from tidelog.collection.formats.dialect import CsvDialect
from tidelog.collection.formats.places import PIECE_BYTES, Bools, Bytes, Int64s, places_of
from tidelog.collection.formats.suspect_casts import are_utf8, as_mask

_NEWLINE: Final = 10
STEPS_MAX: Final = 16
WHITE: Final = b" \t\r\n"


def record_ends(data: bytes, dialect: CsvDialect | None = None, *, final: bool = True) -> Int64s:
    """Return the offsets right after each complete record's line end.

    ``dialect`` is that of csv. ``final`` means that no bytes follow ``data``. Without it, a csv
    record with an open quote is not complete.
    """
    if dialect is not None and dialect.multiline and dialect.quote:
        return multiline_ends(data, dialect, final=final)
    return places_of(_NEWLINE, data) + 1


def split_records(data: bytes, dialect: CsvDialect | None = None) -> tuple[Int64s, Int64s]:
    """Return the starts and ends of the records of a range, without blank ones.

    The last record may lack its line end: such a range ends with the file.
    """
    return split_at(data, record_ends(data, dialect), white=white_of(dialect))


def white_of(dialect: CsvDialect | None) -> bytes:
    """Return the characters of a blank line; a delimiter is not one, because it separates nulls."""
    return WHITE if dialect is None else WHITE.replace(dialect.delimiter.encode(), b"")


def split_at(
    data: bytes, ends: Int64s, *, start: int = 0, white: bytes = WHITE
) -> tuple[Int64s, Int64s]:
    """Return the starts and ends of the records after ``start``, without blank ones.

    ``ends`` has all ends, except perhaps that of the last record.
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
    """Return the first and the last byte of each record, without white space; none is blank."""
    raw = np.frombuffer(data, dtype=np.uint8)
    first, last = trim_records(data, starts, ends)
    return raw[first], raw[last]


def are_text(data: bytes, ends: Int64s) -> Bools:
    """Return a mask of the records that are UTF-8; the bytes between records are blank."""
    view = memoryview(data)
    found = np.ones(len(ends), dtype=np.bool_)
    at = 0
    while at < len(data):
        # Decode a whole piece first. Examine its records one by one only if that fails.
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
    """Return the bytes between adjacent offsets, without a copy."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int64).tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def trim_records(
    data: bytes, starts: Int64s, ends: Int64s, white: bytes = WHITE
) -> tuple[Int64s, Int64s]:
    """Return the places of each record's first and last byte that are not white space.

    For a blank record, the first place is its end, and the last place is before its start.
    """
    first, last = starts.copy(), ends - 1
    low = np.flatnonzero(_are_white(data, first, white) & (first < ends))
    high = np.flatnonzero(_are_white(data, last, white) & (last >= starts))
    for _ in range(STEPS_MAX):
        if not low.size and not high.size:
            return first, last
        # Each step examines only the records that still begin or end with white space.
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
    """Return a mask of the places with white space; a place outside of ``data`` is clipped."""
    blank = np.zeros(256, dtype=np.bool_)
    blank[list(white)] = True
    raw = np.frombuffer(data, dtype=np.uint8)
    found: Bools = (
        blank[raw.take(places, mode="clip")] if len(raw) else np.zeros(len(places), np.bool_)
    )
    return found
