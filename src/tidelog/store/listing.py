"""What a listing tells that is not read to its end: its first line, and folders by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tidelog.store.port import Entry, Store


@runtime_checkable
class ListsFolders(Protocol):
    """A store that can name its folders, whatever lies in them."""

    async def folders(self, prefix: str) -> Sequence[str] | None:
        """Return the names of the folders right below a prefix, also of empty ones.

        None if it cannot after all, since the store below it cannot.
        """
        ...


async def first_entry(store: Store, prefix: str, *, after: str | None = None) -> Entry | None:
    """Return the first object whose key begins with ``prefix``, after a key; None if none does.

    Raises:
        LocationError: the store failed.
    """
    return await anext(aiter(store.list(prefix, after=after)), None)


async def known_folders(store: Store, prefix: str) -> Sequence[str] | None:
    """Return the names of the folders right below a prefix; None of a store that cannot name them.

    Raises:
        LocationError: the store failed.
    """
    return await store.folders(prefix) if isinstance(store, ListsFolders) else None


async def folders_below(store: Store, prefix: str) -> Sequence[str]:
    """Return the names of the folders right below a prefix that ends in ``/``, in key order.

    A store that cannot name them is asked once for each, and so never lists what is in them: a
    folder may have thousands of objects.

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
        # "0" follows "/": past the whole folder, whatever lies in it.
        after = f"{prefix}{name}0" if slash else entry.key
    return names
