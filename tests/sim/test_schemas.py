"""A shard whose columns change under faults, and broken builds of it."""

from __future__ import annotations

import pytest

from kit.sim_days import caught
from sim.canaries.builds import Canary
from sim.canaries.schemas import FOR_SCHEMAS
from sim.checkers.demands import Violated
from sim.workloads.schemas import simulate_schemas
from tidelog.errors import TidelogError


@pytest.mark.parametrize("block", range(3))
def test_t64_schemas_evolve_among_writers_readers_and_merges(block: int) -> None:
    """Rows stay as written in any columns; a client that cannot continue gets an error."""
    reports = [simulate_schemas(seed) for seed in range(block * 24, block * 24 + 24)]

    assert sum(r.committed for r in reports) > 60
    assert sum(r.told_evolved for r in reports) > 60
    assert sum(r.schemas for r in reports) > 60
    assert sum(r.refused for r in reports) > 10
    assert sum(r.reads for r in reports) > 100
    assert sum(r.heard for r in reports) > 30
    assert sum(r.merged.merges for r in reports) > 15


@pytest.mark.parametrize("canary", FOR_SCHEMAS, ids=lambda canary: str(canary.__name__))
def test_a_broken_build_is_caught(canary: Canary) -> None:
    """The simulator must find each broken build, or a run without findings proves nothing."""
    error = caught(canary, simulate_schemas, range(600))

    assert isinstance(error, Violated | TidelogError), error
