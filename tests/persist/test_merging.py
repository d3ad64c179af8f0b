"""Merge planning and merge outcomes: pure decisions over any history."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.shards import plain_part
from tidelog.errors import CorruptionError, InvariantError
from tidelog.persist.maintenance.merging import (
    FANOUT,
    SPAN,
    WASTE,
    MergeRequest,
    MergeVerdict,
    decide_claim,
    decide_merge,
    level_of,
    plan_full_merge,
    plan_merge,
)
from tidelog.persist.states.batch import Batch, Spine, make_batch
from tidelog.persist.states.state import Diff, ShardLanguage, State, Totals, apply_diff
from tidelog.rowhash import RowSum

LANGUAGE = ShardLanguage()


def batch_of(
    lower: int, upper: int, rows: int, *, diffs: int | None = None, since: int = 0, path: str = ""
) -> Batch:
    """Return a batch of one part, whose V encodes the number ``diffs``."""
    net = rows if diffs is None else diffs
    part = plain_part(
        path=path or f"part/{lower}-{upper}-{rows}", size_bytes=rows, rows=rows, diffs=net,
        time_min=lower, time_max=upper - 1, sum_v=max(0, net).to_bytes(16, "little"),
    )  # fmt: skip
    return make_batch([part], lower=lower, upper=upper, since=since)


def state_of(batches: list[Batch], *, since: int = 0) -> State:
    total = RowSum.zero()
    for batch in batches:
        total = total + batch.v
    totals = Totals(
        rows=sum(b.rows for b in batches),
        diffs=sum(b.diffs for b in batches),
        size_bytes=sum(b.size_bytes for b in batches),
        sum_v=total.to_bytes(),
    )
    upper = batches[-1].upper if batches else 0
    return State(since=since, upper=upper, batches=Spine.of(batches), totals=totals)


def merged_of(request: MergeRequest) -> Batch | None:
    """Return the result of a correct merge, without the retracted rows."""
    diffs = sum(b.diffs for b in request.batches)
    old = request.upper is not None and request.upper <= request.since + 1
    rows = diffs if old else request.rows
    if not rows:
        return None
    assert request.upper is not None
    return batch_of(
        request.lower, request.upper, rows, diffs=diffs, since=request.advanced_to, path="merged"
    )


def settle(state: State) -> tuple[State, int]:
    """Merge until no merge is due. Return the state and the number of rows written."""
    written = 0
    for _ in range(1_000):
        request = plan_merge(state)
        if request is None:
            return state, written
        merged = merged_of(request)
        decision = decide_merge(state, request, merged)
        assert decision.result is MergeVerdict.APPLIED
        assert decision.diff is not None
        state = apply_diff(state, decision.diff)
        written += 0 if merged is None else merged.rows
    raise AssertionError("merges never end")


SIZES = st.lists(st.integers(1, 40) | st.integers(1, 100_000), min_size=1, max_size=120)


@given(sizes=SIZES, every=st.integers(1, 30))
def test_few_batches_are_left_however_they_came(sizes: list[int], every: int) -> None:
    """A state keeps fewer than twice FANOUT batches per size level, so reads touch few parts."""
    state = state_of([])
    written = 0
    for time, rows in enumerate(sizes):
        batch = batch_of(time, time + 1, rows)
        state = apply_diff(state, Diff(upper=(time + 1,), batch=batch, token=("w", time)))
        if time % every == 0 or time == len(sizes) - 1:
            state, more = settle(state)
            written += more
    total = sum(sizes)
    levels = 1 + level_of(batch_of(0, 1, total))
    assert len(state.batches) < 2 * FANOUT * levels
    assert state.totals.rows == total
    # Each row is rewritten about once per level, however often merges are planned.
    assert written <= 3 * total * (1 + math.log(max(2, total), FANOUT))


@given(
    sizes=st.lists(st.integers(1, 40) | st.integers(1, 5_000), min_size=1, max_size=300),
    steps=st.lists(st.integers(1, 3) | st.integers(1, 200), min_size=1, max_size=7),
    lag=st.integers(1, 400),
)
def test_with_since_behind_there_are_few_batches_too(
    sizes: list[int], steps: list[int], lag: int
) -> None:
    """The number of batches stays logarithmic, even if `since` lags behind the upper."""
    state = state_of([])
    for number, rows in enumerate(sizes):
        lower = state.upper or 0
        upper = lower + steps[number % len(steps)]
        since = max(state.since or 0, upper - 1 - lag)
        diff = Diff(
            upper=(upper,),
            since=(since,),
            batch=batch_of(lower, upper, rows),
            token=("w", number),
        )
        state, _ = settle(apply_diff(state, diff))
        levels = 1 + level_of(batch_of(0, 1, state.totals.rows))
        assert len(state.batches) < 2 * (FANOUT + SPAN) * (levels + 1)


@given(
    diffs=st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=2, max_size=40),
    share=st.floats(0, 1),
)
def test_what_is_taken_back_goes(diffs: list[tuple[int, bool]], share: float) -> None:
    """Once `since` passes them, retracted rows use at most the share WASTE of all rows."""
    batches = []
    for time, (rows, takes_back) in enumerate(diffs):
        net = 0 if takes_back and time else rows
        batches.append(batch_of(time, time + 1, 2 * rows if not net else rows, diffs=net))
    since = int(share * len(batches))
    state, _ = settle(state_of(batches, since=since))
    old = [b for b in state.batches if b.upper is not None and b.upper <= since + 1]
    rows, net = sum(b.rows for b in old), sum(b.diffs for b in old)
    assert rows - net <= WASTE * state.totals.rows
    assert state.totals.diffs == sum(b.diffs for b in batches), "a merge changes no contents"


def test_a_full_merge_leaves_one_batch_and_then_nothing_to_do() -> None:
    """`since` may have passed only some of the batch. A repetition waits for its move."""
    state = state_of([batch_of(t, t + 1, 10) for t in range(5)], since=3)
    request = plan_full_merge(state)
    assert request is not None
    assert (request.lower, request.upper, request.advanced_to) == (0, 5, 3)
    decision = decide_merge(state, request, merged_of(request))
    assert decision.diff is not None
    after = apply_diff(state, decision.diff)
    assert len(after.batches) == 1
    assert plan_full_merge(after) is None
    later = plan_full_merge(replace(after, since=4))
    assert later is not None, "since has passed more of it: updates of other times may cancel now"
    assert plan_full_merge(state_of([])) is None
    assert plan_merge(replace(state, since=None)) is None, "nobody reads it any more"


def test_an_outcome_counts_only_in_its_inputs_place() -> None:
    """Late, repeated or overtaken outcomes of a merge change nothing."""
    batches = [batch_of(t, t + 1, 10) for t in range(4)]
    state = state_of(batches)
    request = MergeRequest((batches[1], batches[2]), 0)
    merged = merged_of(request)
    assert merged is not None
    done = decide_merge(state, request, merged)
    assert done.diff is not None
    assert done.diff.merged is not None
    assert LANGUAGE.vanished(done.diff) == ("part/1-2-10", "part/2-3-10")
    after = apply_diff(state, LANGUAGE.decode_diff(LANGUAGE.encode_diff(done.diff)))
    assert list(after.batches) == [batches[0], merged, batches[3]]

    again = decide_merge(after, request, merged)
    assert (again.result, again.diff) == (MergeVerdict.ALREADY, None)
    other = batch_of(1, 3, 20, path="another that came later")
    assert decide_merge(after, request, other).result is MergeVerdict.OVERTAKEN
    wider = MergeRequest(tuple(batches), 0)
    assert decide_merge(after, wider, batch_of(0, 4, 40)).result is MergeVerdict.OVERTAKEN
    narrow = MergeRequest((batches[1],), 0)
    assert decide_merge(after, narrow, batch_of(1, 2, 10)).result is MergeVerdict.OVERTAKEN


def test_what_takes_back_all_leaves_no_batch() -> None:
    """A merge whose rows all cancel leaves no batch. Repeating its outcome changes nothing."""
    batches = [batch_of(0, 1, 10), batch_of(1, 2, 10, diffs=0)]
    gone = batch_of(1, 2, 10, diffs=0)
    state = state_of(batches, since=5)
    request = MergeRequest((gone,), 5)
    done = decide_merge(state, request, None)
    assert done.diff is not None
    after = apply_diff(state, done.diff)
    assert list(after.batches) == batches[:1]
    assert decide_merge(after, request, None).diff is None


def test_other_rows_than_went_in_change_nothing() -> None:
    """A merge with another V than its inputs raises, or it would stay undetected."""
    batches = [batch_of(t, t + 1, 10) for t in range(2)]
    state = state_of(batches)
    request = MergeRequest(tuple(batches), 0)
    for wrong in (None, batch_of(0, 2, 19), batch_of(0, 2, 20, diffs=19)):
        with pytest.raises(CorruptionError, match="differ from its inputs"):
            decide_merge(state, request, wrong)
    ahead = MergeRequest(tuple(batches), 1)
    with pytest.raises(InvariantError, match="past since"):
        decide_merge(state, ahead, merged_of(ahead))


def test_a_claim_stops_other_mergers_until_it_expires() -> None:
    """T42, P124: a dead merger blocks the work only until its claim expires."""
    batches = [batch_of(n, n + 1, rows=8**4) for n in range(FANOUT)]
    state = state_of(batches)
    request = plan_merge(state)
    assert request is not None
    decision = decide_claim(state, request, who="one", now_us=1_000)
    assert decision.result
    assert decision.diff is not None
    claimed = apply_diff(state, decision.diff)
    until_us = claimed.claims[0].until_us
    assert not decide_claim(claimed, request, who="two", now_us=1_000).result
    assert plan_merge(claimed, now_us=until_us - 1) is None
    assert plan_merge(claimed, now_us=until_us) == request
    taken = decide_claim(claimed, request, who="two", now_us=until_us)
    assert taken.diff is not None
    assert [one.who for one in apply_diff(claimed, taken.diff).claims] == ["two"]
    assert plan_full_merge(claimed) is not None
    done = decide_merge(claimed, request, merged_of(request))
    assert done.diff is not None
    assert apply_diff(claimed, done.diff).claims == ()


def test_a_merger_ignores_a_claim_that_ends_a_year_ahead() -> None:
    """A merger ignores a claim that ends a year ahead, but not one that ends an hour ahead."""
    state = state_of([batch_of(n, n + 1, rows=8**4) for n in range(FANOUT)])
    request = plan_merge(state)
    assert request is not None
    now_us = 1_700_000_000_000_000
    year_us, hour_us = 31_536_000_000_000, 3_600_000_000
    for ahead_us, is_theirs in ((hour_us, True), (year_us, False)):
        claim = decide_claim(state, request, who="ahead", now_us=now_us + ahead_us)
        assert claim.diff is not None
        claimed = apply_diff(state, claim.diff)
        assert plan_merge(claimed, now_us=now_us) == (None if is_theirs else request)
        mine = decide_claim(claimed, request, who="right", now_us=now_us)
        assert mine.result is not is_theirs


def test_beside_a_claim_the_others_are_merged() -> None:
    """A claim on a large merge does not delay the small merges that become due."""
    large = [batch_of(n, n + 1, rows=8**4) for n in range(FANOUT)]
    small = [batch_of(n, n + 1, rows=1) for n in range(FANOUT, 2 * FANOUT)]
    state = state_of([*large, *small])
    first = plan_merge(replace(state, batches=Spine.of(large)))
    assert first is not None
    decision = decide_claim(state, first, who="one", now_us=0)
    assert decision.diff is not None
    beside = plan_merge(apply_diff(state, decision.diff))
    assert beside is not None
    assert beside.batches == tuple(small)


def test_a_merge_that_only_advances_since_is_told_from_its_input() -> None:
    """Such a merge may name the same parts. Its repetition returns ALREADY."""
    one = batch_of(0, 5, 3, path="same")
    request = MergeRequest((one,), since=2)
    merged = batch_of(0, 5, 3, since=2, path="same")
    decision = decide_merge(state_of([one], since=2), request, merged)
    assert decision.diff is not None
    after = apply_diff(state_of([one], since=2), decision.diff)

    again = decide_merge(after, request, merged)

    assert (again.result, again.diff) == (MergeVerdict.ALREADY, None)
