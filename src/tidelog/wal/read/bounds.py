"""The bounds of a log, checks of positions, and the intervals at which a follower polls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.core.arguments import check_kind, check_whole, quoted
from tidelog.errors import UsageError
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import FIRST_POSITION

POLL_FIRST_US: Final = 10_000
POLL_MOST_US: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The positions ``[oldest, next)`` of a log; with a ``seal`` no further ones follow."""

    oldest: int
    next: int
    seal: Seal | None


def check_fragment(fragment: Fragment) -> None:
    """Refuse a value that is not a fragment of a log.

    Raises:
        UsageError: the value is not a fragment.
    """
    check_kind(fragment, Fragment, "a fragment must be one that Log.fragments() returned")


def check_position(position: int) -> None:
    """Refuse a value that cannot be the position of a cursor in any log.

    Raises:
        UsageError: the value is not a whole number from 1 up.
    """
    check_whole(position, "a position")
    if position < FIRST_POSITION:
        raise UsageError(f"{position} is not a position: positions begin at 1")


def check_range(start: int, limit: int | None = None) -> None:
    """Refuse an invalid range of positions; start 0 means the oldest position.

    Raises:
        UsageError: a bound is not a whole number from 0 up, or the range ends before it starts.
    """
    for value in (start,) if limit is None else (start, limit):
        if type(value) is int and value < 0:
            raise UsageError(f"{quoted(value)} is not a position: positions begin at 1")
        check_whole(value, "a position")
    if limit is not None and limit < start:
        raise UsageError(
            "the range ends before it starts: limit must be the position after the last one, not "
            "a number of records",
            start=start,
            limit=limit,
        )
