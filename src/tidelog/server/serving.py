"""Serving an app by uvicorn: sockets, TLS, limits of connections, and an end without loss."""

from __future__ import annotations

import asyncio
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette

from tidelog.arguments import quoted
from tidelog.errors import UsageError
from tidelog.metrics import use_sink
from tidelog.server.app import ServerState
from tidelog.server.guard import guarded
from tidelog.server.limits import HEAD_BYTES_MAX

DRAIN_SECONDS: Final = 30
IDLE_SECONDS: Final = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The certificate of a server and its key; with ``client_ca``, who asks must have one, too."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """Refuse files that are no such thing, before anything is served.

        Raises:
            UsageError: so it is.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"the files for TLS cannot be used: {error.strerror or error}",
                certificate=quoted(str(self.certificate)),
                key=quoted(str(self.key)),
            ) from error


class AppServer(uvicorn.Server):
    """Uvicorn's server, which tells the app at once that it is to end."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, started: Callable[[str, int], None]
    ) -> None:
        super().__init__(config)
        self._state, self._told = state, started
        self.was_interrupted = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Have signals end the server, and not, as uvicorn's own way is, the process after it."""
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
        # Who presses Ctrl-C twice does not want to wait for those who are still answered.
        self.force_exit = self.should_exit and is_interrupt
        self.should_exit = True
        self.was_interrupted = self.was_interrupted or is_interrupt

    async def startup(self, sockets: Any = None) -> None:
        """Open the sockets, and tell where.

        Raises:
            UsageError: the address cannot be had.
        """
        try:
            await super().startup(sockets)
        except SystemExit as error:  # As uvicorn tells it, who is a command of its own.
            raise UsageError(
                f"nothing can be served at {self.config.host}:{self.config.port}: is the port "
                "taken, or the address another's? choose with --host and --port"
            ) from error
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._told(host, port)

    async def shutdown(self, sockets: Any = None) -> None:
        """End: those that wait are answered, and new requests refused."""
        self._state.end()
        await super().shutdown(sockets)


def make_server(
    app: Starlette,
    state: ServerState,
    *,
    host: str,
    port: int,
    tls: ServerTls | None = None,
    started: Callable[[str, int], None] = lambda _host, _port: None,
) -> AppServer:
    """Make a server of an app; port 0 is any that is free, which ``started`` is told.

    Raises:
        UsageError: the files for TLS are none.
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
        http=guarded(state.limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=state.limits.connections_max,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        **options,
    )
    return AppServer(config, state, started)


async def serve(server: AppServer, state: ServerState) -> None:
    """Serve until the process is told to end (SIGTERM, SIGINT).

    Raises:
        UsageError: the address cannot be had.
    """
    with use_sink(state.metrics):
        await server.serve()
