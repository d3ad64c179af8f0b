"""Two hundred seeds of transactions, in a file of their own because a worker runs a whole file."""

from __future__ import annotations

import pytest

from sim.workloads.transactions import simulate_transactions

EACH = 50


@pytest.mark.parametrize("block", range(4))
def test_t65_transactions_are_there_in_all_or_in_none(block: int) -> None:
    """Every read sees a transaction in all of its shards or in none, in one order."""
    reports = [simulate_transactions(seed) for seed in range(block * EACH, (block + 1) * EACH)]

    assert sum(r.commits for r in reports) > 80
    assert sum(r.reads for r in reports) > 150
    assert sum(r.refused for r in reports) > 80
    assert sum(r.forgotten for r in reports) > 20
    assert sum(r.deaths for r in reports) > 10
