"""Requests to a server and their answers: pooled connections, and errors as the server raised them.

It uses Python's ``http.client``. The requests are few and simple, so a larger library would only
add features without a use (redirects, cookies, pools by host, HTTP/2) and an installation. Programs
with an event loop call it from threads.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from tidelog.errors import DeadlineExceeded, LocationError, Outcome, OutcomeUnknown, UsageError
from tidelog.http.api.failures import error_of, error_of_status
from tidelog.http.api.messages import ErrorAnswer, encode_json

T = TypeVar("T", bound=Struct)

KEPT_MAX: Final = 8
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server: ``http://host:port`` or ``https://host:port``, maybe with a path."""

    host: str
    port: int
    path: str
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Parse a URL.

        Raises:
            UsageError: it is not a URL of a server, or has a user, query or fragment.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"the URL of the server is not valid: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("the URL of the server must be http://HOST:PORT or https://HOST:PORT")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise UsageError(
                "the URL of the server must not have a user, query or fragment: pass a token"
            )
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if is_tls else 80), parts.path.rstrip("/"), is_tls)


@dataclass(slots=True)
class Exchange:
    """A sender of requests to one server; threads may share it.

    Units: ``timeout_s``: seconds to wait for a connection, and for each piece of an answer.
    """

    address: ServerAddress
    token: str | None
    tls: ssl.SSLContext | None
    timeout_s: float
    _kept: list[http.client.HTTPConnection] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    def get(
        self,
        path: str,
        query: Mapping[str, str | int],
        wanted: type[T],
        *,
        wait_s: float = 0.0,
    ) -> T:
        """Send a GET request; ``wait_s`` is the time that the server may wait before it answers."""
        target = f"{path}?{urlencode(query)}" if query else path
        return self._request("GET", target, None, wanted, wait_s=wait_s, is_write=False)

    def post(
        self,
        path: str,
        message: Struct,
        wanted: type[T],
        *,
        wait_s: float = 0.0,
        is_write: bool = False,
    ) -> T:
        """Send a message; if ``is_write``, a failed request may still have been applied."""
        body = encode_json(message)
        return self._request("POST", path, body, wanted, wait_s=wait_s, is_write=is_write)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        wanted: type[T],
        *,
        wait_s: float,
        is_write: bool,
    ) -> T:
        connection = self._connected()
        is_done = False
        try:
            status, data, is_kept = self._exchanged(connection, method, path, body, wait_s)
            is_done = is_kept
        except TimeoutError as error:
            raise _unanswered(DeadlineExceeded, "did not answer in time", is_write) from error
        except (OSError, http.client.HTTPException) as error:
            fault = f"disconnected before it answered ({type(error).__name__}: {error})"
            raise _unanswered(LocationError, fault, is_write) from error
        finally:
            self._put_back(connection, is_whole=is_done)
        return _read(status, data, wanted, is_write=is_write)

    def _exchanged(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        wait_s: float,
    ) -> tuple[int, bytes, bool]:
        headers = {"Accept": _JSON}
        if body is not None:
            headers["Content-Type"] = _JSON
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if connection.sock is not None:
            connection.sock.settimeout(self.timeout_s + wait_s)
        # A server that refuses a body answers before it has read all of it.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, self.address.path + path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        if not data and answer.getheader("Content-Length") is None:
            raise http.client.IncompleteRead(data)  # Every answer has a length: the head was cut.
        return answer.status, data, not answer.will_close

    def _connected(self) -> http.client.HTTPConnection:
        """Return a pooled connection that is still open, or a new one.

        Raises:
            LocationError: the server cannot be reached; nothing was sent.
        """
        while (kept := self._idle_connection()) is not None:
            if _is_quiet(kept):
                return kept
            kept.close()
        made = self._made()
        try:
            made.connect()
        except (OSError, ssl.SSLError) as error:
            made.close()
            where = f"{self.address.host}:{self.address.port}"
            why = error.strerror or str(error)
            raise LocationError(f"cannot connect to {where}: {why[:1].lower()}{why[1:]}") from error
        return made

    def _made(self) -> http.client.HTTPConnection:
        host, port = self.address.host, self.address.port
        if not self.address.is_tls:
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=self.tls)

    def _idle_connection(self) -> http.client.HTTPConnection | None:
        with self._lock:
            if self._is_closed:
                raise UsageError("this client is closed: create another")
            return self._kept.pop() if self._kept else None

    def _put_back(self, connection: http.client.HTTPConnection, *, is_whole: bool) -> None:
        with self._lock:
            if is_whole and not self._is_closed and len(self._kept) < KEPT_MAX:
                self._kept.append(connection)
                return
        connection.close()


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Return True if an idle connection has received nothing; otherwise the server closed it.

    An append on a closed connection would have an unknown outcome.
    """
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN | select.POLLHUP | select.POLLERR)
    return not poll.poll(0)


def _unanswered(kind: type[LocationError], fault: str, is_write: bool) -> LocationError:
    if is_write:
        return OutcomeUnknown(
            f"the server {fault}: the records may be in the log; read it back before you append "
            "them again"
        )
    return kind(f"the server {fault}: try again", outcome=Outcome.NOT_APPLIED)


def _read(status: int, data: bytes, wanted: type[T], *, is_write: bool) -> T:
    try:
        if status == 200:
            return msgspec.json.decode(data, type=wanted)
        answer = msgspec.json.decode(data, type=ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        failure = error_of_status(status, data[:1000].decode(errors="replace"))
        if status == 200 and is_write:
            failure.outcome = Outcome.UNKNOWN
        raise failure from error
    raise error_of(answer, status)
