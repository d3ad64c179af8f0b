"""Requests and threads that go on though who waits for them is cancelled, as real ones do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from sim.kernel.clock import SimClock
from tidelog.clock import Clock
from tidelog.errors import TidelogError
from tidelog.store.port import Entry, Object, Store

T = TypeVar("T")


class LateClock(SimClock):
    """A clock whose offloaded work takes time before and after, and is done in any case.

    Units: ``delay_us()`` gives microseconds.
    """

    def __init__(self, seed: int, *, delay_us: Callable[[], int]) -> None:
        super().__init__(seed)
        self._delay_us = delay_us
        self._threads: list[asyncio.Task[Any]] = []

    async def offload(self, work: Callable[[], T]) -> T:
        async def thread() -> T:
            await self.sleep(self._delay_us())
            done = work()
            await self.sleep(self._delay_us())
            return done

        task = asyncio.create_task(thread())
        self._threads.append(task)
        return await asyncio.shield(task)

    async def settled(self) -> None:
        """Wait until all threads are done."""
        await asyncio.gather(*self._threads)


class Lingering:
    """A store over a store that takes time before and after, and that nobody can call back.

    Units: ``delays_us(op)`` gives microseconds before the request arrives, and before its answer
    does; op is get, refresh, put or delete. Listings take no time.
    """

    def __init__(
        self, store: Store, *, clock: Clock, delays_us: Callable[[str], tuple[int, int]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._delays_us = delays_us
        self._sent: list[asyncio.Task[Any]] = []

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        return await self._send("get", self._store.get(key, start=start, limit=limit))

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._send("refresh", self._store.refresh(key, e_tag))

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        put = self._store.put(key, data, if_absent=if_absent, if_match=if_match)
        return await self._send("put", put)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._send("delete", self._store.delete(keys))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        async for entry in self._store.list(prefix, after=after):
            yield entry

    async def settled(self) -> None:
        """Wait until all that was sent has arrived."""
        await asyncio.gather(*self._sent)

    async def _send(self, op: str, request: Coroutine[Any, Any, T]) -> T:
        before_us, after_us = self._delays_us(op)

        async def arrive() -> T | TidelogError:
            await self._clock.sleep(before_us)
            try:
                return await request
            except TidelogError as error:
                return error
            finally:
                await self._clock.sleep(after_us)

        task = asyncio.create_task(arrive())
        self._sent.append(task)
        result = await asyncio.shield(task)
        if isinstance(result, TidelogError):
            raise result
        return result
