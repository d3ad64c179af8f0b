"""Connections before their first request: limits on their number and time."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from kit.certificates import Authority
from kit.served import RunningServer, received, served, wait_until
from server.conftest import others_run, until
from tidelog.errors import UsageError
from tidelog.http.client import HttpKeyedLog
from tidelog.server.accepting import Acceptor, bind
from tidelog.server.app import ServerState
from tidelog.server.limits import REFUSED_MAX, ServerLimits, fit_open_files
from tidelog.server.serving import ServerTls

REQUEST = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
MOST = 3


def few() -> ServerState:
    limits = replace(ServerLimits(), connections_max=MOST, head_timeout_us=300_000)
    return ServerState(limits=limits)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServerTls, ssl.SSLContext]:
    """Return the TLS files of a server, and the trust settings of a client."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = Authority.make(folder).issue("server")
    trust = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    return ServerTls(certificate=certificate, key=key), trust


@pytest.fixture
def secure(authority: tuple[ServerTls, ssl.SSLContext]) -> Iterator[RunningServer]:
    with served(state=few(), tls=authority[0]) as found:
        yield found


def held(server: RunningServer, count: int, stack: ExitStack) -> list[socket.socket]:
    """Open silent connections, and return them once the server has accepted all."""
    acceptor = server.server.acceptor
    before = acceptor.open_count
    found = [stack.enter_context(server.connect()) for _ in range(count)]
    wait_until(lambda: acceptor.open_count == before + count)
    return found


def test_one_connection_too_many_is_a_429_in_the_form_of_errors() -> None:
    """A refusal is counted, other connections continue, and a freed place is taken again."""
    state = ServerState(limits=replace(ServerLimits(), connections_max=MOST))
    with served(state=state) as server, ExitStack() as stack:
        first, *_ = held(server, MOST, stack)
        with server.connect() as more:
            more.sendall(REQUEST)
            head, _, body = received(more).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in head
        assert json.loads(body).items() >= {"error": "TooMany", "outcome": "not_applied"}.items()
        assert server.sample("http_requests_total", method="GET", route="other", status="429") == 1
        assert server.sample("http_errors_total", kind="busy", outcome="not_applied") == 1
        first.sendall(REQUEST)
        assert first.recv(65_536).startswith(b"HTTP/1.1 200 ")
        first.close()
        wait_until(lambda: server.server.acceptor.open_count < MOST)
        with HttpKeyedLog(server.url) as log:
            assert log.is_healthy()


def test_connections_above_the_answered_ones_are_dropped() -> None:
    """Refused connections also have a limit, so silent clients cannot take all descriptors."""
    state = ServerState(limits=replace(ServerLimits(), connections_max=MOST))
    with served(state=state) as server, ExitStack() as stack:
        held(server, MOST + REFUSED_MAX, stack)
        with server.connect() as more:
            assert received(more) == b""
        assert server.sample("http_connections_dropped_total") == 1


def test_the_number_of_connections_holds_before_the_handshake(
    secure: RunningServer, authority: tuple[ServerTls, ssl.SSLContext]
) -> None:
    """A client that never begins TLS takes one place and no TLS state."""
    with ExitStack() as stack:
        held(secure, MOST, stack)
        assert not secure.server.server_state.connections
        with secure.connect() as more:
            assert received(more) == b""
    wait_until(lambda: secure.server.acceptor.open_count == 0)
    with HttpKeyedLog(secure.url, tls=authority[1]) as log:
        assert log.is_healthy()


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_that_does_not_come_ends_the_connection(
    secure: RunningServer, sent: bytes
) -> None:
    """A handshake that does not complete ends the connection after the time limit of a head."""
    with secure.connect() as client:
        client.sendall(sent)
        assert len(received(client)) < 100
    wait_until(lambda: secure.sample("http_connections_dropped_total") == 1)
    assert secure.server.acceptor.open_count == 0


class OutOfFiles:
    """A listening socket whose accept fails for lack of descriptors."""

    def __init__(self) -> None:
        self.tries = 0
        self._pair = socket.socketpair()
        self._pair[1].send(b"x")

    def fileno(self) -> int:
        return self._pair[0].fileno()

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        raise OSError(errno.EMFILE, "Too many open files")

    def close(self) -> None:
        for one in self._pair:
            one.close()


async def test_a_lack_of_descriptors_is_reported_with_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The acceptor pauses instead of looping, and logs the remedy."""
    acceptor = Acceptor(
        lambda _refused, _ended: asyncio.Protocol(), ServerLimits(), tls=None, dropped=lambda: None
    )
    listening = OutOfFiles()
    acceptor.listen([listening])  # type: ignore[list-item]
    await until(lambda: listening.tries == 1)
    await others_run()

    assert listening.tries == 1
    assert "raise the limit of open files" in caplog.text
    assert "Too many open files" in caplog.text
    acceptor.close()


@pytest.mark.parametrize(
    ("files", "connections", "followers"),
    [(1_048_576, 2_000, 1_000), (2_256, 2_000, 1_000), (1_024, 768, 384), (256, 128, 64)],
)
def test_limits_leave_open_files_for_the_store(
    files: int, connections: int, followers: int
) -> None:
    """A server with few descriptors keeps 256 of them free, or half."""
    fitted = fit_open_files(ServerLimits(), files)
    assert (fitted.connections_max, fitted.followers_max) == (connections, followers)


async def test_a_server_listens_at_all_addresses_of_a_host_by_one_port() -> None:
    """The server listens on all addresses of a host by one port; a taken port is refused."""
    sockets = await bind("localhost", 0)
    ports = {one.getsockname()[1] for one in sockets}
    assert len(ports) == 1
    with pytest.raises(UsageError, match="cannot listen on"):
        await bind("localhost", ports.pop())
    with pytest.raises(UsageError, match="no-such-host"):
        await bind("no-such-host.invalid", 0)
    for one in sockets:
        one.close()
