"""Arguments that cannot be stored are refused, so that no argument makes a state unreadable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from kit.shards import Place, contents, in_memory, rows
from kit.transactions import registered, row
from tidelog.core.frontier import Frontier
from tidelog.errors import UsageError
from tidelog.persist.handle.shard import Shard

ONE: Any = rows(("a", 1, 0, 1))
ODD: dict[str, Callable[[Any], Awaitable[object]]] = {
    "a lease of a float": lambda s: s.lease(lease_us=1.5e6),
    "a lease of numpy": lambda s: s.lease(lease_us=np.int64(10**6)),
    "a purpose that is none": lambda s: s.lease(purpose=None),
    "a lease that is half fixed": lambda s: s.lease(fixed="yes"),
    "a lease that is too long": lambda s: s.lease(lease_us=10**30),
    "a hold at a float": lambda s: s.hold("h", 0.0),
    "a token of a float": lambda s: s.hold("h", token=1.5),
    "a token of a text": lambda s: s.hold("h", token="1"),
    "a hold of no name": lambda s: s.hold(None),
    "a hold of bytes": lambda s: s.hold(b"h"),
    "a hold of half a character": lambda s: s.hold("\ud800"),
    "an upper of a float": lambda s: s.compare_and_append(ONE, 0, 1.0),
    "an upper of a bool": lambda s: s.compare_and_append(ONE, 0, True),
    "an upper of a text": lambda s: s.compare_and_append(ONE, 0, "1"),
    "a number of a float": lambda s: s.compare_and_append(ONE, 0, 1, token=("w", 1.0)),
    "a writer of a number": lambda s: s.compare_and_append(ONE, 0, 1, token=(3, 1)),
    "a token that is a text": lambda s: s.compare_and_append(ONE, 0, 1, token="ab"),
    "a token of numpy": lambda s: s.compare_and_append(ONE, 0, 1, token=("w", np.int64(1))),
    "a name that is a number": lambda s: _append(s, 3),
    "a name that is none": lambda s: _append(s, None),
}


async def _append(shard: Shard, name: Any) -> None:
    await (await shard.appender(name)).append(ONE, 1)


@pytest.mark.parametrize("what", ODD)
async def test_what_cannot_be_stored_is_refused(what: str) -> None:
    """The call raises UsageError and writes nothing. The shard stays usable."""
    place = in_memory()
    shard = place.shard()
    await shard.hold("base")
    with pytest.raises(UsageError):
        await ODD[what](shard)
    assert (await place.shard().refresh()).upper == 0
    await place.shard().compare_and_append(ONE, 0, 1)
    assert await contents(place.shard(), 0) == {("a", 1): 1}


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
