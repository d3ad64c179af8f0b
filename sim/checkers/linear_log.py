"""A checker of log histories. It knows calls, answers and the final log only.

A log is linearizable under three conditions. Its records come from appends that may have happened,
each append whole, once and in one piece. An append that ended before another began comes before it.
Each read saw a prefix of the same log: everything acknowledged before the read, nothing appended
after it, and no less than an earlier read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

FOREVER: Final = math.inf


class NotLinearLog(AssertionError):
    """A history that no log can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """An append of bodies that are unique in a history.

    ``position`` is the answer, or None for an error or no answer. ``is_never`` marks an error with
    the outcome NOT_APPLIED. Units: ``begin`` and ``end`` are moments.
    """

    bodies: tuple[bytes, ...]
    begin: float
    end: float
    position: int | None = None
    is_never: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """All records from ``start`` on, as read between two moments."""

    start: int
    begin: float
    end: float
    bodies: tuple[bytes, ...]

    @property
    def limit(self) -> int:
        return self.start + len(self.bodies)


@dataclass(slots=True)
class LogHistory:
    """The calls of one log."""

    appends: list[Append] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)


def check_log(history: LogHistory, final: Sequence[bytes], *, first: int = 1) -> None:
    """Check a history against the final records of the log, the first at ``first``.

    Raises:
        NotLinearLog: the message names the contradiction.
    """
    place = {body: first + number for number, body in enumerate(final)}
    _demand(len(place) == len(final), "a record is there twice")
    placed = [(append, _placed(append, place, final, first)) for append in history.appends]
    known = {body for append in history.appends for body in append.bodies}
    _demand(known.issuperset(final), "a record is there that nobody appended")
    there = [(append, where) for append, where in placed if where is not None]
    for one, where in there:
        for other, elsewhere in there:
            _demand(
                not (_end_of(one) < other.begin and elsewhere < where),
                f"{other.bodies} began after {one.bodies} had ended, and stands before it",
            )
    for read in history.reads:
        _check_read(read, there, final, first)
    for read in history.reads:
        for later in history.reads:
            # An empty read proves only that the log ended before its start.
            less = read.bodies and read.end < later.begin and later.limit < read.limit
            _demand(not less, "a read saw less than an earlier one")


def _placed(
    append: Append, place: dict[bytes, int], final: Sequence[bytes], first: int
) -> int | None:
    """Return the position of an append; None if it is not in the log."""
    where = place.get(append.bodies[0])
    if where is None:
        _demand(append.position is None, f"{append.bodies} was acknowledged, and is lost")
        _demand(not any(b in place for b in append.bodies), "an append is there in part")
        return None
    _demand(not append.is_never, f"{append.bodies} was said not to have happened, and is there")
    whole = tuple(final[where - first : where - first + len(append.bodies)])
    _demand(whole == append.bodies, f"{append.bodies} is not in one piece")
    _demand(append.position in (None, where), f"{append.bodies} is not where it was said to be")
    return where


def _check_read(
    read: Read, there: Sequence[tuple[Append, int]], final: Sequence[bytes], first: int
) -> None:
    wanted = tuple(final[read.start - first : read.limit - first])
    _demand(read.bodies == wanted, f"a read from {read.start} saw what the log does not have")
    for append, where in there:
        if where < read.start:
            continue
        if append.position is not None and append.end < read.begin:
            _demand(where < read.limit, f"a read missed {append.bodies}, acknowledged before it")
        if read.end < append.begin:
            _demand(where >= read.limit, f"a read saw {append.bodies} before it was appended")


def _end_of(append: Append) -> float:
    return append.end if append.position is not None else FOREVER


def _demand(holds: bool, sentence: str) -> None:
    if not holds:
        raise NotLinearLog(sentence)
