"""Impossible ranges raise UsageError, because an empty answer would look like an empty log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kit.clocks import SwiftClock
from tidelog.errors import UsageError
from tidelog.store.memory import MemoryStore
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs


@pytest.fixture(params=["slot", "manifest"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    """Return a log of five records."""
    logs = Logs(store=MemoryStore(), clock=SwiftClock(), writer="w")
    async with await logs.create("a", protocol=request.param) as made:
        for number in range(5):
            await made.append([b"%d" % number])
        yield made


async def test_a_range_that_ends_before_it_starts(log: Log) -> None:
    """A limit below the start raises UsageError: the caller probably meant a count."""
    for call in (
        lambda: anext(log.scan(5, limit=2)),
        lambda: log.fragments(5, limit=2),
        lambda: log.scrub(5, limit=2),
        lambda: log.create_pin("p", start=5, limit=2),
    ):
        with pytest.raises(UsageError, match="ends before it starts"):
            await call()
    assert [table async for table in log.scan(2, limit=2)] == []


async def test_a_range_past_the_end(log: Log) -> None:
    """A start after the next position raises: a scrub must not call an empty range clean."""
    for call in (
        lambda: anext(log.scan(99)),
        lambda: log.fragments(99),
        lambda: log.scrub(99),
        lambda: log.scrub(99, limit=100),
    ):
        with pytest.raises(UsageError, match=r"has not reached that position.*start=99 next=6"):
            await call()


async def test_the_next_position_is_no_mistake(log: Log) -> None:
    """A range may start at the next position, because a reader may resume there."""
    assert [table async for table in log.scan(6)] == []
    assert await log.fragments(6) == []
    assert (await log.scrub(6)).is_clean
