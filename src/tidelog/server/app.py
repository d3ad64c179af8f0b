"""The app: the routes of all routers, and the steps that every request shares.

The app checks a request's token before it reads the body, and the limits before it calls a handler.
Only this module turns errors of handlers into answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.applications import Starlette
from starlette.routing import Route, compile_path

from tidelog.core.clock import Clock, SystemClock
from tidelog.errors import Outcome, OutcomeUnknown, TidelogError, unforeseen
from tidelog.http.api.failures import (
    RETRIED,
    Forbidden,
    MethodNotAllowed,
    NoSuchRoute,
    ShuttingDown,
    TooMany,
    Unauthorized,
    answer_of,
    status_of,
)
from tidelog.server.exposition import ServerMetrics
from tidelog.server.limits import LINGER_SECONDS, Allowance, ServerLimits
from tidelog.server.openapi import describe_routes
from tidelog.server.request import Ask, ClientGone, Query
from tidelog.server.response import Headers, encoded, media_type_of, send_answer
from tidelog.server.routers import Endpoint, Plain, Router
from tidelog.server.system_router import system_router
from tidelog.server.tokens import Tokens

_logger = logging.getLogger(__name__)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_RETRY_SECONDS: Final = b"1"
CLOSE: Final = (b"connection", b"close")


@dataclass(kw_only=True)
class ServerState:
    """The state that all requests share; ``is_ending`` is True once the server refuses requests."""

    limits: ServerLimits = field(default_factory=ServerLimits)
    tokens: Tokens = field(default_factory=Tokens)
    clock: Clock = field(default_factory=SystemClock)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    is_ending: bool = False
    routers: list[Router] = field(default_factory=list)

    def __post_init__(self) -> None:
        most = self.limits.held_bytes_max
        self.incoming = Allowance(most, "the limit of request bytes in memory is reached")
        self.outgoing = Allowance(most, "the limit of answer bytes in memory is reached")

    def end(self) -> None:
        """Refuse new requests; answer requests that wait for records, with none."""
        self.is_ending = True
        for router in self.routers:
            router.stop_waiting()


def make_app(routers: Sequence[Router], *, version: str, state: ServerState) -> Starlette:
    """Create an app of routers and its own routes: health, metrics, description."""
    state.routers.extend(routers)
    described: list[bytes] = []
    every = (*routers, system_router(routers, state, description=lambda: described[0]))
    description = describe_routes(every, version=version, has_tokens=bool(state.tokens.known))
    described.append(json.dumps(description).encode())

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            state.end()
            for router in routers:
                await router.close()

    routes = [
        Route(path, RouteHandler(path, endpoints, state))
        for path, endpoints in _by_path(
            endpoint for router in every for endpoint in router.endpoints
        )
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    # A request that matches no route, or has no path at all, also gets an answer of the API.
    app.router.default = RouteHandler("other", (), state)
    return app


def _by_path(endpoints: Iterable[Endpoint]) -> list[tuple[str, tuple[Endpoint, ...]]]:
    groups: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        groups.setdefault(endpoint.path, []).append(endpoint)
    # A path with placeholders must come after the literal paths, which it would match too.
    ordered = sorted(groups.items(), key=lambda item: len(compile_path(item[0])[2]))
    return [(path, tuple(ones)) for path, ones in ordered]


class RequestBody:
    """The body of a request, as events; ``is_read`` is True after its end."""

    def __init__(self, receive: Any, *, is_read: bool) -> None:
        self._receive = receive
        self.is_read = is_read

    async def __call__(self) -> Any:
        """Return the next event."""
        event = await self._receive()
        self.is_read = self.is_read or not event.get("more_body", False)
        return event


class ResponseSender:
    """The answer to a client; ``is_begun`` is True once a part was sent.

    With ``is_held``, the server's end of the answer waits until `end`.
    """

    def __init__(self, send: Any) -> None:
        self._send = send
        self.is_begun = self.is_held = False

    async def __call__(self, event: Any) -> None:
        """Send a part of the answer."""
        self.is_begun = True
        is_body = event["type"] == "http.response.body"
        await self._send({**event, "more_body": True} if is_body and self.is_held else event)

    async def end(self, incoming: RequestBody) -> None:
        """End a held answer, after the client has read it and has closed, or after a time limit.

        A system that closes a connection with unread bytes resets it, and the client may lose the
        answer. So this drops the rest of the request first.
        """
        if not self.is_held:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not incoming.is_read:
                    await incoming()
        await self._send({"type": "http.response.body", "body": b""})


class RouteHandler:
    """The handler of all requests for one path."""

    def __init__(self, path: str, endpoints: Sequence[Endpoint], state: ServerState) -> None:
        self._path, self._state = path, state
        self._endpoints = {endpoint.method: endpoint for endpoint in endpoints}
        if "GET" in self._endpoints:
            self._endpoints["HEAD"] = self._endpoints["GET"]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        state = self._state
        started = state.clock.monotonic_us()
        state.metrics.in_flight.inc()
        status = 499  # The client left before its answer.
        incoming = RequestBody(receive, is_read=scope["method"] in ("GET", "HEAD"))
        sending = ResponseSender(send)
        try:
            status = await self._respond(scope, incoming, sending)
        except ClientGone:
            state.metrics.left.inc()
        finally:
            state.metrics.in_flight.dec()
            seconds = (state.clock.monotonic_us() - started) / 1e6
            method = scope["method"] if scope["method"] in _METHODS else "other"
            state.metrics.requests.labels(method, self._path, status).inc()
            state.metrics.seconds.labels(self._path).observe(seconds)
        await sending.end(incoming)

    async def _respond(self, scope: Any, incoming: RequestBody, sending: ResponseSender) -> int:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        media_type = media_type_of(headers.get("accept", ""), kind)
        try:
            answer = encoded(await self._handle_request(scope, incoming, headers), media_type)
            return await self._send(scope, sending, answer, 200, self._closing())
        except ClientGone:
            raise
        except (Exception, asyncio.CancelledError) as fault:
            if sending.is_begun:
                raise
            error = self._error_of(fault, scope["method"])
        known = self._headers_of(error)
        # The server would read the rest of an unread body as the next request.
        sending.is_held = not incoming.is_read
        known += self._closing() or ([CLOSE] if sending.is_held else [])
        answer = encoded(answer_of(error), media_type)
        return await self._send(scope, sending, answer, status_of(error), known)

    def _error_of(self, fault: BaseException, method: str) -> TidelogError:
        """Return the error to answer with for a fault of any kind."""
        if isinstance(fault, TidelogError):
            return fault
        endpoint = self._endpoints.get(method)
        is_write = endpoint is not None and endpoint.is_write
        if not isinstance(fault, Exception):  # Cancelled: the drain of a shutdown timed out.
            return (
                OutcomeUnknown("the server shut down: the records may be in the log; read it back")
                if is_write
                else ShuttingDown(
                    "the server shut down: send the request to another one, or try again later"
                )
            )
        _logger.error("a request failed, route=%s", self._path, exc_info=fault)
        error = unforeseen(fault, f"answering {self._path}")
        if is_write:
            error.outcome = Outcome.UNKNOWN
        return error

    def _closing(self) -> Headers:
        """Return the header that closes the connection if the server is ending."""
        return [CLOSE] if self._state.is_ending else []

    async def _handle_request(self, scope: Any, receive: Any, headers: dict[str, str]) -> Any:
        state = self._state
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            raise self._refused(scope["method"])
        if not endpoint.is_public:
            if state.is_ending:
                raise ShuttingDown(
                    "the server is shutting down: try another one, or try again later"
                )
            state.tokens.check(headers.get("authorization"), is_write=endpoint.is_write)
            if endpoint.is_write and "origin" in headers and not state.tokens.known:
                # Otherwise any web page could append to a server on the machine of its reader.
                raise Forbidden(
                    "web pages may append only with a token: send one that this server's token "
                    "file (--token-file) has"
                )
        ask = Ask(
            scope=scope,
            receive=receive,
            names=scope.get("path_params", {}),
            headers=headers,
            query=Query(
                scope["query_string"], (parameter.name for parameter in endpoint.parameters)
            ),
            limits=state.limits,
            clock=state.clock,
            incoming=state.incoming,
        )
        try:
            return await endpoint.handler(ask)
        finally:
            ask.release()

    def _refused(self, method: str) -> TidelogError:
        if not self._endpoints:
            return NoSuchRoute("no route has this path: /openapi.json lists the routes")
        known = ", ".join(self._endpoints)
        return MethodNotAllowed(f"{method[:20]} is not allowed at this path, which allows: {known}")

    def _headers_of(self, error: TidelogError) -> Headers:
        self._state.metrics.count_error(error)
        headers: Headers = []
        if status_of(error) in RETRIED:
            headers.append((b"retry-after", _RETRY_SECONDS))
        if isinstance(error, Unauthorized):
            headers.append((b"www-authenticate", b'Bearer realm="tidelog"'))
        if isinstance(error, MethodNotAllowed):
            headers.append((b"allow", ", ".join(self._endpoints).encode()))
        return headers

    async def _send(
        self, scope: Any, send: Any, answer: Plain, status: int, headers: Headers
    ) -> int:
        endpoint = self._endpoints.get(scope["method"])
        is_write = endpoint is not None and endpoint.is_write
        await send_answer(
            scope,
            send,
            answer,
            status=status,
            headers=headers,
            timeout_us=self._state.limits.answer_timeout_us,
            # The result of a write, or a refusal, is small and must reach the client.
            outgoing=self._state.outgoing if status == 200 and not is_write else None,
        )
        return status


class Refusal(RouteHandler):
    """The handler of a connection above the limit."""

    def __init__(self, state: ServerState) -> None:
        super().__init__("other", (), state)

    async def _handle_request(self, scope: Any, receive: Any, headers: dict[str, str]) -> Any:
        most = self._state.limits.connections_max
        raise TooMany("the server has reached its limit of connections: try again later", most=most)

    def _closing(self) -> Headers:
        return [CLOSE]
