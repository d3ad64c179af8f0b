"""Listening: what comes after a time, interval by interval, each once.

Source: persist, "Listen"; design page 4, "Reading".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidelog.clock import backoff_us
from tidelog.errors import DeadlineExceeded, PartMissing
from tidelog.frontier import TIME_MAX, Frontier, check_time
from tidelog.persist.evolution import served_schema
from tidelog.persist.reader import parts_between
from tidelog.persist.snapshot import check_readable
from tidelog.persist.updates import consolidate

if TYPE_CHECKING:
    from tidelog.persist.shard import Shard
    from tidelog.persist.state import State

POLL_FIRST_US: Final = 20_000
POLL_MOST_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Progress:
    """What a listener learns: the updates at times in ``[lower, upper)``, and that they are all."""

    updates: pa.Table
    lower: Frontier
    upper: Frontier


async def listen(shard: Shard, as_of: int) -> AsyncGenerator[Progress, None]:
    """Yield everything at times after ``as_of``; see `Shard.listen`."""
    reached = check_time(as_of)
    while True:
        state = await wait_for_upper(shard, reached + 1, timeout_us=shard.timeout_us)
        check_readable(state, reached)
        schema = served_schema(state, shard.schema)
        last = TIME_MAX if state.upper is None else state.upper - 1
        try:
            tables = await shard.reader.read(parts_between(state, reached, last), schema)
        except PartMissing as error:
            await shard.check_replaced(error)
            continue
        work = partial(consolidate, tables, schema, after=reached, until=last)
        found = await shard.clock.offload(work)
        yield Progress(found, Frontier.at(reached + 1), state.upper_frontier)
        if state.upper is None:
            return
        reached = last


async def wait_for_upper(shard: Shard, time: int, *, timeout_us: int | None) -> State:
    """Wait until ``time`` is complete; a poll costs one request, and they grow rarer.

    Raises:
        DeadlineExceeded: it was not within ``timeout_us``.
    """
    clock = shard.clock
    start = clock.monotonic_us()
    attempt = 0
    while True:
        state = await shard.refresh()
        if state.registered.name and not state.upper_frontier.passed(time):
            state = await _caught_up(shard, time)
        if state.upper_frontier.passed(time):
            return state
        if timeout_us is not None and clock.monotonic_us() - start >= timeout_us:
            raise DeadlineExceeded(
                "the time is not complete yet: ask for an earlier one, or wait longer",
                asked=time,
                upper=state.upper_frontier,
            )
        pause = backoff_us(attempt, clock, first_us=POLL_FIRST_US, most_us=POLL_MOST_US)
        left = pause if timeout_us is None else start + timeout_us - clock.monotonic_us()
        await clock.sleep(max(0, min(pause, left)))
        attempt += 1


async def _caught_up(shard: Shard, time: int) -> State:
    """Return the state of a registered shard after what transactions have for it was applied."""
    from tidelog.persist.transactions.transactions import transactions_of

    await transactions_of(shard).catch_up(shard, time)
    return await shard.refresh()
