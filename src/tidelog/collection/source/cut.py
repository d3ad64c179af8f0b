"""Cuts: how much of what was surveyed one binding takes. Pure.

With times from the data, a binding ends between two distinct times of the data as known when it is
minted: all records before the cut are earlier than the first one after it. So a run that was killed
and one that was not cut alike, and no time's records are split over two bindings.
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
    """What was surveyed of a file, or of a range of another source's messages."""

    @property
    def found(self) -> Surveyed:
        """What was found of it."""
        ...

    def range_until(
        self, place: CutPlace | None, *, late: int, time_max: int, reached: int
    ) -> R_co:
        """Return the range up to a place, or all of it."""
        ...


class Told(TypedDict):
    """What a cut tells of a range: see `AddressRange`."""

    late: int
    time_max: int
    reached: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a binding ends: before ``place`` in the file of that index; None takes all files.

    Shape: ``block`` is that place's, among the file's; ``time_max`` the greatest time that is
        taken, None if there is none.
    """

    file: int
    block: int
    place: CutPlace | None
    time_max: int | None


def choose_cut(files: Sequence[Divisible[Any]], *, complete: bool) -> Cut | None:
    """Choose how much of the files to take, the most there may be; None asks to be shown more.

    ``complete`` says that there is nothing after these.
    """
    if complete:
        return take_all(files)
    blocks = _blocks(files)
    reached = _reached(blocks)
    for index in range(len(blocks) - 1, -1, -1):
        file, number, block = blocks[index]
        place = block.rise
        # A row without a time opens none: it stays with the one before it.
        if place is not None:
            before = max(reached[index], place.greatest)
            if before > NO_TIME and place.least > before:
                return Cut(file, number, place, before)
    return None


def choose_rough_cut(files: Sequence[Divisible[Any]]) -> Cut | None:
    """Choose a cut where times go up and down: between two neighbours of other times.

    What comes after it with an earlier time will be late, and counted. None: all have one time.
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
    """Return the cut behind all files."""
    greatest = _reached(_blocks(files))[-1]
    return Cut(len(files), 0, None, greatest if greatest > NO_TIME else None)


def ranges_until(
    cut: Cut, files: Sequence[Divisible[R]], *, time_max: int, is_held: bool = False
) -> list[R]:
    """Return the ranges that a cut takes. Rows later than ``time_max`` are bad ones of them.

    ``is_held`` says that some of their rows may be held back, and so what times they reach counts.
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
    """Return how many rows of some blocks came after their time was complete."""
    return sum(block.late for block in blocks)


def upper_after(cut: Cut, lower: int, *, held_ms: int = 0) -> int:
    """Return the upper of a binding from ``lower`` on that takes a cut: its greatest time + 1.

    It is held back by ``held_ms``, but for a millisecond: what a binding takes has a time.
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
