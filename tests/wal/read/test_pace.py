"""The number of objects that a scan fetches ahead depends on its fetch and check times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.wal.read.record_reader import ScanPace


def after(cores: int, times: list[tuple[int, int]]) -> ScanPace:
    pace = ScanPace(cores=cores)
    for fetch_us, check_us in times:
        pace.note(fetch_us=fetch_us, check_us=check_us)
    return pace


@pytest.mark.parametrize(
    ("cores", "fetch_us", "check_us", "wanted"),
    [
        (1, 1_000, 5_000, 2),
        (2, 1_000, 5_000, 3),
        (2, 5_000, 5_000, 4),
        (1, 30_000, 10_000, 4),
        (2, 100_000, 5_000, AT_ONCE_MAX),
        (64, 1_000, 5_000, AT_ONCE_MAX),
        (1, 0, 5_000, 2),
        (1, 100_000, 0, AT_ONCE_MAX),
    ],
)
def test_a_quick_store_is_not_asked_ahead(
    cores: int, fetch_us: int, check_us: int, wanted: int
) -> None:
    """A scan of a quick store wants one object for each core; more would only use memory."""
    assert after(cores, [(fetch_us, check_us)] * 5).wanted() == wanted


def test_what_is_not_known_yet_limits_nothing() -> None:
    """A scan without a measurement may fetch the maximum."""
    assert ScanPace(cores=1).wanted() == AT_ONCE_MAX


def test_a_store_that_becomes_slow_is_asked_ahead() -> None:
    """The newest measurements decide: after some ten objects the older ones no longer matter."""
    assert after(1, [*[(1_000, 10_000)] * 100, *[(100_000, 10_000)] * 10]).wanted() == AT_ONCE_MAX
    assert after(1, [*[(100_000, 10_000)] * 100, *[(1_000, 10_000)] * 15]).wanted() <= 3


@given(
    cores=st.integers(1, 100),
    times=st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**10))),
)
def test_some_and_never_too_many_are_wanted(cores: int, times: list[tuple[int, int]]) -> None:
    """A scan always wants at least two objects and at most the maximum, for any measured times."""
    assert 2 <= after(cores, times).wanted() <= AT_ONCE_MAX
