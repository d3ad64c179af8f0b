"""The worst cost of taking over from a saturated writer, by calculation, not exploration.

``python -m sim.models.takeover`` prints a table for each placing of signs.

The writer keeps alpha puts under way, each as slow as a put of the opener: it sends alpha slots per
put. The opener finds free slots by a listing, which takes as long as a get. Every unknown takes its
worst value. The listing shows the store at its begin, with as little as possible. Each of the
opener's fences lands at the end of its time; each of the writer's puts lands at once.

Between the listing and the landing of the first round lie a get and a put. In that time the writer
advances ``alpha * (2 + get / put)`` slots from the first free slot, with those under way included.
Each round adds alpha slots. A fence is surely created after them.

Not counted: an opener's own lost answers; the gets of slots that a writer did not roll up within
the allowed looks; and the extra round trips of a walk of alpha slots with fewer than alpha parallel
gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

ROUND_TRIPS_MAX: Final = 12
LOOKS: Final = 4  # At the manifest: one, and three more while the writer rolls up.
# The manifest, a listing with a get of the first slot, and another listing before the walk.
OTHERS: Final = 4
RATIOS: Final = tuple(Fraction(*each) for each in ((1, 5), (1, 2), (1, 1), (2, 1), (3, 1), (5, 1)))
ALPHAS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceSpacing:
    """The number of signs in a round: alpha apart at first, twice as far in each next round."""

    signs: int


DECIDED: Final = FenceSpacing(signs=3)
PROPOSED: Final = FenceSpacing(signs=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The worst of a takeover: rounds of fences without the filling one, round trips, requests."""

    rounds: int
    round_trips: int
    requests: int
    alpha: int

    @property
    def is_within(self) -> bool:
        return self.round_trips <= ROUND_TRIPS_MAX and self.requests <= 4 * self.alpha + 20


def worst(placing: FenceSpacing, *, ratio: Fraction, alpha: int) -> Cost:
    """Return the worst cost if a get takes ``ratio`` times as long as a put."""
    costs = [_cost(each, alpha=alpha) for each in _endings(placing, ratio=ratio, alpha=alpha)]
    return Cost(
        rounds=max(cost.rounds for cost in costs),
        round_trips=max(cost.round_trips for cost in costs),
        requests=max(cost.requests for cost in costs),
        alpha=alpha,
    )


@dataclass(frozen=True, slots=True)
class _Ending:
    """An end of the rounds: their number, their fences, and the fences that fill gaps later."""

    rounds: int
    fences: int
    filling: int


def _endings(placing: FenceSpacing, *, ratio: Fraction, alpha: int) -> Iterator[_Ending]:
    """Yield each way in which a fence may be the lowest one created, round after round."""
    base, stride, rounds, fences = 0, alpha, 0, 0
    while True:
        rounds, fences = rounds + 1, fences + alpha + placing.signs
        # Slots from here on are free when the fences of this round land.
        free = ceil(alpha * (1 + ratio + rounds))
        signs = [base + alpha - 1 + stride * each for each in range(1, placing.signs + 1)]
        yield _Ending(rounds, fences, 0)  # A dense one: the writer was slower than its maximum.
        passed = base - 1
        for sign in signs:
            yield _Ending(rounds, fences, _filling(base, passed, sign, alpha=alpha))
            if sign >= free:
                return
            passed = sign
        base, stride = signs[-1] + 1, 2 * stride


def _filling(base: int, passed: int, sign: int, *, alpha: int) -> int:
    """Return the number of possibly free slots below a sign if all fences below it were taken."""
    first = max(base + alpha, passed - alpha + 1)
    return len([slot for slot in range(first, sign) if slot != passed])


def _cost(ending: _Ending, *, alpha: int) -> Cost:
    is_filled = ending.filling > 0
    walk = 2  # A listing, and a window of parallel gets.
    return Cost(
        rounds=ending.rounds,
        round_trips=2 + ending.rounds + is_filled + LOOKS + walk,
        requests=ending.fences + ending.filling + LOOKS + OTHERS + alpha,  # A walk of alpha slots.
        alpha=alpha,
    )


def main() -> None:
    for placing in (DECIDED, PROPOSED):
        print(f"{placing.signs} signs")
        print("get:put  alpha  rounds  round trips  requests  4 x alpha + 20")
        for ratio in RATIOS:
            for alpha in ALPHAS:
                cost = worst(placing, ratio=ratio, alpha=alpha)
                line = f"{ratio!s:>7} {alpha:6} {cost.rounds:7} {cost.round_trips:12}"
                within = "" if cost.is_within else "  more than that"
                print(f"{line} {cost.requests:9} {4 * alpha + 20:15}{within}")


if __name__ == "__main__":
    main()
