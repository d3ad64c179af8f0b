"""A store whose e-tags are hashes of the bytes, as S3's are: equal bodies share one.

A body equal to an older version passes a conditional put that names the older e-tag. A writer that
replaces conditionally must therefore write bytes that no writer has written before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object


@dataclass(slots=True)
class HashedStore(MemoryStore):
    """A memory store with hashed e-tags; see the module."""

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)
        e_tag = hashlib.blake2b(data, digest_size=16).hexdigest()
        self.objects[key] = Object(bytes(data), e_tag, self.puts_count)
        return e_tag
