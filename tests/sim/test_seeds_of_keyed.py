"""Three hundred seeds of keyed logs, in a file of their own because a worker runs a whole file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sim.workloads.keyed import simulate_keyed

EACH = 25


@pytest.mark.parametrize("block", range(12))
def test_keyed_logs_lose_nothing_and_give_nothing_twice(
    block: int, tally: Callable[[Iterable[Any]], Counter[str]]
) -> None:
    """Under every fault, no acknowledged record is lost, and none is returned twice."""
    total = tally(simulate_keyed(seed) for seed in range(block * EACH, (block + 1) * EACH))

    assert total["acknowledged"] > 50
    assert total["ordered"] > 50
    assert total["lost"] > 10
    assert total["fenced"] > 3
    assert total["runs"] > 50
    assert total["merges"] > 8
    assert total["seals"] > 10
    assert total["retired"] > 0
    assert total["checkpoints"] > 2
    assert total["forks"] > 0
    assert total["collected"] > 50
    assert total["reads"] > 100
    assert total["followed"] > 30
    assert total["deaths"] > 3
