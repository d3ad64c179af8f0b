"""Parts: immutable objects of sorted records, their descriptors and their layouts. Pure.

Shape: a part is Parquet, sorted by (key, sequence). Its key directory is a second Parquet object
    (see `directory`), which also has the part's layout: the places of row groups and of pages. The
    page reader requests single pages by byte range, and the group reader whole row groups. Neither
    reads the part's own footer first.
Invariants: both objects are written once, and the descriptor describes their bytes. Within a row
    group, the number of rows of each page but the last is a multiple of `page_rows`. Pages of
    values have exactly `page_rows` rows, unless the values are small; pages of numbers have more.
    The rows of a key are in sequence order. If a key has more rows than a stride, the layout has
    the first sequence of each stride of the key, except the stride in which the key begins.
Source: rfc-0001, "Physical organization"; design page 5.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from tidelog.errors import require
from tidelog.keyed.format.records import SEQUENCE, TIMESTAMP, VALUE, Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """The descriptor of a part of a run in a state; any process can read the part with it.

    Shape: ``path`` and ``directory`` are the paths of its objects. The directory ends with a footer
        of ``tail_bytes``, with which a large directory is read in pieces. The checksums are xxh3 of
        128 bits: of the directory, and of its footer.
    Units: ``rows`` records of ``keys`` keys, from ``first_key`` to ``last_key``; sequences from
        ``min_sequence`` to ``max_sequence``, and times from ``first_us`` to ``last_us``, all
        inclusive. ``num_bytes`` and ``directory_bytes`` as stored.
    """

    path: str
    directory: str
    rows: int
    keys: int
    num_bytes: int
    directory_bytes: int
    first_key: bytes
    last_key: bytes
    min_sequence: int
    max_sequence: int
    first_us: int
    last_us: int
    tail_bytes: int
    directory_xxh3: bytes
    tail_xxh3: bytes

    def __post_init__(self) -> None:
        require(
            0 < self.keys <= self.rows, "a part must have keys, and at least one record for each"
        )
        require(
            self.first_key <= self.last_key, "a part's first key must not be after its last key"
        )
        require(
            self.min_sequence <= self.max_sequence,
            "a part's least sequence must not be above its greatest",
        )

    def may_hold(self, start: int, limit: int) -> bool:
        """Return True if the part may have records of the sequences ``[start, limit)``."""
        return start <= self.max_sequence and self.min_sequence < limit


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPart:
    """A part and the bytes of its two objects; store the directory last."""

    part: RunPart
    data: bytes
    directory: bytes


@dataclass(frozen=True, slots=True)
class KeyRows:
    """The place of a key's records in a part: rows ``[first_row, first_row + rows)``."""

    first_row: int
    rows: int
    min_sequence: int
    max_sequence: int


def directory_path(path: str) -> str:
    """Return the path of a part's directory."""
    return path.removesuffix(".parquet") + ".keys.parquet"


PAGED: Final = (TIMESTAMP, SEQUENCE, VALUE)  # In their order within a row group.
# The largest part needs 128 MiB: eight bytes for each page.
UNPACKED_MAX: Final = 256 * 1024 * 1024
_LEVEL: Final = 6


class Span(NamedTuple):
    """Bytes ``[start, limit)`` of a file."""

    start: int
    limit: int


class PagePlace(NamedTuple):
    """A page: its byte range, its first row in the part, and its number of rows."""

    span: Span
    first_row: int
    rows: int


@dataclass(frozen=True)
class PartLayout:
    """The places of row groups and pages.

    Shape: for n row groups, ``group_rows`` has n + 1 rows: the start of each group, and the end of
        the last. ``group_places`` has the same in bytes, ``group_sizes`` the decoded bytes of each
        group, and ``group_xxh3`` a 64-bit checksum of each. The next three have an entry for each
        column of `PAGED`. ``chunk_places`` is the start of its pages in each row group.
        ``page_bytes`` is the size of each page including its header, and ``page_counts`` the rows
        of each page. A row group is divided into *strides* of ``page_rows`` rows; the last one is
        shorter. ``first_sequences`` has the sequence of each stride's first row if that row's key
        has more rows than a stride, else 0.
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
        """The approximate memory in bytes."""
        pages = sum(len(sizes) for sizes in self.page_bytes)
        return 8 * (4 * self.groups + 3 * self.groups + 4 * pages + len(self.first_sequences))

    @cached_property
    def _first_strides(self) -> Numbers:
        """The first stride of each row group, and the total number of strides."""
        return first_strides_of(self.group_rows, self.page_rows)

    @cached_property
    def _page_starts(self) -> tuple[Numbers, ...]:
        """For each column of `PAGED`: the first row of each page, and the total number of rows."""
        return tuple(np.concatenate([[0], np.cumsum(counts)]) for counts in self.page_counts)

    @cached_property
    def _page_places(self) -> tuple[Numbers, ...]:
        """For each column of `PAGED`: the start of each page, in bytes."""
        page_places = []
        columns = zip(self.chunk_places, self.page_bytes, self._page_starts, strict=True)
        for places, sizes, starts in columns:
            groups = np.searchsorted(self.group_rows, starts[:-1], side="right") - 1
            firsts = np.searchsorted(starts, self.group_rows[:-1])
            before = np.cumsum(sizes) - sizes
            page_places.append(before - before[firsts[groups]] + places[groups])
        return tuple(page_places)

    def group_of(self, row: int) -> int:
        """Return the row group of a row."""
        return int(np.searchsorted(self.group_rows, row, side="right")) - 1

    def stride_of(self, row: int) -> int:
        """Return the stride of a row."""
        group = self.group_of(row)
        first = int(self._first_strides[group])
        return first + (row - int(self.group_rows[group])) // self.page_rows

    def first_row_of(self, stride: int) -> int:
        """Return the first row of a stride; for the one after the last, the number of rows."""
        group = int(np.searchsorted(self._first_strides, stride, side="right")) - 1
        if group >= self.groups:
            return self.rows
        within = stride - int(self._first_strides[group])
        return int(self.group_rows[group]) + within * self.page_rows

    def pages(self, column: int, first: int, limit: int) -> list[PagePlace]:
        """Return the places of a column's pages that overlap the rows ``[first, limit)``.

        Columns are numbered as in `PAGED`.
        """
        if first >= limit:
            return []
        starts, sizes = self._page_starts[column], self.page_bytes[column]
        pages = []
        begin = int(np.searchsorted(starts, first, side="right")) - 1
        for page in range(begin, int(np.searchsorted(starts, limit, side="left"))):
            at, row = int(self._page_places[column][page]), int(starts[page])
            span = Span(at, at + int(sizes[page]))
            pages.append(PagePlace(span, row, int(starts[page + 1]) - row))
        return pages

    def group_span(self, first: int, limit: int) -> Span:
        """Return the byte range of consecutive row groups."""
        return Span(int(self.group_places[first]), int(self.group_places[limit]))


def first_strides_of(group_rows: Numbers, page_rows: int) -> Numbers:
    """Return the first stride of each row group, and the total number of strides."""
    strides = -(-np.diff(group_rows) // page_rows)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(strides)]).astype(np.int64)


def even_counts(group_rows: Numbers, page_rows: int) -> Numbers:
    """Return the rows of each page if there is one page per stride."""
    firsts = first_strides_of(group_rows, page_rows)
    counts = np.full(int(firsts[-1]), page_rows, np.int64)
    counts[firsts[1:] - 1] = np.diff(group_rows) - (np.diff(firsts) - 1) * page_rows
    return counts


def encode_layout(layout: PartLayout) -> list[bytes]:
    """Encode a layout: each list of numbers is packed."""
    lists = [
        np.array([layout.page_rows]),
        np.diff(layout.group_rows),
        np.diff(layout.group_places, prepend=0),
        layout.group_sizes,
        layout.group_xxh3.view(np.int64),
        # Relative to the row group's own place: small, similar numbers compress well.
        *(places - layout.group_places[:-1] for places in layout.chunk_places),
        *layout.page_bytes,
        layout.first_sequences,
        *layout.page_counts,
    ]
    return [pack(numbers) for numbers in lists]


def decode_layout(packed: list[bytes]) -> PartLayout:
    """Decode a layout. Raises: ValueError: it is not one."""
    page_rows, rows, places, sizes, sums, *others = (unpack(piece) for piece in packed)
    group_places = np.cumsum(places)
    columns = len(PAGED)
    group_rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows)])
    return PartLayout(
        page_rows=int(page_rows[0]),
        group_rows=group_rows,
        group_places=group_places,
        group_sizes=sizes,
        group_xxh3=sums.view(np.uint64),
        chunk_places=tuple(offsets + group_places[:-1] for offsets in others[:columns]),
        page_bytes=tuple(others[columns : 2 * columns]),
        # Format 1 has no page counts: all columns had the same pages.
        page_counts=tuple(others[2 * columns + 1 :])
        or columns * (even_counts(group_rows, int(page_rows[0])),),
        first_sequences=others[2 * columns],
    )


def pack(numbers: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    """Compress numbers: all first bytes are stored together, then all second bytes, and so on."""
    spelled = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    return zlib.compress(spelled.T.tobytes(), _LEVEL)


def unpack(packed: bytes) -> Numbers:
    """Return the numbers of `pack`. Raises: ValueError: the bytes are not packed numbers."""
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(packed, UNPACKED_MAX)
    except zlib.error as error:
        raise ValueError("packed numbers are truncated or damaged") from error
    if not unpacking.eof:
        raise ValueError("packed numbers are truncated or too many")
    spelled = np.frombuffer(plain, np.uint8).reshape(8, -1)
    return np.ascontiguousarray(spelled.T).view("<i8").reshape(-1).astype(np.int64)


class PartRows(NamedTuple):
    """Rows ``[first, limit)`` of a part."""

    first: int
    limit: int

    @property
    def rows(self) -> int:
        return self.limit - self.first


class Edges(NamedTuple):
    """The bounds of the first and the last row of a range of sequences within a key's rows.

    The range begins between ``first_least`` and ``first_most``, and ends between ``limit_least``
    and ``limit_most``.
    """

    first_least: int
    first_most: int
    limit_least: int
    limit_most: int


def edges_of(layout: PartLayout, found: KeyRows, start: int, limit: int) -> Edges:
    """Return the bounds of the rows of the sequences ``[start, limit)`` of a key."""
    first_least, first_most = _row_of(layout, found, start)
    limit_least, limit_most = _row_of(layout, found, limit)
    return Edges(first_least, first_most, limit_least, limit_most)


def rows_to_read(
    layout: PartLayout,
    found: KeyRows,
    start: int,
    limit: int,
    *,
    rows_max: int | None = None,
    newest_first: bool = False,
) -> PartRows:
    """Return rows that include all of a key's sequences ``[start, limit)``, or enough of them.

    With ``rows_max``, that many of the first rows are enough, or of the last with ``newest_first``.
    """
    edges = edges_of(layout, found, start, limit)
    first, end = edges.first_least, edges.limit_most
    if rows_max is not None and newest_first:
        first = max(first, edges.limit_least - rows_max)
    elif rows_max is not None:
        end = min(end, edges.first_most + rows_max)
    return PartRows(first, max(first, end))


def _row_of(layout: PartLayout, key_rows: KeyRows, sequence: int) -> tuple[int, int]:
    """Return the least and the greatest possible index of the first row at or after a sequence."""
    first, limit = key_rows.first_row, key_rows.first_row + key_rows.rows
    if sequence <= key_rows.min_sequence:
        return first, first
    if sequence > key_rows.max_sequence:
        return limit, limit
    # The row is neither the first nor the end: these two cases are handled above.
    if key_rows.rows <= layout.page_rows:
        return first + 1, limit - 1
    stride, last = layout.stride_of(first), layout.stride_of(limit - 1)
    known = layout.first_sequences[stride + 1 : last + 1]
    stride += int(np.searchsorted(known, sequence, side="left"))
    # The first row of this stride is before the sequence, and that of the next stride is not.
    return (
        max(first, layout.first_row_of(stride)) + 1,
        min(limit - 1, layout.first_row_of(stride + 1)),
    )
