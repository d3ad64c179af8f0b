"""Listening: the changes of a shard, interval by interval, as they become complete.

Only updates of the same time cancel. Parts whose times overlap, such as merged ones, are therefore
read together, and other parts separately. A listener that is far behind gets one interval after
another, and never holds all of them.
Source: persist, "Listen".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from tidelog.core.clock import Clock, backoff_us, in_time
from tidelog.core.frontier import TIME_MAX, Frontier, check_time
from tidelog.core.grouping import groups_by_size
from tidelog.core.ids import is_named
from tidelog.errors import AsOfNotComplete, DeadlineExceeded, PartMissing, UsageError
from tidelog.persist.format.bounds import part_reaches
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import consolidate
from tidelog.persist.handle.port import Progress, ShardHandle
from tidelog.persist.read.pieces import parts_by_time
from tidelog.persist.read.reader import parts_between
from tidelog.persist.read.selection import CheckedSelection, RowSelection
from tidelog.persist.states.evolution import served_schema
from tidelog.persist.states.state import State
from tidelog.persist.transactions.applier import applier_of, complete_state
from tidelog.store.wrappers.read_only import is_read_only

T = TypeVar("T")
REACHES_MAX: Final = 6
POLL_FIRST_US: Final = 20_000
POLL_MOST_US: Final = 1_000_000
# The stored bytes of parts; decoded they are several times as large.
INTERVAL_BYTES: Final = 8 * 1024 * 1024


async def listen(
    shard: ShardHandle, as_of: int, selection: RowSelection, *, wait: bool
) -> AsyncGenerator[Progress, None]:
    """Yield the updates at times after ``as_of``; see `Shard.listen`."""
    reached = check_start(as_of)
    if shard.schema is not None:
        selection.check(shard.schema)
    state = await wait_for_upper(shard, reached, wait=wait)
    while True:
        if not state.upper_frontier.passed(reached + 1):
            state = await wait_for_upper(shard, reached + 1)
        state.check_readable(reached)
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
            state = await shard.check_replaced(error)
            continue
        if state.upper is None:
            return


def check_start(as_of: int) -> int:
    """Return ``as_of`` if a listener can start after it.

    Raises:
        UsageError: it is not a time, or no time follows it.
    """
    if check_time(as_of) == TIME_MAX:
        raise UsageError(
            "no time follows the greatest time: listen from an earlier time", as_of=as_of
        )
    return as_of


async def intervals(
    shard: ShardHandle,
    state: State,
    reached: int,
    end: Frontier,
    *,
    schema: ShardSchema,
    selection: RowSelection,
) -> AsyncGenerator[Progress, None]:
    """Yield the updates of a state after ``reached`` and before ``end``, by intervals.

    All times before ``end`` must be complete in the state.
    """
    checked = selection.check(schema)
    last = TIME_MAX if end.is_empty else end.time - 1
    by_time = parts_by_time(parts_between(state, reached, last))
    small = groups_by_size(
        by_time, lambda some: sum(p.size_bytes for p in some), most=INTERVAL_BYTES
    )
    groups = [[part for some in group for part in some] for group in small] or [[]]
    lower = Frontier.at(reached + 1)
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        upper = end
        if following is not None:
            upper = Frontier.at(min(part.time_min for part in following))
        until = last if following is None else upper.time - 1
        found = await _changes(shard, schema, checked, group, after=reached, until=until)
        yield Progress(found, lower, upper)
        lower, reached = upper, until


async def _changes(
    shard: ShardHandle,
    schema: ShardSchema,
    selection: CheckedSelection,
    parts: list[Part],
    *,
    after: int,
    until: int,
) -> pa.Table:
    with selection.sandbox() as sandbox:
        box = selection.box
        reached = [part for part in parts if part_reaches(part, box)]
        tables = await shard.reader.read(reached, schema)
        narrow = ShardSchema(pa.schema([schema.data.field(n) for n in selection.needed]), 0)
        found = await shard.clock.offload(
            partial(consolidate, tables, narrow, after=after, until=until)
        )
        choose = partial(selection.chosen_changes, found, sandbox, data=schema.data)
        return await shard.clock.offload(choose)


async def wait_for_upper(
    shard: ShardHandle, time: int, *, wait: bool = True, timeout_us: int | None = None
) -> State:
    """Return the newest state if ``time`` is complete; with ``wait``, wait until it is.

    Raises:
        AsOfNotComplete, DeadlineExceeded: see `poll`.
    """

    async def look() -> State | NotYet:
        state = await shard.refresh()
        if state.registered.name and not state.upper_frontier.passed(time):
            state = await caught_up(shard, time)
        return state if state.upper_frontier.passed(time) else NotYet(state.upper_frontier)

    patience = Patience(wait=wait, timeout_us=timeout_us, limit_us=shard.timeout_us)
    return await poll(shard.clock, look, time, patience)


@dataclass(frozen=True, slots=True)
class NotYet:
    """The result of a look that comes too early: the upper that it found."""

    upper: Frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The limits of a reader that waits for a time to become complete.

    Units: after ``timeout_us`` microseconds no further look begins; after ``limit_us`` the current
        look is cancelled, too. Either of them implies ``wait``, which alone waits without a limit.
    """

    wait: bool
    timeout_us: int | None = None
    limit_us: int | None = None

    @property
    def waits(self) -> bool:
        return self.wait or self.timeout_us is not None or self.limit_us is not None


async def poll(
    clock: Clock, look: Callable[[], Awaitable[T | NotYet]], time: int, patience: Patience
) -> T:
    """Look until ``time`` is complete. A look costs requests, so the pauses grow.

    Raises:
        AsOfNotComplete: ``time`` is not complete, and the caller does not wait.
        DeadlineExceeded: ``time`` did not become complete in time.
    """
    looks = _Looks(clock, time, patience)
    try:
        return await in_time(clock, looks.until_found(look), patience.limit_us)
    except DeadlineExceeded as error:
        if looks.newest is None or "asked" in error.facts:
            raise
        raise looks.too_late(looks.newest) from error


class _Looks:
    """One wait: its deadline, and the upper that its newest look found."""

    def __init__(self, clock: Clock, time: int, patience: Patience) -> None:
        self.newest: Frontier | None = None
        self._clock = clock
        self._time = time
        self._patience = patience
        self._begun_us = clock.monotonic_us()

    async def until_found(self, look: Callable[[], Awaitable[T | NotYet]]) -> T:
        attempt = 0
        while isinstance(found := await look(), NotYet):
            self.newest = found.upper
            if not self._patience.waits:
                raise not_complete(self._time, found.upper)
            pause = backoff_us(attempt, self._clock, first_us=POLL_FIRST_US, most_us=POLL_MOST_US)
            left = self._left_us()
            if left is not None and left <= 0:
                raise self.too_late(found.upper)
            await self._clock.sleep(pause if left is None else min(pause, left))
            attempt += 1
        return found

    def _left_us(self) -> int | None:
        timeout_us = self._patience.timeout_us
        return (
            None
            if timeout_us is None
            else (self._begun_us + timeout_us - self._clock.monotonic_us())
        )

    def too_late(self, upper: Frontier) -> DeadlineExceeded:
        sentence = "the time is not complete yet: read at an earlier time, or wait longer"
        return DeadlineExceeded(sentence, asked=self._time, upper=upper)


def not_complete(time: int, upper: Frontier) -> AsOfNotComplete:
    """Return the error of a read of an incomplete time by a caller that does not wait."""
    sentence = (
        "the shard has no data yet: check its name, write to it first, or pass wait=True"
        if upper == Frontier.at(0)
        else "the time is not complete yet: read at a time below upper, or pass wait=True"
    )
    return AsOfNotComplete(sentence, asked=time, upper=upper)


async def caught_up(shard: ShardHandle, time: int | None = None) -> State:
    """Return a shard's state; if it is registered, apply its transactions up to ``time`` first.

    A read-only connection applies them to the returned state only.
    """
    if is_read_only(shard.store):
        return await complete_state(shard)
    if shard.state.registered.name:
        await applier_of(shard).catch_up(shard, time)
    return await shard.refresh()


async def complete_upper(shard: ShardHandle) -> Frontier:
    """Return the upper to which a shard is complete: for a registered one, that of transactions."""
    state = await shard.refresh()
    if not state.registered.name:
        return state.upper_frontier
    return max(await applier_of(shard).upper_of(shard.id), state.upper_frontier)


async def reaching(
    shard: ShardHandle, time: Frontier | None, work: Callable[[Frontier | None], Awaitable[T]]
) -> T:
    """Run work that names a time. If a registered shard is behind it, apply its transactions."""
    at = time
    # Other processes may end and begin registrations between these requests.
    for left in reversed(range(2 if is_named(shard.id) else REACHES_MAX)):
        try:
            return await work(at)
        except UsageError:
            registered = shard.state.registered
            is_behind = at is not None and not at.is_empty and shard.state.upper_frontier < at
            if time is None or not is_behind or not registered.number or not left:
                raise
            if registered.name:
                await caught_up(shard, time.time - 1)
            at = min(time, shard.state.upper_frontier) if await _is_between(shard) else time
    raise AssertionError("the last try returns or raises")


async def _is_between(shard: ShardHandle) -> bool:
    """Return True if a shard of a table is between two registrations.

    No other writer may write it, so its contents at its upper are those of all later times, too.
    """
    registered = shard.state.registered
    if not registered.number or is_named(shard.id):
        return False
    # A registration begins in the shard, and then in the transactions.
    return not (registered.name and await applier_of(shard).is_registered(shard.id))
