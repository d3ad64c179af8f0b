"""A checker of consensus histories. It knows calls and answers only.

A history is linearizable if one order of the winning records explains all answers: each call fits
between its begin and its end. A key's records are dense, so the check needs only intervals: the
head became seqno n at some moment between the winning call's begin and end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

LANDED, LOST, UNSURE, NEVER = "landed", "lost", "unsure", "never"
FOREVER: Final = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """A compare-and-set of ``value`` (unique in a history) as record ``seqno``.

    ``answer``: LANDED (True), LOST (False), UNSURE (an error, or no answer at all), or NEVER (an
    error with outcome NOT_APPLIED). Units: ``begin`` and ``end`` are moments; an UNSURE call may
    land later.
    """

    client: str
    seqno: int
    value: bytes
    begin: float
    end: float
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A scan from ``start``, or a read of the head (None); the records found, in order."""

    client: str
    begin: float
    end: float
    start: int | None
    found: tuple[tuple[int, bytes], ...]
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A truncation before ``before``; its end is FOREVER if it was not acknowledged."""

    begin: float
    end: float
    before: int


@dataclass(slots=True)
class History:
    """The calls of one key."""

    sets: list[Set] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)


class NotLinear(AssertionError):
    """No order of the calls explains their answers."""


def check_history(history: History) -> None:
    """Check one key's history, which ends with a read of the newest record.

    Raises:
        NotLinear: see the class.
    """
    winners = _winners(history)
    _check_answers(history, winners)
    known = _known_from(history, winners)
    _check_reads(history, known)
    _check_losses(history, known)
    _check_cuts(history)


def _refute(sentence: str, *calls: object) -> NotLinear:
    return NotLinear(f"{sentence}: {calls}")


def _winners(history: History) -> dict[int, Set]:
    """Return the winning call at each seqno, from all reads and answers."""
    by_value = {call.value: call for call in history.sets}
    if len(by_value) != len(history.sets):
        raise ValueError("values are not unique")
    found: dict[int, Set] = {}

    def add(seqno: int, value: bytes, why: object) -> None:
        call = by_value.get(value)
        if call is None or call.seqno != seqno:
            raise _refute("a record was seen that nobody wrote there", seqno, value, why)
        if found.setdefault(seqno, call) != call:
            raise _refute("two records won one seqno", found[seqno], call, why)

    for read in history.reads:
        for seqno, value in read.found:
            add(seqno, value, read)
    for call in history.sets:
        if call.answer == LANDED:
            add(call.seqno, call.value, call)
    return found


def _check_answers(history: History, winners: dict[int, Set]) -> None:
    for call in history.sets:
        if call.answer in (LOST, NEVER) and winners.get(call.seqno) is call:
            raise _refute("a call that was said to have lost has won", call)


def _known_from(history: History, winners: dict[int, Set]) -> dict[int, tuple[float, float]]:
    """Return for each seqno the earliest and the latest moment of its landing."""
    known: dict[int, tuple[float, float]] = {}
    top = max(winners, default=0)
    for seqno, call in winners.items():
        latest = call.end if call.answer == LANDED else FOREVER
        seen = (r.end for r in history.reads if any(n == seqno for n, _ in r.found))
        known[seqno] = (call.begin, min([latest, *seen]))
    # A record lands after the one before it and before the one after it.
    for seqno in range(2, top + 1):
        if seqno in known and seqno - 1 in known:
            known[seqno] = (max(known[seqno][0], known[seqno - 1][0]), known[seqno][1])
    for seqno in range(top - 1, 0, -1):
        if seqno in known and seqno + 1 in known:
            known[seqno] = (known[seqno][0], min(known[seqno][1], known[seqno + 1][1]))
    for seqno, (earliest, latest) in known.items():
        if earliest > latest:
            raise _refute("a record was there before it was written", seqno, winners[seqno])
    return known


def _check_reads(history: History, known: dict[int, tuple[float, float]]) -> None:
    reads = sorted(history.reads, key=lambda r: r.begin)
    for read in reads:
        seqnos = [n for n, _ in read.found]
        if seqnos != list(range(seqnos[0], seqnos[0] + len(seqnos))) if seqnos else False:
            raise _refute("a read has a hole", read)
        if read.start is not None and seqnos and seqnos[0] < read.start:
            raise _refute("a scan gave what it was not asked for", read)
        whole = read.limit is None or len(seqnos) < read.limit
        newest = seqnos[-1] if seqnos else (read.start or 1) - 1
        for seqno, (earliest, latest) in known.items():
            missed = seqno > newest and whole and latest < read.begin
            if missed:
                raise _refute("a read missed a record that was there", seqno, read)
            if seqno in seqnos and earliest > read.end:
                raise _refute("a read saw a record before it was written", seqno, read)
        for cut in history.cuts:
            if seqnos and read.start is not None and _is_cut_short(read, seqnos[0], history.cuts):
                raise _refute("a scan misses records that nobody truncated", read, cut)


def _is_cut_short(read: Read, first: int, cuts: Sequence[Cut]) -> bool:
    allowed = max((c.before for c in cuts if c.begin <= read.end), default=1)
    return first > max(read.start or 1, allowed)


def _check_losses(history: History, known: dict[int, tuple[float, float]]) -> None:
    """Demand that the head differed from the expected seqno at some moment of each lost call."""
    for call in history.sets:
        if call.answer != LOST:
            continue
        before_landed = known[call.seqno - 1][1] if call.seqno - 1 in known else None
        if call.seqno == 1:
            before_landed = -FOREVER
        there = before_landed is not None and before_landed < call.begin
        if there and not _may_be_passed(history, known, call):
            raise _refute("a call lost, and nobody was before it", call)


def _may_be_passed(history: History, known: dict[int, tuple[float, float]], call: Set) -> bool:
    """Return True if a record can exist at a call's seqno before the call ended."""
    if call.seqno in known:
        return known[call.seqno][0] <= call.end
    # No read saw that record before its truncation; then an unsure call wrote it.
    return any(
        other.answer == UNSURE and other.begin <= call.end
        for other in history.sets
        if other.seqno == call.seqno
    )


def _check_cuts(history: History) -> None:
    newest = max((n for r in history.reads for n, _ in r.found), default=0)
    for cut in history.cuts:
        if cut.end < FOREVER and cut.before > newest:
            raise _refute("the newest record was truncated", cut)


def count_unsure(calls: Iterable[Set]) -> int:
    return sum(call.answer == UNSURE for call in calls)
