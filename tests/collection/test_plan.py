"""Cuts: a binding ends between two distinct times, or says that it could not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.collection.plan import (
    NO_TIME_GREATEST,
    NO_TIME_LEAST,
    Cut,
    Units,
    choose_cut,
    choose_rough_cut,
    describe_cut,
    upper_after,
)

Spans = list[tuple[int, int] | None]
SPANS = st.lists(
    st.none() | st.tuples(st.integers(0, 9), st.integers(0, 3)).map(lambda s: (s[0], sum(s))),
    max_size=10,
)


def units(spans: Spans, late: list[int] | None = None) -> Units:
    """Return units with these least and greatest times; None has no time."""
    return Units(
        np.array([NO_TIME_LEAST if s is None else s[0] for s in spans], np.int64),
        np.array([NO_TIME_GREATEST if s is None else s[1] for s in spans], np.int64),
        np.array(late or [0] * len(spans), np.int64),
    )


def times(spans: Spans) -> list[int]:
    return [time for span in spans if span is not None for time in span]


@given(spans=SPANS)
def test_a_cut_is_between_two_distinct_times_and_the_last_there_is(spans: Spans) -> None:
    """All before it is earlier than the first after it; the more a binding takes, the better."""
    places = [
        place
        for place in range(1, len(spans))
        if times(spans[:place])
        and (span := spans[place]) is not None
        and max(times(spans[:place])) < span[0]
    ]

    cut = choose_cut(units(spans), complete=False)

    assert (None if cut is None else cut.units) == (places[-1] if places else None)


@given(spans=SPANS.filter(bool))
def test_all_is_taken_where_there_is_no_more(spans: Spans) -> None:
    """The end of what there is, is the end of a binding."""
    cut = choose_cut(units(spans), complete=True)

    assert cut == Cut(len(spans), max(times(spans), default=None), 0)


@given(times_=st.lists(st.integers(0, 30), min_size=2, max_size=30), size=st.integers(2, 8))
def test_sorted_times_are_cut_alike_however_they_are_looked_at(
    times_: list[int], size: int
) -> None:
    """No time's records are split over two bindings, and together they are all there are."""
    ordered = sorted(times_)
    left, taken = [(t, t) for t in ordered], []
    while left:
        seen = size
        while True:
            complete = seen >= len(left)
            cut = choose_cut(units(list(left[:seen])), complete=complete)
            if cut is not None:
                break
            seen *= 2
        taken.append({t for t, _ in left[: cut.units]})
        left = left[cut.units :]

    assert set().union(*taken) == set(ordered)
    assert sum(map(len, taken)) == len(set(ordered))


@given(spans=SPANS)
def test_a_rough_cut_is_between_neighbours_of_other_times(spans: Spans) -> None:
    """Where times go up and down, what comes later and is earlier will be late."""
    cut = choose_rough_cut(units(spans))

    known = [(place, span) for place, span in enumerate(spans) if span is not None]
    changes = [
        place for (_, before), (place, span) in itertools.pairwise(known) if span[0] != before[1]
    ]
    assert (None if cut is None else cut.units) == (changes[-1] if changes else None)


def test_a_cut_says_what_it_takes() -> None:
    """Its greatest time, and its late rows, of the units before it alone."""
    spans: Spans = [(5, 5), None, (2, 3), (9, 9)]

    assert describe_cut(units(spans, [1, 0, 2, 4]), 3) == Cut(3, 5, 3)
    assert describe_cut(units([None, None]), 2) == Cut(2, None, 0)


@pytest.mark.parametrize(
    ("time_max", "lower", "upper"),
    [(5, 0, 6), (5, 5, 6), (3, 5, 6), (None, 5, 6), (None, 0, 1), (-7, 0, 1)],
)
def test_upper_is_the_greatest_time_and_one_and_never_goes_back(
    time_max: int | None, lower: int, upper: int
) -> None:
    """Rows that are late are moved up; a binding without a time still takes one."""
    assert upper_after(Cut(1, time_max, 0), lower) == upper


def test_units_are_joined_in_order() -> None:
    """Files follow each other as their paths do."""
    joined = Units.join([units([(1, 2)]), Units.timeless(2), units([(3, 4)])])

    assert joined.least.tolist() == [1, NO_TIME_LEAST, NO_TIME_LEAST, 3]
    assert joined.greatest.tolist() == [2, NO_TIME_GREATEST, NO_TIME_GREATEST, 4]
    assert len(joined) == 4
