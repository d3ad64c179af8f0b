"""Commits at the next time under faults, and broken builds of them."""

from __future__ import annotations

import pytest

from kit.sim_days import caught
from sim.canaries.builds import Canary
from sim.canaries.transactions import FOR_INSERTS
from sim.workloads.inserts import simulate_inserts

EACH = 10
SEEDS_MAX = 300


@pytest.mark.parametrize("block", range(3))
def test_commits_at_the_next_time_are_serializable(block: int) -> None:
    """Each token is stored once, at the time of its answer, and follows from its reads."""
    reports = [simulate_inserts(seed) for seed in range(block * EACH, (block + 1) * EACH)]

    assert sum(r.commits for r in reports) > 50
    assert sum(r.reads for r in reports) > 30
    assert sum(r.deaths for r in reports) > 3
    assert sum(r.forgotten for r in reports) > 3


@pytest.mark.parametrize("canary", FOR_INSERTS, ids=lambda canary: str(canary.__name__))
def test_a_broken_build_of_inserts_is_caught(canary: Canary) -> None:
    """The simulator must find each broken build, or a run without findings proves nothing."""
    caught(canary, simulate_inserts, range(SEEDS_MAX))
