"""A store with slow requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from tidelog.core.clock import Clock
from tidelog.store.port import Entry, Object, Store


class Delayed:
    """A store around another one, which waits before each request.

    Units: ``delay_us(op, key)`` returns microseconds. ``op`` is get, refresh, put, delete or list.
    ``key`` is the first of several keys, or the prefix of a listing.
    """

    def __init__(self, store: Store, *, clock: Clock, delay_us: Callable[[str, str], int]) -> None:
        self._store = store
        self._clock = clock
        self._delay_us = delay_us

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        await self._wait("get", key)
        return await self._store.get(key, start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        await self._wait("refresh", key)
        return await self._store.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        await self._wait("put", key)
        return await self._store.put(key, data, if_absent=if_absent, if_match=if_match)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._wait("delete", keys[0] if keys else "")
        await self._store.delete(keys)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        await self._wait("list", prefix)
        async for entry in self._store.list(prefix, after=after):
            yield entry

    async def _wait(self, op: str, key: str) -> None:
        await self._clock.sleep(self._delay_us(op, key))
