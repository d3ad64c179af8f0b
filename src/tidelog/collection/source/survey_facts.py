"""Surveys: the facts about a file that a plan needs before it binds any of it. Pure.

The engine surveys a file in pieces, by tasks in any process. The result is small, and does not
depend on the number of pieces. For each block it has enough times to choose the same cut as a look
at every row. A cut is before a row whose time exceeds all times before it. In a block, the last
such row is the first one with the block's greatest time.

The cut decides how much of the surveyed data one binding has. With times from the data, a binding
ends between two distinct times. So the records of one time are never split between two bindings,
and a run that was killed chooses the same cuts as one that was not.
Source: design page 6, "Times from the data".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol, TypedDict, TypeVar

import msgspec
import numpy as np

from tidelog.collection.formats.packed.packed import (
    PACKED_RATIO,
    PackedRange,
    codec_of,
    encode_packed,
)
from tidelog.collection.source.binding import (
    BLOCK_BYTES,
    CLOSED,
    AddressRange,
    FileRange,
    sums_until,
)

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


class SurveyFacts(msgspec.Struct, frozen=True, kw_only=True):
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
    packed: PackedRange | None = None


class FileSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, and the result of its survey: the records of ``[candidate.start, limit)``."""

    candidate: FileCandidate
    found: SurveyFacts
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


def join_pieces(candidate: FileCandidate, pieces: Sequence[SurveyFacts]) -> FileSurvey:
    """Return the survey of a candidate from the results of its pieces, which are in order."""
    first = pieces[0]
    ends = [piece for piece in pieces if piece.limit is not None]
    waits = next((piece.waits for piece in pieces if piece.waits is not None), None)
    limit = ends[-1].limit if ends and waits is None else None
    found = SurveyFacts(
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
    found = SurveyFacts(limit=candidate.limit, header=before.header if before is not None else b"")
    return FileSurvey(candidate=candidate, found=found, limit=candidate.limit)


def went_away(candidate: FileCandidate) -> FileSurvey:
    """Return the survey of a candidate that was deleted or replaced since it was listed."""
    return FileSurvey(candidate=candidate, found=SurveyFacts(waits=WENT), limit=candidate.start)


R = TypeVar("R", bound=AddressRange)
R_co = TypeVar("R_co", bound=AddressRange, covariant=True)


class DivisibleSurvey(Protocol[R_co]):
    """The survey of a file, or of a range of another source's messages."""

    @property
    def found(self) -> SurveyFacts:
        """Return the result of the survey."""
        ...

    def range_until(
        self, place: CutPlace | None, *, late: int, time_max: int, reached: int
    ) -> R_co:
        """Return the range up to a place; None means its whole length."""
        ...


class CutFields(TypedDict):
    """The fields of a range that depend on the cut: see `AddressRange`."""

    late: int
    time_max: int
    reached: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of a binding: before ``place`` in the file with index ``file``; None is the very end.

    Shape: ``block`` is the index of the place's block in its file. ``time_max`` is the greatest
        time before the cut, None if no record there has a time.
    """

    file: int
    block: int
    place: CutPlace | None
    time_max: int | None


def choose_cut(files: Sequence[DivisibleSurvey[Any]], *, complete: bool) -> Cut | None:
    """Return the last permitted cut of the files; None if it needs more data.

    ``complete`` means that no data follow these files.
    """
    if complete:
        return take_all(files)
    blocks = _blocks(files)
    reached = _reached(blocks)
    # The last permitted cut in a block is before the first row with the block's greatest time: see
    # the top. So one place per block is enough.
    for index in range(len(blocks) - 1, -1, -1):
        file, number, block = blocks[index]
        place = block.rise
        # If no row before the place has a time, a cut would leave the binding without a time.
        if place is not None:
            before = max(reached[index], place.greatest)
            if before > NO_TIME and place.least > before:
                return Cut(file, number, place, before)
    return None


def choose_rough_cut(files: Sequence[DivisibleSurvey[Any]]) -> Cut | None:
    """Return a cut of unordered data: the last one between two neighbours with distinct times.

    Rows after it with an earlier time become late, and are counted. Return None if all rows have
    the same time.
    """
    blocks = _blocks(files)
    reached = _reached(blocks)
    lasts = list(accumulate((b.last for _, _, b in blocks), _known_last, initial=NO_TIME))
    for index in range(len(blocks) - 1, -1, -1):
        file, number, block = blocks[index]
        place, last = block.change, lasts[index]
        if place is None and block.first is not None and last not in (NO_TIME, block.first.least):
            place = block.first
        if place is not None:
            return Cut(file, number, place, max(reached[index], place.greatest))
    return None


def take_all(files: Sequence[DivisibleSurvey[Any]]) -> Cut:
    """Return the cut after all files."""
    greatest = _reached(_blocks(files))[-1]
    return Cut(len(files), 0, None, greatest if greatest > NO_TIME else None)


def ranges_until(
    cut: Cut, files: Sequence[DivisibleSurvey[R]], *, time_max: int, is_held: bool = False
) -> list[R]:
    """Return the ranges before a cut. Their rows later than ``time_max`` are bad.

    With ``is_held``, some of their rows may be held back, so the ranges record their greatest time.
    """

    def told(blocks: Sequence[Block], place: CutPlace | None = None) -> CutFields:
        reached = [block.greatest for block in blocks] if is_held else []
        late = late_in(blocks)
        if place is not None:
            late += place.late
            reached += [place.greatest] if is_held else []
        return CutFields(late=late, time_max=time_max, reached=max([CLOSED, *reached]))

    found = [survey.range_until(None, **told(survey.found.blocks)) for survey in files[: cut.file]]
    if cut.place is not None:
        survey, place = files[cut.file], cut.place
        ink = survey.found.ink
        if ink is None or place.offset > ink:
            blocks = survey.found.blocks[: cut.block]
            found.append(survey.range_until(place, **told(blocks, place)))
    return found


def late_in(blocks: Sequence[Block]) -> int:
    """Return the number of late rows in some blocks."""
    return sum(block.late for block in blocks)


def upper_after(cut: Cut, lower: int, *, held_ms: int = 0) -> int:
    """Return the upper of a binding that begins at ``lower`` and ends with a cut.

    It is the cut's greatest time + 1, less ``held_ms``, and at least ``lower + 1``: a binding needs
    at least one time.
    """
    reached = lower if cut.time_max is None else cut.time_max - held_ms
    return max(reached, lower) + 1


def _blocks(files: Sequence[DivisibleSurvey[Any]]) -> list[tuple[int, int, Block]]:
    return [
        (file, number, block)
        for file, survey in enumerate(files)
        for number, block in enumerate(survey.found.blocks)
    ]


def _reached(blocks: Sequence[tuple[int, int, Block]]) -> list[int]:
    """Return the greatest time before each block, and before the end."""
    return list(accumulate((block.greatest for _, _, block in blocks), max, initial=NO_TIME))


def _known_last(before: int, last: int) -> int:
    return last if last > NO_TIME else before
