"""Connections on uvicorn's protocol, with time limits, and with errors in the API's format.

Uvicorn closes a connection that is idle between requests. This module also closes a connection
whose head does not arrive in time, or whose client does not read its answer. It answers bytes that
are not a request, and closes connections when the server stops.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState as Connections

from tidelog.errors import UsageError
from tidelog.http.api.failures import answer_of, status_of
from tidelog.server.app import Refusal, ServerState
from tidelog.server.limits import LINGER_SECONDS, SECOND_US
from tidelog.server.request import JSON_TYPES
from tidelog.server.response import encoded, head_of

LINGER_TURNS: Final = 2  # Calls of `end` between the close of a connection and its abort.


class GuardedProtocol(H11Protocol):
    """A connection with a time limit for each head, and for reading its buffer."""

    _head: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _turns = 0
    _is_refused = False  # The rest of the bytes is dropped.

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        app_state: dict[str, Any],
        state: ServerState,
        *,
        is_refused: bool,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(config, connections, app_state)
        self._state, self._ended = state, ended
        self._head_seconds = state.limits.head_timeout_us / SECOND_US
        self._answer_seconds = state.limits.answer_timeout_us / SECOND_US
        if is_refused:
            self.app = Refusal(state)

    @property
    def is_busy(self) -> bool:
        """Return True while a request is being answered."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the first head."""
        super().connection_made(transport)
        # The app aborts the connection of a client that reads its answer too slowly.
        self.app_state = {**self.app_state, "abort": transport.abort}
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Process bytes; start the timer for the head unless a request is complete."""
        if self._is_refused:
            return
        super().data_received(data)
        if self.is_busy:
            self._cancel_head()
        elif self._head is None:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not a request, like `RouteHandler` answers errors, and close."""
        fault = sys.exc_info()[1]
        is_long = getattr(fault, "error_status_hint", 400) == 431
        error = UsageError(
            "the head of the request is too large: send a long key in a body (POST .../scan)"
            if is_long
            else f"the bytes received are not an HTTP/1.1 request: {fault}"
        )
        if self.is_busy:  # The invalid bytes are in the body of a request.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        status = status_of(error)
        self._state.metrics.count_error(error)
        self._state.metrics.requests.labels("other", "other", status).inc()
        answer = encoded(answer_of(error), JSON_TYPES[0])
        headers = [
            *self.server_state.default_headers,
            *head_of(answer, [(b"connection", b"close")]),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=answer.body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        # A close with unread bytes would reset the connection, and could lose the answer.
        self._is_refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def end(self, *, is_over: bool) -> None:
        """End the connection of a server that stops; the server calls this repeatedly.

        A request in progress gets its answer first. An idle connection stays open until
        ``is_over``, because a request may be on its way. A TLS client may never answer a close, so
        the connection is aborted after `LINGER_TURNS` calls.
        """
        if self.is_busy:
            self.cycle.keep_alive = False
        elif not self.transport.is_closing():
            if is_over:
                self.shutdown()
        elif self._turns < LINGER_TURNS:
            self._turns += 1
        elif not self.transport.get_write_buffer_size():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        self._cancel_head()
        self._cancel_writing()
        super().connection_lost(exc)
        self._ended()

    def pause_writing(self) -> None:
        """Start the timer for the client to read the buffer."""
        super().pause_writing()
        self._cancel_writing()
        self._writing = self.loop.call_later(self._answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the timer: the client has read the buffer."""
        self._cancel_writing()
        super().resume_writing()

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self._head_seconds, self.transport.abort)

    def _cancel_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _cancel_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
