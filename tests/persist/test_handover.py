"""The mark of a handover: each branch of its decisions, and its stored form."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.core.frontier import Frontier
from tidelog.errors import HandoverRefused, ShardRegistered, UsageError
from tidelog.persist.states.handover import decide_bar, decide_mark, decide_retire
from tidelog.persist.states.state import (
    Diff,
    Hold,
    Mark,
    Registration,
    ShardLanguage,
    State,
    apply_diff,
)

LANGUAGE = ShardLanguage()


def after(state: State, diff: Diff | None) -> State:
    assert diff is not None
    stored = LANGUAGE.decode_diff(LANGUAGE.encode_diff(diff))
    assert stored == diff
    return apply_diff(state, stored)


@pytest.mark.parametrize("upper", [0, 4, 5])
def test_a_time_that_is_not_complete_is_marked(upper: int) -> None:
    """The upper may be at the time of the mark, because that time is then not readable yet."""
    mark = Mark(5, "r2")
    found = decide_mark(State(upper=upper), mark)

    marked = after(State(upper=upper), found.diff)
    assert found.result == marked.mark == mark
    assert decide_mark(marked, mark).diff is None
    assert decide_mark(apply_diff(marked, Diff(upper=(9,), token=("w", 0))), mark).result == mark


@pytest.mark.parametrize("upper", [6, None])
def test_a_time_that_a_reader_may_have_read_is_refused(upper: int | None) -> None:
    """A finished shard is complete at all times."""
    with pytest.raises(HandoverRefused, match="readers may have read the collection"):
        decide_mark(State(upper=upper), Mark(5, "r2"))


@pytest.mark.parametrize("other", [Mark(6, "r2"), Mark(5, "r3")])
def test_one_of_two_handovers_is_refused(other: Mark) -> None:
    """The state decides which one was first."""
    with pytest.raises(HandoverRefused, match="another handover of the collection was first"):
        decide_mark(State(upper=5, mark=Mark(5, "r2")), other)


def test_a_barred_rendition_is_not_marked() -> None:
    """Its drop was first. A bar after the mark finds the mark, and changes nothing."""
    state = State(upper=5)
    barred = after(state, decide_bar(state, "r2").diff)
    assert decide_bar(barred, "r2").diff is None
    with pytest.raises(HandoverRefused, match="the rendition was dropped"):
        decide_mark(barred, Mark(5, "r2"))

    marked = after(barred, decide_mark(barred, Mark(5, "r3")).diff)
    assert decide_bar(marked, "r3").result == Mark(5, "r3")
    assert decide_bar(marked, "r3").diff is None


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (State(upper=None, since=None), UsageError),
        (State(upper=5, registered=Registration("t", 1)), ShardRegistered),
    ],
    ids=["dropped", "registered"],
)
def test_some_shards_have_no_marks(state: State, error: type[Exception]) -> None:
    """A dropped shard has no reader, and the upper of a registered one lags behind its readers."""
    with pytest.raises(error):
        decide_mark(state, Mark(5, "r2"))


@pytest.mark.parametrize(
    ("mark", "hold", "is_needed"),
    [
        (Mark(5, "r2"), 4, True),
        (Mark(5, "r2"), 5, False),
        (Mark(5, "r2"), None, False),
        (None, 9, True),
    ],
)
def test_a_rendition_is_kept_while_a_hold_needs_it(
    mark: Mark | None, hold: int | None, is_needed: bool
) -> None:
    """A hold at the time of the mark is for the successor. Own holds end with the rendition."""
    holds = {"mine": Hold(since=hold), "history": Hold(since=0)}
    state = State(upper=9, mark=mark, holds=holds)

    if is_needed:
        with pytest.raises(HandoverRefused, match=r"tidelog hold list c.*holds=mine"):
            decide_retire(state, "history".__eq__, "c")
        return
    dropped = after(state, decide_retire(state, "history".__eq__, "c").diff)
    assert dropped.is_dropped
    assert dropped.mark == mark
    assert dropped.since_frontier == Frontier.empty()


@pytest.mark.parametrize("told", [{}, {"mark": Mark(5, "r2")}, {"barred": ("r2", "r3")}])
def test_a_marked_state_has_a_format_that_earlier_versions_refuse(told: Any) -> None:
    """They would read past the mark. States without a mark have the bytes of those versions."""
    state = State(schema=b"x", upper=5, **told)
    data = LANGUAGE.encode_state(state)

    assert LANGUAGE.decode_state(data) == state
    assert (b"\xa6format\x04" in data) == ("mark" in told)
    assert (b"mark" in data, b"barred" in data) == ("mark" in told, "barred" in told)
