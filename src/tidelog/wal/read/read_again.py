"""Reading again what seems damaged, before anybody is told: a body may be cut short on the way.

Not every store says so where that happens, and what is damaged as it lies is so each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from tidelog.errors import CorruptionError
from tidelog.store.port import Object, Store

T = TypeVar("T")

READS_MAX: Final = 3


async def read_again(read: Callable[[], Awaitable[T]]) -> T:
    """Return what a read gives that fetches and decodes; one that finds damage is done again.

    Raises:
        CorruptionError: each of them found some. Whatever else the read raises.
    """
    for _ in range(READS_MAX - 1):
        with suppress(CorruptionError):
            return await read()
    return await read()


async def read_decoded(store: Store, path: str, decode: Callable[[Object], T]) -> T:
    """Return what is made of an object that is read whole.

    Raises:
        CorruptionError: each of some readings is damaged. ObjectNotFound: it is not there.
        LocationError: the store failed.
    """

    async def once() -> T:
        return decode(await store.get(path))

    return await read_again(once)
