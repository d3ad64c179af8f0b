"""Seeds of renditions, and broken builds of them."""

from __future__ import annotations

import pytest

from kit.sim_days import caught
from sim.canaries.builds import Canary
from sim.canaries.renditions import FOR_RENDITIONS
from sim.workloads.renditions import REQUESTS_SHORT, has_retention, simulate_renditions

SEEDS = 15
BLOCKS, EACH = 6, 50  # Of short runs.
SEEDS_MAX = 150


def test_readers_read_one_rendition_at_each_time() -> None:
    """Reads, steps of a follower, holds and the history agree with the marks and the bindings."""
    reports = [simulate_renditions(seed) for seed in range(SEEDS)]

    assert sum(r.handovers for r in reports) > 4
    assert sum(r.refused for r in reports) > 30
    assert sum(r.dropped for r in reports) > 3
    assert sum(r.reads for r in reports) > 150
    assert sum(r.across for r in reports) > 8
    assert sum(r.lone for r in reports) > 20
    assert sum(r.steps for r in reports) > 80
    assert sum(r.held for r in reports) > 15
    assert sum(r.maintained for r in reports) > 40
    assert sum(r.deaths for r in reports) > 4


@pytest.mark.parametrize("block", range(BLOCKS))
def test_readers_read_one_rendition_in_short_runs(block: int) -> None:
    """Many first handovers, each under other faults and at other moments of ingesters."""
    seeds = range(block * EACH, (block + 1) * EACH)
    reports = [simulate_renditions(seed, requests=REQUESTS_SHORT) for seed in seeds]

    assert sum(r.handovers for r in reports) > 10
    assert sum(r.refused for r in reports) > 40
    assert sum(r.reads for r in reports) > 150
    assert sum(r.across for r in reports) > 10
    assert sum(r.steps for r in reports) > 80
    assert sum(r.held for r in reports) > 30
    assert sum(r.deaths for r in reports) > 15


@pytest.mark.parametrize("canary", FOR_RENDITIONS, ids=lambda canary: str(canary.__name__))
def test_a_broken_build_of_renditions_is_caught(canary: Canary) -> None:
    """The simulator must find each broken build, or a run without findings proves nothing."""
    # Two of the builds lack holds, which have an effect only on a collection with retention.
    likely = sorted(range(SEEDS_MAX), key=has_retention, reverse=True)
    caught(canary, simulate_renditions, likely)
