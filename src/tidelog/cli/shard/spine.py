"""A text drawing of a shard's spine: its batches by level, in the order of their times. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH_MAX: Final = 48


@dataclass(frozen=True, slots=True)
class DrawnLevel:
    """A level of the drawing; if the batches exceed its width, neighbours share a mark."""

    level: int
    batches: int
    marks: str


def draw_levels(levels: Sequence[int]) -> list[DrawnLevel]:
    """Draw batches by their levels, given in the order of their times; the highest level first."""
    width = min(WIDTH_MAX, len(levels))
    drawn = []
    for level in sorted(set(levels), reverse=True):
        marks = [" "] * width
        for place, found in enumerate(levels):
            if found == level:
                marks[place * width // len(levels)] = "#"
        drawn.append(DrawnLevel(level, list(levels).count(level), "".join(marks)))
    return drawn
