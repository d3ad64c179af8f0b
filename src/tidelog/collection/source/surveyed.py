"""What a survey tells of a file, before any of it is bound. Pure.

A survey is done in pieces, by tasks anywhere; what it tells is small, and does not depend on how
many pieces there were. Of times it tells, for each block, enough to cut where a look at every row
would: a cut is made before a row whose time exceeds all times before it, so the last such row of a
block is the first one that has the block's greatest time.
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

SHORTER: Final = "it became shorter while it was read"
WENT: Final = "it went away before what is new of it was taken"
CHANGED: Final = "it is not the file whose first rows were ingested"
TORN: Final = "its last line has no line end yet; 'tidelog ingest --final' takes it as it is"
TORN_ARRAY: Final = (
    "its array is not closed yet; 'tidelog ingest --final' takes what is behind its last comma, too"
)


def array_and_more(end: int) -> str:
    """Return why the text behind the end of an array waits."""
    return (
        f"its array ends at byte {end:,}, and other text follows, which a file of one array "
        "cannot have; 'tidelog ingest --final' takes that text as it is"
    )


Keep = Callable[[str, int, bytes], None]  # Told of a path, an offset, and the bytes from there on.
NO_TIME: Final = int(np.iinfo(np.int64).min)  # Less than any: what rows without a time reach.


class FileCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """What may be taken next of one file, as a listing shows it: the records from ``start`` on.

    Shape: records count that start before ``limit``. ``before`` is what was taken last; it is to be
        ``checked`` where the file's version is another one than it was then.
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
    """A share of a candidate, for one task: the bytes ``[low, high)``, which begin with a block.

    Its records are those that start in it, or at ``high``, but not at ``low`` itself: so a task
    that looks for the line end before a record reads no block of another's.
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
        """Return about how much is read for it."""
        asked = self.candidate
        size = self.high - self.low
        if codec_of(asked.path) is not None:
            size = min(size, asked.size_bytes * PACKED_RATIO)
        return size + (asked.block_bytes if asked.checked else 0)

    @property
    def window(self) -> tuple[int, int]:
        """Return between which offsets its records start."""
        return self.low + (not self.is_first), self.high + (not self.is_last)


class RangePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A range of messages that may be taken next, for one task, of a source of no files."""

    found: AddressRange

    @property
    def weight_bytes(self) -> int:
        """Return about how much is read for it."""
        return self.found.weight_bytes


AnyPiece = SurveyPiece | RangePiece


class CutPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a binding may end: before the record at ``offset``.

    Shape: ``rest`` is the sum of the part of a block before it (see `sum_of_rest`); ``least`` is
        that record's time, and ``late`` and ``greatest`` tell of the records of its block before.
    """

    offset: int
    rest: bytes
    least: int
    late: int
    greatest: int


class Block(msgspec.Struct, frozen=True, array_like=True):
    """The times of the records that start in one block of a file (of parquet: of a row group).

    Shape: ``late`` counts rows that come after their time was complete. ``first`` is the place of
        the first row with a time, ``rise`` that of the first one with the greatest time, ``change``
        that of the last one whose time is not that of the row before; ``last`` is the last time.
    """

    greatest: int = NO_TIME
    late: int = 0
    first: CutPlace | None = None
    rise: CutPlace | None = None
    change: CutPlace | None = None
    last: int = NO_TIME


class Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of a candidate, or of a piece of it.

    Shape: what can be taken ends at ``limit``, None if nothing of it ends in the piece; ``rest`` is
        the sum of the part of a block before that, ``sums`` those of all blocks that were read.
        ``ink`` is where the first record begins; ``head`` is the sum of the file's beginning, which
        ends with that record or before (of parquet, of its footer). ``waits`` says why nothing, or
        not all, can be taken yet; ``torn``, why what is behind ``limit`` cannot. ``packed`` tells
        of a compressed file, whose offsets are those of its text.
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
    """A candidate, and what was found of it: the records of ``[candidate.start, limit)``."""

    candidate: FileCandidate
    found: Surveyed
    limit: int

    @property
    def is_empty(self) -> bool:
        return self.limit <= self.candidate.start

    @property
    def sees_the_end(self) -> bool:
        """Say whether nothing more of the file is known than what was looked at."""
        asked, packed = self.candidate, self.found.packed
        return asked.ends_the_file if packed is None else packed.text_bytes <= asked.limit

    @property
    def knows_all(self) -> bool:
        """Say whether to look at more of the file would find no more that can be taken.

        A compressed file is read on, however little is asked for, until a record ends.
        """
        return self.sees_the_end or (self.is_empty and self.found.packed is not None)

    def range_until(
        self, place: CutPlace | None, *, late: int, time_max: int, reached: int
    ) -> FileRange:
        """Return the range up to a place, or all of it."""
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
    """Split a candidate into pieces of about so many bytes, each from a block on."""
    block = candidate.block_bytes
    step = max(1, piece_bytes // block) * block
    first = (candidate.start // block) * block + step
    bounds = [candidate.start, *range(first, candidate.limit, step), candidate.limit]
    return [SurveyPiece(candidate=candidate, low=low, high=high) for low, high in pairwise(bounds)]


def join_pieces(candidate: FileCandidate, pieces: Sequence[Surveyed]) -> FileSurvey:
    """Put together what was found of a candidate's pieces, in order."""
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
    """Return a candidate that its listing alone proves: by the object's version."""
    before = candidate.before
    found = Surveyed(limit=candidate.limit, header=before.header if before is not None else b"")
    return FileSurvey(candidate=candidate, found=found, limit=candidate.limit)


def went_away(candidate: FileCandidate) -> FileSurvey:
    """Return the survey of a candidate that is gone, or was replaced, since it was listed."""
    return FileSurvey(candidate=candidate, found=Surveyed(waits=WENT), limit=candidate.start)
