"""Json arrays: text whose records are the elements of one array, rewritten as lines. Pure.

The byte that ends an element becomes a line end, and each line end becomes a space. All other bytes
stay in their places. So offsets are those of the file, and the decoder of json lines reads the
elements.

Invalid json makes few other elements bad. If a line has an odd number of quotes, its last quote
does not count. Brackets within an object need not match. Only an object that is never closed
extends to the end of the text.

Invariants: the end of an element does not depend on the bytes after it. So a text that is cut at
ends of elements has the same ends as the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tidelog.collection.formats.lines import Bools, Bytes, Int64s

ARRAY_FORMAT: Final = "json-array"
ARRAY_MARK: Final = b"["  # The header of a range of a file that is an array.
PIECE_BYTES: Final = 1 << 16  # Such a piece fits in the processor's cache.
_BYTE_ORDER: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r\n"
_QUOTE, _ESCAPE, _LINE, _COMMA, _CLOSE, _SPACE = (ord(c) for c in '"\\\n,] ')
_STRAY: Final = ord("'")  # Replaces a stray quote: json permits it only in strings.
_MARKS: Final = np.zeros(256, np.bool_)
_MARKS[list(b"[]{},")] = True
_BRACES: Final = np.zeros(256, np.int64)
_BRACES[ord("{")], _BRACES[ord("}")] = 1, -1
_BRACKETS: Final = np.zeros(256, np.int64)
_BRACKETS[ord("[")], _BRACKETS[ord("]")] = 1, -1


def array_mark(data: bytes) -> bytes:
    """Return the mark of a file that begins with ``data``; b"" if it is not an array."""
    begin = data.removeprefix(_BYTE_ORDER).lstrip(_BLANK)
    return ARRAY_MARK if begin.startswith(ARRAY_MARK) else b""


def array_lines(data: bytes, *, inside: bool) -> bytes:
    """Return the elements as lines. With ``inside``, ``data`` begins between two elements."""
    out = np.frombuffer(data, np.uint8).copy()
    if not inside:
        out[data.index(ARRAY_MARK)] = _SPACE
    strays = _stray_quotes(out)
    scan = _Scan(strays)
    for at, limit in _pieces(out):
        scan.rewrite(out[at:limit], at)
    out[strays] = _STRAY
    return out.tobytes()


def array_end(data: bytes, *, inside: bool) -> int | None:
    """Return the offset after the bracket that closes the array; None if it is not closed.

    With ``inside``, ``data`` begins between two elements.
    """
    out = np.frombuffer(data, np.uint8).copy()
    if not inside:
        out[data.index(ARRAY_MARK)] = _SPACE
    scan = _Scan(_stray_quotes(out))
    for at, limit in _pieces(out):
        scan.rewrite(out[at:limit], at)
        if scan.closed is not None:
            return scan.closed
    return None


def _pieces(raw: Bytes) -> Iterator[tuple[int, int]]:
    """Yield the bounds of pieces; no piece ends with an escape character."""
    at = 0
    while at < len(raw):
        limit = min(at + PIECE_BYTES, len(raw))
        while limit < len(raw) and raw[limit - 1] == _ESCAPE:
            limit += 1
        yield at, limit
        at = limit


def _stray_quotes(raw: Bytes) -> Int64s:
    """Return the place of the last quote of each whole line with an odd number of quotes."""
    strays = [np.zeros(0, np.int64)]
    carried, last = 0, -1
    for at, limit in _pieces(raw):
        quotes = _quotes(raw[at:limit])
        lines = np.flatnonzero(raw[at:limit] == _LINE)
        until = np.searchsorted(quotes, lines)
        counts = np.diff(until, prepend=-carried)
        lasts = np.append(last - at, quotes)[until]
        strays.append(lasts[counts % 2 == 1] + at)
        carried = len(quotes) - int(until[-1]) if len(lines) else carried + len(quotes)
        last = int(quotes[-1]) + at if len(quotes) else last
    return np.concatenate(strays)


@dataclass(slots=True)
class _Scan:
    """The state of a scan: the numbers of open objects and arrays, and if a string is open.

    ``closed`` is the offset after the bracket that closes the outer array.
    """

    strays: Int64s
    objects: int = 0
    arrays: int = 0
    in_string: bool = False
    closed: int | None = None

    def rewrite(self, raw: Bytes, at: int) -> None:
        """Rewrite a piece, which begins at offset ``at``, in place."""
        quotes = _quotes(raw)
        if len(self.strays):
            quotes = quotes[~np.isin(quotes + at, self.strays)]
        marks = np.flatnonzero(_MARKS[raw])
        marks = marks[(np.searchsorted(quotes, marks) + self.in_string) % 2 == 0]
        self.in_string = bool((len(quotes) + self.in_string) % 2)
        kinds = raw[marks]
        objects, _ = _levels(_BRACES[kinds], self.objects)
        arrays, closing = _levels(np.where(objects == 0, _BRACKETS[kinds], 0), self.arrays)
        if len(marks):
            self.objects, self.arrays = int(objects[-1]), int(arrays[-1])
        outside = (objects == 0) & (arrays == 0)
        closes = outside & closing & (kinds == _CLOSE)
        if self.closed is None and closes.any():
            self.closed = at + int(marks[closes][0]) + 1
        ends = marks[(outside & (kinds == _COMMA)) | closes]
        raw[raw == _LINE] = _SPACE
        raw[ends] = _LINE


def _levels(steps: Int64s, before: int) -> tuple[Int64s, Bools]:
    """Return the level after each step, at least 0, and a mask of the steps that would go below."""
    levels = before + np.cumsum(steps)
    floor = np.minimum.accumulate(np.minimum(levels, 0)) if len(levels) else levels
    below: Bools = np.diff(floor, prepend=0) < 0
    return levels - floor, below


def _quotes(raw: Bytes) -> Int64s:
    """Return the places of the quotes that are not escaped: an even number of escapes precedes."""
    quotes = np.flatnonzero(raw == _QUOTE)
    if not (raw == _ESCAPE).any():
        return quotes
    escaped = np.zeros(len(quotes), np.bool_)
    left, at = np.arange(len(quotes)), quotes - 1
    while len(left):
        more = (at >= 0) & (raw[np.maximum(at, 0)] == _ESCAPE)
        left, at = left[more], at[more] - 1
        escaped[left] ^= True
    return quotes[~escaped]
