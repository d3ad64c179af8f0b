"""Decisions of hedging, without a store: when to send again, and which result counts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import (
    ContentionError,
    InvariantError,
    LocationError,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    TidelogError,
)
from tidelog.store.wrappers.hedging import (
    Answer,
    Budget,
    Hedging,
    LatencyWindow,
    Result,
    may_be_ours,
    settle,
)

NOT_APPLIED = LocationError("refused", outcome=Outcome.NOT_APPLIED)
UNKNOWN = LocationError("no answer", outcome=Outcome.UNKNOWN)
BUSY = ContentionError("busy")
EXISTS = ObjectExists("exists")
DONE = Answer("e_tag")
# The end of an attempt at a put, and whether its bytes may be in the store.
MAY_HAVE_LANDED: dict[str, tuple[Result[str], bool]] = {
    "under way": (None, True),
    "done": (DONE, True),
    "exists": (EXISTS, False),
    "busy": (BUSY, False),
    "not applied": (NOT_APPLIED, False),
    "unknown": (UNKNOWN, True),
}


@given(times=st.lists(st.integers(0, 10**8), min_size=1, max_size=80), data=st.data())
def test_the_delay_outlasts_its_share_of_the_window(times: list[int], data: st.DataObject) -> None:
    """With a factor of 1 the delay is the smallest recent time that covers the quantile."""
    window = data.draw(st.integers(1, 60), label="window")
    quantile = data.draw(st.floats(0.01, 0.99), label="quantile")
    hedging = Hedging(
        quantile=quantile, factor=1, least_us=0, most_us=10**9, samples_min=1, window=window
    )
    pace = LatencyWindow()
    for took_us in times:
        pace = pace.after(took_us, hedging)

    delay_us = pace.delay_us(hedging)

    newest = times[-window:]
    assert delay_us in newest
    assert sum(took_us <= delay_us for took_us in newest) >= quantile * len(newest)
    assert sum(took_us < delay_us for took_us in newest) < quantile * len(newest)


def test_the_delay_has_bounds_and_a_beginning() -> None:
    """One slow start must not disable hedging, nor a fast disk double all requests."""
    hedging = Hedging(least_us=1_000, most_us=9_000, samples_min=3, window=10, factor=2)
    quick, slow, usual = (LatencyWindow((took_us,) * 3) for took_us in (10, 10**9, 2_000))

    assert LatencyWindow((5_000,) * 2).delay_us(hedging) is None
    assert quick.delay_us(hedging) == 1_000
    assert slow.delay_us(hedging) == 9_000
    assert usual.delay_us(hedging) == 4_000


@given(
    slow=st.lists(st.booleans(), max_size=400),
    extra_permille=st.integers(0, 1_000),
    burst=st.integers(1, 30),
)
def test_the_budget_is_never_exceeded(slow: list[bool], extra_permille: int, burst: int) -> None:
    """The budget is never exceeded, neither at the start nor after a long quiet time."""
    hedging = Hedging(extra_permille=extra_permille, burst=burst)
    budget, sent_again = Budget(), [0]
    for is_slow in slow:
        budget = budget.earned(hedging)
        left = budget.spent() if is_slow else None
        budget = left or budget
        sent_again.append(sent_again[-1] + (left is not None))

    for begin, end in itertools.combinations(range(0, len(sent_again), 7), 2):
        extra = sent_again[end] - sent_again[begin]
        assert extra <= burst + (end - begin) * extra_permille / 1_000
    assert all(n * extra_permille >= 1_000 * count for n, count in enumerate(sent_again))


def test_the_budget_is_used() -> None:
    """If all requests are slow, exactly the allowed share is sent again."""
    hedging, budget, count = Hedging(extra_permille=50), Budget(), 0
    for _ in range(1_000):
        budget = budget.earned(hedging)
        left = budget.spent()
        count, budget = count + (left is not None), left or budget

    assert count == 50


@pytest.mark.parametrize("first", MAY_HAVE_LANDED)
@pytest.mark.parametrize("second", MAY_HAVE_LANDED)
def test_outcomes_of_two_puts_are_honest(first: str, second: str) -> None:
    """The result of two attempts is true for every pair of ends, and as early as possible."""
    results = [MAY_HAVE_LANDED[name][0] for name in (first, second)]
    landed = [MAY_HAVE_LANDED[name][1] for name in (first, second)]

    settled = settle(results)

    if isinstance(settled, ObjectExists):
        assert may_be_ours(results) == any(landed)
    elif isinstance(settled, TidelogError):
        assert None not in results, "a failure counts once there is nothing to wait for"
        assert (settled.outcome is Outcome.NOT_APPLIED) == (not any(landed))
    elif settled is None:
        assert None in results
        assert not {"done", "exists"} & {first, second}
    else:
        assert "done" in (first, second)


def test_what_is_missing_is_an_answer() -> None:
    """A missing object is an answer, so a read does not wait for its other attempt."""
    missing = ObjectNotFound("missing")

    assert settle([missing, None]) is missing
    assert settle([NOT_APPLIED, missing]) is missing


@pytest.mark.parametrize(
    "wrong",
    [
        {"quantile": 1.0},
        {"factor": 0.5},
        {"least_us": 2, "most_us": 1},
        {"samples_min": 0},
        {"samples_min": 10, "window": 9},
        {"extra_permille": 1_001},
        {"burst": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    """Settings that make no sense are refused when they are built."""
    with pytest.raises(InvariantError):
        Hedging(**wrong)  # type: ignore[arg-type]
