"""The followers of one handle, and the poll that they share.

For any number of followers and keys, the poll requests only the next slot of the wal and fetches
each fragment once. A follower is woken only by its own keys. A follower that is far behind catches
up by a scan.
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

from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import (
    HandleError,
    LocationError,
    NoSuchLog,
    PositionCollected,
    TidelogError,
)
from tidelog.keyed.format.records import in_range, keyed_records, with_keys
from tidelog.keyed.port import KeyedScan
from tidelog.keyed.read.scanning import Tables, ViewScan
from tidelog.keyed.read.sources import LoosePiece
from tidelog.keyed.states.transition import DROPPED
from tidelog.keyed.values import Keys
from tidelog.wal.slot_protocol.reader import SlotReader

WINDOW_BYTES: Final = 64 * 1024 * 1024
TRIES: Final = 20
LINGER_S: Final = 30.0  # A follower may return soon, for example over HTTP.


@dataclass(slots=True, eq=False)
class _Waiter:
    """A waiting follower, at the end of the feed; ``woken`` is the sequence to read from."""

    keys: Keys
    woken: asyncio.Future[int]

    def passed(self, feed: KeyedFeed) -> int:
        """Return the sequence before which this follower has missed nothing."""
        if not self.woken.done():
            return feed.end
        return 0 if self.woken.cancelled() or self.woken.exception() else self.woken.result()


@dataclass(slots=True, kw_only=True)
class KeyedFeed:
    """The new records of a wal, for followers.

    Units: the newest ``window_bytes`` of records are kept.
    """

    reader: SlotReader
    clock: Clock
    window_bytes: int = WINDOW_BYTES
    end: int = 0
    _window: deque[LoosePiece] = field(default_factory=deque)
    _sizes: deque[int] = field(default_factory=deque)  # The size of each piece in the window.
    _bytes: int = 0
    _by_key: dict[bytes, dict[_Waiter, None]] = field(default_factory=dict)
    _by_range: dict[_Waiter, None] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None
    _error: TidelogError | None = None
    _followers: int = 0

    @property
    def begin(self) -> int:
        """The first sequence of the window; the window has all records since then."""
        return self._window[0].start if self._window else self.end

    def start(self, at: int) -> None:
        """Start to poll from a sequence, unless the poll runs already.

        Raises:
            HandleError: the keyed log was closed. NoSuchLog: it was dropped.
        """
        if self._error is not None:
            raise self._error
        if self._task is None:
            self.end = at
            self._task = asyncio.create_task(self._run(), name="keyed feed")

    def join(self) -> None:
        """Add a follower."""
        self._followers += 1

    def leave(self) -> None:
        """Remove a follower; without followers, the poll ends some time later."""
        self._followers -= 1
        if not self._followers:
            with suppress(RuntimeError):  # The event loop is closing.
                asyncio.get_running_loop().call_later(LINGER_S, self._end_if_idle)

    async def stop(self) -> None:
        """End the poll and all followers."""
        task = self._task
        self._end(HandleError("the keyed log was closed: open it again"))
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def pieces(self, start: int) -> list[LoosePiece]:
        """Return the pieces of the window with records at or after a sequence."""
        pieces = [*takewhile(lambda piece: piece.limit > start, reversed(self._window))]
        return pieces[::-1]

    async def news(self, waiting: _Waiter, reached: int) -> int:
        """Wait for records that this follower may want; return the sequence to read from.

        Raises:
            the error that ended the poll.
        """
        if self._error is not None:
            raise self._error
        if self.end > reached:
            return reached
        key = waiting.keys.key
        held = self._by_range if key is None else self._by_key.setdefault(key, {})
        held[waiting] = None
        try:
            return await waiting.woken
        finally:
            held.pop(waiting, None)
            if not held and key is not None:
                self._by_key.pop(key, None)

    def push(self, piece: LoosePiece) -> None:
        """Add new records of the wal; ignore records that are known or that leave a gap."""
        if piece.start > self.end or piece.limit <= self.end or piece.records is None:
            return
        self._window.append(piece)
        self._sizes.append(piece.nbytes)
        self._bytes += self._sizes[-1]
        self.end = piece.limit
        while self._bytes > self.window_bytes and len(self._window) > 1:
            self._window.popleft()
            self._bytes -= self._sizes.popleft()
        for waiting in self._waiters_for(piece):
            if not waiting.woken.done():
                waiting.woken.set_result(piece.start)

    def _end_if_idle(self) -> None:
        if not self._followers and self._task is not None:
            self._task.cancel()
            self._forget()

    def _waiters_for(self, piece: LoosePiece) -> list[_Waiter]:
        assert piece.records is not None
        if not self._by_key and not self._by_range:
            return []
        keys = piece.places(piece.records)
        # In a fixed order, so that a simulated run is reproducible.
        waiters = [waiting for key in keys.any_of(self._by_key) for waiting in self._by_key[key]]
        ranges = [
            waiting
            for waiting in self._by_range
            if keys.has_any(waiting.keys.from_key, waiting.keys.to_key)
        ]
        return waiters + ranges

    async def _run(self) -> None:
        for attempt in range(TRIES):
            try:
                await self._poll()
                self._end(NoSuchLog(DROPPED))  # Only a drop seals the wal of a keyed log.
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
        tables = self.reader.follow(self.end)
        async with aclosing(tables):
            async for table in tables:
                records = await self.clock.offload(partial(keyed_records, table))
                limit = table.column("position")[-1].as_py() + 1
                self.push(LoosePiece(start=self.end, limit=limit, records=records))

    def _end(self, error: TidelogError) -> None:
        """End all followers, and refuse new ones."""
        self._error = error
        self._fail_waiters(error)

    def _overtaken(self) -> None:
        """Make all followers continue from runs: the next records were compacted and collected."""
        reached = self.end
        self._forget()
        for waiting in self._all_waiting():
            if not waiting.woken.done():
                waiting.woken.set_result(reached)

    def _fail(self, error: TidelogError) -> None:
        """Raise an error in all waiting followers; the poll has ended."""
        self._forget()
        self._fail_waiters(error)

    def _forget(self) -> None:
        """Discard the window; the next follower starts another poll."""
        self._task, self.end, self._bytes = None, 0, 0
        self._window.clear()
        self._sizes.clear()

    def _all_waiting(self) -> list[_Waiter]:
        return [*self._by_range, *(waiter for held in self._by_key.values() for waiter in held)]

    def _fail_waiters(self, error: TidelogError) -> None:
        for waiting in self._all_waiting():
            if not waiting.woken.done():
                waiting.woken.set_exception(error)


@dataclass(kw_only=True, eq=False)
class FollowingScan(KeyedScan):
    """Wanted records of the past and the future; ``scan`` reads the past ones."""

    feed: KeyedFeed
    keys: Keys
    scan: Callable[[int], ViewScan]
    begin: Callable[[], Awaitable[int]]
    reached: int | None = None
    _waiting: _Waiter | None = None
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
            async with aclosing(self._followed()) as tables:
                async for table in tables:
                    yield table
        finally:
            self.feed.leave()

    async def _followed(self) -> AsyncGenerator[pa.Table, None]:
        reached = self.reached = await self.begin() if self.reached is None else self.reached
        while True:
            # Repeat, because the window advances during the scan.
            while reached < self.feed.begin or not self.feed.end:
                past = self.scan(reached)
                async with aclosing(past):
                    async for table in past:
                        self.reached = past.next_sequence
                        yield table
                reached = self.reached = past.next_sequence
                # A follower may start past the end of the log. The shared feed starts no later than
                # the end, so that other followers have no gap.
                self.feed.start(min(reached, past.seen))
            for piece in self.feed.pieces(reached):
                table = self._of(piece, reached)
                reached = self.reached = max(reached, piece.limit)
                if table.num_rows:
                    yield table
            woken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._waiting = _Waiter(self.keys, woken)
            try:
                reached = max(reached, await self.feed.news(self._waiting, reached))
            finally:
                self._waiting = None

    def _of(self, piece: LoosePiece, reached: int) -> pa.Table:
        records, keys = piece.records, self.keys
        assert records is not None
        if keys.key is not None:
            records = piece.of_key(records, keys.key)
        else:
            records = with_keys(records, keys.from_key, keys.to_key)
        return in_range(records, reached, None)
