"""A folder of a store, as a store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from tidelog.store.keys import check_key, may_begin_key
from tidelog.store.port import Entry, Object, Store


class Within:
    """The objects of a store below ``folder``, by their keys from there."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._prefix = check_key(folder) + "/"

    @property
    def url(self) -> str:
        return f"{self._store.url.rstrip('/')}/{self._prefix.rstrip('/')}"

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        return await self._store.get(self._prefix + check_key(key), start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._store.refresh(self._prefix + check_key(key), e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        return await self._store.put(
            self._prefix + check_key(key), data, if_absent=if_absent, if_match=if_match
        )

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete([self._prefix + check_key(key) for key in keys])

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        if not may_begin_key(prefix):
            return
        start = None if after is None else self._prefix + after
        async for entry in self._store.list(self._prefix + prefix, after=start):
            yield replace(entry, key=entry.key.removeprefix(self._prefix))
