"""Lines: where the records of a text file end. Pure.

A record of json lines ends at a line end. A record of csv ends at a line end outside of quotes: one
that an even number of quotes stands before.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Int64s = np.ndarray[Any, np.dtype[np.int64]]

_NEWLINE: Final = 10
_QUOTE: Final = 34
_BLANK: Final = frozenset(b" \t\r\n")


def record_ends(data: bytes, *, quoted: bool) -> Int64s:
    """Give the offsets right after each complete record's line end.

    ``quoted`` says that line ends inside of double quotes do not count (csv).
    """
    raw = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    if quoted and ends.size:
        quotes = np.flatnonzero(raw == _QUOTE)
        if quotes.size:
            ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return (ends + 1).astype(np.int64)


def is_blank(data: bytes) -> bool:
    return not data.strip()


def split_records(data: bytes, *, quoted: bool) -> tuple[Int64s, Int64s]:
    """Give where the records of a range start and end; blank ones are left out.

    The last one may lack its line end: a range that was taken so ends with the file.
    """
    ends = record_ends(data, quoted=quoted)
    if not ends.size or ends[-1] < len(data):
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    raw = np.frombuffer(data, dtype=np.uint8)
    # A record is blank if nothing but white space is in it: count the bytes that are not.
    ink = np.concatenate(
        [np.zeros(1, np.int64), np.cumsum(~np.isin(raw, list(_BLANK)), dtype=np.int64)]
    )
    there = ink[ends] > ink[starts]
    return starts[there], ends[there]
