"""A folder of a store as a store of its own.

A key that begins with ``../name/`` is read in the sibling folder ``name``, and cannot be written.
So a log can share the objects of another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

from tidelog.store.keys import check_key, may_begin_key
from tidelog.store.port import Entry, Object, Store

BESIDE: Final = "../"


class Within:
    """The objects of a store below ``folder``, with keys relative to it."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = check_key(folder)
        self._prefix = self._folder + "/"

    def sibling(self, name: str) -> Within:
        """Return a folder with the same parent."""
        above, slash, _ = self._folder.rpartition("/")
        return Within(self._store, f"{above}{slash}{check_key(name)}")

    def _readable(self, key: str) -> str:
        if not key.startswith(BESIDE):
            return self._prefix + check_key(key)
        name, _, rest = key.removeprefix(BESIDE).partition("/")
        return self.sibling(name)._prefix + check_key(rest)

    @property
    def url(self) -> str:
        return f"{self._store.url.rstrip('/')}/{self._prefix.rstrip('/')}"

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        return await self._store.get(self._readable(key), start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._store.refresh(self._readable(key), e_tag)

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
