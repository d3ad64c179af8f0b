"""Reads that are checked, of a store that may keep copies.

A copy on disk carries a checksum of what was received; had that come damaged, the copy would be
damaged for ever after, and whole to the cache. Only who knows what was written can tell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.errors import CorruptionError
from tidelog.store.port import Store
from tidelog.store.wrappers.cached import Cached

T = TypeVar("T")


async def read_checked(store: Store, key: str, check: Callable[[bytes], Awaitable[T]]) -> T:
    """Return what ``check`` makes of an object, which was read again if a copy was damaged.

    Raises:
        ObjectNotFound: there is none. LocationError: the store failed. CorruptionError: by
            ``check``, of what the store itself gave.
    """
    data = (await store.get(key)).data
    try:
        return await check(data)
    except CorruptionError:
        if not isinstance(store, Cached):
            raise
        await store.forget([key])
    # Not kept, if it is wrong again: the next one asks the store, which may be mended by then.
    again = (await store.get(key)).data
    try:
        return await check(again)
    except CorruptionError:
        await store.forget([key])
        raise
