"""The server over the engine: other processes write, take over and drop its logs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidelog
from kit.served import NAME, served, wait_until
from tidelog.errors import Fenced, NoSuchLog, SequenceRetired
from tidelog.http.api.failures import Forbidden
from tidelog.http.client import HttpKeyedLog
from tidelog.keyed.values import Keys, Retention
from tidelog.location import open_location


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[tidelog.Location]:
    """The served location, as opened by another process."""
    with tidelog.connect(tmp_path, create=True) as found:
        yield found


def serving(lake: tidelog.Location, tmp_path: Path, **options: Any) -> Any:
    lake.keyed.create(NAME).close()

    async def opening() -> Any:
        return await open_location(str(tmp_path))

    return served(opening, **options)


def test_the_server_takes_a_log_back_to_write_it(lake: tidelog.Location, tmp_path: Path) -> None:
    """A read takes nothing over; an append takes the log back, each time."""
    with serving(lake, tmp_path) as server, HttpKeyedLog(server.url) as log:
        stored = [log.append([(b"a", b"1")])]
        for _ in range(2):
            with lake.keyed.open(NAME) as other:
                stored.append(other.append([(b"a", b"2")]))
                log.count(b"a")
                stored.append(other.append([(b"a", b"3")]))
                stored.append(log.append([(b"a", b"4")]))
                with pytest.raises(Fenced):
                    other.append([(b"a", b"5")])
        assert log.is_ready()
        assert log.scan(b"a").to_arrow()["sequence"].to_pylist() == stored
    with lake.keyed.reader(NAME) as reader:
        assert reader.scan(b"a").to_arrow()["value"].to_pylist() == list(map(str.encode, "1234234"))


def test_who_follows_goes_on_though_the_log_was_taken_over(
    lake: tidelog.Location, tmp_path: Path
) -> None:
    """Neither a takeover nor its reversal ends a request that waits for records."""
    with serving(lake, tmp_path) as server, HttpKeyedLog(server.url) as log:
        at = log.append([(b"a", b"1")]) + 1
        told: list[list[bytes | None]] = []

        def wait() -> None:
            told.append(log.poll(b"a", start=at + 1)[0]["value"].to_pylist())

        with lake.keyed.open(NAME) as other:
            waiting = threading.Thread(target=wait)
            waiting.start()
            wait_until(lambda: server.sample("log_followers") == 1)
            other.append([(b"b", b"2")])
            log.append([(b"b", b"3")])
            log.append([(b"a", b"4")])
            waiting.join(30)
            assert told == [[b"4"]]


def test_a_server_that_only_reads_follows_what_others_write(
    lake: tidelog.Location, tmp_path: Path
) -> None:
    """A read-only server returns new records at once, and takes nothing over."""
    with (
        serving(lake, tmp_path, is_read_only=True) as server,
        HttpKeyedLog(server.url) as log,
        lake.keyed.open(NAME) as writer,
    ):
        writer.append([(b"a", b"1")])
        table, at = log.poll(b"a")
        assert (table["value"].to_pylist(), at) == ([b"1"], 2)
        told: list[list[bytes | None]] = []

        def wait() -> None:
            told.append(log.poll(Keys.prefix(b"a"), start=at)[0]["value"].to_pylist())

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: server.sample("log_followers") == 1)
        writer.append([(b"b", b"other"), (b"ab", b"2")])
        waiting.join(30)
        assert told == [[b"2"]]
        with pytest.raises(Forbidden):
            log.append([(b"a", b"3")])
        assert writer.append([(b"a", b"3")]) > 3


def until_gone(log: HttpKeyedLog) -> None:
    """Wait until the server has refreshed, which it does once a second."""
    try:
        while log.count(b"a"):
            threading.Event().wait(0.05)
    except NoSuchLog:
        return
    raise AssertionError("a log that was dropped has no records, and is there")


def test_what_others_retire_and_drop_is_gone(lake: tidelog.Location, tmp_path: Path) -> None:
    """Retired records give 410, a dropped log 404, and a log created later is served."""
    with serving(lake, tmp_path, is_read_only=True) as server:
        with lake.keyed.open(NAME) as writer:
            writer.append([(b"a", b"1")])
            writer.seal()
            writer.append([(b"a", b"2")])
            assert writer.retire(Retention(segments=1)) == 1
        with HttpKeyedLog(server.url) as log:
            with pytest.raises(SequenceRetired):
                log.count(b"a", 1)
            assert log.scan(b"a").to_arrow()["value"].to_pylist() == [b"2"]
        lake.keyed.drop(NAME)
        with HttpKeyedLog(server.url) as log:
            until_gone(log)
        with HttpKeyedLog(server.url, "later") as log:
            with pytest.raises(NoSuchLog):
                log.count(b"a")
            lake.keyed.create("later").close()
            assert log.count(b"a") == 0
            assert log.logs() == ["later"]


def test_what_is_asked_of_the_store_is_counted(lake: tidelog.Location, tmp_path: Path) -> None:
    """The server's metrics include tidelog's own counters."""
    with serving(lake, tmp_path) as server, HttpKeyedLog(server.url) as log:
        log.append([(b"a", b"1")])
        assert server.sample("tidelog_store_bytes_out_total", kind="put") > 0
        assert server.sample("log_append_records_total") == 1
