"""The store port: objects by key, with conditional creation and replacement.

Every implementation guarantees that puts are atomic, and that reads and listings see every put that
was answered before them. Keys are relative to the store's root, with parts separated by ``/``, and
never empty.
Source: persist, "Blob"; wal3, "Interacting with Object Storage".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Object:
    """An object as it was read: its bytes or a range of them, and its version."""

    data: bytes
    e_tag: str
    modified_us: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One object in a listing; the size is in bytes.

    ``target`` is set for a symbolic link, or for a file behind one. It is the key of the link's
    target, or its path if it has no key in this listing.
    """

    key: str
    size_bytes: int
    e_tag: str
    modified_us: int
    target: str = ""


class Store(Protocol):
    """Objects by key. Errors are tidelog's; each states whether the change happened."""

    @property
    def url(self) -> str:
        """The location as a person would write it, without secrets."""
        ...

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        """Read an object, or its bytes ``[start, limit)``; a range past the end is cut short.

        Raises:
            ObjectNotFound: the object does not exist.
            LocationError: the store failed.
        """
        ...

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        """Read an object unless it still has the version ``e_tag``; then return None.

        Raises:
            ObjectNotFound: the object does not exist.
            LocationError: the store failed.
        """
        ...

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Store an object, with at most one condition, and return its e_tag.

        A client library may send a put again, so that a put meets its own result as ObjectExists or
        ObjectChanged. A caller with a condition must read back (see `tidelog.store.conditional`).

        Raises:
            ObjectExists: the object exists, and ``if_absent`` is set.
            ObjectChanged: the object does not have the version ``if_match``, or does not exist.
            LocationError: the store failed; ``outcome`` is NOT_APPLIED or UNKNOWN.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""
        ...

    def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        """Yield the objects whose keys begin with ``prefix`` and follow ``after``, in key order."""
        ...
