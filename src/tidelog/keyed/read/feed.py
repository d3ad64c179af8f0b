"""Followers of one handle, and the one poll that serves them all.

Whatever keys are followed, and by however many, the store is asked for the next slot of the wal
alone, and each fragment is fetched once. A follower is woken by what it follows only; one that has
fallen far behind reads on by a scan.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Final

import pyarrow as pa

from tidelog.clock import Clock, backoff_us
from tidelog.errors import (
    HandleError,
    LocationError,
    NoSuchLog,
    PositionCollected,
    TidelogError,
)
from tidelog.keyed.port import KeyedScan
from tidelog.keyed.read.piece import LoosePiece, in_range, keyed_records
from tidelog.keyed.read.scanning import KeyedWanted, Tables, ViewScan
from tidelog.keyed.read.sources import with_keys
from tidelog.keyed.states.transition import DROPPED
from tidelog.wal.slot_protocol.reader import SlotReader

WINDOW_BYTES: Final = 64 * 1024 * 1024
TRIES: Final = 20
LINGER_S: Final = 30.0  # For a follower who comes again, such as over HTTP.


@dataclass(slots=True, eq=False)
class _Waiting:
    """A follower that has all up to the end of the feed; ``woken`` is where to read on."""

    wanted: KeyedWanted
    woken: asyncio.Future[int]

    def passed(self, feed: KeyedFeed) -> int:
        """Return up to where there was nothing for it: what woke it, it was not given yet."""
        if not self.woken.done():
            return feed.end
        return 0 if self.woken.cancelled() or self.woken.exception() else self.woken.result()


@dataclass(slots=True, kw_only=True)
class KeyedFeed:
    """What comes to a wal, as it comes, for followers.

    Units: the newest ``window_bytes`` of records are kept.
    """

    reader: SlotReader
    clock: Clock
    window_bytes: int = WINDOW_BYTES
    end: int = 0
    _window: deque[LoosePiece] = field(default_factory=deque)
    _sizes: deque[int] = field(default_factory=deque)  # Of each in the window.
    _bytes: int = 0
    _by_key: dict[bytes, dict[_Waiting, None]] = field(default_factory=dict)
    _by_range: dict[_Waiting, None] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None
    _error: TidelogError | None = None
    _followers: int = 0

    @property
    def begin(self) -> int:
        """Return from which sequence on all is in the window."""
        return self._window[0].start if self._window else self.end

    def start(self, at: int) -> None:
        """Begin to poll from a sequence on, unless it has begun.

        Raises:
            HandleError: the keyed log was closed. NoSuchLog: it was dropped.
        """
        if self._error is not None:
            raise self._error
        if self._task is None:
            self.end = at
            self._task = asyncio.create_task(self._run(), name="keyed feed")

    def join(self) -> None:
        """Count a follower in."""
        self._followers += 1

    def leave(self) -> None:
        """Count a follower out; without any, the poll ends in a while."""
        self._followers -= 1
        if not self._followers:
            with suppress(RuntimeError):  # The loop itself ends.
                asyncio.get_running_loop().call_later(LINGER_S, self._end_if_idle)

    async def stop(self) -> None:
        """End the poll, and all who wait."""
        task = self._task
        self._end(HandleError("the keyed log was closed: open it again"))
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def pieces(self, start: int) -> list[LoosePiece]:
        """Return what the window has from a sequence on."""
        found = [*takewhile(lambda piece: piece.limit > start, reversed(self._window))]
        return found[::-1]

    async def news(self, waiting: _Waiting, reached: int) -> int:
        """Wait until there is something that may be wanted; return from where on to read.

        Raises:
            Whatever ended the poll.
        """
        if self._error is not None:
            raise self._error
        if self.end > reached:
            return reached
        key = waiting.wanted.key
        held = self._by_range if key is None else self._by_key.setdefault(key, {})
        held[waiting] = None
        try:
            return await waiting.woken
        finally:
            held.pop(waiting, None)
            if not held and key is not None:
                self._by_key.pop(key, None)

    def push(self, piece: LoosePiece) -> None:
        """Take what came to the wal; nothing, if it does not follow what is there."""
        if piece.start > self.end or piece.limit <= self.end or piece.records is None:
            return
        self._window.append(piece)
        self._sizes.append(piece.nbytes)
        self._bytes += self._sizes[-1]
        self.end = piece.limit
        while self._bytes > self.window_bytes and len(self._window) > 1:
            self._window.popleft()
            self._bytes -= self._sizes.popleft()
        for waiting in self._wanting(piece):
            if not waiting.woken.done():
                waiting.woken.set_result(piece.start)

    def _end_if_idle(self) -> None:
        if not self._followers and self._task is not None:
            self._task.cancel()
            self._forget()

    def _wanting(self, piece: LoosePiece) -> list[_Waiting]:
        assert piece.records is not None
        if not self._by_key and not self._by_range:
            return []
        keys = piece.places(piece.records)
        # In one order each time, so that a run can be told again.
        found = [waiting for key in keys.any_of(self._by_key) for waiting in self._by_key[key]]
        ranges = (one for one in self._by_range if keys.has_any(one.wanted.first, one.wanted.last))
        return [*found, *ranges]

    async def _run(self) -> None:
        for attempt in range(TRIES):
            try:
                await self._poll()
                self._end(NoSuchLog(DROPPED))  # Nothing else seals what feeds a keyed log.
                return
            except LocationError as error:
                if attempt + 1 == TRIES:
                    self._fail(error)
                    return
                await self.clock.sleep(backoff_us(attempt, self.clock, most_us=1_000_000))
            except PositionCollected:
                self._overtaken()
                return
            except TidelogError as error:
                self._fail(error)
                return

    async def _poll(self) -> None:
        found = self.reader.follow(self.end)
        async with aclosing(found):
            async for table in found:
                records = await self.clock.offload(partial(keyed_records, table))
                limit = table.column("position")[-1].as_py() + 1
                self.push(LoosePiece(start=self.end, limit=limit, records=records))

    def _end(self, error: TidelogError) -> None:
        """Let nobody follow any more."""
        self._error = error
        self._tell(error)

    def _overtaken(self) -> None:
        """Have all read on by runs: what was to be polled next is compacted, and collected."""
        reached = self.end
        self._forget()
        for waiting in self._all_waiting():
            if not waiting.woken.done():
                waiting.woken.set_result(reached)

    def _fail(self, error: TidelogError) -> None:
        """Tell those who wait that there is no poll any more."""
        self._forget()
        self._tell(error)

    def _forget(self) -> None:
        """Let go of all that was polled; whoever follows next begins another poll."""
        self._task, self.end, self._bytes = None, 0, 0
        self._window.clear()
        self._sizes.clear()

    def _all_waiting(self) -> list[_Waiting]:
        return [*self._by_range, *(one for held in self._by_key.values() for one in held)]

    def _tell(self, error: TidelogError) -> None:
        for waiting in self._all_waiting():
            if not waiting.woken.done():
                waiting.woken.set_exception(error)


@dataclass(kw_only=True, eq=False)
class Following(KeyedScan):
    """Records that are wanted, and those to come; ``scan`` reads what is past."""

    feed: KeyedFeed
    wanted: KeyedWanted
    scan: Callable[[int], ViewScan]
    begin: Callable[[], Awaitable[int]]
    reached: int | None = None
    _waiting: _Waiting | None = None
    _tables: Tables | None = None

    @property
    def next_sequence(self) -> int:
        reached = self.reached or 0
        return reached if self._waiting is None else max(reached, self._waiting.passed(self.feed))

    def __aiter__(self) -> AsyncIterator[pa.Table]:
        tables = None if self._tables is None else self._tables()
        if tables is None:
            tables = self._run()
            self._tables = weakref.ref(tables)
        return tables

    async def aclose(self) -> None:
        if self._tables is not None and (tables := self._tables()) is not None:
            await tables.aclose()

    async def _run(self) -> AsyncGenerator[pa.Table, None]:
        self.feed.join()
        try:
            async with aclosing(self._followed()) as found:
                async for table in found:
                    yield table
        finally:
            self.feed.leave()

    async def _followed(self) -> AsyncGenerator[pa.Table, None]:
        reached = self.reached = await self.begin() if self.reached is None else self.reached
        while True:
            # Again and again: while it is read, the window moves on.
            while reached < self.feed.begin or not self.feed.end:
                past = self.scan(reached)
                async with aclosing(past):
                    async for table in past:
                        self.reached = past.next_sequence
                        yield table
                reached = self.reached = past.next_sequence
                # Who follows from later on than there is anything leaves no gap to others.
                self.feed.start(min(reached, past.seen))
            for piece in self.feed.pieces(reached):
                table = self._of(piece, reached)
                reached = self.reached = max(reached, piece.limit)
                if table.num_rows:
                    yield table
            woken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._waiting = _Waiting(self.wanted, woken)
            try:
                reached = max(reached, await self.feed.news(self._waiting, reached))
            finally:
                self._waiting = None

    def _of(self, piece: LoosePiece, reached: int) -> pa.Table:
        records, wanted = piece.records, self.wanted
        assert records is not None
        if wanted.key is not None:
            records = piece.of_key(records, wanted.key)
        else:
            records = with_keys(records, wanted.first, wanted.last)
        return in_range(records, reached, None)
