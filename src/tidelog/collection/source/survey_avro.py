"""Surveys of pieces of avro files: their header, and the blocks that begin in the piece.

A block begins after a marker of 16 bytes, so a survey also reads the 15 bytes before its piece.
Source: design page 6, "Who reads what".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tidelog.collection.formats.avro.container import (
    MARKER_BYTES,
    ROW_BITS,
    AvroHeader,
    blocks_in,
    last_marker_end,
    marker_end,
    pack_blocks,
)
from tidelog.collection.source.binding import FileRange, sum_blocks, sum_of
from tidelog.collection.source.fetch import READ_ON_BYTES, OpenedFile, read_avro_header
from tidelog.collection.source.survey_facts import (
    SHORTER,
    Block,
    Keep,
    SurveyFacts,
    SurveyPiece,
)
from tidelog.collection.source.survey_result import RestSums, SurveyJob, check_columns, times_in
from tidelog.collection.source.times_of_blocks import group_block
from tidelog.core.clock import Clock

TORN_BLOCK = "its last block is not complete yet"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece with the header of its file, and the bytes that a survey of it needs.

    Shape: ``head`` are the header's bytes. ``data`` begin at the offset ``base``, because a marker
        that ends in the piece may begin before it. They continue to the end of its last block.
    """

    asked: SurveyPiece
    job: SurveyJob
    header: AvroHeader
    head: bytes
    base: int
    data: bytes

    @property
    def low(self) -> int:
        return max(self.asked.window[0], self.header.size)

    @property
    def high(self) -> int:
        return max(self.asked.window[1], self.header.size)

    @property
    def own(self) -> memoryview:
        """Return the bytes from the start of the piece."""
        return memoryview(self.data)[self.asked.low - self.base :]

    @property
    def at_end(self) -> bool:
        return self.asked.is_last and self.asked.candidate.ends_the_file

    def end_from(self, place: int) -> int | None:
        """Return the end of the first block that ends at a place or later, or None."""
        return marker_end(self.data, self.header.marker, place, base=self.base)

    def end_until(self, place: int) -> int | None:
        """Return the end of the last block that ends at a place or before, or None."""
        found = last_marker_end(self.data, self.header.marker, place, base=self.base)
        if found is not None and found >= self.header.size:
            return found
        # The header alone can be bound, so that it is not read again.
        is_whole = self.asked.low == 0 and self.header.size <= min(place, self.asked.high)
        return self.header.size if is_whole else None

    @property
    def limit(self) -> int | None:
        """Return the end of the piece's whole blocks; None if none of them ends in it.

        An object never grows, so the bytes after its last marker are a block that is torn for good.
        """
        if not self.asked.is_last:
            return self.end_until(self.asked.high)
        found = None if self.at_end else self.end_from(self.high)
        if found is not None:
            return found
        end = self.base + len(self.data)
        is_torn_for_good = self.job.is_versioned and end >= self.asked.candidate.size_bytes
        return end if is_torn_for_good else self.end_until(end)


async def survey_blocks(
    piece: SurveyPiece, job: SurveyJob, file: OpenedFile, *, clock: Clock, keep: Keep | None
) -> SurveyFacts:
    """Survey a piece of an avro file.

    Raises:
        CorruptionError: the file is not avro, or its schema or codec cannot be read.
        GoneError, SourceRewritten: the file no longer exists, or was replaced.
    """
    asked = piece.candidate
    known_bytes = asked.before.head_bytes if asked.before is not None else 0
    header, head = await read_avro_header(file, asked.size_bytes, known_bytes=known_bytes)
    if asked.before is None and piece.is_first:
        names = header.schema.names
        if asked.size_bytes > header.size:
            check_columns(names, job, path=asked.path)
    if job.is_light(asked.path):
        return SurveyFacts(limit=asked.limit, head=sum_of(head), head_bytes=len(head))
    if asked.start >= asked.limit:
        return SurveyFacts()
    base = max(asked.start, piece.low - MARKER_BYTES + 1)
    data = await file.get(base, piece.high)
    if len(data) < piece.high - base:
        return SurveyFacts(waits=SHORTER)
    own = _Piece(piece, job, header, head, base, data)
    if not own.at_end and (piece.is_last or job.is_timed):
        own = await _read_on(own, file)
    if keep is not None:
        keep(asked.path, base, own.data)
    return await clock.offload(partial(_look, own))


async def _read_on(piece: _Piece, file: OpenedFile) -> _Piece:
    """Return a piece with the bytes after it up to the end of its last block."""
    base, data, size = piece.base, piece.data, piece.asked.candidate.size_bytes
    looked, more = piece.high, READ_ON_BYTES
    while base + len(data) < size:
        if marker_end(data, piece.header.marker, looked, base=base) is not None:
            break
        looked = max(looked, base + len(data))
        next_ = await file.get(base + len(data), min(size, base + len(data) + more))
        if not next_:
            break
        data, more = data + next_, more * 4
    return replace(piece, data=data)


def _look(piece: _Piece) -> SurveyFacts:
    asked, job, candidate = piece.asked, piece.job, piece.asked.candidate
    limit = piece.limit
    end = (limit or asked.low) if asked.is_last else asked.high
    summed = piece.own[: max(0, end - asked.low)]
    starts_file = candidate.start == 0 and asked.is_first
    first, blocks = _times(piece)
    is_torn = piece.at_end and (limit or asked.low) < candidate.size_bytes
    return SurveyFacts(
        sums=b"" if job.is_versioned else sum_blocks(summed, asked.low, candidate.block_bytes),
        limit=limit,
        rest=RestSums(piece.own, asked, job)(limit) if limit is not None else b"",
        ink=first,
        blocks=tuple(blocks),
        head=sum_of(piece.head) if starts_file else b"",
        head_bytes=len(piece.head) if starts_file else 0,
        torn=TORN_BLOCK if is_torn else "",
    )


def _times(piece: _Piece) -> tuple[int | None, list[Block]]:
    """Return the offset of the piece's first block, and the times of its blocks.

    Blocks that begin in the same block of sums have their times together, because each place where
    a binding may end costs a sum.
    """
    base, job, data = piece.base, piece.job, piece.data
    first = piece.low if piece.asked.is_first else piece.end_from(piece.low)
    if first is None or first >= min(piece.high, base + len(data)):
        return None, []
    if not job.is_timed:
        return first, []
    limit = piece.limit if piece.asked.is_last else piece.end_from(piece.high)
    if limit is None:
        limit = piece.end_until(base + len(data))
    if limit is None or limit <= first:
        return first, []
    blocks = data[first - base : limit - base]
    found = FileRange(path=piece.asked.candidate.path, start=first, limit=limit)
    addresses, times = times_in(pack_blocks(piece.head, blocks), found, job)
    size = piece.asked.candidate.block_bytes
    starts = [one.start for one in blocks_in(blocks, first, piece.header.marker)]
    numbers = (np.array(starts, np.int64) - 1) // size
    groups = np.array(starts, np.int64)[np.flatnonzero(np.diff(numbers, prepend=-1))].tolist()
    bounds = np.searchsorted(addresses >> ROW_BITS, [*groups, limit]).tolist()
    return first, [
        group_block(
            start,
            times[low:high],
            lower=job.lower,
            can_end_before=True,
            rest_until=RestSums(piece.own, piece.asked, job),
        )
        for start, low, high in zip(groups, bounds[:-1], bounds[1:], strict=True)
    ]
