"""The store and clock of a process that pauses, loses answers, writes late and dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kit.clocks import OneThread
from tidelog.errors import LocationError, Outcome, TidelogError
from tidelog.store.port import Entry, Object, Store

HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Luck:
    """The probabilities that a put kills the process, a request fails, or one is slow."""

    death: float = 0.0
    failure: float = 0.0
    slowness: float = 0.02


LUCKS = (
    Luck(),
    Luck(death=0.03, failure=0.01),
    Luck(death=0.1, slowness=0.05),
    Luck(death=0.02, failure=0.1, slowness=0.1),
)


class SkewedClock(OneThread):
    """A clock that is wrong by up to an hour, and sometimes jumps in either direction."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice
        self._off_us = dice.choice([0, 0, -HOUR_US, HOUR_US, -5_000_000, 5_000_000])

    def now_us(self) -> int:
        if self._dice.random() < 0.05:
            self._off_us += self._dice.choice([-1, 1]) * self._dice.randrange(3 * HOUR_US)
        return super().now_us() + self._off_us


@dataclass(slots=True)
class ProcessStore:
    """The store of one process: after its death, no request returns.

    ``late`` are puts that land after their caller has stopped waiting.
    """

    inner: Store
    dice: random.Random
    luck: Luck
    is_dead: bool = False
    late: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.inner.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        await self._send()
        self._may_fail()
        return await self.inner.get(key, start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        await self._send()
        self._may_fail()
        return await self.inner.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        await self._send()

        async def land() -> str:
            return await self.inner.put(key, data, if_absent=if_absent, if_match=if_match)

        drawn = self.dice.random()
        if drawn < self.luck.death:
            self.is_dead = True
            await self._perhaps(land)
            await self._wait_for_ever()
        if drawn < self.luck.death + self.luck.failure:
            if self.dice.random() < 0.2:
                raise LocationError("refused", outcome=Outcome.NOT_APPLIED)
            await self._perhaps(land)
            raise LocationError("no answer", outcome=Outcome.UNKNOWN)
        found = await land()
        await self._pause()
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        await self._send()
        await self.inner.delete(keys)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        await self._send()
        async for entry in self.inner.list(prefix, after=after):
            yield entry

    async def _send(self) -> None:
        if self.is_dead:
            await self._wait_for_ever()
        await self._pause()

    async def _pause(self) -> None:
        slow = self.dice.random() < self.luck.slowness
        for _ in range(self.dice.randrange(400) if slow else self.dice.choice([0, 0, 1, 3])):
            await asyncio.sleep(0)

    def _may_fail(self) -> None:
        if self.dice.random() < self.luck.failure:
            raise LocationError("no answer", outcome=Outcome.NOT_APPLIED)

    async def _perhaps(self, land: Callable[[], Awaitable[str]]) -> None:
        """Let a put land now, later, or never."""
        when = self.dice.choice(["now", "later", "never"])
        if when == "now":
            with suppress(TidelogError):
                await land()
        elif when == "later":
            self.late.append(asyncio.ensure_future(self._land_late(land)))

    async def _land_late(self, land: Callable[[], Awaitable[str]]) -> None:
        for _ in range(self.dice.randrange(600)):
            await asyncio.sleep(0)
        with suppress(TidelogError):
            await land()

    async def _wait_for_ever(self) -> None:
        await asyncio.Event().wait()


class ProcessKilled(BaseException):
    """The end of a process at a request of its store."""


@dataclass(slots=True)
class WatchedStore:
    """A store that calls ``watch`` before and after each request."""

    inner: Store
    watch: Callable[[], None]

    @property
    def url(self) -> str:
        return self.inner.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        self.watch()
        found = await self.inner.get(key, start=start, limit=limit)
        self.watch()
        return found

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        self.watch()
        return await self.inner.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        self.watch()
        e_tag = await self.inner.put(key, data, if_absent=if_absent, if_match=if_match)
        self.watch()
        return e_tag

    async def delete(self, keys: Sequence[str]) -> None:
        self.watch()
        await self.inner.delete(keys)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        self.watch()
        async for entry in self.inner.list(prefix, after=after):
            yield entry
            self.watch()
