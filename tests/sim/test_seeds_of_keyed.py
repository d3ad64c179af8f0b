"""Three hundred seeds of keyed logs, in a file of their own: a file is one worker's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sim.workloads.keyed import simulate_keyed

EACH = 50


@pytest.mark.parametrize("block", range(6))
def test_keyed_logs_lose_nothing_and_give_nothing_twice(
    block: int, tally: Callable[[Iterable[Any]], Counter[str]]
) -> None:
    """Whoever writes, compacts, retires, collects, forks, reads or dies over it beside."""
    total = tally(simulate_keyed(seed) for seed in range(block * EACH, (block + 1) * EACH))

    assert total["acknowledged"] > 100
    assert total["ordered"] > 100
    assert total["lost"] > 20
    assert total["fenced"] > 10
    assert total["runs"] > 100
    assert total["merges"] > 20
    assert total["seals"] > 20
    assert total["retired"] > 2
    assert total["checkpoints"] > 5
    assert total["forks"] > 1
    assert total["collected"] > 100
    assert total["reads"] > 300
    assert total["followed"] > 100
    assert total["deaths"] > 5
