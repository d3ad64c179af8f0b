"""Keyed logs with faults at each of a client's requests, and broken builds of them."""

from __future__ import annotations

from collections import Counter

import pytest

from kit.sim_days import caught
from sim.canaries.builds import Canary
from sim.canaries.keyed import FOR_KEYED
from sim.checkers.demands import Violated
from sim.checkers.keyed_reads import Question
from sim.checkers.keyed_truth import KeyedTruth, Row
from sim.checkers.watch_slots import SlotWatch
from sim.crash.points import FAILED, KILLED, VICTIM, kinds_of, visit
from sim.crash.stories_keyed import KeyedForkStory, KeyedStory
from sim.kernel.faults import Script
from sim.workloads.keyed import simulate_keyed

STORIES = {story.name: story for story in (KeyedStory(), KeyedForkStory())}
STRIDES = {"keyed": (11, 17), "keyed fork": (23, 31)}
KINDS = {"append", "seal", "compaction", "merge", "retirement", "collection", "checkpoint"}
SEEDS_MAX = 300


@pytest.mark.parametrize("name", STORIES)
def test_a_client_of_a_keyed_log_may_die_at_any_request(name: str) -> None:
    """The victim may die at a request; its heir reaches the same end, whatever had happened."""
    found = visit(STORIES[name], faults=KILLED, stride=STRIDES[name][0])

    assert found.visited == found.struck >= found.requests // 7


@pytest.mark.parametrize("name", STORIES)
def test_any_request_to_a_keyed_log_may_fail(name: str) -> None:
    """The victim continues after a failed request, even if the change lands later."""
    found = visit(STORIES[name], faults=FAILED, stride=STRIDES[name][1])

    assert found.visited == found.struck >= found.requests // 9


@pytest.mark.parametrize("name", STORIES)
def test_stories_of_keyed_logs_are_told_again_word_by_word(name: str) -> None:
    """Equal seeds give equal requests, so that a crash point is always the same place."""
    first, second = Script(), Script()
    STORIES[name].tell(first, seed=0)
    STORIES[name].tell(second, seed=0)

    assert first.seen == second.seen
    assert any(request.client == VICTIM for request in first.seen)


def test_crash_points_lie_in_all_that_a_keyed_log_goes_through() -> None:
    """Each kind of change has requests of its own, and the visits strike some of them."""
    total: Counter[str] = Counter()
    for name, (killed, failed) in STRIDES.items():
        total += kinds_of(STORIES[name], faults=KILLED, stride=killed)
        total += kinds_of(STORIES[name], faults=FAILED, stride=failed)

    assert set(total) >= KINDS | {"fork", "drop"}


def test_one_seed_of_keyed_logs_is_one_run() -> None:
    """Equal seeds give equal reports, so that a failure can be repeated."""
    first, second = simulate_keyed(14), simulate_keyed(14)

    assert first == second


@pytest.mark.parametrize("canary", FOR_KEYED, ids=lambda canary: str(canary.__name__))
def test_a_broken_build_of_keyed_logs_is_caught(canary: Canary) -> None:
    """The simulator must find each broken build, or a run without findings proves nothing."""
    caught(canary, simulate_keyed, range(SEEDS_MAX))


def _truth() -> KeyedTruth:
    records = {1: (b"a", b"x", 10), 2: (b"b", b"y", 20), 4: (b"a", b"z", 30)}
    wal = SlotWatch(position=5)
    return KeyedTruth(name="k", wal=wal, fetch=lambda _: None, now_us=lambda: 0, records=records)


def _scan(rows: list[Row], following: int, *, known: int = 5, retired: int = 1) -> None:
    truth = _truth()
    truth.retired = retired
    question = Question(truth=truth, wants=lambda key: key == b"a", about="a", known=known)
    question.check_scan(rows, following)


FIRST: Row = (b"a", 1, 10, b"x")
LAST: Row = (b"a", 4, 30, b"z")


def test_scans_that_are_right_pass() -> None:
    """The checker accepts a whole read, one up to the known end, and one after a retirement."""
    _scan([FIRST, LAST], 5)
    _scan([FIRST], 3, known=2)
    _scan([LAST], 5, retired=3)


@pytest.mark.parametrize(
    ("rows", "following"),
    [
        ([FIRST], 5),  # A record is lost.
        ([LAST, FIRST], 5),  # The order is wrong.
        ([FIRST, FIRST, LAST], 5),  # A record is there twice.
        ([FIRST, (b"a", 4, 30, b"other")], 5),  # Another record has the sequence.
        ([FIRST, (b"b", 2, 20, b"y"), LAST], 5),  # A record has another key.
        ([FIRST, LAST], 6),  # The scan continues past the end of the log.
        ([FIRST], 2),  # The scan ends before an acknowledged record.
    ],
)
def test_scans_that_are_wrong_are_refused(rows: list[Row], following: int) -> None:
    """The checker refuses each of these, although each is one step from a right answer."""
    with pytest.raises(Violated):
        _scan(rows, following)
