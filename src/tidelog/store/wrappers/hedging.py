"""The decisions of a hedged store: when to send again, and which result counts. Does no I/O.

The delay is a quantile of the recent times of one kind of request. The budget is a share of the
requests. (The seed has a rate per second instead.) A share bounds the load and the cost at any rate
of requests, and needs no clock.
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
    """The delay before a request is sent again, and the share of requests that may be.

    Units:
        quantile, factor: the delay is ``factor`` times the ``quantile`` (0 to 1) of the recent
        times.
        least_us, most_us: limits of the delay.
        samples_min: number of known times from which requests are hedged.
        window: number of recent times.
        extra_permille: thousandths of the requests that may be sent again; unused ones are saved.
        burst: requests that can be saved, at most.
    """

    # If one request in twenty is slow, the 0.95 quantile alternates between a fast and a slow time.
    # The 0.9 quantile is a fast time, and the factor lifts it above all fast ones.
    quantile: float = 0.9
    factor: float = 1.5
    least_us: int = 2_000
    most_us: int = 5_000_000
    samples_min: int = 20
    window: int = 256
    extra_permille: int = 50
    burst: int = 20

    def __post_init__(self) -> None:
        require(0 < self.quantile < 1, "quantile must be between 0 and 1", quantile=self.quantile)
        require(self.factor >= 1, "factor must be at least 1", factor=self.factor)
        require(0 <= self.least_us <= self.most_us, "least_us must be from 0 to most_us")
        require(1 <= self.samples_min <= self.window, "samples_min must be from 1 to window")
        require(0 <= self.extra_permille <= 1_000, "extra_permille must be from 0 to 1,000")
        require(self.burst >= 1, "burst must be at least 1", burst=self.burst)


DEFAULT_HEDGING = Hedging()


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """The times of the newest requests of one kind, oldest first.

    A request that was sent twice counts with the time until its answer, from whichever try. That
    time exceeds the delay, as its first try's time would have. Without such requests the delay
    would follow only the fast ones, and shrink again and again.
    """

    recent_us: tuple[int, ...] = ()

    def after(self, took_us: int, hedging: Hedging) -> LatencyWindow:
        return LatencyWindow((*self.recent_us, took_us)[-hedging.window :])

    def delay_us(self, hedging: Hedging) -> int | None:
        """Return the wait before a request is sent again; None while too few times are known."""
        count = len(self.recent_us)
        if count < hedging.samples_min:
            return None
        rank = max(1, math.ceil(hedging.quantile * count))
        slow_us = sorted(self.recent_us)[rank - 1]
        return min(max(int(slow_us * hedging.factor), hedging.least_us), hedging.most_us)


@dataclass(frozen=True, slots=True)
class Budget:
    """The saved requests that may be sent again, in thousandths of a request.

    It begins empty, so of n requests at most n * ``extra_permille`` / 1000 are sent again, from the
    start.
    """

    saved_permille: int = 0

    def earned(self, hedging: Hedging) -> Budget:
        """Return the budget after one more request."""
        most_permille = hedging.burst * 1_000
        return Budget(min(self.saved_permille + hedging.extra_permille, most_permille))

    def spent(self) -> Budget | None:
        """Return the budget after one request is sent again; None if it does not suffice."""
        return Budget(self.saved_permille - 1_000) if self.saved_permille >= 1_000 else None


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer of the store."""

    value: T


# The result of one try; None while it is in flight.
Result = Answer[T] | TidelogError | None

# Errors that describe an object, not a failure of the store. ContentionError itself is not among
# them: the store is busy, and another try may succeed. Nor is ObjectChanged, because no put that
# could meet it is sent twice.
ANSWERS = (ObjectNotFound, ObjectExists)


def settle(results: Sequence[Result[T]]) -> Result[T]:
    """Return the result that counts, or None if more results are needed.

    A success counts before a refusal. A refusal counts before a failure, which counts only if no
    try is in flight. Of two failures, the one with the more severe outcome counts: the outcome is
    NOT_APPLIED only if it is so for each try.
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
    """Return True if the object that refused one try of a put may come from another try.

    A try in flight may be stored, and cancelling it undoes nothing. The same holds for a try with
    an unknown outcome.
    """
    return any(
        result is None
        or (isinstance(result, TidelogError) and result.outcome is not Outcome.NOT_APPLIED)
        for result in results
    )


def _gravity(error: TidelogError) -> int:
    return (Outcome.NOT_APPLIED, Outcome.UNKNOWN, Outcome.APPLIED).index(error.outcome)
