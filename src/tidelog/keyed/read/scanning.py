"""Scans: they read one source after another, with read-ahead, and survive compactions.

A scan shows the records at its beginning. If an object was compacted and collected concurrently,
the scan continues with the newest view. A scan of one key continues after the last record returned.
A scan of several keys continues at the current source, unless some of its records were returned. A
scan never leaves a gap: if unread records were retired, it raises an error.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.clock import Clock, backoff_us
from tidelog.core.lookahead import in_order
from tidelog.errors import HandleError, ObjectNotFound, ReadOvertaken
from tidelog.keyed.port import KeyedScan
from tidelog.keyed.read.sources import Source
from tidelog.keyed.read.state_handle import KeyedView
from tidelog.keyed.states.transition import check_readable
from tidelog.keyed.values import KEYED_RECORDS, KeyedQuery

T = TypeVar("T")
# With True, it must read the newest state.
Look: TypeAlias = Callable[[bool], Awaitable[KeyedView]]
TRIES: Final = 5
# A weak reference: if a caller leaves its loop, the generator and its tasks end at once.
Tables: TypeAlias = weakref.ref[AsyncGenerator[pa.Table, None]]
CHUNK_ROWS: Final = 65_536  # The rows of one key that are read at once.


@dataclass(kw_only=True, eq=False)
class ViewScan(KeyedScan):
    """A scan over views; ``look`` returns the newest view, and is called when the scan begins.

    ``seen`` is the next sequence after the newest view, whatever the keys.
    """

    look: Look
    query: KeyedQuery
    clock: Clock
    seen: int = 0
    _frontier: int = field(init=False)
    _given: int = 0
    _is_drained: bool = False
    _tables: Tables | None = None

    def __post_init__(self) -> None:
        self._frontier = self.query.start

    @property
    def next_sequence(self) -> int:
        return self._frontier

    def __aiter__(self) -> AsyncIterator[pa.Table]:
        tables = None if self._tables is None else self._tables()
        if tables is None:
            tables = self._run() if self._tables is None else self._second_pass()
            self._tables = weakref.ref(tables)
        return tables

    async def aclose(self) -> None:
        if self._tables is not None and (tables := self._tables()) is not None:
            await tables.aclose()

    async def _second_pass(self) -> AsyncGenerator[pa.Table, None]:
        """Yield nothing after a complete scan."""
        if not self._is_drained:
            raise HandleError(
                "this scan was abandoned before its end: begin another scan",
                start=self.next_sequence,
            )
        nothing: tuple[pa.Table, ...] = ()
        for table in nothing:
            yield table

    async def _run(self) -> AsyncGenerator[pa.Table, None]:
        async with aclosing(self._runs()) as tables:
            async for table in tables:
                yield table
        self._is_drained = True

    async def _runs(self) -> AsyncGenerator[pa.Table, None]:
        query = self.query
        start, limit = query.start, query.limit
        begun = start
        for attempt in range(TRIES):
            view = await self.look(attempt > 0)
            self.seen = view.next
            # After a continuation, records that were retired in the meantime would be a gap.
            check_readable(view.state, start if start > begun else query.start)
            if limit is None or limit > view.next:
                limit = max(start, view.next)  # Later records belong to another scan.
            if query.newest_first and attempt == 0:
                self._frontier = limit
            run = _Run(self, view, max(start, view.oldest), limit)
            begun = run.start if attempt == 0 else begun
            try:
                async with aclosing(run.tables()) as tables:
                    async for table in tables:
                        self._given += table.num_rows
                        yield table
                        if self._is_full:
                            return
                if not query.newest_first:
                    self._frontier = max(self._frontier, limit)
                return
            except ObjectNotFound as error:
                if run.is_within or attempt + 1 == TRIES:
                    raise ReadOvertaken(
                        "a compactor replaced and deleted objects before the scan read them: "
                        "read again",
                        why=error,
                    ) from error
                start, limit = run.start, run.limit
                await self.clock.sleep(backoff_us(attempt, self.clock))

    @property
    def _is_full(self) -> bool:
        return self.query.rows is not None and self._given >= self.query.rows

    def left(self) -> int | None:
        return None if self.query.rows is None else self.query.rows - self._given

    def passed(self, frontier: int) -> None:
        if not self.query.newest_first:
            self._frontier = max(self._frontier, frontier)


@dataclass(slots=True)
class _Run:
    """One pass over one view; ``[start, limit)`` are the sequences still to return."""

    scan: ViewScan
    view: KeyedView
    start: int
    limit: int
    is_within: bool = False

    def tables(self) -> AsyncGenerator[pa.Table, None]:
        return self._of_key() if self.scan.query.keys.key is not None else self._of_range()

    def _sources(self) -> list[Source]:
        sources = self.view.between(self.start, self.limit)
        return sources[::-1] if self.scan.query.newest_first else sources

    async def _of_key(self) -> AsyncGenerator[pa.Table, None]:
        query, key = self.scan.query, self.scan.query.keys.key or b""

        async def sources() -> AsyncGenerator[Source, None]:
            for source in self._sources():
                if source.may_hold(key):
                    yield source

        async def read(source: Source) -> pa.Table:
            return await source.of_key(
                key,
                self.start,
                self.limit,
                rows=self._chunk(),
                newest_first=query.newest_first,
            )

        results = in_order(sources(), read, size_of=lambda source: source.weight)
        async with aclosing(results):
            async for source, first in results:
                table = first
                while table.num_rows:
                    left = self.scan.left()
                    kept = table if left is None else table.slice(0, left)
                    self._pass_row(kept)
                    yield kept
                    if table.num_rows < CHUNK_ROWS and not source.in_parts:
                        break
                    if self.scan.left() == 0 or self.start >= self.limit:
                        break
                    table = await read(source)
                self._pass(source.lower if query.newest_first else source.upper)

    async def _of_range(self) -> AsyncGenerator[pa.Table, None]:
        newest_first = self.scan.query.newest_first
        for source in self._sources():
            if (left := self.scan.left()) is not None:
                table = await self._first_of(source, left)
                if table.num_rows:
                    self._pass_row(table)
                    yield table
                if table.num_rows == left:
                    return
            else:
                async with aclosing(self._all_of(source, newest_first)) as tables:
                    async for table in tables:
                        self.is_within = True
                        yield table
                self.is_within = False
            self._pass(source.lower if newest_first else source.upper)

    def _all_of(self, source: Source, newest_first: bool) -> AsyncGenerator[pa.Table, None]:
        keys = self.scan.query.keys
        return source.of_range(
            keys.from_key, keys.to_key, self.start, self.limit, newest_first=newest_first
        )

    async def _first_of(self, source: Source, count: int) -> pa.Table:
        """Return the first records of a source by sequence, whatever their keys.

        A caller that continues after the last of them misses none.
        """
        held: list[pa.Table] = []
        async with aclosing(self._all_of(source, False)) as tables:
            async for table in tables:
                held.append(table)
                if sum(part.num_rows for part in held) > count + CHUNK_ROWS:
                    held = [self._first_rows(held, count)]
        return self._first_rows(held, count)

    def _first_rows(self, held: Sequence[pa.Table], count: int) -> pa.Table:
        together: Any = pa.concat_tables([KEYED_RECORDS.empty_table(), *held])
        order: Literal["ascending", "descending"] = (
            "descending" if self.scan.query.newest_first else "ascending"
        )
        rows = pc.select_k_unstable(together, count, [("sequence", order)])
        first_rows: pa.Table = together.take(rows)
        return first_rows

    def _pass_row(self, table: pa.Table) -> None:
        last: int = table.column("sequence")[-1].as_py()
        self._pass(last if self.scan.query.newest_first else last + 1)

    def _chunk(self) -> int:
        left = self.scan.left()
        return CHUNK_ROWS if left is None else min(left, CHUNK_ROWS)

    def _pass(self, reached: int) -> None:
        if self.scan.query.newest_first:
            self.limit = min(self.limit, reached)
        else:
            self.start = max(self.start, min(reached, self.limit))
            self.scan.passed(self.start)


async def with_views(look: Look, clock: Clock, work: Callable[[KeyedView], Awaitable[T]]) -> T:
    """Return the result of ``work`` on a view; if objects were deleted, repeat on a newer view."""
    for attempt in range(TRIES - 1):
        try:
            return await work(await look(attempt > 0))
        except ObjectNotFound:
            await clock.sleep(backoff_us(attempt, clock))
    try:
        return await work(await look(True))
    except ObjectNotFound as error:
        raise ReadOvertaken(
            "a compactor replaced and deleted objects before they were read: read again", why=error
        ) from error
