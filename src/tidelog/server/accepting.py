"""Connections before their first request: accepted, counted, and limited before TLS begins.

A connection without TLS begins at once. A connection with TLS is only a socket and a timer until
its first bytes arrive, because the state of a handshake takes 0.3 MB.

Invariants: the number of open connections never exceeds ``connections_max + REFUSED_MAX``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from tidelog.errors import UsageError
from tidelog.server.limits import REFUSED_MAX, SECOND_US, ServerLimits

_logger = logging.getLogger(__name__)

BACKLOG: Final = 1_024
_PAUSE_SECONDS: Final = 1.0  # After the system refused a descriptor for a connection.
_BIND_TRIES: Final = 10

# Creates the protocol of a connection, refused or not, which calls the function at its end.
MakeProtocol = Callable[[bool, Callable[[], None]], asyncio.Protocol]


class Acceptor:
    """The connections of a server, from their acceptance to their end."""

    def __init__(
        self,
        make_protocol: MakeProtocol,
        limits: ServerLimits,
        *,
        tls: ssl.SSLContext | None,
        dropped: Callable[[], None],
    ) -> None:
        self._make, self._limits, self._tls, self._dropped = make_protocol, limits, tls, dropped
        self._head_seconds = limits.head_timeout_us / SECOND_US
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._open: set[object] = set()
        self._silent: dict[socket.socket, tuple[object, asyncio.TimerHandle]] = {}
        self._beginning: set[asyncio.Task[None]] = set()

    @property
    def open_count(self) -> int:
        """Return the number of open connections, including those in or before a handshake."""
        return len(self._open)

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Start to accept connections."""
        self._sockets += sockets
        for listener in sockets:
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Accept the pending connections, then stop; drop those that wait for TLS."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            self._accept(sock)
            sock.close()
        self._sockets.clear()
        for sock in list(self._silent):
            self._drop(sock)
        if self._tls is not None:
            for task in self._beginning:
                task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            connection.setblocking(False)
            self._admit(connection)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Stop for a moment: the system has no descriptor or no memory for a connection."""
        _logger.warning(
            "no connection can be accepted for a moment: raise the limit of open files "
            "(ulimit -n), connections=%s, why=%s",
            self.open_count,
            error.strerror,
        )
        self._loop.remove_reader(listening)
        self._loop.call_later(_PAUSE_SECONDS, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _admit(self, connection: socket.socket) -> None:
        """Begin a connection. Above the limit, answer with a refusal; with TLS, just close it."""
        is_refused = self.open_count >= self._limits.connections_max
        spare = REFUSED_MAX if self._tls is None else 0
        if self.open_count >= self._limits.connections_max + spare:
            self._dropped()
            connection.close()
            return
        token = object()
        self._open.add(token)
        if self._tls is None:
            self._begin(connection, token, is_refused=is_refused)
            return
        timer = self._loop.call_later(self._head_seconds, self._drop, connection)
        self._silent[connection] = token, timer
        self._loop.add_reader(connection, self._begin_handshake, connection)

    def _begin_handshake(self, connection: socket.socket) -> None:
        """Begin the handshake, now that the client sent its first bytes or closed."""
        token, timer = self._silent.pop(connection)
        timer.cancel()
        self._loop.remove_reader(connection)
        self._begin(connection, token, is_refused=False)

    def _drop(self, connection: socket.socket) -> None:
        token, timer = self._silent.pop(connection)
        timer.cancel()
        self._loop.remove_reader(connection)
        connection.close()
        self._open.discard(token)
        self._dropped()

    def _begin(self, connection: socket.socket, token: object, *, is_refused: bool) -> None:
        protocol = self._make(is_refused, partial(self._open.discard, token))
        task = self._loop.create_task(self._connect(connection, token, protocol))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _connect(
        self, connection: socket.socket, token: object, protocol: asyncio.Protocol
    ) -> None:
        handshake = None if self._tls is None else self._head_seconds
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake
            )
        except OSError:  # The handshake failed or timed out.
            self._open.discard(token)
            self._dropped()
        except asyncio.CancelledError:
            self._open.discard(token)
            raise


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for all addresses of a host; port 0 picks one free port for all.

    Raises:
        UsageError: the host is unknown, or the port is in use.
    """
    loop = asyncio.get_running_loop()
    left = _BIND_TRIES if port == 0 else 1
    while True:
        left -= 1
        try:
            addresses = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            return _bound([(family, address) for family, _, _, _, address in addresses])
        except OSError as error:
            if not left:
                raise UsageError(
                    f"cannot listen on {host}:{port}: {error.strerror or error}; choose another "
                    "address with --host and --port"
                ) from error


def _bound(addresses: Sequence[tuple[int, tuple[Any, ...]]]) -> list[socket.socket]:
    made: list[socket.socket] = []
    failed: OSError | None = None
    for family, (host, port, *rest) in dict.fromkeys(addresses):
        known = made[0].getsockname()[1] if made and port == 0 else port
        try:
            listener = socket.create_server((host, known, *rest), family=family, backlog=BACKLOG)
        except OSError as error:
            failed = error
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # This machine does not support the address family.
            break
        listener.setblocking(False)
        made.append(listener)
    else:
        if made:
            return made
    for listener in made:
        listener.close()
    assert failed is not None
    raise failed
