"""Repeated reads of objects that seem damaged: an answer may have been cut short.

Not every store reports a short answer. An object that is really damaged is so in each read.
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
    """Return the result of ``read``, which fetches and decodes; repeat it if it finds damage.

    Raises:
        CorruptionError: each read found damage.
        The other errors of ``read``.
    """
    for _ in range(READS_MAX - 1):
        with suppress(CorruptionError):
            return await read()
    return await read()


async def read_decoded(store: Store, path: str, decode: Callable[[Object], T]) -> T:
    """Return the decoded object at a path.

    Raises:
        CorruptionError: each of several reads found damage.
        ObjectNotFound: the object does not exist.
        LocationError: the store failed.
    """

    async def once() -> T:
        return decode(await store.get(path))

    return await read_again(once)
