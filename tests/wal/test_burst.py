"""Bursts of fences: a new writer ends a busy writer's epoch with few fences."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidelog.wal.slot_protocol.burst import Burst, begin, note_answers, slots_to_fence


@dataclass(slots=True)
class TakeoverResult:
    """The outcome of a takeover from a writer that fills slots in each round."""

    burst: Burst
    rounds: int = 0
    fences: int = 0


def take_over(first: int, *, alpha: int, ahead: int, speed: int) -> TakeoverResult:
    """Fence a writer that is ``ahead`` slots past ``first`` and fills ``speed`` slots a round."""
    met = TakeoverResult(begin(first, alpha=alpha))
    frontier = first + ahead
    fenced: set[int] = set()
    while slots := slots_to_fence(met.burst):
        frontier += speed
        # A writer fills one slot after another, and stops before a fence.
        stop = min((slot for slot in fenced if slot >= first), default=frontier)
        limit = min(frontier, stop)
        ours = frozenset(slot for slot in slots if slot >= limit)
        fenced |= ours
        met.burst = note_answers(met.burst, ours=ours, taken=frozenset(slots) - ours)
        met.rounds += 1
        met.fences += len(slots)
        assert met.rounds < 60, "the writer is never overtaken"
    return met


@given(st.integers(1, 1_000), st.integers(1, 64), st.integers(0, 9), st.integers(0, 9))
def test_a_burst_places_a_fence_that_the_writer_cannot_pass(
    first: int, alpha: int, ahead: int, speed: int
) -> None:
    """Every slot below the burst's fence, within the old writer's window, has an answer."""
    met = take_over(first, alpha=alpha, ahead=ahead * alpha, speed=speed * alpha)
    lowest = met.burst.lowest

    assert lowest is not None
    known = met.burst.ours | met.burst.taken
    passed = max((slot for slot in met.burst.taken if slot < lowest), default=first - 1)
    assert all(slot in known for slot in range(max(first, passed - alpha + 1), lowest))


def test_few_fences_end_the_epoch_of_a_writer_that_is_busy() -> None:
    """Few fences end the epoch of a busy writer (docs/decisions/0010)."""
    for alpha in (1, 2, 8, 32, 256):
        for rounds_ahead in (0, 1, 2):
            met = take_over(10, alpha=alpha, ahead=rounds_ahead * alpha, speed=alpha)
            assert met.fences <= 4 * alpha + 6, (alpha, rounds_ahead)
            assert met.rounds <= 2


@given(st.integers(1, 64), st.integers(1, 100))
def test_a_writer_of_any_speed_is_overtaken(alpha: int, speed: int) -> None:
    """The size of a round doubles, so the rounds grow with the logarithm of the speed."""
    met = take_over(1, alpha=alpha, ahead=0, speed=speed * alpha)

    assert met.rounds <= 4 + speed.bit_length()


def test_a_dead_writer_costs_one_round() -> None:
    """A dead writer costs one round: its first free slot gets a fence."""
    met = take_over(7, alpha=8, ahead=0, speed=0)

    assert (met.rounds, met.burst.lowest) == (1, 7)
    assert met.fences == 8 + 3


def test_fences_say_how_far_their_opener_reaches() -> None:
    """A fence records its opener's reach: the collector deletes void slots no further."""
    burst = begin(5, alpha=4)
    slots = slots_to_fence(burst)
    assert max(slots) + 1 == burst.reach

    farther = note_answers(burst, ours=frozenset(), taken=frozenset(slots))
    assert farther.base == max(slots) + 1
    assert max(slots_to_fence(farther)) + 1 == farther.reach
