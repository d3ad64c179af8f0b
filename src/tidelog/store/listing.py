"""What a listing tells by its first line alone."""

from __future__ import annotations

from tidelog.store.port import Entry, Store


async def first_entry(store: Store, prefix: str, *, after: str | None = None) -> Entry | None:
    """Return the first object whose key begins with ``prefix``, after a key; None if none does.

    Raises:
        LocationError: the store failed.
    """
    return await anext(aiter(store.list(prefix, after=after)), None)
