"""Listening: what changes in a shard, interval by interval, as far as it is complete.

Only updates of one time can cancel. So parts whose times overlap are read together, as those of a
merge may have to be, and others apart: a listener who is far behind learns of one interval after
another, and never holds all of them.
Source: persist, "Listen".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from tidelog.clock import Clock, backoff_us
from tidelog.errors import DeadlineExceeded, PartMissing
from tidelog.frontier import TIME_MAX, Frontier, check_time
from tidelog.persist.format.bounds import part_reaches
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import consolidate
from tidelog.persist.read.pieces import parts_by_time
from tidelog.persist.read.reader import parts_between
from tidelog.persist.read.selection import CheckedSelection, RowSelection
from tidelog.persist.read.snapshot import check_readable
from tidelog.persist.states.evolution import served_schema
from tidelog.persist.states.state import State

if TYPE_CHECKING:
    from tidelog.persist.handle.shard import Shard

T = TypeVar("T")
POLL_FIRST_US: Final = 20_000
POLL_MOST_US: Final = 1_000_000
INTERVAL_BYTES: Final = 8 * 1024 * 1024  # Of parts, which are several times as large decoded.


@dataclass(frozen=True, slots=True)
class Progress:
    """What a listener learns: the updates at times in ``[lower, upper)``, and that they are all."""

    updates: pa.Table
    lower: Frontier
    upper: Frontier


async def listen(
    shard: Shard, as_of: int, selection: RowSelection
) -> AsyncGenerator[Progress, None]:
    """Yield the updates at times after ``as_of``; see `Shard.listen`."""
    reached = check_time(as_of)
    if shard.schema is not None:
        selection.check(shard.schema)
    while True:
        state = await wait_for_upper(shard, reached + 1, timeout_us=shard.timeout_us)
        check_readable(state, reached)
        schema = served_schema(state, shard.schema)
        found = intervals(
            shard, state, reached, state.upper_frontier, schema=schema, selection=selection
        )
        try:
            async with aclosing(found):
                async for progress in found:
                    yield progress
                    reached = TIME_MAX if progress.upper.is_empty else progress.upper.time - 1
        except PartMissing as error:
            await shard.check_replaced(error)
            continue
        if state.upper is None:
            return


async def intervals(
    shard: Shard,
    state: State,
    reached: int,
    end: Frontier,
    *,
    schema: ShardSchema,
    selection: RowSelection,
) -> AsyncGenerator[Progress, None]:
    """Yield what a state has after a time, up to ``end``, which it has all before."""
    checked = selection.check(schema)
    last = TIME_MAX if end.is_empty else end.time - 1
    groups = list(_together(parts_by_time(parts_between(state, reached, last)))) or [[]]
    lower = Frontier.at(reached + 1)
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        upper = end
        if following is not None:
            upper = Frontier.at(min(part.time_min for part in following))
        until = last if following is None else upper.time - 1
        found = await _changes(shard, schema, checked, group, after=reached, until=until)
        yield Progress(found, lower, upper)
        lower, reached = upper, until


def _together(groups: list[list[Part]]) -> Iterator[list[Part]]:
    """Put groups that follow one another together, as long as they are small."""
    held: list[Part] = []
    held_bytes = 0
    for group in groups:
        size = sum(part.size_bytes for part in group)
        if held and held_bytes + size > INTERVAL_BYTES:
            yield held
            held, held_bytes = [], 0
        held.extend(group)
        held_bytes += size
    if held:
        yield held


async def _changes(
    shard: Shard,
    schema: ShardSchema,
    selection: CheckedSelection,
    parts: list[Part],
    *,
    after: int,
    until: int,
) -> pa.Table:
    with selection.sandbox() as sandbox:
        box = selection.box(sandbox)
        reached = [part for part in parts if part_reaches(part, box)]
        tables = await shard.reader.read(reached, schema)
        narrow = ShardSchema(pa.schema([schema.data.field(n) for n in selection.needed]), 0)
        found = await shard.clock.offload(
            partial(consolidate, tables, narrow, after=after, until=until)
        )
        choose = partial(selection.chosen_changes, found, sandbox, data=schema.data)
        return await shard.clock.offload(choose)


async def wait_for_upper(shard: Shard, time: int, *, timeout_us: int | None) -> State:
    """Wait until ``time`` is complete, and return the state that says so.

    Raises:
        DeadlineExceeded: it was not within ``timeout_us``.
    """

    async def look() -> State | NotYet:
        state = await shard.refresh()
        if state.registered.name and not state.upper_frontier.passed(time):
            state = await _caught_up(shard, time)
        return state if state.upper_frontier.passed(time) else NotYet(state.upper_frontier)

    return await poll(shard.clock, look, time, timeout_us=timeout_us)


@dataclass(frozen=True, slots=True)
class NotYet:
    """What a look finds that comes too early: where upper is."""

    upper: object


async def poll(
    clock: Clock,
    look: Callable[[], Awaitable[T | NotYet]],
    time: int,
    *,
    timeout_us: int | None,
) -> T:
    """Look until there is something; each look costs requests, and they grow rarer.

    Raises:
        DeadlineExceeded: ``time`` was not complete within ``timeout_us``.
    """
    start = clock.monotonic_us()
    attempt = 0
    while True:
        found = await look()
        if not isinstance(found, NotYet):
            return found
        if timeout_us is not None and clock.monotonic_us() - start >= timeout_us:
            raise DeadlineExceeded(
                "the time is not complete yet: ask for an earlier one, or wait longer",
                asked=time,
                upper=found.upper,
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
