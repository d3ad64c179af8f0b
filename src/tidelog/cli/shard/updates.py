"""Appends of updates to a shard: one commit for all parts, of rows decoded table by table."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.core.frontier import Frontier
from tidelog.errors import LocationError, UpperMismatch, UsageError
from tidelog.persist.format.bounds import scalar_of
from tidelog.persist.format.part import Part, int64_array
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.format.updates import prepare_updates
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import Verdict, check_not_dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """The time and the diff of all rows, if the rows do not hold their own."""

    time: int | None
    diff: int | None

    def columns(self, schema: ShardSchema) -> pa.Schema:
        """Return the columns to read from a file: the data, and ``_time`` and ``_diff`` if needed.

        ``_time`` and ``_diff`` may be absent in the file.
        """
        wanted = schema.data
        if self.time is None:
            wanted = wanted.append(pa.field(TIME, pa.int64()))
        return wanted if self.diff is not None else wanted.append(pa.field(DIFF, pa.int64()))

    def updates(self, rows: pa.Table, schema: ShardSchema) -> pa.Table:
        """Return rows as updates.

        Raises:
            UsageError: a row has no time.
        """
        times = self._column(rows, TIME, self.time)
        if times.null_count:
            raise UsageError(
                f"a row has no {TIME}: add it to every row, or pass --time; nothing was appended"
            )
        diffs = self._column(rows, DIFF, self.diff, absent=1)
        data = rows.select(schema.names)
        return data.append_column(TIME, times).append_column(DIFF, diffs)

    def _column(
        self, rows: pa.Table, name: str, given: int | None, absent: int | None = None
    ) -> pa.ChunkedArray[Any]:
        if given is not None:
            return pa.chunked_array([int64_array(np.full(rows.num_rows, given, np.int64))])
        found = rows.column(name)
        return found if absent is None else found.fill_null(scalar_of(absent, pa.int64()))


@dataclass(frozen=True, slots=True)
class FeedReport:
    """The result of an append: counts of updates and parts, and the interval ``[lower, upper)``."""

    updates: int
    parts: int
    lower: Frontier
    upper: Frontier


async def feed(
    shard: Shard,
    tables: AsyncGenerator[pa.Table, None],
    timed: RowTimes,
    *,
    expected: Frontier | None,
    upper: Frontier | None,
) -> FeedReport:
    """Append rows for the times ``[expected, upper)``.

    ``expected`` defaults to the shard's upper, and ``upper`` to one past the last row's time.

    Raises:
        UsageError: a row does not fit the schema or the interval. NOT_APPLIED.
        UpperMismatch: the shard's upper is not ``expected``. NOT_APPLIED.
        LocationError: the store failed; ``outcome`` states whether the append may be applied.
    """
    lower = shard.state.upper_frontier if expected is None else expected
    if shard.state.upper_frontier != lower:
        raise _mismatch(shard.state.upper_frontier, lower)
    if lower.is_empty:
        raise UsageError("the shard is finished, so it accepts no updates: append to another shard")
    writing = _Writing(shard, timed, lower, Frontier.of(None) if upper is None else upper)
    try:
        async with aclosing(tables):
            async for table in tables:
                await writing.take(table)
        parts = await writing.finish()
        until = upper if upper is not None else Frontier.at(writing.last + 1 if parts else 0)
        if upper is None and not parts:
            raise UsageError("there are no updates: pass --upper to move only upper")
        done = await shard.commit_parts(parts, lower, until)
    except UsageError:
        await writing.drop()
        raise
    if done.verdict is Verdict.MISMATCH:
        await writing.drop()
        check_not_dropped(shard.state)
        raise _mismatch(done.upper, lower)
    return FeedReport(writing.rows, len(parts), lower, until)


class _Writing:
    """The parts of an append that is not committed yet.

    The last table waits in memory. If it is the only one, it can be stored inline in the state.
    """

    def __init__(self, shard: Shard, timed: RowTimes, lower: Frontier, upper: Frontier) -> None:
        self._shard = shard
        self._timed = timed
        self._lower, self._upper = lower, upper
        self._writer = shard.writer()
        self._waiting: pa.Table | None = None
        self._parts: list[Part] = []
        self.rows = 0
        self.last = -1

    async def take(self, rows: pa.Table) -> None:
        schema = self._writer.schema
        lower, upper = self._lower, self._upper

        def ready() -> pa.Table:
            updates = self._timed.updates(rows, schema)
            return prepare_updates(updates, schema, lower=lower, upper=upper)

        made = await self._shard.clock.offload(ready)
        if not made.num_rows:
            return
        if self._waiting is not None:
            self._parts += await self._writer.write(self._waiting, inline=False)
        self._waiting = made
        self.rows += made.num_rows

    async def finish(self) -> list[Part]:
        if self._waiting is not None:
            few = not self._parts and self._shard.may_inline
            self._parts += await self._writer.write(self._waiting, inline=few)
            self._waiting = None
        self.last = max((part.time_max for part in self._parts), default=-1)
        return self._parts

    async def drop(self) -> None:
        """Delete the written parts: no state names them, and no other process knows their paths."""
        paths = [part.path for part in self._parts if part.path is not None]
        if paths:
            with suppress(LocationError):  # A later sweep deletes parts that are left.
                await self._shard.store.delete(paths)


def _mismatch(upper: Frontier, expected: Frontier) -> UpperMismatch:
    return UpperMismatch(
        "another writer has moved the shard's upper: read its updates, and append only updates "
        "after them; nothing was appended",
        upper=upper,
        expected=expected,
    )
