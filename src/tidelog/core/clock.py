"""The source of time, randomness, ids and threads, behind one component.

Wall time never decides whether a result is correct. The simulator passes a `Clock` of its own, and
so controls all four.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from tidelog.errors import DeadlineExceeded, Outcome

T = TypeVar("T")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_TIME_SPACE: Final = Path("/proc/self/ns/time")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """The port for everything that a pure function cannot compute: time, randomness, threads."""

    def now_us(self) -> int:
        """Return wall time, in microseconds since 1970."""
        ...

    def monotonic_us(self) -> int:
        """Return a time that never goes back, in microseconds since an arbitrary moment."""
        ...

    def boot(self) -> str:
        """Return an id shared by all processes whose `monotonic_us` count from the same moment.

        Empty if that is unknown: the time of no other process is then comparable.
        """
        ...

    async def sleep(self, duration_us: int) -> None:
        """Wait for ``duration_us`` microseconds."""
        ...

    def uniform(self) -> float:
        """Return a random number in [0, 1)."""
        ...

    def unique(self) -> str:
        """Return 32 hex digits that no other call returns."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run work that computes or blocks in a thread, so that the event loop stays free."""
        ...


class SystemClock:
    """The machine's own time, randomness and threads."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000

    def boot(self) -> str:
        # Linux counts from the machine's start, but a container may have its own time namespace.
        try:
            return f"{_BOOT_ID.read_text().strip()} {_TIME_SPACE.readlink()}"
        except OSError:
            return ""

    async def sleep(self, duration_us: int) -> None:
        await asyncio.sleep(duration_us / 1e6)

    def uniform(self) -> float:
        return random.random()

    def unique(self) -> str:
        return uuid.uuid4().hex

    async def offload(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)


# True while `offload_waiting` passes its work to a thread.
MAY_WAIT: Final[ContextVar[bool]] = ContextVar("tidelog_may_wait", default=False)


async def offload_waiting(work: Callable[[], T], clock: Clock) -> T:
    """Offload work that waits: for a Spark job, or in a caller's code for other offloaded work.

    Such work must not occupy the last thread for other work, or all would wait, some forever.
    """

    def run() -> T:
        MAY_WAIT.set(False)  # The calls in this code inherit the context.
        return work()

    token = MAY_WAIT.set(True)
    try:
        return await clock.offload(run)
    finally:
        MAY_WAIT.reset(token)


def micros_of(moment: datetime) -> int:
    """Return a moment in microseconds since 1970; a datetime without a zone counts as UTC."""
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment_of(micros: int) -> datetime:
    """Return the moment, in UTC, that is ``micros`` microseconds after the start of 1970."""
    return _EPOCH + timedelta(microseconds=micros)


def wall_us(clock: Clock) -> int:
    """Return wall time in microseconds, clamped to 0 to 2^63-1 in case the clock is wrong.

    Only times in this range can be stored. No decision depends on the value.
    """
    return min(max(clock.now_us(), 0), 2**63 - 1)


def backoff_us(
    attempt: int, clock: Clock, *, first_us: int = 5_000, most_us: int = 1_000_000
) -> int:
    """Return a random wait before try ``attempt`` (from 0): half of a doubling ceiling, or more."""
    ceiling = min(most_us, first_us << min(attempt, 20))
    return int(ceiling * (0.5 + 0.5 * clock.uniform()))


async def run_all(work: Sequence[Callable[[], Awaitable[T]]], *, at_once: int) -> list[T]:
    """Run calls concurrently, at most ``at_once``; return their results in order.

    The first error cancels the other calls, and is raised itself, not in an exception group.
    """
    under_way = asyncio.Semaphore(at_once)

    async def limited(call: Callable[[], Awaitable[T]]) -> T:
        async with under_way:
            return await call()

    if len(work) == 1:
        return [await work[0]()]
    first: BaseException
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(limited(call)) for call in work]
    except BaseExceptionGroup as errors:
        # Raised outside this block, so that the group does not become the error's context.
        first = errors.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first


async def in_time(
    clock: Clock, work: Coroutine[Any, Any, T], timeout_us: int | None, *, writes: bool = False
) -> T:
    """Return the result of ``work`` if it ends within ``timeout_us`` microseconds (None: no limit).

    Raises:
        DeadlineExceeded: it did not end in time. If it ``writes``, its change may still land:
            UNKNOWN.
    """
    if timeout_us is None:
        return await work
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(timeout_us))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if not task.cancelled():
        return task.result()
    if writes:
        raise DeadlineExceeded(
            "the write did not finish within its timeout, and may still be applied: repeat it "
            "with the same token, or read the shard",
            outcome=Outcome.UNKNOWN,
            timeout_us=timeout_us,
        )
    raise DeadlineExceeded(
        "the call did not finish within its timeout: try again, or wait longer",
        timeout_us=timeout_us,
    )
