"""A server of keyed logs on loopback, in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette

from kit.keyed_model import MemoryLake
from tidelog.keyed.port import KeyedReads, KeyedWrites
from tidelog.server.app import ServerState, make_app
from tidelog.server.keyed_router import routers_of
from tidelog.server.serving import AppServer, ServerTls, make_server, serve

T = TypeVar("T")
NAME = "log"


def keyed_app(
    place: Any,
    state: ServerState,
    *,
    log: str | None = NAME,
    is_read_only: bool = False,
) -> Starlette:
    """Return the app of ``tidelog serve`` for any place of keyed logs."""
    routers = routers_of(place.keyed, state, log=log, is_read_only=is_read_only)
    return make_app(routers, version="1", state=state)


class RememberingLogs:
    """A place of keyed logs that remembers the writing handles that it returned."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self.handles: dict[str, KeyedWrites] = {}

    @property
    def keyed(self) -> RememberingLogs:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place.keyed if hasattr(self._place.keyed, name) else self._place, name)

    async def open(self, name: str, *, visibility: str) -> KeyedWrites:
        self.handles[name] = await self._place.keyed.open(name, visibility=visibility)
        return self.handles[name]

    async def reader(self, name: str) -> KeyedReads:
        found: KeyedReads = await self._place.keyed.reader(name)
        return found


@dataclass
class RunningServer:
    """A running server, and the logs that it serves."""

    server: AppServer
    state: ServerState
    place: Any
    loop: asyncio.AbstractEventLoop
    port: int
    thread: threading.Thread
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do work in the server's loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(30)

    def connect(self) -> socket.socket:
        """Open a connection to the server."""
        return socket.create_connection(("localhost", self.port), timeout=30)

    def sample(self, name: str, **labels: str) -> float:
        """Return a metric's value; 0 if it has none."""
        return self.state.metrics.registry.get_sample_value(name, labels) or 0.0

    def stop(self) -> None:
        """End the server as SIGTERM does, and wait for its end."""
        self.server.should_exit = True
        self.thread.join(30)


def received(client: socket.socket) -> bytes:
    """Return the bytes until the server ends the connection."""
    client.settimeout(30)
    found = b""
    try:
        while piece := client.recv(65_536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def wait_until(told: Callable[[], bool], patience_s: float = 30) -> None:
    """Return once a condition holds; fail the test if it never does."""
    until = time.monotonic() + patience_s
    while not told():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextmanager
def served(
    opening: Callable[[], Awaitable[Any]] | None = None,
    *,
    state: ServerState | None = None,
    tls: ServerTls | None = None,
    log: str | None = NAME,
    is_read_only: bool = False,
    port: int = 0,
) -> Iterator[RunningServer]:
    """Serve keyed logs during the block; by default one empty log of the model.

    ``opening`` opens the place of the logs, in the server's loop.
    """
    state = state or ServerState()
    ready: list[RunningServer | BaseException] = []
    is_ready = threading.Event()

    async def work() -> None:
        there = RememberingLogs(MemoryLake() if opening is None else await opening())
        if not await there.keyed.list():
            await (await there.keyed.create(NAME)).close()
        app = keyed_app(there, state, log=log, is_read_only=is_read_only)
        loop = asyncio.get_running_loop()

        def told(_: str, port: int) -> None:
            scheme = "http" if tls is None else "https"
            thread = threading.current_thread()
            ready.append(RunningServer(server, state, there, loop, port, thread, scheme))
            is_ready.set()

        server = make_server(app, state, host="localhost", port=port, tls=tls, started=told)
        await serve(server, state)

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            ready.append(error)
            is_ready.set()
            raise

    thread = threading.Thread(target=run, name="served")
    thread.start()
    assert is_ready.wait(30)
    found = ready[0]
    if isinstance(found, BaseException):
        raise found
    try:
        yield found
    finally:
        found.stop()
