"""Clocks for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from sim.kernel.clock import SimClock
from tidelog.clock import SystemClock

T = TypeVar("T")
MOMENT_S = 0.000_5


class SwiftClock(SystemClock):
    """The machine's clock, but a sleep takes no time: only this clock's own time goes on.

    While a thread is at work, whichever clock sent it there, a sleep takes a moment: a loop that
    does nothing but look again would else keep the thread from the interpreter.
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
    """A clock whose wall time stands still, as a coarse one does, and can be set back."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.wall_us = now_us

    def now_us(self) -> int:
        return self.wall_us


class OneThread(SwiftClock):
    """A clock that does all work where it is asked to, since to change threads takes longer."""

    async def offload(self, work: Callable[[], T]) -> T:
        return work()


class LateClock(SimClock):
    """A clock whose offloaded work takes time before and after, and is done in any case.

    Units: ``delay_us()`` gives microseconds.
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
    """A clock that stands still until it is put forward by hand."""

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
        """Do work at once: how far a thread gets meanwhile depends on the machine."""
        return work()

    async def pass_us(self, duration_us: int) -> None:
        """Put it forward, and let whoever slept so long do what they would."""
        await asyncio.sleep(0)  # Who was begun just now is to sleep from now on.
        self._now_us += duration_us
        due = [waker for until, waker in self._sleepers if until <= self._now_us]
        self._sleepers = [one for one in self._sleepers if one[0] > self._now_us]
        for waker in due:
            if not waker.done():
                waker.set_result(None)
        await asyncio.sleep(0.02)
