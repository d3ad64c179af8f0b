"""A server's end without loss: waiting requests are answered, accepted records are written."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.certificates import Authority
from kit.served import RunningServer, served, wait_until
from tidelog.core.clock import SystemClock
from tidelog.errors import LocationError
from tidelog.http.api.failures import ShuttingDown
from tidelog.http.client import HttpKeyedLog
from tidelog.server.app import ServerState
from tidelog.server.serving import ServerTls

REQUEST = b"GET /api/v1/log/count?key=a HTTP/1.1\r\nHost: x\r\n\r\n"
TURNS = 25  # Of 50 ms each: the grace, and the end of TLS.


class Turns(SystemClock):
    """A clock that counts the waits of a server that ends."""

    turns = 0

    async def sleep(self, duration_us: int) -> None:
        self.turns += 1
        await super().sleep(duration_us)


def test_whoever_waits_is_answered_when_the_server_ends() -> None:
    """A follower gets an empty page and its next sequence, long before its timeout."""
    clock = Turns()
    with served(state=ServerState(clock=clock)) as server, HttpKeyedLog(server.url) as log:
        log.append([(b"a", b"1")])
        told: list[tuple[int, int]] = []

        def wait() -> None:
            table, at = log.poll(b"a", start=2)
            told.append((table.num_rows, at))

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: server.sample("log_followers") == 1)
        server.stop()
        waiting.join(30)

        assert told == [(0, 2)]
        assert clock.turns <= TURNS
        with pytest.raises(LocationError, match="cannot connect to"):
            log.count(b"a")


def test_a_server_that_ends_takes_no_more() -> None:
    """An ending server answers 503 on open connections; only the health check still succeeds."""
    with served() as server, HttpKeyedLog(server.url) as log:
        log.append([(b"a", b"1")])
        server.state.end()

        with pytest.raises(ShuttingDown, match=r"shutting down|server shut down") as found:
            log.count(b"a")
        assert found.value.kind == "busy"
        with pytest.raises(ShuttingDown):
            log.try_append([(b"a", b"2")])
        assert log.is_healthy()
        assert not log.is_ready()
    history = server.place.histories["log"]
    assert history.next == 2


def test_the_log_is_closed_in_the_end() -> None:
    """The server closes its log handle at its end."""
    with served() as server, HttpKeyedLog(server.url) as log:
        log.append([(b"a", b"1")])
        handle = server.place.handles["log"]
        assert not handle.is_closed
    assert handle.is_closed
    assert not server.thread.is_alive()


def test_an_idle_client_of_tls_does_not_hold_the_end(tmp_path: Path) -> None:
    """Neither an idle TLS client nor one without a handshake delays the end."""
    certificate, key = Authority.make(tmp_path).issue("server")
    trust = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
    clock = Turns()
    state = ServerState(clock=clock)
    with (
        served(state=state, tls=ServerTls(certificate=certificate, key=key)) as server,
        HttpKeyedLog(server.url, tls=trust) as log,
        server.connect(),
        server.connect() as half,
    ):
        half.sendall(b"\x16")
        log.append([(b"a", b"1")])
        wait_until(lambda: server.server.acceptor.open_count == 3)
        server.stop()

        assert not server.thread.is_alive()
        assert clock.turns <= TURNS
    assert server.place.handles["log"].is_closed


def stopped(server: RunningServer, deed: Callable[[], None]) -> None:
    """Stop a server right after an action, with no turn of its loop between the two."""

    async def end(counter: int) -> bool:
        deed()
        return True

    server.server.on_tick = end  # type: ignore[method-assign]
    server.thread.join(30)
    assert not server.thread.is_alive()


def answer_of(client: socket.socket) -> tuple[bytes, str]:
    """Return the head of the last answer on a connection, and the name of its error."""
    found = b""
    while piece := client.recv(65_536):
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    return head, json.loads(body)["error"]


def test_requests_that_come_with_the_signal_are_answered() -> None:
    """Requests that arrive with the signal get 503 and the end of the connection."""
    clock = Turns()
    with ExitStack() as stack:
        server = stack.enter_context(served(state=ServerState(clock=clock)))
        clients = [stack.enter_context(server.connect())]
        clients[0].sendall(REQUEST)
        found = b""
        while not found.endswith(b"}"):
            found += clients[0].recv(65_536)

        def arrive() -> None:
            clients.extend(stack.enter_context(server.connect()) for _ in range(5))
            for one in clients:
                one.sendall(REQUEST)

        stopped(server, arrive)
        for one in clients:
            head, error = answer_of(one)
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"connection: close" in head
            assert error == ShuttingDown.__name__
    assert clock.turns <= TURNS


def test_connections_that_come_with_the_signal_do_not_hold_the_end() -> None:
    """Silent connections that arrive with the signal are closed after a moment."""
    clock = Turns()
    with ExitStack() as stack:
        server = stack.enter_context(served(state=ServerState(clock=clock)))
        clients: list[socket.socket] = []
        stopped(
            server,
            lambda: clients.extend(stack.enter_context(server.connect()) for _ in range(5)),
        )
        assert [one.recv(1) for one in clients] == [b""] * 5
    assert clock.turns <= TURNS
