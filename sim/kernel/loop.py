"""A seeded event loop: virtual time, no threads, no sockets; the seed says who goes next.

Time passes only when nobody is ready. asyncio promises an order of callbacks that no process on a
real machine can rely on across tasks; here the seed chooses it: one seed is one interleaving.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import sys
from asyncio import events
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX: Final = 5_000_000


class Deadlock(Exception):
    """Tasks wait, and nothing is left that could wake them."""


class Livelock(Exception):
    """The tasks are still busy after more steps than any scenario needs."""


class SimTask(asyncio.Task[Any]):
    """A task that hashes by its number, so that sets of tasks have one order in every run."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        # The base class enters the task in a set, and so needs its hash, before it returns.
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. ``steps_max`` bounds how many callbacks it runs.

    Units: `time` is in seconds, from 0.
    """

    def __init__(self, seed: int | str, *, steps_max: int = STEPS_MAX) -> None:
        self._random = random.Random(f"loop {seed}")
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._now = 0.0
        self._steps_max = steps_max
        self._timers_count = 0
        self._tasks_count = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._failures: list[dict[str, Any]] = []
        self._closed = False
        self.steps_count = 0

    def run_until_complete(self, future: Awaitable[T] | Generator[Any, None, T]) -> T:
        """Run until ``future`` is done.

        Raises:
            Deadlock: it can no longer be. Livelock: it takes too many steps.
        """
        task = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        events._set_running_loop(self)
        try:
            while not task.done():
                self._step()
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
        return task.result()

    def drain(self) -> None:
        """Run until nothing is ready and nothing is scheduled.

        Raises:
            Deadlock: a task waits for what will never come. Livelock: see the class.
        """
        events._set_running_loop(self)
        try:
            self._wake()
            while self._ready:
                self._step()
                self._wake()
        finally:
            events._set_running_loop(None)
        if self.waiting():
            raise self._deadlock()
        if self._failures:
            raise RuntimeError(f"a callback failed: {self._failures[0]}")

    def waiting(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return list(self._tasks)

    def _step(self) -> None:
        self._wake()
        if not self._ready:
            raise self._deadlock()
        self.steps_count += 1
        if self.steps_count > self._steps_max:
            raise Livelock(f"{self.steps_count} steps at {self._now} s; waiting: {self._names()}")
        handle = self._ready.pop(self._random.randrange(len(self._ready)))
        if not handle.cancelled():
            handle._run()

    def _wake(self) -> None:
        """Make ready what is due; if nobody is ready, let time pass until somebody is."""
        while self._timers:
            when, _, timer = self._timers[0]
            if not timer.cancelled():
                if self._ready and when > self._now:
                    return
                self._now = max(self._now, when)
                self._ready.append(timer)
            heapq.heappop(self._timers)

    def _deadlock(self) -> Deadlock:
        return Deadlock(f"nobody can go on at {self._now} s; waiting: {self._names()}")

    def _names(self) -> str:
        return "; ".join(f"{task.get_name()} {_place(task)}" for task in self.waiting()) or "nobody"

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(generator.aclose(), name="finish a generator")

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_count += 1
        # Timers of one moment are all made ready at once, so their order here decides nothing.
        heapq.heappush(self._timers, (when, self._timers_count, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by a timer that is cancelled; it is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        self._tasks_count += 1
        task = SimTask(
            self._tasks_count,
            coro,  # type: ignore[arg-type]
            loop=self,
            name=name or f"task {self._tasks_count}",
            context=context,
            **options,
        )
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failures.append(context)


def _place(task: asyncio.Task[Any]) -> str:
    """Say where a task waits."""
    frame = next(iter(task.get_stack(limit=1)), None)
    return f"at {frame.f_code.co_qualname}:{frame.f_lineno}" if frame else "not begun"


def run(main: Callable[[], Coroutine[Any, Any, T]], seed: int | str) -> T:
    """Run ``main()`` on a loop of its own, and all that it left running, to the end.

    Raises:
        Deadlock, Livelock: see `SimLoop`; and whatever ``main`` raises.
    """
    # What the abstract class has besides (sockets, signals, processes) nobody calls here.
    loop = SimLoop(seed)  # type: ignore[abstract]
    try:
        result = loop.run_until_complete(main())
        loop.drain()
        return result
    finally:
        _abandon(loop)


def _abandon(loop: SimLoop) -> None:
    """Close a loop, and the coroutines of tasks that never ended with it, quietly."""
    for task in loop.waiting():
        task.cancel()
    events._set_running_loop(loop)
    try:
        for _ in range(10_000):
            loop._wake()
            if not loop.waiting() or not loop._ready:
                break
            loop._step()
    except Exception:  # noqa: BLE001 - the run has failed already, and says why by itself
        return
    finally:
        events._set_running_loop(None)
        loop.close()
