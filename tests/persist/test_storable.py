"""Arguments that cannot be stored are refused, so that no argument makes a state unreadable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kit.shards import Place, rows
from kit.transactions import registered, row
from tidelog.core.frontier import Frontier
from tidelog.errors import UsageError

ONE: Any = rows(("a", 1, 0, 1))


async def test_whole_numbers_of_numpy_are_times(place: Place) -> None:
    """NumPy integers are stored as Python integers."""
    shard = place.shard()
    await shard.compare_and_append(ONE, np.int64(0), np.int64(1))  # type: ignore[arg-type]
    assert (await place.shard().refresh()).upper_frontier == Frontier.at(1)


async def test_transactions_refuse_what_cannot_be_stored(place: Place) -> None:
    """Transactions refuse the same values as shards."""
    bank = await registered(place, "a")
    token: Any
    for token in [("w", 1.5), (3, 1), "ab"]:
        with pytest.raises(UsageError):
            await bank.compare_and_append({"a": row("x", 1, 0)}, 0, 1, token=token)
    upper: Any = 1.0
    with pytest.raises(UsageError):
        await bank.compare_and_append({"a": row("x", 1, 0)}, 0, upper)
    assert (await (await registered(place)).refresh()).upper == 0
