"""Where the rows of a part lie in its file: row groups, and pages of its columns. Pure.

The page reader asks for a few pages by their bytes, and the group reader for whole row groups; both
know from here where they are, and neither reads the file's own footer to learn it.

Invariants: within a row group, each page but the last has a multiple of `page_rows` rows: those of
    values as many as that, but where they are small; those of numbers more.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from tidelog.keyed.format.records import SEQUENCE, TIMESTAMP, VALUE, Numbers

PAGED: Final = (TIMESTAMP, SEQUENCE, VALUE)  # As they follow each other in a row group.
UNPACKED_MAX: Final = 256 * 1024 * 1024  # Eight bytes of each page of the largest part are 128 MiB.
_LEVEL: Final = 6


class Span(NamedTuple):
    """Bytes ``[start, limit)`` of a file."""

    start: int
    limit: int


class PagePlace(NamedTuple):
    """A page: its bytes, the row of the part that is its first, and how many rows it has."""

    span: Span
    first_row: int
    rows: int


@dataclass(frozen=True)
class PartLayout:
    """Where row groups and pages are.

    Shape: of n row groups, ``group_rows`` has n + 1 rows: where each begins, and where all end;
        ``group_places`` the same of bytes; ``group_sizes`` the bytes of each, decoded;
        ``group_xxh3`` the checksum of 64 bits of each. ``chunk_places`` has for each of `PAGED`
        where its pages begin in each row group, ``page_bytes`` the bytes of each of its pages,
        header and all, and ``page_counts`` the rows of each. A row group is cut into *strides* of
        ``page_rows`` rows, the last one less: ``first_sequences`` has the sequence of each stride's
        first row where that one's key has more rows than a stride, else 0.
    """

    page_rows: int
    group_rows: Numbers
    group_places: Numbers
    group_sizes: Numbers
    group_xxh3: np.ndarray[Any, np.dtype[np.uint64]]
    chunk_places: tuple[Numbers, ...]
    page_bytes: tuple[Numbers, ...]
    page_counts: tuple[Numbers, ...]
    first_sequences: Numbers

    @property
    def rows(self) -> int:
        return int(self.group_rows[-1])

    @property
    def groups(self) -> int:
        return len(self.group_sizes)

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        pages = sum(len(sizes) for sizes in self.page_bytes)
        return 8 * (4 * self.groups + 3 * self.groups + 4 * pages + len(self.first_sequences))

    @cached_property
    def _first_strides(self) -> Numbers:
        """Of each row group the number of its first stride, and last how many there are."""
        return first_strides_of(self.group_rows, self.page_rows)

    @cached_property
    def _page_starts(self) -> tuple[Numbers, ...]:
        """The first row of each page, of each of `PAGED`; and last how many rows there are."""
        return tuple(np.concatenate([[0], np.cumsum(counts)]) for counts in self.page_counts)

    @cached_property
    def _page_places(self) -> tuple[Numbers, ...]:
        """Where each page begins, of each of `PAGED`."""
        found = []
        columns = zip(self.chunk_places, self.page_bytes, self._page_starts, strict=True)
        for places, sizes, starts in columns:
            groups = np.searchsorted(self.group_rows, starts[:-1], side="right") - 1
            firsts = np.searchsorted(starts, self.group_rows[:-1])
            before = np.cumsum(sizes) - sizes
            found.append(before - before[firsts[groups]] + places[groups])
        return tuple(found)

    def group_of(self, row: int) -> int:
        """Return which row group has a row."""
        return int(np.searchsorted(self.group_rows, row, side="right")) - 1

    def stride_of(self, row: int) -> int:
        """Return which stride has a row."""
        group = self.group_of(row)
        first = int(self._first_strides[group])
        return first + (row - int(self.group_rows[group])) // self.page_rows

    def first_row_of(self, stride: int) -> int:
        """Return the first row of a stride; of the one after the last, the number of rows."""
        group = int(np.searchsorted(self._first_strides, stride, side="right")) - 1
        if group >= self.groups:
            return self.rows
        within = stride - int(self._first_strides[group])
        return int(self.group_rows[group]) + within * self.page_rows

    def pages(self, column: int, first: int, limit: int) -> list[PagePlace]:
        """Return where the pages of a column are that have some of the rows ``[first, limit)``.

        Columns are numbered as in `PAGED`.
        """
        if first >= limit:
            return []
        starts, sizes = self._page_starts[column], self.page_bytes[column]
        found = []
        begin = int(np.searchsorted(starts, first, side="right")) - 1
        for page in range(begin, int(np.searchsorted(starts, limit, side="left"))):
            at, row = int(self._page_places[column][page]), int(starts[page])
            span = Span(at, at + int(sizes[page]))
            found.append(PagePlace(span, row, int(starts[page + 1]) - row))
        return found

    def group_span(self, first: int, limit: int) -> Span:
        """Return the bytes of row groups that follow each other."""
        return Span(int(self.group_places[first]), int(self.group_places[limit]))


def first_strides_of(group_rows: Numbers, page_rows: int) -> Numbers:
    """Return the number of each row group's first stride, and the number of all."""
    strides = -(-np.diff(group_rows) // page_rows)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(strides)]).astype(np.int64)


def even_counts(group_rows: Numbers, page_rows: int) -> Numbers:
    """Return how many rows each page has where there is one for each stride."""
    firsts = first_strides_of(group_rows, page_rows)
    counts = np.full(int(firsts[-1]), page_rows, np.int64)
    counts[firsts[1:] - 1] = np.diff(group_rows) - (np.diff(firsts) - 1) * page_rows
    return counts


def encode_layout(layout: PartLayout) -> list[bytes]:
    """Return a layout as it is stored: each list of numbers packed."""
    lists = [
        np.array([layout.page_rows]),
        np.diff(layout.group_rows),
        np.diff(layout.group_places, prepend=0),
        layout.group_sizes,
        layout.group_xxh3.view(np.int64),
        # From the row group's own place: small numbers that are much alike.
        *(places - layout.group_places[:-1] for places in layout.chunk_places),
        *layout.page_bytes,
        layout.first_sequences,
        *layout.page_counts,
    ]
    return [pack(numbers) for numbers in lists]


def decode_layout(packed: list[bytes]) -> PartLayout:
    """Return a layout that was stored. Raises: ValueError: it is none."""
    page_rows, rows, places, sizes, sums, *others = (unpack(one) for one in packed)
    group_places = np.cumsum(places)
    columns = len(PAGED)
    group_rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows)])
    return PartLayout(
        page_rows=int(page_rows[0]),
        group_rows=group_rows,
        group_places=group_places,
        group_sizes=sizes,
        group_xxh3=sums.view(np.uint64),
        chunk_places=tuple(one + group_places[:-1] for one in others[:columns]),
        page_bytes=tuple(others[columns : 2 * columns]),
        # At first all columns had pages of one size.
        page_counts=tuple(others[2 * columns + 1 :])
        or columns * (even_counts(group_rows, int(page_rows[0])),),
        first_sequences=others[2 * columns],
    )


def pack(numbers: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    """Return numbers as few bytes: their first bytes stand together, then their second ones."""
    spelled = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    return zlib.compress(spelled.T.tobytes(), _LEVEL)


def unpack(packed: bytes) -> Numbers:
    """Return the numbers of `pack`. Raises: ValueError: they are none."""
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(packed, UNPACKED_MAX)
    except zlib.error as error:
        raise ValueError("packed numbers are cut off, or others") from error
    if not unpacking.eof:
        raise ValueError("packed numbers are cut off, or far too many")
    spelled = np.frombuffer(plain, np.uint8).reshape(8, -1)
    return np.ascontiguousarray(spelled.T).view("<i8").reshape(-1).astype(np.int64)
