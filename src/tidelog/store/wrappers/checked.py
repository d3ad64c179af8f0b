"""Verified reads of a store that may cache objects.

A copy on disk has a checksum of the bytes received. If they were damaged on arrival, the copy stays
damaged, and looks intact to the cache. Only the caller, who knows the expected contents, can detect
this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.errors import CorruptionError
from tidelog.store.port import Store
from tidelog.store.wrappers.cached import CachedStore

T = TypeVar("T")


async def read_checked(store: Store, key: str, check: Callable[[bytes], Awaitable[T]]) -> T:
    """Return the result of ``check`` on an object; read it again if a cached copy was damaged.

    Raises:
        ObjectNotFound: the object does not exist.
        LocationError: the store failed.
        CorruptionError: ``check`` refused the store's own bytes.
    """
    data = (await store.get(key)).data
    try:
        return await check(data)
    except CorruptionError:
        if not isinstance(store, CachedStore):
            raise
        await store.forget([key])
    # If it is wrong again, do not cache it: the next caller asks the store, which may be repaired
    # by then.
    again = (await store.get(key)).data
    try:
        return await check(again)
    except CorruptionError:
        await store.forget([key])
        raise
