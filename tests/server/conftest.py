"""The app without a socket, over one keyed log of the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from kit.keyed_model import MemoryKeyed, MemoryLake
from kit.served import NAME, RememberingLogs, keyed_app
from tidelog.server.app import ServerState


@dataclass
class AppUnderTest:
    """An app under test, and the requests to it."""

    web: httpx.AsyncClient
    lake: RememberingLogs
    state: ServerState

    @property
    def log(self) -> MemoryKeyed:
        """Return the handle by which the app writes."""
        found = self.lake.handles[NAME]
        assert isinstance(found, MemoryKeyed)
        return found

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.web.get(f"/api/v1/log/{path}", **options)

    async def post(self, path: str, message: Any, **options: Any) -> httpx.Response:
        return await self.web.post(f"/api/v1/log/{path}", json=message, **options)

    @property
    def followers(self) -> float | None:
        """Return the number of requests that wait for records."""
        return self.state.metrics.registry.get_sample_value("log_followers")

    async def append(self, *pairs: tuple[str, str]) -> int:
        """Append texts; the append must succeed."""
        records = [{"key": key, "value": value} for key, value in pairs]
        answer = await self.post("append", {"records": records})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["startSequence"])


async def until(told: Callable[[], bool]) -> None:
    """Wait until a condition holds, since a shared machine may be busy."""
    async with asyncio.timeout(30):
        while not told():  # noqa: ASYNC110  The condition sends no event.
            await asyncio.sleep(0.001)


async def others_run() -> None:
    """Let the tasks that are ready run."""
    for _ in range(100):
        await asyncio.sleep(0)


Asking = Callable[..., AbstractAsyncContextManager[AppUnderTest]]


@pytest.fixture
def asking() -> Asking:
    """Return a function that opens an app with the test's own limits or tokens."""

    @asynccontextmanager
    async def opened(
        state: ServerState | None = None, *, is_read_only: bool = False, log: str | None = NAME
    ) -> AsyncIterator[AppUnderTest]:
        place = RememberingLogs(MemoryLake())
        await place.keyed.create(NAME)
        state = state or ServerState()
        app = keyed_app(place, state, log=log, is_read_only=is_read_only)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as web:
            yield AppUnderTest(web, place, state)

    return opened


@pytest.fixture
async def asked(asking: Asking) -> AsyncIterator[AppUnderTest]:
    async with asking() as found:
        yield found
