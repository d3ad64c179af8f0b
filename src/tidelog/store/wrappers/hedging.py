"""When a request is sent a second time, and which of two results counts. Does no I/O.

The delay is a quantile of the times that requests of one kind took lately; the budget is a share
of the requests. The seed's budget is so many a second; a share bounds the load on the store, and
the bill, at any rate of requests, and no clock is in it.
Source: wal3-draft, '"Robust" Object Storage Abstraction'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelog.errors import ObjectExists, ObjectNotFound, Outcome, TidelogError, require

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedging:
    """How patient a request is, and how many may be sent twice.

    Units: the delay is ``factor`` times the ``quantile`` (0 to 1) of the newest ``window``
    times, and from ``least_us`` to ``most_us``; there is none before ``samples_min`` times are
    known. ``extra_permille`` thousandths of the requests may be sent again; what is not used is
    saved, up to ``burst`` requests.
    """

    # Where one in twenty is slow, the 0.95 quantile is now a quick one and now a slow one; the 0.9
    # quantile is a quick one, and the factor takes it past all the others that are quick.
    quantile: float = 0.9
    factor: float = 1.5
    least_us: int = 2_000
    most_us: int = 5_000_000
    samples_min: int = 20
    window: int = 256
    extra_permille: int = 50
    burst: int = 20

    def __post_init__(self) -> None:
        require(0 < self.quantile < 1, "a quantile lies between 0 and 1", quantile=self.quantile)
        require(self.factor >= 1, "the delay is no less than the quantile", factor=self.factor)
        require(0 <= self.least_us <= self.most_us, "the bounds of the delay are in order")
        require(1 <= self.samples_min <= self.window, "the window holds the samples needed")
        require(0 <= self.extra_permille <= 1_000, "a request is sent twice at the most")
        require(self.burst >= 1, "less than one request cannot be sent", burst=self.burst)


DEFAULT_HEDGING = Hedging()


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """The times that the newest requests of one kind took, oldest first.

    A request that was sent twice counts with the time until it was answered, whichever attempt was
    it: that is longer than the delay was, as the time of its first attempt would have been. Were
    it left out, the delay would be taken from the quick ones only, and sink and sink.
    """

    recent_us: tuple[int, ...] = ()

    def after(self, took_us: int, hedging: Hedging) -> LatencyWindow:
        return LatencyWindow((*self.recent_us, took_us)[-hedging.window :])

    def delay_us(self, hedging: Hedging) -> int | None:
        """Return the wait before a request is sent again; None while too little is known."""
        count = len(self.recent_us)
        if count < hedging.samples_min:
            return None
        rank = max(1, math.ceil(hedging.quantile * count))
        slow_us = sorted(self.recent_us)[rank - 1]
        return min(max(int(slow_us * hedging.factor), hedging.least_us), hedging.most_us)


@dataclass(frozen=True, slots=True)
class Budget:
    """What is saved for sending again, in thousandths of a request.

    It begins empty, so that of n requests never more than n * ``extra_permille`` / 1000 are sent
    again, from the first on.
    """

    saved_permille: int = 0

    def earned(self, hedging: Hedging) -> Budget:
        """Return the budget after one more request."""
        most_permille = hedging.burst * 1_000
        return Budget(min(self.saved_permille + hedging.extra_permille, most_permille))

    def spent(self) -> Budget | None:
        """Return the budget after one was sent again; None if it does not allow that."""
        return Budget(self.saved_permille - 1_000) if self.saved_permille >= 1_000 else None


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What the store gave."""

    value: T


# What became of one attempt; None: it is still under way.
Result = Answer[T] | TidelogError | None

# Errors by which a store says something of its objects, and not that it failed. ContentionError
# itself is none: with it a store is busy, and another attempt may fare better. Nor is
# ObjectChanged: no put that could meet it is sent twice.
ANSWERS = (ObjectNotFound, ObjectExists)


def settle(results: Sequence[Result[T]]) -> Result[T]:
    """Return the result that counts, or None while that is to be waited for.

    A success counts before a refusal, and a refusal before a failure, which counts only once there
    is nothing left to wait for. Of two failures that counts of which more may have happened: the
    outcome is NOT_APPLIED only if it is that for each attempt.
    """
    for result in results:
        if isinstance(result, Answer):
            return result
    for result in results:
        if isinstance(result, ANSWERS):
            return result
    failures = [result for result in results if isinstance(result, TidelogError)]
    return max(failures, key=_gravity) if len(failures) == len(results) else None


def may_be_ours(results: Sequence[Result[T]]) -> bool:
    """Say whether the object that refused one attempt at a put can be that of another attempt.

    One under way may have landed, and cancelling it undoes nothing; so may one left in doubt.
    """
    return any(
        result is None
        or (isinstance(result, TidelogError) and result.outcome is not Outcome.NOT_APPLIED)
        for result in results
    )


def _gravity(error: TidelogError) -> int:
    return (Outcome.NOT_APPLIED, Outcome.UNKNOWN, Outcome.APPLIED).index(error.outcome)
