"""Where a log begins and ends, and how often a reader who waits for more looks again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.arguments import check_kind, check_whole, quoted
from tidelog.errors import UsageError
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import FIRST_POSITION

POLL_FIRST_US: Final = 10_000
POLL_MOST_US: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The log has the positions ``[oldest, next)``; ``seal`` says whether that is all for ever."""

    oldest: int
    next: int
    seal: Seal | None


def check_fragment(fragment: Fragment) -> None:
    """Refuse what is no fragment of a log.

    Raises:
        UsageError: so it is.
    """
    check_kind(fragment, Fragment, "a fragment is one that Log.fragments() returned")


def check_position(position: int) -> None:
    """Refuse what is no position at which a cursor can stand, in whatever log.

    Raises:
        UsageError: it is no whole number from 1 on.
    """
    check_whole(position, "a position")
    if position < FIRST_POSITION:
        raise UsageError(f"{position} is not a position: positions begin at 1")


def check_range(start: int, limit: int | None = None) -> None:
    """Refuse what are no positions to read from and to; 0 stands for the oldest.

    Raises:
        UsageError: one is no whole number from 0 on, or the range ends before it starts.
    """
    for value in (start,) if limit is None else (start, limit):
        if type(value) is int and value < 0:
            raise UsageError(f"{quoted(value)} is not a position: positions begin at 1")
        check_whole(value, "a position")
    if limit is not None and limit < start:
        raise UsageError(
            "the range ends before it starts: limit is the position before which it stops, and no "
            "number of records",
            start=start,
            limit=limit,
        )
