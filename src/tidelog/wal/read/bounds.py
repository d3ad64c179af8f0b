"""Where a log begins and ends, and how often a reader who waits for more looks again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.wal.format.epoch import Seal

POLL_FIRST_US: Final = 10_000


POLL_MOST_US: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The log has the positions ``[oldest, next)``; ``seal`` says whether that is all for ever."""

    oldest: int
    next: int
    seal: Seal | None
