"""Short listings: the first object under a prefix, and the names of folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tidelog.store.port import Entry, Store


@runtime_checkable
class ListsFolders(Protocol):
    """A store that can name its folders without listing their contents."""

    async def folders(self, prefix: str) -> Sequence[str] | None:
        """Return the names of the folders directly below a prefix, including empty ones.

        Return None if the wrapped store cannot name them.
        """
        ...


async def first_entry(store: Store, prefix: str, *, after: str | None = None) -> Entry | None:
    """Return the first object whose key begins with ``prefix`` and follows ``after``, if any.

    Raises:
        LocationError: the store failed.
    """
    return await anext(aiter(store.list(prefix, after=after)), None)


async def known_folders(store: Store, prefix: str) -> Sequence[str] | None:
    """Return the names of the folders directly below a prefix; None if the store cannot name them.

    Raises:
        LocationError: the store failed.
    """
    return await store.folders(prefix) if isinstance(store, ListsFolders) else None


async def folders_below(store: Store, prefix: str) -> Sequence[str]:
    """Return the names of the folders directly below a prefix that ends in ``/``, in key order.

    If the store cannot name them, this sends one request per folder instead of listing the
    contents, which may be thousands of objects.

    Raises:
        LocationError: the store failed.
    """
    if (known := await known_folders(store, prefix)) is not None:
        return known
    names: list[str] = []
    after: str | None = None
    while (entry := await first_entry(store, prefix, after=after)) is not None:
        name, slash, _ = entry.key.removeprefix(prefix).partition("/")
        names += [name] if slash else []
        # "0" is the character after "/", so this key follows the whole folder.
        after = f"{prefix}{name}0" if slash else entry.key
    return names
