"""Clocks for tests, and tests in virtual time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.core.clock import SystemClock

T = TypeVar("T")
MOMENT_S = 0.000_5


class SwiftClock(SystemClock):
    """The machine's clock, except that a sleep only advances this clock's own time.

    While any thread works, a sleep takes a real moment. Otherwise a loop that polls would keep the
    interpreter from the thread.
    """

    _threads = 0

    def __init__(self) -> None:
        self.slept_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.slept_us

    def monotonic_us(self) -> int:
        return super().monotonic_us() + self.slept_us

    async def sleep(self, duration_us: int) -> None:
        self.slept_us += duration_us
        await asyncio.sleep(MOMENT_S if SwiftClock._threads else 0)

    async def offload(self, work: Callable[[], T]) -> T:
        SwiftClock._threads += 1
        try:
            return await super().offload(work)
        finally:
            SwiftClock._threads -= 1


class StuckClock(SystemClock):
    """A clock whose wall time changes only by hand, also backwards."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.wall_us = now_us

    def now_us(self) -> int:
        return self.wall_us


class OneThread(SwiftClock):
    """A clock that runs offloaded work at once in the caller's thread, which is faster in tests."""

    async def offload(self, work: Callable[[], T]) -> T:
        return work()


class LateClock(SimClock):
    """A clock that delays offloaded work before and after, and always completes it.

    Units: ``delay_us()`` returns microseconds.
    """

    def __init__(self, seed: int, *, delay_us: Callable[[], int]) -> None:
        super().__init__(seed)
        self._delay_us = delay_us
        self._threads: list[asyncio.Task[Any]] = []

    async def offload(self, work: Callable[[], T]) -> T:
        async def thread() -> T:
            await self.sleep(self._delay_us())
            done = work()
            await self.sleep(self._delay_us())
            return done

        task = asyncio.create_task(thread())
        self._threads.append(task)
        return await asyncio.shield(task)

    async def settled(self) -> None:
        """Wait until all threads are done."""
        await asyncio.gather(*self._threads)


class HandClock(SystemClock):
    """A clock that advances only by hand."""

    def __init__(self) -> None:
        self._now_us = 1_700_000_000_000_000
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._now_us

    async def sleep(self, duration_us: int) -> None:
        waker = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now_us + duration_us, waker))
        await waker

    async def offload(self, work: Callable[[], T]) -> T:
        """Do the work at once, because the progress of a thread depends on the machine."""
        return work()

    async def pass_us(self, duration_us: int) -> None:
        """Advance the clock, and let the tasks run whose sleep has ended."""
        await asyncio.sleep(0)  # A task that was just created begins its sleep before the advance.
        self._now_us += duration_us
        due = [waker for until, waker in self._sleepers if until <= self._now_us]
        self._sleepers = [one for one in self._sleepers if one[0] > self._now_us]
        for waker in due:
            if not waker.done():
                waker.set_result(None)
        await asyncio.sleep(0.02)


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorate a test that runs on the simulator's loop, in virtual time.

    The test's parameter ``seed``, if it has one, is the seed of the loop.
    """

    @functools.wraps(test)
    def on_a_loop(*args: Any, **options: Any) -> None:
        run(lambda: test(*args, **options), options.get("seed", 1))

    return on_a_loop
