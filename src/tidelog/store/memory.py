"""A store in memory, for tests, the simulator, and ``memory://``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from tidelog.errors import ObjectChanged, ObjectExists, ObjectNotFound
from tidelog.store.keys import check_key
from tidelog.store.port import Entry, Object


@dataclass(slots=True)
class MemoryStore:
    """A store in a dict. Every put makes a new e_tag."""

    name: str = "memory://"
    objects: dict[str, Object] = field(default_factory=dict)
    puts_count: int = 0

    @property
    def url(self) -> str:
        return self.name

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        stored = self._find(key)
        if start == 0 and limit is None:
            return stored
        return Object(stored.data[start:limit], stored.e_tag, stored.modified_us)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        stored = self._find(key)
        return None if stored.e_tag == e_tag else stored

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        check_key(key)
        present = self.objects.get(key)
        if if_absent and present is not None:
            raise ObjectExists("the object already exists", key=key)
        if if_match is not None and (present is None or present.e_tag != if_match):
            raise ObjectChanged("another process replaced or deleted the object", key=key)
        self.puts_count += 1
        e_tag = f"m{self.puts_count}"
        self.objects[key] = Object(bytes(data), e_tag, self.puts_count)
        return e_tag

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and (after is None or key > after) and key in self.objects:
                stored = self.objects[key]
                yield Entry(key, len(stored.data), stored.e_tag, stored.modified_us)

    def _find(self, key: str) -> Object:
        stored = self.objects.get(key)
        if stored is None:
            raise ObjectNotFound("no object has that key", key=key)
        return stored
