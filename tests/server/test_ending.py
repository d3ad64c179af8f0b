"""Servers end without loss: who waits is answered, and what was taken is written."""

from __future__ import annotations

import threading
import time

import pytest

from kit.served import served, wait_until
from tidelog.errors import LocationError
from tidelog.http_api.failures import ShuttingDown
from tidelog.http_client import HttpKeyed


def test_whoever_waits_is_answered_when_the_server_ends() -> None:
    """With none, and where to go on; long before its time is over."""
    with served() as server, HttpKeyed(server.url) as log:
        log.append([(b"a", b"1")])
        told: list[tuple[int, int]] = []

        def wait() -> None:
            table, at = log.poll(b"a", start=2)
            told.append((table.num_rows, at))

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: server.sample("log_followers") == 1)
        began = time.monotonic()
        server.stop()
        waiting.join(30)

        assert told == [(0, 2)]
        assert time.monotonic() - began < 10
        with pytest.raises(LocationError, match="no way to the server"):
            log.count(b"a")


def test_a_server_that_ends_takes_no_more() -> None:
    """503 and another try, on connections that are open still; health is told as long as it is."""
    with served() as server, HttpKeyed(server.url) as log:
        log.append([(b"a", b"1")])
        server.state.end()

        with pytest.raises(ShuttingDown, match="the server ends") as found:
            log.count(b"a")
        assert found.value.kind == "busy"
        with pytest.raises(ShuttingDown):
            log.try_append([(b"a", b"2")])
        assert log.is_healthy()
        assert not log.is_ready()
    history = server.place.histories["log"]
    assert history.next == 2


def test_the_log_is_closed_in_the_end() -> None:
    """So that what was ordered is durable."""
    with served() as server, HttpKeyed(server.url) as log:
        log.append([(b"a", b"1")])
        handle = server.place.handles["log"]
        assert not handle.is_closed
    assert handle.is_closed
    assert not server.thread.is_alive()
