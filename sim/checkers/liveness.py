"""Deadlines in virtual time: every call ends, and an error names the tasks that are late.

The time for which a client pauses does not count, since none of its tasks runs. A dead client has
no deadline.
"""

from __future__ import annotations

import asyncio
import contextvars
from types import TracebackType
from typing import Final, Protocol, Self

from sim.checkers.demands import Violated
from sim.kernel.loop import SimLoop

# Longer than any storm: a put is retried for 7 seconds, and a resolution 16 times.
CALL_S: Final = 900.0


class DeadlineClient(Protocol):
    """The facts about a client that a deadline needs."""

    name: str

    @property
    def is_dead(self) -> bool: ...

    @property
    def stopped_seconds(self) -> float: ...


class Deadline:
    """Within the block, a client's call must end within ``seconds``.

    Raises:
        Violated: it did not end; the message names the tasks that wait, and where.
    """

    def __init__(self, client: DeadlineClient, what: str, seconds: float = CALL_S) -> None:
        self._client = client
        self._what = what
        self._seconds = seconds
        self._granted = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._waiting = ""

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._granted = self._client.stopped_seconds
        self._set(self._seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._timer is not None
        assert self._task is not None
        self._timer.cancel()
        if self._waiting:
            self._task.uncancel()
            raise Violated(
                f"{self._what} of {self._client.name} did not end within {self._seconds:g} s; "
                f"waiting: {self._waiting}"
            ) from error

    def _set(self, seconds: float) -> None:
        # A context without an owner, so that the deadline is not paused with the client.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._expire, context=contextvars.Context())

    def _expire(self) -> None:
        stood = self._client.stopped_seconds
        if self._client.is_dead:
            return
        if stood > self._granted:
            more, self._granted = stood - self._granted, stood
            self._set(more)
            return
        loop, task = asyncio.get_running_loop(), self._task
        assert isinstance(loop, SimLoop)
        assert task is not None
        self._waiting = loop.names()
        task.cancel()
