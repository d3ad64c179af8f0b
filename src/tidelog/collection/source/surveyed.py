"""Surveys: the facts about a file that a plan needs before it binds any of it. Pure.

The engine surveys a file in pieces, by tasks in any process. The result is small, and does not
depend on the number of pieces. For each block it has enough times to choose the same cut as a look
at every row. A cut is before a row whose time exceeds all times before it. In a block, the last
such row is the first one with the block's greatest time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from tidelog.collection.formats.packed.packed import PACKED_RATIO, Packed, codec_of, encode_packed
from tidelog.collection.source.binding import AddressRange, FileRange
from tidelog.collection.source.blocks import BLOCK_BYTES, sums_until

SHORTER: Final = "it became shorter during the read"
WENT: Final = "it disappeared before its new rows were ingested"
CHANGED: Final = "it is not the file whose first rows were ingested"
TORN: Final = (
    "its last line has no line end yet; 'tidelog ingest --final' ingests the line without one"
)
TORN_ARRAY: Final = (
    "its array is not closed yet; 'tidelog ingest --final' also ingests the text after its last "
    "comma"
)


def array_and_more(end: int) -> str:
    """Return why the text behind the end of an array waits."""
    return (
        f"its array ends at byte {end:,}, but other text follows, which is not valid in a file of "
        "one array; 'tidelog ingest --final' ingests that text as it is"
    )


Keep = Callable[[str, int, bytes], None]  # Called with a path, an offset, and the bytes there.
NO_TIME: Final = int(np.iinfo(np.int64).min)  # Less than any time: the maximum over no times.


class FileCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a listed file to survey: the records that start in ``[start, limit)``.

    Shape: ``before`` is the newest bound range of the file, if any. ``checked`` asks the survey to
        check that the file still has those bytes, because its version has changed since.
    """

    path: str
    start: int
    limit: int
    size_bytes: int
    e_tag: str
    before: FileRange | None = None
    checked: bool = False
    block_bytes: int = BLOCK_BYTES

    @property
    def ends_the_file(self) -> bool:
        return self.limit == self.size_bytes


class SurveyPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a candidate for one task: the bytes ``[low, high)``; ``low`` starts a block.

    Its records are those that start after ``low`` and up to ``high`` itself. The record at ``low``
    belongs to the piece before. So a task finds the line end before each of its records in its own
    blocks. A first piece also has the record at ``low``, and a last one has none at ``high``.
    """

    candidate: FileCandidate
    low: int
    high: int

    @property
    def is_first(self) -> bool:
        return self.low == self.candidate.start

    @property
    def is_last(self) -> bool:
        return self.high == self.candidate.limit

    @property
    def weight_bytes(self) -> int:
        """Return about how many bytes a survey of it reads."""
        asked = self.candidate
        size = self.high - self.low
        if codec_of(asked.path) is not None:
            size = min(size, asked.size_bytes * PACKED_RATIO)
        return size + (asked.block_bytes if asked.checked else 0)

    @property
    def window(self) -> tuple[int, int]:
        """Return the half-open range of offsets at which its records start."""
        return self.low + (not self.is_first), self.high + (not self.is_last)


class RangePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A range of messages for one task to survey, of a source that does not read files."""

    found: AddressRange

    @property
    def weight_bytes(self) -> int:
        """Return about how many bytes a survey of it reads."""
        return self.found.weight_bytes


AnyPiece = SurveyPiece | RangePiece


class CutPlace(msgspec.Struct, frozen=True, array_like=True):
    """A place where a binding may end: before the record at ``offset``.

    Shape: ``rest`` is the sum of the block's part before it (see `sum_of_rest`). ``least`` is the
        time of that record; for a row group, the least of its times. ``late`` is the number of late
        records before it in its block, and ``greatest`` is their greatest time.
    """

    offset: int
    rest: bytes
    least: int
    late: int
    greatest: int


class Block(msgspec.Struct, frozen=True, array_like=True):
    """The times of the records that start in one block of a file (of parquet: of a row group).

    Shape: ``late`` counts late rows. ``first`` is the place of the first row with a time. ``rise``
        is the place of the first row with the greatest time. ``change`` is the place of the last
        row whose time differs from that of the row before. ``last`` is the last time.
    """

    greatest: int = NO_TIME
    late: int = 0
    first: CutPlace | None = None
    rise: CutPlace | None = None
    change: CutPlace | None = None
    last: int = NO_TIME


class Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a survey of a candidate, or of a piece of it.

    Shape: ``limit`` is the end of the last whole record, None if no record ends in the piece.
        ``rest`` is the sum of the block's part before it, and ``sums`` are those of all blocks
        read. ``ink`` is the offset of the first record. ``head`` is the sum of the file's
        beginning, at most up to the end of the first record; for parquet, it is that of the footer.
        ``waits`` is the reason why nothing, or not all, can be bound yet. ``torn`` is the reason
        for the bytes after ``limit``. ``packed`` describes a compressed file; its offsets are those
        of the text.
    """

    sums: bytes = b""
    limit: int | None = None
    rest: bytes = b""
    ink: int | None = None
    blocks: tuple[Block, ...] = ()
    head: bytes = b""
    head_bytes: int = 0
    header: bytes = b""
    torn: str = ""
    waits: str | None = None
    packed: Packed | None = None


class FileSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, and the result of its survey: the records of ``[candidate.start, limit)``."""

    candidate: FileCandidate
    found: Surveyed
    limit: int

    @property
    def is_empty(self) -> bool:
        return self.limit <= self.candidate.start

    @property
    def sees_the_end(self) -> bool:
        """Return True if the survey has reached the end of the file, as far as it is known."""
        asked, packed = self.candidate, self.found.packed
        return asked.ends_the_file if packed is None else packed.text_bytes <= asked.limit

    @property
    def knows_all(self) -> bool:
        """Return True if a survey of more of the file would not find more whole records.

        A survey of a compressed file reads on past its limit until a record ends.
        """
        return self.sees_the_end or (self.is_empty and self.found.packed is not None)

    def range_until(
        self, place: CutPlace | None, *, late: int, time_max: int, reached: int
    ) -> FileRange:
        """Return the range up to a place; None means all surveyed records."""
        asked, found, before = self.candidate, self.found, self.candidate.before
        limit, rest = (self.limit, found.rest) if place is None else (place.offset, place.rest)
        sums = found.sums and sums_until(found.sums, asked.start, limit, rest, asked.block_bytes)
        head, head_bytes = found.head, found.head_bytes
        if before is not None:
            head, head_bytes = before.head, before.head_bytes
        return FileRange(
            path=asked.path,
            start=asked.start,
            limit=limit,
            size_bytes=asked.size_bytes,
            e_tag=asked.e_tag,
            sums=sums,
            block_bytes=asked.block_bytes,
            head=head,
            head_bytes=head_bytes,
            header=found.header,
            late=late + (before.late if before else 0),
            time_max=time_max,
            reached=reached,
            packed=encode_packed(found.packed),
            moved=before.moved if before is not None else "",
        )


def split_candidate(candidate: FileCandidate, piece_bytes: int) -> list[SurveyPiece]:
    """Split a candidate into pieces of about ``piece_bytes``; each but the first starts a block."""
    block = candidate.block_bytes
    step = max(1, piece_bytes // block) * block
    first = (candidate.start // block) * block + step
    bounds = [candidate.start, *range(first, candidate.limit, step), candidate.limit]
    return [SurveyPiece(candidate=candidate, low=low, high=high) for low, high in pairwise(bounds)]


def join_pieces(candidate: FileCandidate, pieces: Sequence[Surveyed]) -> FileSurvey:
    """Return the survey of a candidate from the results of its pieces, which are in order."""
    first = pieces[0]
    ends = [piece for piece in pieces if piece.limit is not None]
    waits = next((piece.waits for piece in pieces if piece.waits is not None), None)
    limit = ends[-1].limit if ends and waits is None else None
    found = Surveyed(
        sums=b"".join(piece.sums for piece in pieces),
        limit=limit,
        rest=ends[-1].rest if ends else b"",
        ink=next((piece.ink for piece in pieces if piece.ink is not None), None),
        blocks=tuple(block for piece in pieces for block in piece.blocks),
        head=first.head,
        head_bytes=first.head_bytes,
        header=first.header,
        waits=waits or pieces[-1].torn or None,
        packed=first.packed,
    )
    return FileSurvey(
        candidate=candidate, found=found, limit=candidate.start if limit is None else limit
    )


def unseen(candidate: FileCandidate) -> FileSurvey:
    """Return the survey of a candidate that is not read: the object's version is its proof."""
    before = candidate.before
    found = Surveyed(limit=candidate.limit, header=before.header if before is not None else b"")
    return FileSurvey(candidate=candidate, found=found, limit=candidate.limit)


def went_away(candidate: FileCandidate) -> FileSurvey:
    """Return the survey of a candidate that was deleted or replaced since it was listed."""
    return FileSurvey(candidate=candidate, found=Surveyed(waits=WENT), limit=candidate.start)
