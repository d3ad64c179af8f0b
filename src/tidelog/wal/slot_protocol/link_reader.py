"""Reading the link of a slot's object without its records: the link is at the end of the file."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.store.port import Store
from tidelog.wal.format.link import Link
from tidelog.wal.format.parquet_meta import footer_bytes
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.read.head import read_again

END_BYTES: Final = 16 * 1024  # Enough for the link of nearly every slot's object.


async def read_link(store: Store, path: str, size_bytes: int = 0) -> tuple[Link, int]:
    """Read the link of an object of ``size_bytes`` bytes, as listed; return the link and the size.

    This takes one request, and a second one if the link is long. Without a size, all of the object
    is read. If the object has another size now, it was collected and a late writer put it again:
    then all of it is read too.

    Raises:
        ObjectNotFound: the object does not exist.
        CorruptionError: the object has no link, or a changed one.
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
