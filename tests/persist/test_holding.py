"""Holds as pure decisions: the times that each kind protects, its owners, and its end.

The numbers T31 to T36 are those of the anchor notes' conformance scenarios.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.frontier import Frontier
from tidelog.errors import HoldExpired, HoldFenced, UsageError
from tidelog.machine.language import Decision
from tidelog.persist.states.claim import CLOCKS_APART_US
from tidelog.persist.states.holding import (
    Beats,
    Lease,
    Watch,
    decide_advance_hold,
    decide_drop_hold,
    decide_hold,
    decide_keep,
    decide_lease,
    decide_renew,
    decide_watch,
    moved_by_append,
)
from tidelog.persist.states.state import (
    Diff,
    Hold,
    HoldKind,
    ShardLanguage,
    State,
    apply_diff,
    least_seqno,
    least_since,
)

START = State(schema=b"x", since=2, upper=20)
MINUTE_US = 60_000_000


def lease(name: str, *, since: int | None = None, seqno: int = 7, fixed: bool = False) -> Lease:
    return Lease(
        name=name,
        lease_us=MINUTE_US,
        at_us=1_000,
        seqno=seqno,
        since=None if since is None else Frontier.at(since),
        is_fixed=fixed,
    )


def after(state: State, decision: Decision[Diff, Any]) -> State:
    assert decision.diff is not None
    return apply_diff(state, decision.diff)


def test_a_lease_holds_since_and_the_state_it_was_placed_at() -> None:
    """A lease protects its time and all later ones, and the objects of the state at its seqno."""
    state = after(START, decide_lease(START, lease("r", since=5)))
    assert state.holds["r"].kind is HoldKind.LEASED
    assert (least_since(state.holds), least_seqno(state.holds)) == (Frontier.at(5), 7)
    assert ShardLanguage().seqno_since(state) == 7
    assert state.since == 2
    state = after(state, decide_renew(state, "r", at_us=9, seqno=12, since=Frontier.at(9)))
    assert (state.since, state.holds["r"].seqno, state.holds["r"].beat) == (9, 12, 1)
    with pytest.raises(UsageError, match="before the shard's since"):
        decide_lease(state, lease("late", since=5))
    with pytest.raises(UsageError, match="past the shard's upper"):
        decide_lease(state, lease("early", since=21))


def test_a_lease_that_is_over_is_over() -> None:
    """T33: a reader whose lease ended gets HoldExpired, and the shard does nothing in its name."""
    state = after(START, decide_lease(START, lease("r")))
    state = after(state, decide_hold(state, "kept", Frontier.at(3)))
    assert not decide_watch(state, Watch(at_us=0), overdue=[("r", 1)]).result
    assert not decide_watch(state, Watch(at_us=0), overdue=[("kept", 0)]).result
    state = after(state, decide_watch(state, Watch(at_us=0), overdue=[("r", 0)]))
    assert set(state.holds) == {"kept"}
    with pytest.raises(HoldExpired, match="open another reader"):
        decide_renew(state, "r", at_us=0, seqno=None)
    assert state.since == 2
    state = after(state, decide_advance_hold(state, "kept", Frontier.at(8)))
    assert state.since == 8


def test_a_lease_is_kept_by_its_name() -> None:
    """Only a missing hold starts at the lease's time; an existing one moves forward on request."""
    state = after(START, decide_keep(START, lease("r", since=5, seqno=3)))
    assert state.holds["r"] == Hold(5, lease_us=MINUTE_US, at_us=1_000, seqno=3)
    longer = replace(lease("r", since=9), lease_us=2 * MINUTE_US, at_us=2_000)
    state = after(state, decide_keep(state, longer))
    renewed = Hold(5, lease_us=2 * MINUTE_US, at_us=2_000, seqno=3, beat=1)
    assert state.holds["r"] == renewed
    moved = decide_keep(state, longer, moved_to=Frontier.at(9))
    assert moved.result == Frontier.at(9)
    state = after(state, moved)
    assert (state.since, state.holds["r"].beat) == (9, 2)
    state = after(state, decide_keep(state, longer, moved_to=Frontier.at(8)))
    assert state.holds["r"].since == 9
    with pytest.raises(UsageError, match="past the shard's upper"):
        decide_keep(state, longer, moved_to=Frontier.at(21))
    with pytest.raises(UsageError, match="before the shard's since"):
        decide_keep(state, lease("other", since=8))


@pytest.mark.parametrize(
    ("later", "ended"),
    [
        (Watch(at_us=0, monotonic_us=MINUTE_US, boot="one"), True),
        (Watch(at_us=2**62, monotonic_us=MINUTE_US - 1, boot="one"), False),
        (Watch(at_us=MINUTE_US, monotonic_us=5, boot="one"), False),
        (Watch(at_us=9 + MINUTE_US, monotonic_us=2**62, boot="other"), False),
        (Watch(at_us=8 + MINUTE_US + CLOCKS_APART_US, monotonic_us=0, boot="other"), False),
        (Watch(at_us=9 + MINUTE_US + CLOCKS_APART_US, monotonic_us=0, boot="other"), True),
        (Watch(at_us=9 + MINUTE_US, monotonic_us=2**62), False),
        (Watch(at_us=9 + MINUTE_US + CLOCKS_APART_US), True),
    ],
)
@pytest.mark.parametrize("boot", ["one", ""])
def test_time_between_two_collectors_is_that_of_one_machine_or_of_wall_clocks_less_an_hour(
    boot: str, later: Watch, ended: bool
) -> None:
    """Processes of one boot compare monotonic clocks, others wall clocks less an hour."""
    state = after(START, decide_lease(START, lease("r")))
    state = after(state, decide_watch(state, Watch(at_us=9, monotonic_us=0, boot=boot)))
    if later.boot == "one" and not boot:
        ended = later.at_us - 9 >= MINUTE_US + CLOCKS_APART_US

    decision = decide_watch(state, later)
    assert decision.result == ended
    assert (decision.diff is None) is not ended, "a beat is recorded once"


def test_no_process_can_renew_a_fixed_term() -> None:
    """A fixed term states its end from the start, and no process can renew it."""
    state = after(START, decide_lease(START, lease("t", fixed=True)))
    assert state.holds["t"].kind is HoldKind.FIXED
    assert state.holds["t"].until_us == 1_000 + MINUTE_US
    with pytest.raises(UsageError, match="cannot be renewed"):
        decide_renew(state, "t", at_us=0, seqno=None)


def test_a_lease_of_a_dropped_shard_holds_nothing() -> None:
    """T36: a lease of a dropped shard has the empty frontier, and writes no record."""
    over = State(schema=b"x", since=None, upper=None)
    decision = decide_lease(over, lease("r"))
    assert decision.diff is None
    assert decision.result == Frontier.empty()


def test_a_greater_token_takes_a_hold_over_for_good() -> None:
    """T34: after a takeover with a greater token, the old owner gets HoldFenced for each change."""
    state = after(START, decide_hold(START, "sink", Frontier.at(4), token=3))
    state = after(state, decide_hold(state, "sink", None, token=5))
    assert (state.holds["sink"].token, state.holds["sink"].since) == (5, 4)
    for refused in (
        lambda: decide_advance_hold(state, "sink", Frontier.at(9), token=3),
        lambda: decide_advance_hold(state, "sink", Frontier.at(9)),
        lambda: decide_hold(state, "sink", None, token=4),
        lambda: decide_drop_hold(state, "sink", token=3),
        lambda: moved_by_append(state, {"sink": Frontier.at(9)}, Frontier.at(20)),
    ):
        with pytest.raises(HoldFenced, match="token=5") as told:
            refused()
        assert told.value.facts["since"] == Frontier.at(4)
    state = after(state, decide_advance_hold(state, "sink", Frontier.at(9), token=5))
    assert state.holds["sink"].since == 9
    taken = decide_advance_hold(state, "sink", Frontier.at(9), token=6)
    assert taken.diff is not None, "the same since with a new token is a takeover"
    assert after(state, taken).holds["sink"] == Hold(9, token=6)


@pytest.mark.parametrize("since", [21, 2**63 - 1])
def test_no_hold_is_moved_past_upper(since: int) -> None:
    """A hold past the upper raises UsageError, because future updates would be unreadable."""
    state = after(START, decide_hold(START, "h", None))
    for refused in (
        lambda: decide_advance_hold(state, "h", Frontier.at(since)),
        lambda: decide_hold(state, "other", Frontier.at(since)),
        lambda: moved_by_append(state, {"h": Frontier.at(since)}, Frontier.at(20)),
    ):
        with pytest.raises(UsageError, match="past the shard's upper"):
            refused()
    assert decide_advance_hold(state, "h", Frontier.at(20)).result == Frontier.at(20)
    assert decide_advance_hold(state, "h", Frontier.empty()).result == Frontier.empty()


def test_a_collector_ends_a_lease_after_watching_its_full_term() -> None:
    """Wall clocks count only if the lease is overdue by more than their permitted difference."""
    beats, holds = Beats(), {"r": Hold(3, lease_us=MINUTE_US, at_us=0), "kept": Hold(2)}

    def overdue(second: float, *, wall_us: int = 0) -> list[tuple[str, int]]:
        return beats.overdue(holds, monotonic_us=int(second * 1e6), now_us=wall_us)

    assert overdue(1_000) == overdue(1_059) == []
    holds["r"] = msgspec.structs.replace(holds["r"], beat=1)
    assert overdue(1_061) == overdue(1_120) == []
    assert overdue(1_122) == [("r", 1)]
    del holds["r"]
    assert overdue(2_000) == []
    holds["r"] = Hold(3, lease_us=MINUTE_US, at_us=0)
    assert overdue(2_001) == []
    assert overdue(2_002, wall_us=MINUTE_US + CLOCKS_APART_US) == []
    assert overdue(2_002, wall_us=MINUTE_US + CLOCKS_APART_US + 1) == [("r", 0)]


def decided(state: State, what: str, name: str, at: Frontier) -> Decision[Diff, Any]:
    match what:
        case "hold":
            return decide_hold(state, name, at)
        case "lease":
            return decide_lease(state, lease(name, since=at.time))
        case "move":
            return decide_advance_hold(state, name, at)
        case "renew":
            return decide_renew(state, name, at_us=0, seqno=None, since=at)
        case "release":
            return decide_drop_hold(state, name)
        case _:
            return decide_watch(state, Watch(at_us=0), overdue=[(name, 0)])


@given(data=st.data())
def test_since_never_goes_back_nor_past_a_hold_nor_moves_when_one_ends(data: st.DataObject) -> None:
    """T31, T32: `since` never moves back, never passes a hold, and stays when a hold ends."""
    state = State(schema=b"x", since=0, upper=30)
    names = st.sampled_from("abc")
    for _ in range(data.draw(st.integers(1, 25))):
        name, at = data.draw(names), Frontier.at(data.draw(st.integers(0, 30)))
        what = data.draw(st.sampled_from(["hold", "lease", "move", "renew", "release", "expire"]))
        before = state
        try:
            decision = decided(before, what, name, at)
        except (UsageError, HoldExpired):
            continue
        if decision.diff is None:
            continue
        state = apply_diff(state, decision.diff)
        assert before.since_frontier <= state.since_frontier
        assert all(state.since_frontier <= hold.frontier for hold in state.holds.values())
        if what in ("release", "expire", "hold", "lease"):
            assert state.since == before.since
        else:
            assert state.since_frontier == max(
                (before.since_frontier, least_since(state.holds)), key=lambda f: f.time
            )
