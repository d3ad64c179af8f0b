"""Transactions under faults, with faults at each of their requests, and broken builds of them."""

from __future__ import annotations

import pytest

from kit.sim_days import caught
from sim.canaries.builds import Canary
from sim.canaries.transactions import FOR_TRANSACTIONS, FROM_OUTSIDE
from sim.checkers.linear import FOREVER, LANDED, LOST, UNSURE, NotLinear
from sim.checkers.linear_transactions import Commit, Look, check_transactions_outside
from sim.crash.points import FAILED, KILLED, visit
from sim.crash.stories_transactions import TransactionStory
from sim.workloads.commits import simulate_commits
from sim.workloads.transactions import simulate_transactions

STORIES = {
    story.name: story for story in (TransactionStory(), TransactionStory("impatient", attempts=1))
}
SEEDS_MAX = 600


@pytest.mark.parametrize("name", STORIES)
def test_t65_a_client_may_die_at_any_request(name: str) -> None:
    """The victim may die at a request; its heir reaches the same end, whatever had happened."""
    found = visit(STORIES[name], faults=KILLED, stride=19)

    assert found.visited == found.struck >= found.requests // 6


@pytest.mark.parametrize("name", STORIES)
def test_t65_any_request_may_fail(name: str) -> None:
    """The victim continues after a failed request, even if the change lands later."""
    found = visit(STORIES[name], faults=FAILED, stride=31)

    assert found.visited == found.struck >= found.requests // 16


@pytest.mark.parametrize("canary", FOR_TRANSACTIONS, ids=lambda canary: str(canary.__name__))
def test_a_broken_build_is_caught(canary: Canary) -> None:
    """The simulator must find each broken build, or a run without findings proves nothing."""
    caught(canary, simulate_transactions, range(SEEDS_MAX))


@pytest.mark.parametrize("block", range(3))
def test_t60_transactions_are_linearizable_as_seen_from_outside(block: int) -> None:
    """A checker that knows only calls, answers and reads accepts every history."""
    reports = [simulate_commits(seed) for seed in range(block * 18, block * 18 + 18)]

    assert sum(r.landed for r in reports) > 60
    assert sum(r.lost for r in reports) > 60
    assert sum(r.unsure for r in reports) > 5
    assert sum(r.looks for r in reports) > 90


@pytest.mark.parametrize("canary", FROM_OUTSIDE, ids=lambda canary: str(canary.__name__))
def test_a_broken_decision_is_seen_from_outside(canary: Canary) -> None:
    """The outside checker sees a torn transaction, an impossible answer, or a stale read."""
    assert isinstance(caught(canary, simulate_commits, range(100)), NotLinear)


def test_a_history_of_transactions_that_nothing_explains_is_refused() -> None:
    """The checker refuses each of these, although each is one step from a right history."""

    def commit(name: str, lower: int, answer: str, *shards: str) -> Commit:
        end = FOREVER if answer == UNSURE else 2.0
        return Commit(
            client=name,
            name=name,
            lower=lower,
            shards=frozenset(shards),
            begin=1.0,
            end=end,
            answer=answer,
        )

    def look(**seen: list[tuple[int, str]]) -> Look:
        whole = {shard: tuple(rows) for shard, rows in seen.items()}
        return Look(client="r", begin=3.0, end=4.0, seen=whole)

    calls = [
        commit("x", 0, LANDED, "a", "b"),
        commit("y", 0, LOST, "a"),
        commit("z", 1, UNSURE, "b"),
    ]
    right = [
        look(a=[(0, "x")], b=[(0, "x")]),
        look(a=[(0, "x")], b=[(0, "x"), (1, "z")]),
        look(b=[(0, "x"), (1, "z")]),
    ]
    wrong = [
        look(a=[(0, "x")], b=[]),
        look(a=[(0, "x")], b=[(0, "x"), (0, "x")]),
        look(a=[(0, "x"), (1, "z")], b=[(0, "x"), (1, "z")]),
        look(a=[(0, "y")], b=[]),
        look(a=[], b=[]),
        look(a=[(0, "x")], b=[(0, "x"), (1, "who")]),
        look(a=[(0, "x")], b=[(0, "x"), (2, "z")]),
    ]
    for one in right:
        check_transactions_outside(calls, [one])
    for one in wrong:
        with pytest.raises(NotLinear):
            check_transactions_outside(calls, [one])
