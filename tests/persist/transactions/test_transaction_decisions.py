"""Decisions of transactions on states as values, and the encoding of these states."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest

from kit.shards import COMMITTED, in_memory
from kit.transactions import held, registered, row, transactions
from tidelog.core.frontier import Frontier
from tidelog.errors import CorruptionError, LocationError, OutcomeUnknown, UsageError
from tidelog.persist.states.registration import (
    JoinResult,
    Step,
    decide_apply,
    decide_epoch_for,
    decide_leave,
)
from tidelog.persist.states.state import Registration, State
from tidelog.persist.states.transition import decide_epoch
from tidelog.persist.transactions import applying
from tidelog.persist.transactions.applier import Applier
from tidelog.persist.transactions.applying import steps_of
from tidelog.persist.transactions.language import TransactionLanguage
from tidelog.persist.transactions.state import (
    COMMITS_KEPT,
    Committed,
    Forgotten,
    LastCommit,
    Pending,
    RegisteredShard,
    TransactionDiff,
    TransactionState,
    Write,
    unapplied,
)
from tidelog.persist.transactions.transition import (
    CommitTransaction,
    decide_commit,
    decide_register,
    decide_tidy,
)

HERE = Registration("t", 3)
NOTHING = msgspec.msgpack.encode(())
WHOLE = TransactionState(
    upper=9,
    tables={"a": RegisteredShard(3, 0, 2)},
    forgotten={"b": Forgotten(1, 4)},
    pending=(
        Pending(2, 3, {"a": Write(3, NOTHING), "b": Write(1, NOTHING)}),
        Pending(5, 9, {"a": Write(3, NOTHING)}),
    ),
    commits=(Committed("w", 1, 5, 9),),
    moved={"a": 9},
    writers={"w": LastCommit(4, 2, 3, b"d")},
    extra={"later": [1]},
)


def test_a_step_waits_for_the_one_before_it() -> None:
    """A shard applies the steps of transactions in order.

    A later step waits for the earlier one.
    """
    state = State(schema=b"s", upper=2, registered=HERE)
    first, second = steps_of(WHOLE, "t", "a")

    assert (first.after, first.upper, second.after, second.upper) == (0, 3, 3, 9)
    late = decide_apply(state, second)
    early = decide_apply(state, first)
    assert (late.result, late.diff) == (False, None)
    assert early.result
    assert early.diff is not None
    assert early.diff.upper == (3,)
    assert [s.upper for s in steps_of(WHOLE, "t", "a", until=5)] == [3]


def test_a_shard_that_has_a_step_or_is_another_is_told_apart() -> None:
    """A shard past a step has applied it.

    A shard behind it, with older state, raises CorruptionError.
    """
    step = Step(registered=HERE, after=0, lower=2, upper=3)

    assert decide_apply(State(upper=3), step).result
    assert decide_apply(State(upper=None), step).result
    with pytest.raises(CorruptionError, match="older copy"):
        decide_apply(State(upper=2), step)


def test_a_shard_leaves_once_it_has_all() -> None:
    """A shard leaves after it has applied all its steps.

    It leaves only once, and may be registered again.
    """
    step = Step(registered=HERE, after=3, lower=3, upper=9)
    state = State(schema=b"s", upper=2, registered=HERE)

    assert not decide_leave(state, step).result
    other = State(schema=b"s", upper=9, registered=Registration("t", 4))
    assert decide_leave(other, step).diff is None


def test_the_epoch_of_a_registered_shard_is_raised_by_its_transactions_alone() -> None:
    """Transactions know committed parts that are not applied."""
    state = State(write_epoch=5, registered=HERE)

    assert decide_epoch(state, 5).diff is None
    assert decide_epoch_for(state, HERE, 5).result == 6
    assert decide_epoch_for(state, HERE, 4).diff is None
    assert decide_epoch_for(state, Registration("t", 2), 5).diff is None


def test_a_registration_that_was_forgotten_meanwhile_is_none() -> None:
    """A registration counts only if its shard was not forgotten concurrently."""
    for number, there in ((1, False), (2, True)):
        joined = JoinResult(registered=Registration("t", number), upper=20, write_epoch=0)
        done = decide_register(WHOLE, "b", joined)
        assert (done.result is not None) == there
        assert (done.diff is None) != there


def test_what_is_dropped_every_shard_has() -> None:
    """A pending transaction is dropped only after each of its shards has applied it."""
    left = unapplied(WHOLE.pending, {"a": 5})

    assert [(p.upper, sorted(p.writes)) for p in left] == [(3, ["b"]), (9, ["a"])]
    assert unapplied(WHOLE.pending, {"a": 9, "b": 2}) == left[:1]
    assert decide_tidy(WHOLE, {"a": 2, "c": 99}).diff is None
    assert decide_tidy(WHOLE, {"a": 9, "b": 3}).result == 2


def test_a_token_that_may_have_been_forgotten_is_not_guessed() -> None:
    """If the token may have been forgotten, the commit raises OutcomeUnknown."""
    language = TransactionLanguage()
    state = language.initial()
    for time in range(COMMITS_KEPT + 2):
        diff = TransactionDiff(upper=time + 1, token=("w", time))
        state = language.apply(state, diff)

    def again(lower: int, number: int, *, fresh: bool = False) -> CommitTransaction:
        return CommitTransaction(
            writes={},
            expected_upper=lower,
            upper=lower + 1,
            token=("w", number),
            fresh=fresh,
            applied={},
        )

    assert decide_commit(state, again(2, 2)).result.upper == Frontier.at(3)
    with pytest.raises(OutcomeUnknown):
        decide_commit(state, again(1, 1))
    assert decide_commit(state, again(1, 1, fresh=True)).diff is None


@pytest.mark.parametrize("error", [LocationError("down"), CorruptionError("damaged")])
async def test_a_commit_is_stored_whatever_becomes_of_its_applying(error: Exception) -> None:
    """A commit returns COMMITTED even if the application of earlier ones fails.

    An error would make the caller commit twice.
    """
    place = in_memory()
    found = await registered(place, "a")

    with (
        patch.object(applying, "APPLY_COUNT", 1),
        patch.object(Applier, "applied", side_effect=error) as applied,
    ):
        for time in range(2):
            done = await found.compare_and_append({"a": row("a", time, time)}, time, time + 1)
            assert done.verdict is COMMITTED

    assert applied.called
    assert await held(transactions(place), "a", 1) == {("a", 0): 1, ("a", 1): 1}


def test_states_and_changes_come_back_as_they_were() -> None:
    """States and diffs survive encoding, with the fields of later versions.

    Damaged bytes raise CorruptionError.
    """
    language = TransactionLanguage()
    diff = TransactionDiff(
        upper=3, token=("w", 1), writes={"a": Write(3, b"p")}, applied={"b": 2}, extra={"x": 1}
    )

    assert language.decode_state(language.encode_state(WHOLE)) == WHOLE
    assert language.decode_diff(language.encode_diff(diff)) == diff
    assert len(language.encode_diff(TransactionDiff(upper=3))) < 12
    later = msgspec.msgpack.encode({"format": 3})
    with pytest.raises(UsageError, match="upgrade tidelog"):
        language.decode_state(later)
    for data in (
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"upper": "x"}),
        language.encode_state(WHOLE)[:-2],
    ):
        with pytest.raises(CorruptionError):
            language.decode_state(data)
    with pytest.raises(CorruptionError, match="parts cannot be decoded"):
        steps_of(TransactionState(pending=(Pending(0, 1, {"a": Write(1, b"\xc1")}),)), "t", "a")
