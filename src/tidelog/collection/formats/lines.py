"""Lines: the dialect of text files, and the boundaries of their records. Pure.

A record ends at a line end. In csv with line breaks in quotes, it ends at a line end outside of
quotes: see `multiline_ends`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

Array: TypeAlias = "pa.Array[Any]"

PIECE_BYTES: Final = 1 << 18
# Arrow matches binary values byte by byte, as characters of Latin-1.
_UTF8: Final = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]"
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)


def places_of(byte: int, data: bytes) -> Int64s:
    """Return the offsets of a byte."""
    raw = np.frombuffer(data, dtype=np.uint8)
    # Pieces that fit in the processor's cache take half the time of one pass over all.
    found = [
        np.flatnonzero(raw[start : start + PIECE_BYTES] == byte) + start
        for start in range(0, len(raw), PIECE_BYTES)
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])


def are_utf8(array: Array) -> Array:
    """Return True for each value that is UTF-8."""
    return pc.match_substring_regex(array, _UTF8)


def as_mask(booleans: Array) -> Bools:
    """Return booleans as a NumPy array; null becomes False."""
    return np.asarray(booleans.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


class CsvDialect(msgspec.Struct, frozen=True, kw_only=True):
    """The dialect of csv files; ``ignore_case`` applies to files of every format.

    Shape: ``delimiter`` and ``quote`` are one ASCII character each; ``quote`` is "" if fields are
        never quoted. A field without quotes is null if it is empty or one of ``nulls``.
        ``date_format`` and ``timestamp_format`` are for strptime; ISO 8601 is always read too.
        ``names`` are the column names of files without a header, and else empty. With
        ``multiline``, quoted fields may have line breaks. ``inferred`` is True if the column types
        were inferred: then texts must match the patterns of inference. It is unset if the types
        were given, and in sources of older versions.
    """

    delimiter: str = ","
    quote: str = '"'
    nulls: tuple[str, ...] = ()
    date_format: str | None = None
    timestamp_format: str | None = None
    names: tuple[str, ...] = ()
    multiline: bool = False
    inferred: bool | msgspec.UnsetType = msgspec.UNSET
    ignore_case: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def folds_case(self) -> bool:
        """Return True if names in files match those of the source whatever their case."""
        return self.ignore_case is True

    @property
    def is_inferred(self) -> bool:
        return self.inferred is True

    @property
    def has_header(self) -> bool:
        return not self.names


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


# If no other quote follows within this distance, a quote does not open a field. This bounds the
# bytes that must be read before a record's end is known.
GAP_BYTES_MAX: Final = 16 * 1024 * 1024
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
