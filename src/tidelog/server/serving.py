"""Running an app on uvicorn: sockets, TLS, connection limits, and a shutdown without loss."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import uvicorn
from starlette.applications import Starlette

from tidelog.core.arguments import quoted
from tidelog.core.metrics import use_sink
from tidelog.errors import UsageError, require
from tidelog.server.accepting import Acceptor, bind
from tidelog.server.app import ServerState
from tidelog.server.guard import GuardedProtocol
from tidelog.server.limits import FILES_KEPT, HEAD_BYTES_MAX, ServerLimits

_logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 30
QUIET_SECONDS: Final = 0.2  # Idle connections stay this long: a request may be on its way.
TURN_US: Final = 50_000
IDLE_SECONDS: Final = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """A server's certificate and key; with ``client_ca``, clients need a certificate too."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """Check that the files can be used, before the server starts.

        Raises:
            UsageError: they cannot.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"the files for TLS cannot be used: {error.strerror or error}; pass a certificate "
                "chain and its private key, both in PEM",
                certificate=quoted(str(self.certificate)),
                key=quoted(str(self.key)),
            ) from error


class AppServer(uvicorn.Server):
    """Uvicorn's server, which informs the app as soon as a shutdown begins."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, started: Callable[[str, int], None]
    ) -> None:
        super().__init__(config)
        self._state, self._told = state, started
        self.was_interrupted = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Make signals end the server; uvicorn would raise them again and end the process."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _end(self, number: signal.Signals) -> None:
        is_interrupt = number == signal.SIGINT
        # A second Ctrl-C ends the server without waiting for requests in progress.
        self.force_exit = self.should_exit and is_interrupt
        self.should_exit = True
        self.was_interrupted = self.was_interrupted or is_interrupt

    async def startup(self, sockets: Any = None) -> None:
        """Open the sockets, and report the address.

        Raises:
            UsageError: the address is unknown or in use.
        """
        await self.lifespan.startup()
        require(not self.lifespan.should_exit, "the app did not start")
        config, state = self.config, self._state
        try:
            sockets = await bind(config.host, config.port)
        except UsageError:
            await self.lifespan.shutdown()
            raise

        def make(is_refused: bool, ended: Callable[[], None]) -> asyncio.Protocol:
            return GuardedProtocol(
                config,
                self.server_state,
                self.lifespan.state,
                state,
                is_refused=is_refused,
                ended=ended,
            )

        dropped = state.metrics.dropped.inc
        self.acceptor = Acceptor(make, state.limits, tls=config.ssl, dropped=dropped)
        self.acceptor.listen(sockets)
        self.started = True
        host, port = sockets[0].getsockname()[:2]
        self._told(host, port)

    async def shutdown(self, sockets: Any = None) -> None:
        """Shut down: answer requests in progress and waiting ones, and refuse new ones."""
        self._state.end()
        self.acceptor.close()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._drain()
        except TimeoutError:
            _logger.warning("%s requests are cut off", len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _drain(self) -> None:
        """Return once no connection is open and no request is in progress."""
        loop = asyncio.get_running_loop()
        over = loop.time() + QUIET_SECONDS
        while (self.acceptor.open_count or self.server_state.tasks) and not self.force_exit:
            for connection in list(self.server_state.connections):
                cast("GuardedProtocol", connection).end(is_over=loop.time() >= over)
            await self._state.clock.sleep(TURN_US)


def make_server(
    app: Starlette,
    state: ServerState,
    *,
    host: str,
    port: int,
    tls: ServerTls | None = None,
    started: Callable[[str, int], None] = lambda _host, _port: None,
) -> AppServer:
    """Create a server for an app; with port 0 it picks a free port and passes it to ``started``.

    Raises:
        UsageError: the TLS files cannot be used.
    """
    options: dict[str, Any] = {}
    if tls is not None:
        tls.check()
        options = {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
        if tls.client_ca is not None:
            options |= {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=GuardedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        **options,
    )
    return AppServer(config, state, started)


def raise_open_files(limits: ServerLimits) -> int:
    """Raise the process's limit of open files as far as the server needs; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections_max + FILES_KEPT
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # Some systems refuse even a soft limit below the hard one.
            return soft
        return most
    return soft


async def serve(server: AppServer, state: ServerState) -> None:
    """Serve until the process gets SIGTERM or SIGINT.

    Raises:
        UsageError: the address is unknown or in use.
    """
    with use_sink(state.metrics):
        await server.serve()
