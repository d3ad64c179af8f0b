"""Three hundred seeds of tables, and broken builds of them."""

from __future__ import annotations

import pytest

from kit.sim_days import caught
from sim.canaries.builds import Canary
from sim.canaries.tables import FOR_TABLES
from sim.workloads.tables import simulate_tables

EACH = 50
SEEDS_MAX = 300


@pytest.mark.parametrize("block", range(6))
def test_tables_equal_counted_rows(block: int) -> None:
    """Reads, steps of a follower and shards have what the decided calls give, in one order."""
    reports = [simulate_tables(seed) for seed in range(block * EACH, (block + 1) * EACH)]

    assert sum(r.commits for r in reports) > 100
    assert sum(r.several for r in reports) > 2
    assert sum(r.refused for r in reports) > 3
    assert sum(r.reads for r in reports) > 150
    assert sum(r.steps for r in reports) > 80
    assert sum(r.too_old for r in reports) > 3
    assert sum(r.drops for r in reports) > 8
    assert sum(r.maintained for r in reports) > 100
    assert sum(r.deaths for r in reports) > 10


@pytest.mark.parametrize("canary", FOR_TABLES, ids=lambda canary: str(canary.__name__))
def test_a_broken_build_of_tables_is_caught(canary: Canary) -> None:
    """The simulator must find each broken build, or a run without findings proves nothing."""
    caught(canary, simulate_tables, range(SEEDS_MAX))
