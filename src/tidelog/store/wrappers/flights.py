"""Calls that several wait for, and that are sent once.

Invariants: a call runs as long as somebody waits for it, and no longer; who is cancelled takes
only himself away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any, Generic, TypeVar

N = TypeVar("N", bound=Hashable)
T = TypeVar("T")


class Flight(Generic[T]):
    """One call under way; ``number`` rises in the order of sending."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiters_count = 0
        self.task: asyncio.Task[T]


class SharedCalls(Generic[N, T]):
    """The calls under way, by name.

    Who joins a call that was sent before he asked may have its value, if that holds for ever; its
    error he may not have: what was missing, or failing, when it was sent may be there by now. So
    he looks at the flight's number, and asks again.
    """

    def __init__(self) -> None:
        self._flights: dict[N, Flight[T]] = {}
        self._numbers_count = 0

    def __contains__(self, name: N) -> bool:
        return name in self._flights

    @property
    def next_number(self) -> int:
        """The number of the next call to be sent: those sent from now on have it, or a higher."""
        return self._numbers_count

    def join(self, name: N, send: Callable[[], Coroutine[Any, Any, T]]) -> Flight[T]:
        """Return the call under way, or send it; to be waited for at once, by `wait`."""
        flight = self._flights.get(name)
        if flight is None:
            flight = self._flights[name] = Flight(self._numbers_count)
            self._numbers_count += 1
            flight.task = asyncio.create_task(self._run(name, flight, send))
            # Looked at here: if its waiters are cancelled as it fails, nobody else does.
            flight.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return flight

    async def wait(self, name: N, flight: Flight[T]) -> T:
        """Return what a call gives, or raise what it raises; cancelled with its last waiter."""
        flight.waiters_count += 1
        try:
            await asyncio.wait((flight.task,))
        finally:
            flight.waiters_count -= 1
            if not flight.waiters_count and not flight.task.done():
                # Nobody may join what is being cancelled.
                self._forget(name, flight)
                flight.task.cancel()
                await asyncio.wait((flight.task,))
        return flight.task.result()

    def leave(self, names: Iterable[N]) -> None:
        """Let nobody join these calls any more; those who wait get what they give."""
        for name in names:
            self._flights.pop(name, None)

    def names(self) -> Iterable[N]:
        """Return the names of the calls that can be joined."""
        return tuple(self._flights)

    async def _run(
        self, name: N, flight: Flight[T], send: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        try:
            return await send()
        finally:
            # Before anybody hears of the end, so that nobody joins what is over.
            self._forget(name, flight)

    def _forget(self, name: N, flight: Flight[T]) -> None:
        if self._flights.get(name) is flight:
            del self._flights[name]
