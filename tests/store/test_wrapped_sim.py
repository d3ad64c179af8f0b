"""The simulator's scenarios hold with almost every request sent twice, and over a cache.

There, requests arrive late or twice, answers are lost, and processes die. The scenarios check
themselves.
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
from tidelog.store.wrappers.cached import CachedStore
from tidelog.store.wrappers.hedged import HedgedStore
from tidelog.store.wrappers.hedging import Hedging
from tidelog.testing import RecordedStore

SEEDS = range(5)
# Half of all requests last longer than half of the requests before them.
EAGER = Hedging(
    quantile=0.5, factor=1, least_us=0, most_us=2_000, samples_min=1, extra_permille=1_000
)


def is_immutable(key: str) -> bool:
    """Return True for the fragments and slots of logs."""
    return key.endswith(".parquet")


class WrappedStore(RecordedStore):
    """The store of a simulator client with the wrappers around it."""

    hedges: list[HedgedStore] = []  # noqa: RUF012 - each test puts its own there

    def __init__(self, store: Store) -> None:
        hedged = HedgedStore(
            store, clock=SimClock("wrapped"), is_immutable=is_immutable, hedging=EAGER
        )
        self.hedges.append(hedged)
        super().__init__(hedged)


class WrappedTwice(WrappedStore):
    """The same with a cache on top."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._store = CachedStore(self._store, clock=SimClock("kept"), is_immutable=is_immutable)


@pytest.mark.parametrize("wrapped", [WrappedStore, WrappedTwice])
@pytest.mark.parametrize(
    "simulate", [simulate_consensus, simulate_log, simulate_slots, simulate_shard]
)
def test_scenarios_hold_on_wrapped_stores(
    simulate: Callable[[int], object], wrapped: type[WrappedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator's scenarios also hold on a hedged store and on a cached one."""
    monkeypatch.setattr("sim.kernel.world.RecordedStore", wrapped)
    monkeypatch.setattr(WrappedStore, "hedges", [])
    for seed in SEEDS:
        simulate(seed)

    requests_count = sum(hedged.hedges().requests_count for hedged in WrappedStore.hedges)
    again_count = sum(hedged.hedges().again_count for hedged in WrappedStore.hedges)
    print(f"{simulate.__name__} {wrapped.__name__} {requests_count=} {again_count=}")
    assert again_count * 4 > requests_count
