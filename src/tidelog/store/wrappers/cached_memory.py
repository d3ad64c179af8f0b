"""Whole objects in memory, up to a limit in bytes. Does no I/O.

Invariants: the sum of the costs is at most the limit; the least recently used objects are removed.
"""

from __future__ import annotations

from collections import OrderedDict

from tidelog.store.port import Object

ENTRY_BYTES = 256  # The approximate overhead of an entry, so that empty objects are limited too.


def cost_bytes(found: Object) -> int:
    """Return the cost of keeping an object."""
    return len(found.data) + ENTRY_BYTES


class MemoryShelf:
    """Objects by key; an object larger than the limit is not kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._objects: OrderedDict[str, Object] = OrderedDict()
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def find(self, key: str) -> Object | None:
        """Return an object, and mark it as the most recently used."""
        found = self._objects.get(key)
        if found is not None:
            self._objects.move_to_end(key)
        return found

    def keep(self, key: str, found: Object) -> None:
        """Keep an object in place of an earlier one with its key."""
        self.drop(key)
        if cost_bytes(found) > self._bytes_max:
            return
        self._objects[key] = found
        self._used_bytes += cost_bytes(found)
        while self._used_bytes > self._bytes_max:
            _, oldest = self._objects.popitem(last=False)
            self._used_bytes -= cost_bytes(oldest)

    def drop(self, key: str) -> None:
        dropped = self._objects.pop(key, None)
        if dropped is not None:
            self._used_bytes -= cost_bytes(dropped)
