"""The ends of csv records whose quoted fields may have line breaks. Pure.

A quote opens a field only at the field's start. A quote before a delimiter or a line end closes it,
and two quotes within it mean one. If a record breaks these rules, its first line is a bad record of
its own, and parsing continues with the next line.

Invariants: the ends before a place do not depend on the bytes after the record at that place. So
bytes that are cut at any end have the same ends as the whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tidelog.collection.formats.dialect import CsvDialect
from tidelog.collection.formats.places import Bools, Bytes, Int64s, places_of

# If no other quote follows within this distance, a quote does not open a field. This bounds the
# bytes that must be read before a record's end is known.
GAP_BYTES_MAX: Final = 16 * 1024 * 1024
_NEWLINE: Final = 10
_RETURN: Final = 13


def multiline_ends(data: bytes, dialect: CsvDialect, *, final: bool) -> Int64s:
    """Return the offsets right after each complete record's line end.

    ``final`` means that no data follow: then a quote without a closing one does not open a field.
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
    """The search for the pairs of quotes that open and close fields; other quotes are left out.

    Quotes are assumed to open and close in turn, all at once, up to the first one for which that is
    impossible. The search then continues after that one.
    """

    def __init__(self, raw: Bytes, lines: Int64s, quotes: Int64s, delimiter: int) -> None:
        self.raw, self.lines, self.quotes, self.delimiter = raw, lines, quotes, delimiter
        self._taken = np.zeros(len(quotes), dtype=np.int64)
        self._count = 0

    def pairs(self) -> Int64s:
        """Return the places of the quotes that open and close fields, in turn."""
        return self._taken[: self._count]

    def run(self, *, final: bool) -> int:
        """Find all pairs; return the offset up to which the record ends are decided."""
        starts, strays = self._strays()
        first, total, size = 0, len(self.quotes), len(self.raw)
        while first < total:
            if not starts[first]:
                first += 1  # The quote is within a field that is not quoted.
                continue
            place = int(np.searchsorted(strays[first % 2], first))
            stray = int(strays[first % 2][place]) if place < len(strays[first % 2]) else total
            opening = stray - (stray - first) % 2
            self._take(first, opening)
            first = stray
            if opening < stray:
                # The quote at ``opening`` has no valid closing quote. If more data may bring one,
                # its record is undecided. Otherwise the first line of the record is bad.
                quote = int(self.quotes[opening])
                record = self._record_start(quote)
                if stray == total and not final and size - quote <= GAP_BYTES_MAX:
                    return record
                first = self._skip_line(record)
        return size

    def _strays(self) -> tuple[Bools, tuple[Int64s, Int64s]]:
        """Return a mask of the quotes that can open a field, and the quotes that break the turn.

        The latter come twice: for the assumption that even quotes open fields, and for odd ones.
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
        """Return the start of the record that contains a quote."""
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
        """Drop the pairs of a record; return the index of the first quote after its first line."""
        self._count = int(np.searchsorted(self.pairs(), record))
        line = int(np.searchsorted(self.lines, record))
        if line >= len(self.lines):
            return len(self.quotes)
        return int(np.searchsorted(self.quotes, self.lines[line]))
