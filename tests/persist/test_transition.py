"""Transitions: each branch of each decision, on states that lead to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kit.shard_tables import schema_of
from kit.shards import plain_part
from tidelog.core.frontier import Frontier
from tidelog.errors import InvariantError, Outcome, OutcomeUnknown, UsageError
from tidelog.persist.format.part import Part
from tidelog.persist.states.holding import decide_advance_hold, decide_drop_hold, decide_hold
from tidelog.persist.states.state import COMMITS_KEPT, Diff, Hold, State, apply_diff
from tidelog.persist.states.transition import (
    AppendResult,
    CompareAndAppend,
    Verdict,
    check_interval,
    decide_append,
    difference,
)
from tidelog.rowhash import RowSum

SCHEMA, ANOTHER = (schema_of([one], keys=1).encoded for one in ("string", "int64"))
COMMITTED, ALREADY, MISMATCH = Verdict.COMMITTED, Verdict.ALREADY, Verdict.MISMATCH


def part(time_min: int, time_max: int | None = None) -> Part:
    last = time_min if time_max is None else time_max
    sums = {"sum_v": RowSum(1, 1).to_bytes(), "sum_t": RowSum(1, time_min).to_bytes()}
    return plain_part(inline=b"", time_min=time_min, time_max=last, **sums)


def command(
    lower: int, upper: int | None, token: tuple[str, int], **changed: Any
) -> CompareAndAppend:
    parts = [part(lower)] if upper != lower else []
    told: Mapping[str, Any] = {"schema": SCHEMA, "parts": parts, **changed}
    return CompareAndAppend(
        expected_upper=Frontier.at(lower), upper=Frontier.of(upper), token=token, **told
    )


def after(state: State, *commands: CompareAndAppend) -> State:
    for each in commands:
        diff = decide_append(state, each).diff
        assert diff is not None
        state = apply_diff(state, diff)
    return state


def walk(count: int, *, start: int = 0, writer: str = "w", **changed: Any) -> State:
    """Return a state after commits of [n, n+1), each with its own token."""
    state = State()
    for number in range(start, start + count):
        state = after(state, command(number, number + 1, (writer, number), **changed))
    return state


def answer(state: State, asked: CompareAndAppend) -> tuple[Verdict, int | None, bool]:
    """Return the verdict, the reported upper, and whether the decision changes the state."""
    decision = decide_append(state, asked)
    upper = decision.result.upper
    return (
        decision.result.verdict,
        None if upper.is_empty else upper.time,
        decision.diff is not None,
    )


FINISHED = after(walk(2), command(2, None, ("w", 2)))
TOLD = {
    "the first": (State(), command(0, 3, ("w", 0)), (COMMITTED, 3, True)),
    "the next": (walk(2), command(2, 5, ("w", 9)), (COMMITTED, 5, True)),
    "without updates": (walk(2), command(2, 5, ("w", 9), parts=[]), (COMMITTED, 5, True)),
    "the last of all": (walk(2), command(2, None, ("w", 9)), (COMMITTED, None, True)),
    "a heartbeat": (walk(2), command(2, 2, ("w", 9)), (COMMITTED, 2, False)),
    "a heartbeat in the past": (walk(2), command(1, 1, ("w", 9)), (MISMATCH, 2, False)),
    "too early": (walk(2), command(1, 5, ("w", 9)), (MISMATCH, 2, False)),
    "with a hole": (walk(2), command(3, 5, ("w", 9)), (MISMATCH, 2, False)),
    "told again": (walk(2), command(1, 2, ("w", 1)), (ALREADY, 2, False)),
    "told again, though others went on": (
        after(walk(2), command(2, 7, ("x", 0))),
        command(1, 2, ("w", 1)),
        (ALREADY, 2, False),
    ),
    "the same number of somebody else": (walk(2), command(1, 2, ("x", 1)), (MISMATCH, 2, False)),
    "in the write epoch that it names": (
        walk(2),
        command(2, 5, ("w", 9), write_epoch=0),
        (COMMITTED, 5, True),
    ),
    "in another write epoch": (
        apply_diff(walk(2), Diff(write_epoch=1)),
        command(2, 5, ("w", 9), write_epoch=0),
        (MISMATCH, 2, False),
    ),
    "told again in another write epoch": (
        apply_diff(walk(2), Diff(write_epoch=1)),
        command(1, 2, ("w", 1), write_epoch=0),
        (ALREADY, 2, False),
    ),
    "to a finished shard": (FINISHED, command(2, 5, ("w", 9)), (MISMATCH, None, False)),
    "the finish, told again": (FINISHED, command(2, None, ("w", 2)), (ALREADY, None, False)),
    "named, the first": (State(), command(0, 1, ("n", 0), named=True), (COMMITTED, 1, True)),
    "named, told again": (
        walk(2, writer="n", named=True),
        command(1, 2, ("n", 1), named=True),
        (ALREADY, 2, False),
    ),
    "named, told again after more than are kept": (
        after(
            walk(2, writer="n", named=True),
            *(command(n, n + 1, ("w", n)) for n in range(2, 2 + 2 * COMMITS_KEPT)),
        ),
        command(1, 2, ("n", 1), named=True),
        (ALREADY, 2, False),
    ),
    "named, a later number": (
        walk(2, writer="n", named=True),
        command(2, 3, ("n", 5), named=True),
        (COMMITTED, 3, True),
    ),
    "named, a later number at an older upper": (
        walk(2, writer="n", named=True),
        command(1, 3, ("n", 5), named=True),
        (MISMATCH, 2, False),
    ),
    "kept, though the oldest are forgotten": (
        walk(COMMITS_KEPT + 5),
        command(6, 7, ("w", 6)),
        (ALREADY, 7, False),
    ),
    "lost, among those that are kept": (
        walk(COMMITS_KEPT + 5),
        command(6, 7, ("x", 6)),
        (MISMATCH, COMMITS_KEPT + 5, False),
    ),
    "fresh, however old": (
        walk(COMMITS_KEPT + 5),
        command(0, 1, ("x", 0), fresh=True),
        (MISMATCH, COMMITS_KEPT + 5, False),
    ),
    "ahead of all, when some are forgotten": (
        walk(COMMITS_KEPT + 5),
        command(COMMITS_KEPT + 9, COMMITS_KEPT + 10, ("x", 0)),
        (MISMATCH, COMMITS_KEPT + 5, False),
    ),
}


def test_a_forgotten_write_of_an_empty_interval_is_not_refused() -> None:
    """OutcomeUnknown: the oldest commit starts at the same time, so it proves nothing."""
    # It is stored, because it places a hold.
    mine = command(0, 0, ("e", 0), first_holds={"h": Frontier.at(0)})
    later = [command(n, n + 1, ("w", n)) for n in range(COMMITS_KEPT)]
    assert answer(after(State(), mine, *later[:-1]), mine) == (ALREADY, 0, False)
    state = after(State(), mine, *later)
    assert state.commits[0].lower == 0

    with pytest.raises(OutcomeUnknown, match="so old"):
        decide_append(state, mine)


@pytest.mark.parametrize("name", TOLD)
def test_an_append_is_decided(name: str) -> None:
    """A wrong COMMITTED loses data, and a wrong MISMATCH doubles it."""
    state, asked, wanted = TOLD[name]

    assert answer(state, asked) == wanted


@pytest.mark.parametrize(
    ("state", "asked"),
    [
        (walk(COMMITS_KEPT + 5), command(2, 3, ("w", 2))),
        (walk(COMMITS_KEPT + 5), command(2, 3, ("x", 2))),
        (walk(3, writer="n", named=True), command(0, 1, ("n", 0), named=True)),
    ],
    ids=["its own, forgotten", "another's, forgotten", "older than the newest of its name"],
)
def test_what_cannot_be_known_is_said_to_be_unknown(state: State, asked: CompareAndAppend) -> None:
    """If the state no longer remembers the token, the append raises OutcomeUnknown."""
    with pytest.raises(OutcomeUnknown) as caught:
        decide_append(state, asked)
    assert caught.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    "asked",
    [
        command(2, 3, ("w", 9), schema=ANOTHER),
        command(2, 5, ("w", 9), parts=[part(1)]),
        command(2, 5, ("w", 9), parts=[part(2), part(5)]),
        command(2, 5, ("w", 9), parts=[part(3, 5)]),
        command(2, 2, ("w", 9), parts=[part(2)]),
        command(2, 1, ("w", 9), parts=[]),
    ],
    ids=["schema", "below lower", "at upper", "past upper", "in no time", "backwards"],
)
def test_a_wrong_append_is_refused(asked: CompareAndAppend) -> None:
    """An append with parts outside its interval, or of another schema, raises UsageError."""
    with pytest.raises(UsageError):
        decide_append(walk(2), asked)


def test_check_interval_says_what_is_wrong() -> None:
    """A wrong interval raises UsageError without a state, and so without a request."""
    check_interval(Frontier.at(1), Frontier.at(1), rows=0)
    check_interval(Frontier.at(1), Frontier.empty(), rows=5)
    with pytest.raises(UsageError, match="past upper"):
        check_interval(Frontier.at(2), Frontier.at(1), rows=0)
    with pytest.raises(UsageError, match="empty interval"):
        check_interval(Frontier.at(1), Frontier.at(1), rows=1)
    with pytest.raises(UsageError, match="past upper"):
        check_interval(Frontier.empty(), Frontier.at(1), rows=0)


def test_an_append_without_updates_brings_no_batch() -> None:
    """An append without updates only advances the upper."""
    diff = decide_append(walk(2), command(2, 5, ("w", 9), parts=[])).diff

    assert diff is not None
    assert diff.batch is None


def test_the_first_append_brings_schema_and_first_holds_and_no_other_does() -> None:
    """The first write makes a shard, so it alone carries the schema and the first holds."""
    holds = {"history": Frontier.at(0)}
    first = decide_append(State(), command(0, 1, ("w", 0), first_holds=holds)).diff
    second = decide_append(walk(1), command(1, 2, ("w", 1), first_holds=holds)).diff

    assert first is not None
    assert (first.schema, first.holds) == (SCHEMA, {"history": Hold(0)})
    assert second is not None
    assert (second.schema, second.holds) == (None, {})


def test_holds_move_with_an_append_and_never_back() -> None:
    """An ingester releases its past in the same commit that advances it."""
    state = after(State(), command(0, 5, ("w", 0), holds={"a": Frontier.at(0)}))
    state = after(state, command(5, 9, ("w", 1), holds={"a": Frontier.at(4)}))
    assert (state.holds, state.since) == ({"a": Hold(4)}, 4)

    state = after(state, command(9, 10, ("w", 2), holds={"a": Frontier.at(1)}))
    assert (state.holds, state.since) == ({"a": Hold(4)}, 4)

    state = after(state, command(10, 11, ("w", 3), holds={"a": Frontier.empty()}))
    assert (state.holds, state.since) == ({"a": Hold(None)}, None)


def test_a_heartbeat_that_moves_a_hold_is_a_change() -> None:
    """An empty append writes no state change, unless it moves a hold."""
    state = walk(3)
    decision = decide_append(state, command(3, 3, ("w", 9), holds={"a": Frontier.at(1)}))

    assert decision.result == AppendResult(COMMITTED, Frontier.at(3))
    assert decision.diff is not None
    moved = apply_diff(state, decision.diff)
    assert (moved.upper, moved.since, moved.batches) == (3, 1, state.batches)


def test_since_is_the_least_of_all_holds() -> None:
    """The shard's `since` follows the slowest hold, and never moves on its own."""
    state = walk(9)

    def do(diff: Diff | None) -> None:
        nonlocal state
        assert diff is not None
        state = apply_diff(state, diff)

    do(decide_hold(state, "a", None, schema=SCHEMA).diff)
    do(decide_hold(state, "b", Frontier.at(2), schema=SCHEMA).diff)
    assert state.since == 0
    do(decide_advance_hold(state, "b", Frontier.at(8)).diff)
    assert state.since == 0
    decision = decide_advance_hold(state, "a", Frontier.at(5))
    do(decision.diff)
    assert decision.result == Frontier.at(5)
    assert state.since == 5
    do(decide_drop_hold(state, "a").diff)
    assert (state.since, state.holds) == (5, {"b": Hold(8)})
    do(decide_drop_hold(state, "b").diff)
    assert (state.since, state.holds) == (5, {})
    with pytest.raises(UsageError, match="before the shard's since"):
        decide_hold(state, "c", Frontier.at(4), schema=SCHEMA)
    do(decide_hold(state, "c", None, schema=SCHEMA).diff)
    assert state.holds == {"c": Hold(5)}


def test_what_is_so_already_is_not_written_again() -> None:
    """Callers repeat calls after a lost answer. A repetition writes nothing and undoes nothing."""
    state = State(since=3, schema=SCHEMA, holds={"a": Hold(5)}, upper=9)

    assert decide_hold(state, "a", Frontier.at(9), schema=SCHEMA).result == Frontier.at(5)
    assert decide_hold(state, "a", Frontier.at(9), schema=SCHEMA).diff is None
    assert decide_advance_hold(state, "a", Frontier.at(5)).diff is None
    assert decide_advance_hold(state, "a", Frontier.at(4)).result == Frontier.at(3)
    assert decide_drop_hold(state, "b").result is False
    assert decide_drop_hold(state, "b").diff is None
    with pytest.raises(UsageError, match="no hold has that name"):
        decide_advance_hold(state, "b", Frontier.at(9))


def test_a_hold_creates_an_unwritten_shard() -> None:
    """A hold creates a shard, so that a reader can protect the beginning before the first write."""
    diff = decide_hold(State(), "a", None, schema=SCHEMA).diff

    assert diff is not None
    assert diff.schema == SCHEMA
    state = apply_diff(State(), diff)
    assert answer(state, command(0, 1, ("w", 0))) == (COMMITTED, 1, True)


def test_holds_at_the_empty_frontier_leave_no_readable_time() -> None:
    """If every hold is at the empty frontier, no time is readable."""
    state = State(schema=SCHEMA, holds={"a": Hold(0), "b": Hold(2)}, upper=9)
    diff = decide_advance_hold(state, "a", Frontier.empty()).diff
    assert diff is not None
    state = apply_diff(state, diff)
    assert state.since == 2
    diff = decide_advance_hold(state, "b", Frontier.empty()).diff
    assert diff is not None

    assert apply_diff(state, diff).since_frontier == Frontier.empty()


def test_sums_between_uppers_that_are_known() -> None:
    """Replicas compare the sums of their updates with the stored ones, between two known uppers."""
    state = walk(3)

    assert difference(state, Frontier.at(1), Frontier.at(3)) == RowSum(2, 3)
    assert difference(state, Frontier.at(0), Frontier.at(1)) == RowSum(1, 0)
    assert (
        difference(after(State(), command(0, 5, ("w", 0))), Frontier.at(2), Frontier.at(5)) is None
    )
    assert difference(FINISHED, Frontier.at(2), Frontier.empty()) == RowSum(1, 2)


def test_a_finished_shard_does_not_advance() -> None:
    """A diff that advances a finished shard raises InvariantError. No decision makes one."""
    with pytest.raises(InvariantError):
        apply_diff(FINISHED, Diff(upper=(9,), token=("w", 3)))
    with pytest.raises(InvariantError):
        apply_diff(walk(1), Diff(upper=(9,)))
