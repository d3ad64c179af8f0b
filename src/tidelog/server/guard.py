"""Connections that are too slow are ended, so that nobody holds one, or memory, for nothing.

What uvicorn does of itself ends a connection that is idle between requests. Here also: one whose
request's head does not come, and one that does not take what is sent to it.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tidelog.server.limits import SECOND_US, ServerLimits


class GuardedProtocol(H11Protocol):
    """A connection that has so long for a head, and for taking what is in its buffer."""

    head_seconds = 10.0
    answer_seconds = 15.0
    _head: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        # The app ends by it who reads its answer too slowly.
        self.app_state = {**self.app_state, "abort": transport.abort}
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take what came, and wait for the rest of a head if it is none yet."""
        super().data_received(data)
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            self._cancel_head()
        elif self._head is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._cancel_head()
        self._cancel_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for the client to take what is in the buffer."""
        super().pause_writing()
        self._cancel_writing()
        self._writing = self.loop.call_later(self.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client took it."""
        self._cancel_writing()
        super().resume_writing()

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _cancel_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _cancel_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


def guarded(limits: ServerLimits) -> type[GuardedProtocol]:
    """Return uvicorn's protocol with the time limits of a server."""
    made: type[GuardedProtocol] = type(
        "GuardedProtocol",
        (GuardedProtocol,),
        {
            "head_seconds": limits.head_timeout_us / SECOND_US,
            "answer_seconds": limits.answer_timeout_us / SECOND_US,
        },
    )
    return made
