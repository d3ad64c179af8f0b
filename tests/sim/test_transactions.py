"""Transactions under fire, at each of their requests, and as broken builds make them."""

from __future__ import annotations

import pytest

from kit.sim_days import caught
from sim.canaries.builds import Canary
from sim.canaries.transactions import FOR_TRANSACTIONS
from sim.crash.points import FAILED, KILLED, visit
from sim.crash.stories_transactions import TransactionStory
from sim.workloads.transactions import simulate_transactions

STORIES = {story.name: story for story in (TransactionStory(), TransactionStory("impatient", 1))}
SEEDS_MAX = 600


@pytest.mark.parametrize("block", range(3))
def test_t65_transactions_are_there_in_all_or_in_none(block: int) -> None:
    """At every time that anybody read, and by the clock: as if one had come after the other."""
    reports = [simulate_transactions(seed) for seed in range(block * 8, block * 8 + 8)]

    assert sum(r.commits for r in reports) > 12
    assert sum(r.reads for r in reports) > 20
    assert sum(r.refused for r in reports) > 10
    assert sum(r.forgotten for r in reports) > 3


@pytest.mark.parametrize("name", STORIES)
def test_t65_a_client_may_die_at_any_request(name: str) -> None:
    """Happened or not, told or not: an heir finds all that it needs, and comes to the same end."""
    found = visit(STORIES[name], fates=KILLED, stride=13)

    assert found.visited == found.struck >= found.requests // 4


@pytest.mark.parametrize("name", STORIES)
def test_t65_any_request_may_fail(name: str) -> None:
    """The victim lives on with what it was told, be it true, unsure, or overtaken by the change."""
    found = visit(STORIES[name], fates=FAILED, stride=23)

    assert found.visited == found.struck >= found.requests // 11


@pytest.mark.parametrize("canary", FOR_TRANSACTIONS, ids=lambda canary: str(canary.__name__))
def test_a_broken_build_is_caught(canary: Canary) -> None:
    """A simulator that cannot find what is there proves nothing by finding nothing."""
    caught(canary, simulate_transactions, range(SEEDS_MAX))
