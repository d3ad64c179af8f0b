"""Reading what a slot's object says of itself, without its records: a range at its end holds it."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.store.port import Store
from tidelog.wal.format.link import Link
from tidelog.wal.format.parquet_meta import footer_bytes
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.read.read_again import read_again

END_BYTES: Final = 16 * 1024  # Holds the link of nearly every slot's object.


async def read_link(store: Store, path: str, size_bytes: int = 0) -> tuple[Link, int]:
    """Read the link of an object that had ``size_bytes`` when it was listed; return its size, too.

    Without a size all of it is read. One request, and a second one where the link is longer than
    most. An object that has another size by now was collected, and put again by somebody who had
    slept: all of it is read.

    Raises:
        ObjectNotFound: it is gone. CorruptionError: it has no link, or a changed one.
    """
    return await read_again(partial(_read_once, store, path, size_bytes))


async def _read_once(store: Store, path: str, size_bytes: int) -> tuple[Link, int]:
    start = max(0, size_bytes - END_BYTES)
    end = (await store.get(path, start=start)).data
    if start + len(end) == size_bytes and footer_bytes(end) > len(end) and start:
        start = max(0, size_bytes - footer_bytes(end))
        end = (await store.get(path, start=start)).data
    if start and start + len(end) != size_bytes:
        start, end = 0, (await store.get(path)).data
    return decode_link(end, path=path), start + len(end)
