"""Seeds of direct tables, and broken builds of them."""

from __future__ import annotations

import pytest

from kit.sim_days import caught
from sim.canaries.builds import Canary
from sim.canaries.tables import FOR_DIRECT
from sim.workloads.direct import simulate_direct

SEEDS = 60


def test_a_direct_table_equals_counted_rows() -> None:
    """Reads, steps of a follower and the shard have what the decided calls give, in one order."""
    reports = [simulate_direct(seed) for seed in range(SEEDS)]

    assert sum(r.commits for r in reports) > 300
    assert sum(r.refused for r in reports) > 3
    assert sum(r.reads for r in reports) > 150
    assert sum(r.steps for r in reports) > 200
    assert sum(r.too_old for r in reports) > 0
    assert sum(r.maintained for r in reports) > 200
    assert sum(r.deaths for r in reports) > 10


@pytest.mark.parametrize("canary", FOR_DIRECT, ids=lambda canary: str(canary.__name__))
def test_a_broken_build_of_direct_tables_is_caught(canary: Canary) -> None:
    """The simulator must find each broken build, or a run without findings proves nothing."""
    caught(canary, simulate_direct, range(SEEDS))
