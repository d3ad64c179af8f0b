"""A seeded event loop: virtual time, no threads, no sockets; the seed chooses what runs next.

Time passes only when no callback is ready. asyncio runs callbacks in an order that no process on a
real machine can rely on across tasks. Here the seed chooses the order: one seed is one
interleaving. An owner can be paused, as a signal pauses a process: its callbacks and timers wait
while the world continues.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
import sys
from asyncio import events
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, TypeVar, TypeVarTuple
from unittest.mock import patch

from sim.kernel.remembered import reading_once

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX: Final = 5_000_000
PLACES_MAX: Final = 3  # The number of innermost calls that an error names for a waiting task.
# The owner of a callback; a task inherits it, with all that it starts. "" is the world.
OWNER: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("owner", default="")


def owned_by(owner: str) -> contextvars.Context:
    """Return the context for a task of an owner that can be paused."""
    context = contextvars.copy_context()
    context.run(OWNER.set, owner)
    return context


class Crashed(BaseException):
    """A client is dead. It is no `Exception`, so that the client's code cannot catch it."""


class Deadlock(Exception):
    """Tasks wait, and no timer or callback is left to wake them."""


class Livelock(Exception):
    """The tasks are still busy after more steps than any scenario needs."""


class SimTask(asyncio.Task[Any]):
    """A task that hashes by its number, so that sets of tasks have one order in every run."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        # The base class adds the task to a set before it returns, so it needs the hash by then.
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. ``steps_max`` is the greatest number of callbacks that it runs.

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
        self._stopped: dict[str, list[asyncio.Handle]] = {}
        self._stopped_until: dict[str, float] = {}
        self._stopped_seconds: dict[str, float] = {}
        self.steps_count = 0

    def run_until_complete(self, future: Awaitable[T] | Generator[Any, None, T]) -> T:
        """Run until ``future`` is done.

        Raises:
            Deadlock: it can no longer become done. Livelock: it takes too many steps.
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
            Deadlock: a task waits and nothing can wake it. Livelock: see the class.
        """
        events._set_running_loop(self)
        try:
            self._wake()
            # `waiting` drops failed tasks, which frees generators that then need steps to finish.
            while self._ready or (self.waiting() and self._ready):
                self._step()
                self._wake()
        finally:
            events._set_running_loop(None)
        if self.waiting():
            raise self._deadlock()
        if self._failures:
            raise RuntimeError(f"a callback failed: {self._failures[0]}")

    def stop_owner(self, owner: str, seconds: float) -> None:
        """Pause all callbacks of an owner for some seconds, after the callback that runs now."""
        if owner in self._stopped:
            return
        self._stopped[owner] = []
        self._stopped_until[owner] = self._now + seconds
        self._stopped_seconds[owner] = self._stopped_seconds.get(owner, 0.0) + seconds

        def go_on() -> None:
            self._ready += self._stopped.pop(owner)

        self.call_later(seconds, go_on, context=contextvars.Context())

    def stopped_for(self, owner: str) -> float:
        """Return the seconds until an owner's callbacks run again."""
        return max(0.0, self._stopped_until.get(owner, 0.0) - self._now)

    def stopped_seconds(self, owner: str) -> float:
        """Return how long an owner has paused, including the rest of a pause under way."""
        return self._stopped_seconds.get(owner, 0.0)

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
            raise Livelock(f"{self.steps_count} steps at {self._now} s; waiting: {self.names()}")
        handle = self._ready.pop(self._random.randrange(len(self._ready)))
        if handle.cancelled():
            return
        # The context in which a handle was made names its owner.
        if self._stopped and (owner := handle._context.get(OWNER, "")) in self._stopped:  # type: ignore[attr-defined]
            self._stopped[owner].append(handle)
            return
        handle._run()

    def _wake(self) -> None:
        """Make due timers ready; if no callback is ready, advance time to the next timer."""
        while self._timers:
            when, _, timer = self._timers[0]
            if not timer.cancelled():
                if self._ready and when > self._now:
                    return
                self._now = max(self._now, when)
                self._ready.append(timer)
            heapq.heappop(self._timers)

    def _deadlock(self) -> Deadlock:
        return Deadlock(f"nobody can go on at {self._now} s; waiting: {self.names()}")

    def names(self) -> str:
        """Return the names of the tasks that are not done, and where each waits."""
        return "; ".join(f"{task.get_name()} {_place(task)}" for task in self.waiting()) or "nobody"

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.create_task(generator.aclose(), name="finish a generator")

    # The methods that asyncio calls.

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
        # All timers of one moment become ready at once, so their order here decides nothing.
        heapq.heappush(self._timers, (when, self._timers_count, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer calls this; the loop skips the timer when it is due."""

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
        # No task waits for the work that a dead client left behind.
        if not isinstance(context.get("exception"), Crashed):
            self._failures.append(context)


def _place(task: asyncio.Task[Any]) -> str:
    """Return where a task waits: the innermost calls, innermost last."""
    places: list[str] = []
    inner: Any = task.get_coro()
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        inner = inner.cr_await
    return f"at {' > '.join(places[-PLACES_MAX:])}" if places else "not begun"


def run(
    main: Callable[[], Coroutine[Any, Any, T]], seed: int | str, *, steps_max: int = STEPS_MAX
) -> T:
    """Run ``main()`` on a loop of its own, then all that it left running, to the end.

    Raises:
        Deadlock, Livelock: see `SimLoop`; and whatever ``main`` raises.
    """
    # The simulator calls no other method of the abstract class (sockets, signals, processes).
    loop = SimLoop(seed, steps_max=steps_max)  # type: ignore[abstract]
    # A task finishes a collected generator, so the heap's size must not decide when it starts.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        # Each batch is encoded in a simulated thread, so answers may come during the encoding.
        with patch("tidelog.wal.slot_protocol.writer.INLINE_BYTES", 0), reading_once():
            result = loop.run_until_complete(main())
            loop.drain()
            return result
    finally:
        _abandon(loop)
        if was_collecting:
            gc.enable()


def _abandon(loop: SimLoop) -> None:
    """Close a loop, and the coroutines of tasks that never ended, without errors."""
    for task in loop.waiting():
        task.cancel()
    events._set_running_loop(loop)
    try:
        for _ in range(10_000):
            loop._wake()
            if not loop.waiting() or not loop._ready:
                break
            loop._step()
    except Exception:  # noqa: BLE001 - the run has failed already, with an error of its own
        return
    finally:
        events._set_running_loop(None)
        loop.close()
