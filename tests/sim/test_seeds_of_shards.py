"""Five hundred seeds of shards, in a file of their own because a worker runs a whole file."""

from __future__ import annotations

import pytest

from sim.workloads.shard import simulate_shard

EACH = 50


@pytest.mark.parametrize("block", range(10))
def test_shards_hold_what_their_writers_were_told(block: int) -> None:
    """Contents at every time, sums, tokens, readers and listeners all match the model."""
    reports = [simulate_shard(seed) for seed in range(block * EACH, (block + 1) * EACH)]

    assert sum(r.committed for r in reports) > 100
    assert sum(r.reads for r in reports) > 100
    assert sum(r.merged.merges for r in reports) > 10
    assert sum(r.deaths for r in reports) > 10
