"""The simulator's logs and shards hold with nearly every request sent twice, and over a cache.

There, requests arrive late or twice, answers are lost, and processes die over them; the checks are
those of the scenarios themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sim.kernel.clock import SimClock
from sim.workloads.consensus import simulate_consensus
from sim.workloads.log import simulate_log
from sim.workloads.shard import simulate_shard
from sim.workloads.slot import simulate_slots
from tidelog.store.port import Store
from tidelog.store.wrappers.cached import Cached
from tidelog.store.wrappers.hedged import Hedged
from tidelog.store.wrappers.hedging import Hedging
from tidelog.testing import Recorded

SEEDS = range(5)
# Half of all requests last longer than half of those before them.
EAGER = Hedging(
    quantile=0.5, factor=1, least_us=0, most_us=2_000, samples_min=1, extra_permille=1_000
)


def is_immutable(key: str) -> bool:
    """Name the fragments and slots of logs."""
    return key.endswith(".parquet")


class Wrapped(Recorded):
    """What a client of the simulator has for a store, with the wrappers around it."""

    hedges: list[Hedged] = []  # noqa: RUF012 - each test puts its own there

    def __init__(self, store: Store) -> None:
        hedged = Hedged(store, clock=SimClock("wrapped"), is_immutable=is_immutable, hedging=EAGER)
        self.hedges.append(hedged)
        super().__init__(hedged)


class WrappedTwice(Wrapped):
    """And with a cache above them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._store = Cached(self._store, clock=SimClock("kept"), is_immutable=is_immutable)


@pytest.mark.parametrize("wrapped", [Wrapped, WrappedTwice])
@pytest.mark.parametrize(
    "simulate", [simulate_consensus, simulate_log, simulate_slots, simulate_shard]
)
def test_scenarios_hold_on_wrapped_stores(
    simulate: Callable[[int], object], wrapped: type[Wrapped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was linearizable on a store is so on a hedged one, and on a cached one."""
    monkeypatch.setattr("sim.kernel.world.Recorded", wrapped)
    monkeypatch.setattr(Wrapped, "hedges", [])
    for seed in SEEDS:
        simulate(seed)

    requests_count = sum(hedged.hedges().requests_count for hedged in Wrapped.hedges)
    again_count = sum(hedged.hedges().again_count for hedged in Wrapped.hedges)
    print(f"{simulate.__name__} {wrapped.__name__} {requests_count=} {again_count=}")
    assert again_count * 4 > requests_count
