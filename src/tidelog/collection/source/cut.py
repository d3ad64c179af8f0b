"""Cuts: the choice of how much of the surveyed data one binding has. Pure.

With times from the data, a binding ends between two distinct times of the surveyed data: all
records before the cut are earlier than the first record after it. So the records of one time are
never split between two bindings. A run that was killed also chooses the same cuts as one that was
not.
Source: design page 6, "Times from the data".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, TypedDict, TypeVar

from tidelog.collection.source.binding import CLOSED, AddressRange
from tidelog.collection.source.surveyed import NO_TIME, Block, CutPlace, Surveyed

R = TypeVar("R", bound=AddressRange)
R_co = TypeVar("R_co", bound=AddressRange, covariant=True)


class Divisible(Protocol[R_co]):
    """The survey of a file, or of a range of another source's messages."""

    @property
    def found(self) -> Surveyed:
        """Return the result of the survey."""
        ...

    def range_until(
        self, place: CutPlace | None, *, late: int, time_max: int, reached: int
    ) -> R_co:
        """Return the range up to a place; None means its whole length."""
        ...


class Told(TypedDict):
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


def choose_cut(files: Sequence[Divisible[Any]], *, complete: bool) -> Cut | None:
    """Return the last permitted cut of the files; None if it needs more data.

    ``complete`` means that no data follow these files.
    """
    if complete:
        return take_all(files)
    blocks = _blocks(files)
    reached = _reached(blocks)
    # The last permitted cut in a block is before the first row with the block's greatest time: see
    # `surveyed`. So one place per block is enough.
    for index in range(len(blocks) - 1, -1, -1):
        file, number, block = blocks[index]
        place = block.rise
        # If no row before the place has a time, a cut would leave the binding without a time.
        if place is not None:
            before = max(reached[index], place.greatest)
            if before > NO_TIME and place.least > before:
                return Cut(file, number, place, before)
    return None


def choose_rough_cut(files: Sequence[Divisible[Any]]) -> Cut | None:
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


def take_all(files: Sequence[Divisible[Any]]) -> Cut:
    """Return the cut after all files."""
    greatest = _reached(_blocks(files))[-1]
    return Cut(len(files), 0, None, greatest if greatest > NO_TIME else None)


def ranges_until(
    cut: Cut, files: Sequence[Divisible[R]], *, time_max: int, is_held: bool = False
) -> list[R]:
    """Return the ranges before a cut. Their rows later than ``time_max`` are bad.

    With ``is_held``, some of their rows may be held back, so the ranges record their greatest time.
    """

    def told(blocks: Sequence[Block], place: CutPlace | None = None) -> Told:
        reached = [block.greatest for block in blocks] if is_held else []
        late = late_in(blocks)
        if place is not None:
            late += place.late
            reached += [place.greatest] if is_held else []
        return Told(late=late, time_max=time_max, reached=max([CLOSED, *reached]))

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


def _blocks(files: Sequence[Divisible[Any]]) -> list[tuple[int, int, Block]]:
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
