"""The rate of puts: a writer makes at most this many puts a second on average."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from kit.protocols import KINDS, Kind, contents
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.wal.append.batching import Batching, full, spend, wait_us


@given(
    rate=st.floats(0.1, 1_000),
    asks=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=60),
)
def test_no_stretch_of_time_has_more_than_the_rate(rate: float, asks: list[int]) -> None:
    """No period has more puts than the rate allows, plus those of one second at once."""
    bucket, now = full(rate, 0), 0
    taken: list[int] = []
    for pause in asks:
        now += pause
        now += wait_us(bucket, now)
        assert wait_us(bucket, now) <= 1  # The rest is the rounding of floats.
        bucket = spend(bucket, now)
        taken.append(now)

    for first in range(len(taken)):
        for last in range(first, len(taken)):
            most = max(1.0, rate) + (taken[last] - taken[first]) * rate / 1e6
            assert last - first + 1 <= most + 1e-3 * (last - first + 1)


def test_an_idle_log_does_not_wait() -> None:
    """An idle log has a token at once. A clock that goes back neither adds nor removes tokens."""
    bucket = full(0.5, 1_000)

    assert wait_us(bucket, 1_000) == 0
    assert wait_us(spend(bucket, 1_000), 1_000) == 2_000_000
    assert wait_us(spend(bucket, 1_000), 0) == 2_000_000
    assert wait_us(spend(bucket, 1_000), 2_001_000) == 0


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_batches_leave_at_the_rate(kind: Kind) -> None:
    """In both protocols, batches leave at the rate, and waiting appends share one put."""
    store = MeteringStore(MemoryStore(), clock=SwiftClock())
    await kind.make(store)
    writer = kind.writer(store)
    clock = SwiftClock()
    if kind.name == "slot":
        writer.clock = clock
    else:
        writer.committer.clock = clock
    writer._queue.batching = Batching(interval_us=0, puts_per_second=2)
    begin = clock.monotonic_us()
    for number in range(7):
        await writer.append([b"%d" % number])
    took_us = clock.monotonic_us() - begin
    positions = await asyncio.gather(*(writer.append([b"x"]) for _ in range(50)))
    await writer.close()

    assert took_us >= (7 - 2) * 500_000 - 1_000
    assert positions == list(range(8, 58))
    assert clock.monotonic_us() - begin < took_us + 3_000_000
    kept = [*(b"%d" % number for number in range(7)), *[b"x"] * 50]
    assert await contents(kind, store) == dict(enumerate(kept, start=1))
