"""Where the records of csv end whose quoted fields may hold line ends. Pure.

A quote opens a field only at the field's start, and what it opens is closed by a quote before a
delimiter or a line end; two quotes in it are one. Where a record does not keep to that, its first
line is a record of its own, a bad one, and the next line is read again.

Invariants: what ends before a place does not depend on what stands behind the record there, so
that bytes that are cut at any end have the ends that they had together.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tidelog.collection.formats.dialect import CsvDialect
from tidelog.collection.formats.places import Bools, Bytes, Int64s, places_of

# A quote that is not followed by another one within so many bytes has opened nothing.
GAP_BYTES_MAX: Final = 16 * 1024 * 1024
_NEWLINE: Final = 10
_RETURN: Final = 13


def multiline_ends(data: bytes, dialect: CsvDialect, *, final: bool) -> Int64s:
    """Return the offsets right after each complete record's line end.

    ``final`` says that nothing follows: a quote that is open at the end has opened nothing.
    """
    lines = places_of(_NEWLINE, data)
    quotes = places_of(ord(dialect.quote), data)
    if not quotes.size:
        return lines + 1
    scan = _Scan(np.frombuffer(data, dtype=np.uint8), lines, quotes, ord(dialect.delimiter))
    limit = scan.run(final=final)
    lines = lines[lines < limit]
    outside: Bools = np.searchsorted(scan.pairs(), lines) % 2 == 0
    return lines[outside] + 1


class _Scan:
    """Quotes that open and close fields, found pair by pair; those that do neither are left out.

    Quotes are taken for an opening and a closing one in turn, all at once up to the first of which
    that cannot be; then it is gone on behind that one.
    """

    def __init__(self, raw: Bytes, lines: Int64s, quotes: Int64s, delimiter: int) -> None:
        self.raw, self.lines, self.quotes, self.delimiter = raw, lines, quotes, delimiter
        self._taken = np.zeros(len(quotes), dtype=np.int64)
        self._count = 0

    def pairs(self) -> Int64s:
        """Return the places of quotes that open and close, in turn."""
        return self._taken[: self._count]

    def run(self, *, final: bool) -> int:
        """Find all pairs; return the end of what is decided."""
        starts, strays = self._strays()
        first, total, size = 0, len(self.quotes), len(self.raw)
        while first < total:
            if not starts[first]:
                first += 1  # It stands within a field that is not quoted.
                continue
            place = int(np.searchsorted(strays[first % 2], first))
            stray = int(strays[first % 2][place]) if place < len(strays[first % 2]) else total
            opening = stray - (stray - first) % 2
            self._take(first, opening)
            first = stray
            if opening < stray:
                # What this one opens, is not closed: by what stands behind it, or at all.
                quote = int(self.quotes[opening])
                record = self._record_start(quote)
                if stray == total and not final and size - quote <= GAP_BYTES_MAX:
                    return record
                first = self._skip_line(record)
        return size

    def _strays(self) -> tuple[Bools, tuple[Int64s, Int64s]]:
        """Say which quotes can open a field, and which cannot be what they are taken for.

        The latter twice: where those of even number are taken to open, and those of odd number.
        """
        raw, quotes, size = self.raw, self.quotes, len(self.raw)
        before = raw[np.maximum(quotes - 1, 0)]
        after, next_ = (raw[np.minimum(quotes + n, size - 1)] for n in (1, 2))
        starts = (quotes == 0) | (before == self.delimiter) | (before == _NEWLINE)
        twin = np.append(np.diff(quotes) == 1, False)
        closes = (quotes + 1 >= size) | (after == self.delimiter) | (after == _NEWLINE) | twin
        closes |= (after == _RETURN) & ((quotes + 2 >= size) | (next_ == _NEWLINE))
        closes[1:] &= np.diff(quotes) <= GAP_BYTES_MAX
        opens = starts.copy()
        opens[1:] |= twin[:-1]
        even = np.arange(len(quotes)) % 2 == 0
        return starts, (
            np.flatnonzero(~np.where(even, opens, closes)),
            np.flatnonzero(~np.where(even, closes, opens)),
        )

    def _take(self, first: int, limit: int) -> None:
        self._taken[self._count : self._count + limit - first] = self.quotes[first:limit]
        self._count += limit - first

    def _record_start(self, place: int) -> int:
        """Return where the record begins that a quote stands in."""
        pairs = self.pairs()
        at = len(pairs)
        while True:
            low = int(pairs[at - 1]) if at else -1
            line = int(np.searchsorted(self.lines, place)) - 1
            if line >= 0 and self.lines[line] > low:
                return int(self.lines[line]) + 1
            if not at:
                return 0
            place, at = int(pairs[at - 2]), at - 2

    def _skip_line(self, record: int) -> int:
        """Forget what a record opened; return the first quote behind its first line."""
        self._count = int(np.searchsorted(self.pairs(), record))
        line = int(np.searchsorted(self.lines, record))
        if line >= len(self.lines):
            return len(self.quotes)
        return int(np.searchsorted(self.quotes, self.lines[line]))
