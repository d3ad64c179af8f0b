"""Concurrent calls by key: calls that several callers share, and reads during changes.

Invariants: a call runs as long as a caller waits for it, and no longer; a cancelled caller does not
affect the others. Bytes that a caller got before or while a key was deleted or replaced are not
cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

N = TypeVar("N", bound=Hashable)
T = TypeVar("T")


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

    def join(self, name: N, send: Callable[[], Coroutine[Any, Any, T]]) -> Flight[T]:
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
        self, name: N, flight: Flight[T], send: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        try:
            return await send()
        finally:
            # Before the waiters wake, so that no caller joins a finished call.
            self._forget(name, flight)

    def _forget(self, name: N, flight: Flight[T]) -> None:
        if self._flights.get(name) is flight:
            del self._flights[name]


class Visit:
    """A caller that has a key's bytes, and may cache them unless the key changes."""

    def __init__(self, *, may_keep: bool) -> None:
        self.may_keep = may_keep


class Changer:
    """A caller that changes keys; ``alone`` is False if another caller changes one of them too."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone


class Visits:
    """The current visits and changes, by key."""

    def __init__(self) -> None:
        self._visits: dict[str, set[Visit]] = {}
        self._changes: dict[str, set[Changer]] = {}

    def changing(self, key: str) -> bool:
        return key in self._changes

    @contextmanager
    def begin(self, key: str) -> Iterator[Visit]:
        """Begin to read or put a key; the bytes may be cached while ``may_keep`` is True."""
        visit = Visit(may_keep=not self.changing(key))
        self._visits.setdefault(key, set()).add(visit)
        try:
            yield visit
        finally:
            # A thread continues when its caller is cancelled, and may be about to cache bytes.
            visit.may_keep = False
            _take_out(self._visits, key, visit)

    @contextmanager
    def change(self, keys: Sequence[str]) -> Iterator[Changer]:
        """Change keys; concurrent visits of these keys cache nothing."""
        others = [change for key in keys for change in self._changes.get(key, ())]
        change = Changer(alone=not others)
        for other in others:
            other.alone = False
        for key in set(keys):
            self._changes.setdefault(key, set()).add(change)
            for visit in self._visits.get(key, ()):
                visit.may_keep = False
        try:
            yield change
        finally:
            for key in set(keys):
                _take_out(self._changes, key, change)


def _take_out(sets: dict[str, set[T]], key: str, one: T) -> None:
    sets[key].discard(one)
    if not sets[key]:
        del sets[key]
