"""The client if the connection or the answer is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kit.keyed_model import MemoryLake
from kit.served import served, wait_until
from tidelog.errors import (
    DeadlineExceeded,
    LocationError,
    LogFull,
    Outcome,
    OutcomeUnknown,
    SequenceRetired,
    TidelogError,
    UsageError,
)
from tidelog.http.api.failures import ShuttingDown, answer_of
from tidelog.http.api.messages import encode_json
from tidelog.http.client import HttpKeyedLog
from tidelog.keyed.values import Keys

RECORD = [(b"a", b"1")]
Answers = Callable[[socket.socket], None]


@contextmanager
def answering(answers: Answers) -> Iterator[str]:
    """Listen, and give each connection an answer once it has sent something."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    if client.recv(65_536):
                        answers(client)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(30)


def plain(status: str, body: str) -> Answers:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return lambda client: client.sendall((head + body).encode())


def answer_of_error(error: TidelogError) -> str:
    return encode_json(answer_of(error)).decode()


def half(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def asleep(_: socket.socket) -> None:
    threading.Event().wait(0.3)


LOST: list[tuple[Answers, type[TidelogError], Outcome]] = [
    (lambda _: None, OutcomeUnknown, Outcome.UNKNOWN),
    (half, OutcomeUnknown, Outcome.UNKNOWN),
    (
        lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Ty"),
        OutcomeUnknown,
        Outcome.UNKNOWN,
    ),
    (plain("502 Bad", "<html>"), LocationError, Outcome.UNKNOWN),
    (plain("200 OK", "hello"), TidelogError, Outcome.UNKNOWN),
    (plain("200 OK", '{"status": "success"}'), TidelogError, Outcome.UNKNOWN),
    (lambda client: client.sendall(b"nonsense\r\n\r\n"), OutcomeUnknown, Outcome.UNKNOWN),
]


@pytest.mark.parametrize(("answers", "kind", "outcome"), LOST)
def test_an_append_whose_answer_is_lost_may_be_there(
    answers: Answers, kind: type[TidelogError], outcome: Outcome
) -> None:
    """An append without a clear answer raises UNKNOWN, never a refusal; a read raises too."""
    with answering(answers) as url, HttpKeyedLog(url, timeout_s=5) as log:
        with pytest.raises(kind) as found:
            log.append(RECORD)
        assert found.value.outcome is outcome
        with pytest.raises(TidelogError):
            log.count(b"a")


def test_a_server_that_does_not_answer_is_left() -> None:
    """A request ends after its timeout; an append then has an unknown outcome."""
    with answering(asleep) as url, HttpKeyedLog(url, timeout_s=0.05) as log:
        with pytest.raises(DeadlineExceeded):
            log.count(b"a")
        with pytest.raises(OutcomeUnknown):
            log.append(RECORD)
        assert not log.is_healthy()


def test_nothing_was_sent_where_there_is_no_way() -> None:
    """An append that could not connect is NOT_APPLIED, so it may be sent again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with HttpKeyedLog(f"http://127.0.0.1:{port}") as log:
        with pytest.raises(LocationError, match="cannot connect to") as found:
            log.append(RECORD)
        assert found.value.outcome is Outcome.NOT_APPLIED


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    """A client must not reuse a connection that the server closed: an append would be in doubt."""
    with served() as server, HttpKeyedLog(server.url) as log:
        assert log.append(RECORD) == 1

        async def close() -> None:
            for connection in list(server.server.server_state.connections):
                connection.shutdown()

        server.run(close)
        assert log.append(RECORD) == 2


def test_records_come_back_when_the_log_is_full() -> None:
    """LogFull carries the records, as in a process, so that a caller need not keep them."""
    with served() as server, HttpKeyedLog(server.url) as log:
        log.append(RECORD)
        weather = server.place.handles["log"].weather
        weather.is_full = True
        for append in (log.try_append, lambda records: log.append(records, timeout_us=20_000)):
            with pytest.raises(LogFull) as found:
                append(RECORD)
            assert found.value.records is RECORD
        waiting: list[int] = []
        thread = threading.Thread(target=lambda: waiting.append(log.append(RECORD)))
        thread.start()
        weather.is_full = False
        thread.join(30)
        assert waiting == [2]


def test_a_follower_goes_on_after_a_restart() -> None:
    """A follower gets each record once, written before or after the server's restart."""
    lake = MemoryLake()

    async def opening() -> MemoryLake:
        return lake

    found: list[bytes | None] = []

    def follow() -> None:
        for table in log.follow(Keys.all(), start=1):
            found.extend(table["value"].to_pylist())
            if len(found) == 2:
                return

    with ExitStack() as stack:
        with served(opening) as first:
            log = stack.enter_context(HttpKeyedLog(f"http://localhost:{first.port}"))
            following = threading.Thread(target=follow)
            following.start()
            log.append([(b"a", b"1")])
            wait_until(lambda: found == [b"1"])
        with served(opening, port=first.port):
            log.append([(b"a", b"2")])
            following.join(30)
    assert found == [b"1", b"2"]


SCANNED = '{"status":"success","values":[{"sequence":5,"value":"x","timestampUs":1,"key":"a"}],'


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (None, LocationError),
        (plain("503 Away", answer_of_error(ShuttingDown("the server ends"))), ShuttingDown),
        (plain("502 Bad", "<html>"), LocationError),
        (plain("410 Gone", answer_of_error(SequenceRetired("start at 20"))), SequenceRetired),
    ],
)
def test_a_follower_that_gives_up_reports_where_to_go_on(
    answers: Answers | None, kind: type[TidelogError]
) -> None:
    """A follower that gives up reports its next sequence."""
    turns = [plain("200 OK", SCANNED + '"nextSequence":9}'), answers]

    def take_turns(client: socket.socket) -> None:
        if (answer := turns.pop(0)) is not None:
            answer(client)

    with answering(take_turns) as url, HttpKeyedLog(url) as log:
        following = log.follow(Keys.all(), start=5, patience_us=0)
        assert next(following)["value"].to_pylist() == [b"x"]
        with pytest.raises(kind) as failed:
            next(following)
    assert failed.value.facts["next_sequence"] == 9
    assert "next_sequence=9" in str(failed.value)


def test_a_follower_is_patient_with_a_server_that_is_away() -> None:
    """A follower retries lost answers, an ending server, and a proxy without a server."""
    ending = plain("503 Away", answer_of_error(ShuttingDown("the server ends")))
    turns = [
        ending,
        half,
        plain("502 Bad", "<html>"),
        plain("200 OK", SCANNED + '"nextSequence":9}'),
    ]

    def take_turns(client: socket.socket) -> None:
        turns.pop(0)(client)

    with answering(take_turns) as url, HttpKeyedLog(url) as log:
        assert next(log.follow(Keys.all(), start=5))["value"].to_pylist() == [b"x"]
    assert not turns


@pytest.mark.parametrize(
    "url",
    ["", "localhost:80", "ftp://x", "http://", "http://u:p@x", "http://x?y=1", "http://x:99999"],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    """A bad URL is refused before any request."""
    with pytest.raises(UsageError):
        HttpKeyedLog(url)


def test_bad_input_is_refused_before_it_is_sent() -> None:
    """Bad input is refused before it is sent, as by a log in the process."""
    log = HttpKeyedLog("http://localhost:1")
    for records in ([("a", b"1")], [(b"a", "1")], [(b"a",)], [(b"x" * 16_385, b"")]):
        with pytest.raises(UsageError):
            log.append(records)  # type: ignore[arg-type]
    for call in (
        lambda: log.scan(b"a", 3, 2),
        lambda: log.scan(b"a", rows=0),
        lambda: log.scan(Keys.between(b"b", b"a")),
        lambda: log.poll("a"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError):
            call()
    log.close()
    with pytest.raises(UsageError, match="closed"):
        log.count(b"a")


def test_an_append_of_nothing_is_refused_before_it_is_sent() -> None:
    """An empty append is refused before it is sent: there is no server in this test."""
    with HttpKeyedLog("http://127.0.0.1:1", "orders") as log:
        for append in (log.append, log.try_append):
            with pytest.raises(UsageError, match="an append needs at least one record"):
                append([])
