"""The routes that every server has: health, metrics and the description."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from tidelog.core.clock import Clock
from tidelog.errors import DeadlineExceeded, TidelogError
from tidelog.http.api.failures import NotReady, ShuttingDown
from tidelog.http.api.messages import HealthAnswer
from tidelog.server.exposition import ServerMetrics
from tidelog.server.limits import ServerLimits
from tidelog.server.request import Ask
from tidelog.server.routers import Endpoint, Plain, Router

READY_SECONDS: Final = 5
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class SystemState(Protocol):
    """The part of the server's state that these routes report."""

    limits: ServerLimits
    clock: Clock
    metrics: ServerMetrics
    is_ending: bool


class ReadyCheck:
    """The readiness check of all routers; it caches its result for a moment.

    Clients without a token may call it, and each check costs a request to the store.
    """

    def __init__(self, routers: Sequence[Router], served: SystemState) -> None:
        self._routers, self._served = routers, served
        self._lock = asyncio.Lock()
        self._known: tuple[int, TidelogError | None] | None = None

    async def __call__(self, ask: Ask) -> Struct:
        """Return an answer if all routers are ready.

        Raises:
            NotReady: a router is not ready.
            ShuttingDown: the server is ending.
        """
        if self._served.is_ending:
            raise ShuttingDown("the server is shutting down: try another one")
        async with self._lock:
            now_us = self._served.clock.monotonic_us()
            if self._known is None or now_us - self._known[0] > self._served.limits.ready_us:
                self._known = now_us, await self._readiness_error()
        if self._known[1] is not None:
            raise NotReady(f"the server is not ready: {self._known[1]}")
        return HealthAnswer()

    async def _readiness_error(self) -> TidelogError | None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                for router in self._routers:
                    await router.check_ready()
        except TidelogError as error:
            return error
        except TimeoutError:
            return DeadlineExceeded(f"the store did not answer within {READY_SECONDS} seconds")
        return None


def system_router(
    routers: Sequence[Router], served: SystemState, *, description: Callable[[], bytes]
) -> Router:
    """Return the router of these routes."""

    async def healthy(_: Ask) -> Struct:
        return HealthAnswer()

    async def metrics(_: Ask) -> Plain:
        return Plain(served.metrics.text(), _METRICS_TYPE)

    async def described(_: Ask) -> Plain:
        return Plain(description(), "application/json")

    return Router(
        name="system",
        endpoints=(
            Endpoint(
                path="/-/healthy",
                method="GET",
                name="healthy",
                summary="Check that the process answers.",
                handler=healthy,
                answer=HealthAnswer,
                is_public=True,
            ),
            Endpoint(
                path="/-/ready",
                method="GET",
                name="ready",
                summary="Check that the store answers.",
                handler=ReadyCheck(routers, served),
                answer=HealthAnswer,
                is_public=True,
            ),
            Endpoint(
                path="/metrics",
                method="GET",
                name="metrics",
                summary="Return metrics in the format of Prometheus.",
                handler=metrics,
                answer="text/plain",
            ),
            Endpoint(
                path="/openapi.json",
                method="GET",
                name="openapi",
                summary="Return this description.",
                handler=described,
                answer="application/json",
                is_public=True,
            ),
        ),
    )
