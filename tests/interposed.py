"""A store where something else happens just before a request, as it may in another process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tidelog.store.port import Entry, Object, Store


class Interposed:
    """A store over a store that awaits ``before(op, key)`` first; op is get, put or another.

    ``after(op, key)`` is awaited once the request was answered; what it raises is the answer.
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
