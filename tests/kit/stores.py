"""Wrapping stores: work before a request, deaths at each request, requests that outlive a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from tidelog.core.clock import Clock
from tidelog.errors import LocationError, TidelogError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object, Store
from tidelog.testing import RecordedStore
from tidelog.testing.faulty import Fault, FaultyStore, Request

T = TypeVar("T")


async def keys_in(store: Store, prefix: str = "") -> list[str]:
    """Return the keys with a prefix, in order."""
    return [entry.key async for entry in store.list(prefix)]


def copy_of(store: MemoryStore) -> MemoryStore:
    return MemoryStore(objects=dict(store.objects), puts_count=store.puts_count)


def dying(store: Store, last: int, *, happened: bool) -> FaultyStore:
    """Return a store whose client dies at request ``last``; with ``happened``, it takes effect."""

    def toss(request: Request) -> Fault:
        is_alive = request.index < last
        return Fault(happened=is_alive or (happened and request.index == last), told=is_alive)

    return FaultyStore(store, toss=toss)


async def deaths(
    start: MemoryStore,
    act: Callable[[Store], Awaitable[object]],
    *,
    happened: bool,
    reports: bool = False,
) -> AsyncIterator[MemoryStore]:
    """Yield a copy of ``start`` after a death at each request of ``act``; see `dying`.

    With ``reports``, some requests of ``act`` write a report, so their failure is no error.
    """
    counted = RecordedStore(copy_of(start))
    await act(counted)
    for number, record in enumerate(counted.records):
        store = copy_of(start)
        with suppress(LocationError) if reports else pytest.raises(LocationError):
            await act(dying(store, number, happened=happened))
        print(f"after a death at {record}")  # Pytest shows it if the test fails.
        yield store


class Once:
    """A hook of an `InterposedStore` that runs ``act`` at the first ``op`` of a key with ``part``.

    ``met`` is the key of that request, and empty before.
    """

    def __init__(self, op: str, part: str, act: Callable[[], Awaitable[object]]) -> None:
        self.op, self.part, self.act = op, part, act
        self.met = ""

    async def __call__(self, op: str, key: str) -> None:
        if op == self.op and self.part in key and not self.met:
            self.met = key
            await self.act()


class Hold:
    """A hook of an `InterposedStore` that holds each ``op`` of a key with ``part``.

    ``met`` is set when the first one arrives; ``go_on`` releases all. With ``is_open``, none waits
    until the test clears ``go_on``.
    """

    def __init__(self, op: str, part: str, *, is_open: bool = False) -> None:
        self.op, self.part = op, part
        self.met, self.go_on = asyncio.Event(), asyncio.Event()
        if is_open:
            self.go_on.set()

    async def __call__(self, op: str, key: str) -> None:
        if op == self.op and self.part in key:
            self.met.set()
            await self.go_on.wait()


class InterposedStore:
    """A wrapping store that awaits ``before(op, key)`` before each request; op is get, put, ...

    It awaits ``after(op, key)`` after each answer; an error of ``after`` replaces the answer.
    """

    def __init__(
        self,
        store: Store,
        *,
        before: Callable[[str, str], Awaitable[None]] | None = None,
        after: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._before = before or _nothing
        self._after = after or _nothing

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        await self._before("get", key)
        found = await self._store.get(key, start=start, limit=limit)
        await self._after("get", key)
        return found

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        await self._before("refresh", key)
        return await self._store.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        await self._before("put", key)
        e_tag = await self._store.put(key, data, if_absent=if_absent, if_match=if_match)
        await self._after("put", key)
        return e_tag

    async def delete(self, keys: Sequence[str]) -> None:
        await self._before("delete", keys[0] if keys else "")
        await self._store.delete(keys)

    def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        return self._store.list(prefix, after=after)


async def _nothing(_op: str, _key: str) -> None:
    return


class CrowdedStore:
    """A wrapping store that counts concurrent requests ``op`` below a prefix (get, refresh)."""

    def __init__(self, store: Store, *, clock: Clock, prefix: str, op: str = "get") -> None:
        self.most = 0
        self._op = op
        self._now = 0
        self._clock = clock
        self._prefix = prefix
        self.store = InterposedStore(store, before=self._wait)

    async def _wait(self, op: str, key: str) -> None:
        if op == self._op and key.startswith(self._prefix):
            self._now += 1
            self.most = max(self.most, self._now)
            await self._clock.sleep(1)  # Other tasks run here.
            self._now -= 1


class LingeringStore:
    """A wrapping store with delays; a request that was sent completes even if it is cancelled.

    Units: ``delays_us(op)`` returns the microseconds before the request arrives, and before its
    answer arrives; op is get, refresh, put or delete. Listings take no time.
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
        return await self._send("get", lambda: self._store.get(key, start=start, limit=limit))

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._send("refresh", lambda: self._store.refresh(key, e_tag))

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        return await self._send(
            "put", lambda: self._store.put(key, data, if_absent=if_absent, if_match=if_match)
        )

    async def delete(self, keys: Sequence[str]) -> None:
        await self._send("delete", lambda: self._store.delete(keys))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        async for entry in self._store.list(prefix, after=after):
            yield entry

    async def settled(self) -> None:
        """Wait until all sent requests have completed."""
        await asyncio.gather(*self._sent)

    async def _send(self, op: str, request: Callable[[], Awaitable[T]]) -> T:
        before_us, after_us = self._delays_us(op)

        async def arrive() -> T | TidelogError:
            await self._clock.sleep(before_us)
            try:
                return await request()
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
