"""Concurrent work of readers: ahead of a stream's reader, and shared by callers of one name.

A read mostly waits for the store, and its threads check the bytes that arrived. So `in_order` takes
items from their source, and starts work on them, ahead of the reader. The number of items and
their bytes are limited, however slow the reader is. The limit starts at one item and doubles with
each result, since many readers want only the first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")
N = TypeVar("N", bound=Hashable)

AT_ONCE_MAX: Final = 8
BYTES_MAX: Final = 64 * 1024 * 1024


async def in_order(
    source: AsyncGenerator[S, None],
    work: Callable[[S], Coroutine[object, None, T]],
    *,
    size_of: Callable[[S], int],
    at_once: int = AT_ONCE_MAX,
    bytes_max: int = BYTES_MAX,
    wanted: Callable[[], int] | None = None,
    allowed: int = 1,
) -> AsyncGenerator[tuple[S, T], None]:
    """Yield each item of a source with the result of ``work`` on it, in order.

    ``wanted`` returns how many concurrent items are useful at this moment; ``allowed`` is the
    limit before the first result.

    Units: at most ``at_once`` items, of about ``bytes_max`` bytes, are in progress or held by the
        reader. One item is always allowed, whatever its size.

    Raises:
        Any error of the source or of ``work``, at the place of that item.
    """
    ahead = _Ahead(source, work, size_of, _Budget(at_once, bytes_max, wanted, allowed))
    ahead.begin()
    try:
        async with aclosing(ahead.results()) as results:
            async for pair in results:
                yield pair
    finally:
        await ahead.stop()


@dataclass(slots=True)
class _Budget:
    """The items and bytes taken from the source, and their limits."""

    count_max: int
    bytes_max: int
    wanted: Callable[[], int] | None = None
    allowed: int = 1
    count: int = 0
    size_bytes: int = 0
    returned: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_for_room(self, size_bytes: int = 0) -> None:
        while not self._has_room(size_bytes):
            self.returned.clear()
            await self.returned.wait()

    def take(self, size_bytes: int) -> None:
        self.count += 1
        self.size_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.allowed = min(2 * self.allowed, self.count_max)
        self.count -= 1
        self.size_bytes -= size_bytes
        self.returned.set()

    def _has_room(self, size_bytes: int) -> bool:
        is_small = self.size_bytes + size_bytes <= self.bytes_max
        allowed = self.allowed if self.wanted is None else min(self.allowed, self.wanted())
        return not self.count or (self.count < allowed and is_small)


class _Ahead(Generic[S, T]):
    """The items taken from a source, each with the task that works on it."""

    def __init__(
        self,
        source: AsyncGenerator[S, None],
        work: Callable[[S], Coroutine[object, None, T]],
        size_of: Callable[[S], int],
        budget: _Budget,
    ) -> None:
        self._source = source
        self._work = work
        self._size_of = size_of
        self._budget = budget
        self._taken: deque[tuple[S, asyncio.Task[T]]] = deque()
        self._news = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._feeding = asyncio.create_task(self._feed())
        self._feeding.add_done_callback(lambda _: self._news.set())

    async def results(self) -> AsyncGenerator[tuple[S, T], None]:
        while await self._has_next():
            item, task = self._taken[0]
            result = await task
            self._taken.popleft()
            yield item, result
            del result, task  # Otherwise they would use memory while the loop awaits the next.
            self._budget.give_back(self._size_of(item))

    async def stop(self) -> None:
        """Cancel the tasks in progress, and wait until they have ended."""
        await cancelled([*filter(None, [self._feeding]), *(task for _, task in self._taken)])
        await self._source.aclose()

    async def _has_next(self) -> bool:
        assert self._feeding is not None, "it has begun"
        while not self._taken:
            if self._feeding.done():
                await self._feeding  # Raises the error of the source.
                return False
            self._news.clear()
            await self._news.wait()
        return True

    async def _feed(self) -> None:
        """Take items from the source while the budget allows, and start work on each."""
        while True:
            await self._budget.wait_for_room()  # First, since the source may make requests.
            try:
                item = await anext(self._source)
            except StopAsyncIteration:
                return
            await self._budget.wait_for_room(self._size_of(item))
            self._budget.take(self._size_of(item))
            self._taken.append((item, asyncio.create_task(self._work(item))))
            self._news.set()


class Flight(Generic[T]):
    """One call in flight; ``number`` rises in the order of sending."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiters_count = 0
        self.task: asyncio.Task[T]


class SharedCalls(Generic[N, T]):
    """The calls in flight, by name.

    A caller that joins a call sent before it asked may use the call's value, if that never changes.
    It may not use the call's error, because an object that was missing or failing then may exist
    now. So it compares the flight's number, and asks again.
    """

    def __init__(self) -> None:
        self._flights: dict[N, Flight[T]] = {}
        self._numbers_count = 0

    def __contains__(self, name: N) -> bool:
        return name in self._flights

    @property
    def next_number(self) -> int:
        """The number of the next call to be sent."""
        return self._numbers_count

    def join(self, name: N, send: Callable[[], Coroutine[object, None, T]]) -> Flight[T]:
        """Return the call in flight, or send it; the caller must `wait` for it at once."""
        flight = self._flights.get(name)
        if flight is None:
            flight = self._flights[name] = Flight(self._numbers_count)
            self._numbers_count += 1
            flight.task = asyncio.create_task(self._run(name, flight, send))
            # Retrieve its error here: if its waiters are cancelled as it fails, no other code does.
            flight.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return flight

    async def wait(self, name: N, flight: Flight[T]) -> T:
        """Return a call's value, or raise its error; it is cancelled with its last waiter."""
        flight.waiters_count += 1
        try:
            await asyncio.wait((flight.task,))
        finally:
            flight.waiters_count -= 1
            if not flight.waiters_count and not flight.task.done():
                # A cancelled call must not be joined.
                self._forget(name, flight)
                flight.task.cancel()
                await asyncio.wait((flight.task,))
        return flight.task.result()

    def leave(self, names: Iterable[N]) -> None:
        """Stop further callers from joining these calls; current waiters still get the results."""
        for name in names:
            self._flights.pop(name, None)

    def names(self) -> Iterable[N]:
        """Return the names of the calls that can be joined."""
        return tuple(self._flights)

    async def _run(
        self, name: N, flight: Flight[T], send: Callable[[], Coroutine[object, None, T]]
    ) -> T:
        try:
            return await send()
        finally:
            # Before the waiters wake, so that no caller joins a finished call.
            self._forget(name, flight)

    def _forget(self, name: N, flight: Flight[T]) -> None:
        if self._flights.get(name) is flight:
            del self._flights[name]


async def cancelled(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Cancel tasks, and wait until they have ended; their results and errors are dropped.

    If all have ended, this does not wait. A closing loop closes all abandoned generators
    concurrently, and none of them may then wait for another.
    """
    for task in tasks:
        task.cancel()
    if running := [task for task in tasks if not task.done()]:
        await asyncio.gather(*running, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # Otherwise the loop logs that the exception was never retrieved.
