"""Slow clients on real sockets: none keeps a connection or memory, or delays others."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from kit.served import RunningServer, received, served, wait_until
from tidelog.http.client import HttpKeyedLog
from tidelog.server.app import ServerState
from tidelog.server.limits import ServerLimits

MIB = 1024 * 1024
PATIENCE_S = 30
CLIENTS = 200


def impatient(**limits: Any) -> ServerState:
    quick = {"head_timeout_us": 300_000, "body_timeout_us": 300_000, "answer_timeout_us": 300_000}
    return ServerState(limits=replace(ServerLimits(), **{**quick, **limits}))


@pytest.fixture
def quick() -> Iterator[RunningServer]:
    """A server that waits for a client at most 0.3 seconds."""
    with served(state=impatient(scan_bytes_max=64 * MIB)) as found:
        yield found


@pytest.fixture(scope="module")
def patient() -> Iterator[RunningServer]:
    """A server with the default waits."""
    with served() as found:
        yield found


@pytest.mark.parametrize(
    "head", [b"", b"GET /-/healthy HT", b"GET /-/healthy HTTP/1.1\r\nA: b\r\n"]
)
def test_a_head_that_does_not_come_ends_the_connection(quick: RunningServer, head: bytes) -> None:
    """A head that is not completed ends the connection, even after an answered request."""
    with quick.connect() as client:
        client.sendall(head)
        assert received(client) == b""
    with quick.connect() as client:
        client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in client.recv(65_536)
        client.sendall(b"GET /")
        received(client)


def test_a_body_that_does_not_come_is_a_408(quick: RunningServer) -> None:
    """A body that is not completed gets a 408 in the API's form, and the connection ends."""
    with quick.connect() as client:
        client.sendall(
            b"POST /api/v1/log/append HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        )
        told = received(client)
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"BodyTooSlow" in told
    assert quick.state.incoming.taken == 0


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"OPTIONS * HTTP/1.1\r\nHost: x", 404),
        (b"GET http://x/-/healthy HTTP/1.1\r\nHost: x", 404),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x", 404),
        (b"GET /api/v1/keyed/ HTTP/1.1\r\nHost: x", 404),
        (b"GET /api/v1/keyed/%ff/count?key=a HTTP/1.1\r\nHost: x", 400),
        (b"GET /api/v1/log/count?key=" + b"%ff" * 16_384 + b" HTTP/1.1\r\nHost: x", 200),
        (b"POST /api/v1/log/append HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 19, 413),
        (b"GET /-/healthy HTTP/1.0", 200),
    ],
)
def test_strange_heads_are_answered_in_the_apis_words(
    patient: RunningServer, head: bytes, status: int
) -> None:
    """Any head that uvicorn accepts gets an answer of the API."""
    with patient.connect() as client:
        client.sendall(head + b"\r\nConnection: close\r\n\r\n")
        told = received(client)
    assert told.startswith(b"HTTP/1.1 %d " % status), told[:100]
    assert b'{"status":"' in told


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (b"\x16\x03\x01\x02\x00\r\n\r\n", "not an HTTP/1.1 request"),
        (b"GET /\x00 HTTP/1.1\r\n\r\n", "not an HTTP/1.1 request"),
        (b"GET /" + b"a" * 70_000, "too large: send a long key in a body"),
        (
            b"POST /-/ready HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
            "not an HTTP/1.1 request",
        ),
    ],
)
def test_bytes_that_are_no_request_are_a_400_in_the_form_of_errors(
    patient: RunningServer, sent: bytes, fault: str
) -> None:
    """The answer is counted, names the fault, and ends the connection."""
    counted = {"method": "other", "route": "other", "status": "400"}
    before = patient.sample("http_requests_total", **counted)
    with patient.connect() as client:
        client.sendall(sent)
        head, _, body = received(client).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body).items() >= {"status": "error", "kind": "usage"}.items()
    assert fault in json.loads(body)["message"]
    assert patient.sample("http_requests_total", **counted) == before + 1
    wait_until(lambda: patient.sample("http_requests_in_flight") == 0)


@pytest.mark.parametrize(
    ("head", "rest", "status"),
    [
        (b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"a" * 9, 404),
        (b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n", b"a" * 400_000, 404),
        (b"GET /" + b"a" * 70_000, b"a" * 70_000, 400),
    ],
)
def test_a_refusal_reaches_a_client_that_is_still_sending(
    patient: RunningServer, head: bytes, rest: bytes, status: int
) -> None:
    """Bytes that come after the refusal do not reset the connection before the answer is read."""
    with patient.connect() as client:
        client.sendall(head)
        select.select([client], [], [], PATIENCE_S)
        client.sendall(rest[:-1])
        threading.Event().wait(0.1)
        client.sendall(rest[-1:])  # A connection that was reset fails here, or in the next line.
        told = received(client)
    assert told.startswith(b"HTTP/1.1 %d " % status)
    assert told.endswith(b"}")


def test_a_sender_that_leaves_is_forgotten(quick: RunningServer) -> None:
    """The memory reserved for the body of a client that left is free again."""
    with quick.connect() as client:
        client.sendall(
            b"POST /api/v1/log/append HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        )
    wait_until(lambda: quick.sample("http_clients_left_total") == 1)
    assert quick.state.incoming.taken == 0


def test_a_refused_body_does_not_hold_the_connection(quick: RunningServer) -> None:
    """A body that is too large is refused before it is sent; curl asks first."""
    with quick.connect() as client:
        client.sendall(
            b"POST /api/v1/log/append HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        told = received(client)
    assert told.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in told


def test_a_follower_that_leaves_is_forgotten(quick: RunningServer) -> None:
    """The place of a follower that left is free again."""
    with quick.connect() as client:
        client.sendall(
            b"GET /api/v1/log/scan?key=a&follow=true&start_seq=1 HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        wait_until(lambda: quick.sample("log_followers") == 1)
    wait_until(lambda: quick.sample("log_followers") == 0)


def slow_reader(server: RunningServer) -> socket.socket:
    """Return a connection whose client asked for much, and reads none of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(PATIENCE_S)
    client.connect(("127.0.0.1", server.port))
    client.sendall(b"GET /api/v1/log/scan?key=big&limit=100 HTTP/1.1\r\nHost: x\r\n\r\n")
    return client


def fill(server: RunningServer) -> None:
    """Append 24 MiB to one key."""
    with HttpKeyedLog(server.url) as log:
        for _ in range(3):
            log.append([(b"big", b"x" * MIB)] * 8)


def test_an_unread_answer_is_dropped_in_time() -> None:
    """An answer that its client does not read is dropped in time, with its memory."""
    state = impatient(scan_bytes_max=64 * MIB)
    with served(state=state) as server:
        fill(server)
        with slow_reader(server) as client:
            wait_until(lambda: state.outgoing.taken > 24 * MIB)
            wait_until(lambda: state.outgoing.taken == 0)
            wait_until(lambda: not server.server.server_state.connections)
            assert len(received(client)) < 24 * MIB


def test_many_clients_do_not_wait_for_a_slow_one() -> None:
    """200 clients append and read at once while one client reads none of its answer."""
    state = ServerState(limits=replace(ServerLimits(), scan_bytes_max=64 * MIB))
    with served(state=state) as server:
        fill(server)
        with slow_reader(server):
            wait_until(lambda: state.outgoing.taken > 24 * MIB)

            def one(number: int) -> list[bytes | None]:
                key = f"client-{number}".encode()
                with HttpKeyedLog(server.url) as log:
                    log.append([(key, b"1")], durable=False)
                    log.append([(key, b"2")])
                    found: list[bytes | None] = log.scan(key).to_arrow()["value"].to_pylist()
                    return found

            with ThreadPoolExecutor(CLIENTS) as pool:
                found = list(pool.map(one, range(CLIENTS)))
            assert found == [[b"1", b"2"]] * CLIENTS
            assert state.outgoing.taken > 24 * MIB, "the slow one was let go of too soon"
        with HttpKeyedLog(server.url) as log:
            assert log.next_sequence() == 24 + 2 * CLIENTS + 1
