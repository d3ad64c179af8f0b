"""The store port: objects by key, some of them created or replaced on condition.

Promise of every implementation: puts are atomic, reads see every put answered before them, and so
do listings. Keys are relative to the store's root, joined by ``/``, never empty.
Source: persist, "Blob"; wal3, "Interacting with Object Storage".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Object:
    """An object as it was read: its bytes (or the range asked for), and their version."""

    data: bytes
    e_tag: str
    modified_us: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a listing; the size is in bytes.

    ``target`` is set of a symbolic link, or what lies behind one: the key of what it leads to, or
    its path, where that has none in this listing.
    """

    key: str
    size_bytes: int
    e_tag: str
    modified_us: int
    target: str = ""


class Store(Protocol):
    """Objects by key. Errors are tidelog's; each says whether the change happened."""

    @property
    def url(self) -> str:
        """Where this is, as a person would write it, without secrets."""
        ...

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        """Read an object, or its bytes ``[start, limit)``; a range past the end is cut short.

        Raises:
            ObjectNotFound: there is none. LocationError: the store failed.
        """
        ...

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        """Read an object unless it is still the version ``e_tag``; None if it is.

        Raises:
            ObjectNotFound: there is none (any more). LocationError: the store failed.
        """
        ...

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Store an object and return its e_tag. One condition at the most.

        ObjectExists and ObjectChanged may be met by one's own write, sent again by a client library
        below: who puts on condition must look (see `tidelog.store.conditional`).

        Raises:
            ObjectExists: ``if_absent``, and there is one.
            ObjectChanged: ``if_match``, and the object is another, or none.
            LocationError: the store failed; ``outcome`` is NOT_APPLIED or UNKNOWN.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are missing are fine."""
        ...

    def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        """Yield what lies under a plain string prefix, in key order, after ``after``."""
        ...


def is_version(e_tag: str, other: str) -> bool:
    """Say whether two e_tags name one version of an object.

    Where a store numbers versions, the number stands before a ``|``; a listing may lack it.
    """
    (number, _, tag), (other_number, _, other_tag) = e_tag.rpartition("|"), other.rpartition("|")
    return tag == other_tag and (number == other_number or not (number and other_number))
