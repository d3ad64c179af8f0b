"""The cloud store over servers that restart, disconnect, are busy, or send short bodies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import obstore
import pytest

from kit.clocks import SwiftClock
from kit.lying import LyingServer
from kit.s3_servers import MotoServer, SeaweedServer
from tidelog.core.clock import SystemClock
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    ObjectExists,
    Outcome,
)
from tidelog.store import conditional
from tidelog.store.port import Store
from tidelog.store.urls import open_store

CLOCK = SystemClock()


async def listed(store: Store) -> str:
    return " ".join([entry.key async for entry in store.list("")])


async def test_a_restart_is_outlasted() -> None:
    """Requests wait for a server that is away for three seconds, and then succeed."""
    server = LyingServer()
    store = open_store(server.url("x"), clock=CLOCK)
    return_of_server = threading.Timer(3, server.start)
    return_of_server.start()

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(store.put("plain", b"1"))
            group.create_task(conditional.create(store, "created", b"2", clock=CLOCK))
            group.create_task(listed(store))

    try:
        await run()
        assert await listed(store) == "created plain"
    finally:
        return_of_server.join()
        server.stop()


async def test_data_outlives_a_kill(tmp_path: Path) -> None:
    """An object that SeaweedFS acknowledged before kill -9 exists after the restart."""
    with SeaweedServer(tmp_path) as server:
        store = open_store(server.url("x"), clock=CLOCK)
        e_tag = await store.put("kept", b"1", if_absent=True)
        server.restart()
        found = await open_store(server.url("x"), clock=CLOCK).get("kept")
    assert (found.data, found.e_tag) == (b"1", e_tag)


async def test_a_conditional_put_is_sent_once() -> None:
    """A 500 reaches the caller: a second attempt could be refused because of the first."""
    with LyingServer(lambda method, path: (500, b"") if method == "PUT" else None) as server:
        store = open_store(server.url(), clock=CLOCK)
        with pytest.raises(LocationError) as failed:
            await store.put("x", b"1", if_absent=True)
        assert failed.value.outcome is Outcome.UNKNOWN
        assert len(server.requests) == 1


async def test_a_lost_answer_leaves_doubt() -> None:
    """A put whose body arrived and whose connection closed reports UNKNOWN."""
    with LyingServer(lambda method, path: (0, b"") if method == "PUT" else None) as server:
        store = open_store(server.url(), clock=CLOCK)
        with pytest.raises(LocationError) as failed:
            await store.put("x", b"1", if_absent=True)
        assert failed.value.outcome is Outcome.UNKNOWN
        with pytest.raises(LocationError) as failed:
            await conditional.create(store, "x", b"1", clock=SwiftClock())
        assert failed.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("condition", ["absent", "match"])
async def test_a_busy_key_is_tried_again(condition: str) -> None:
    """A 409, which S3 answers to concurrent conditional writes, is retried."""
    busy = 3

    def meddle(method: str, path: str) -> tuple[int, bytes] | None:
        nonlocal busy
        if method != "PUT" or not busy:
            return None
        busy -= 1
        return 409, b"<Error><Code>ConditionalRequestConflict</Code></Error>"

    async def put(store: Store) -> str:
        if condition == "absent":
            return await store.put("x", b"1", if_absent=True)
        return await store.put("x", b"1", if_match='"e"')

    with LyingServer(meddle) as server:
        store = open_store(server.url(), clock=SwiftClock())
        await put(store)
        assert server.objects == {"x": b"1"}
        busy = 1_000
        with pytest.raises(ContentionError) as failed:
            await put(store)
        assert type(failed.value) is ContentionError
        assert failed.value.outcome is Outcome.NOT_APPLIED


async def test_a_conflict_without_a_word_is_an_existing_object() -> None:
    """A 409 without a code means that the object exists. Azure answers 409 where S3 answers 412."""
    with LyingServer(lambda method, path: (409, b"") if method == "PUT" else None) as server:
        store = open_store(server.url(), clock=CLOCK)
        with pytest.raises(ObjectExists):
            await store.put("x", b"1", if_absent=True)


async def test_a_body_shorter_than_announced_is_never_data() -> None:
    """A body that is shorter than announced is never returned as data."""
    with LyingServer() as server:
        server.objects["x"] = b"0123456789" * 1_000
        server.cut_bytes = 4_000
        store = open_store(server.url(), clock=CLOCK)
        with pytest.raises((LocationError, CorruptionError)):
            await store.get("x")


_ASK_AND_END = """
import asyncio, sys
from tidelog.core.clock import SystemClock
from tidelog.store.urls import open_store

async def run():
    store = open_store(sys.argv[1], clock=SystemClock())
    await asyncio.gather(*(store.put(f"end/{n}", b"") for n in range(5)))

asyncio.run(run())
"""


def test_a_process_ends_well_right_after_a_request(moto: MotoServer) -> None:
    """A process may end right after a request; obstore's threads aborted one in twenty."""
    for _ in range(8):
        subprocess.run([sys.executable, "-c", _ASK_AND_END, moto.url("end")], check=True)


class ShortResult:
    """The result of obstore for a body that a server ended early."""

    range = (0, 10)
    meta = None

    async def bytes_async(self) -> bytes:
        return b"01234"


async def test_a_whole_body_that_is_too_short_is_corruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Short data that obstore calls whole raises, so that it never becomes rows."""

    async def get_short(*_: object, **__: object) -> ShortResult:
        return ShortResult()

    monkeypatch.setattr(obstore, "get_async", get_short)
    store = open_store("s3://b?region=us-east-1&access_key_id=a&secret_access_key=b", clock=CLOCK)
    with pytest.raises(CorruptionError, match="announced_bytes=10 got_bytes=5"):
        await store.get("x")
