"""A check before each binding: its objects must still exist in the versions that were listed.

An object may be bound without a read. If it was deleted or replaced since the listing, the binding
could never be read. A listing of 100,000 objects takes seconds, and a run may use one for hours. So
the objects of each binding are listed again, unless the listing is new.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Final

from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.files_head import FilesHead
from tidelog.core.clock import run_all
from tidelog.errors import ObjectNotFound
from tidelog.store.keys import is_version
from tidelog.store.port import Store

NEW_US: Final = 2_000_000
_PAGE: Final = 1_000  # About how many objects a store lists in one answer.
_AT_ONCE: Final = 16


async def find_lost(
    ranges: Sequence[FileRange], head: FilesHead, store: Store, prefixes: Sequence[str]
) -> list[FileRange]:
    """Return the ranges whose objects are deleted or replaced since they were listed.

    ``prefixes`` are those of the listing.

    Raises:
        LocationError: the store failed.
    """
    first, last = min(r.path for r in ranges), max(r.path for r in ranges)
    low = bisect_left(head.entries, first, key=lambda entry: entry.key)
    high = bisect_right(head.entries, last, key=lambda entry: entry.key)
    # A request per object costs less if a listing of the span needs more requests than that.
    if high - low > _PAGE * len(ranges):
        work = [partial(_tag_of, store, found.path) for found in ranges]
        tags = dict(
            zip((r.path for r in ranges), await run_all(work, at_once=_AT_ONCE), strict=True)
        )
    else:
        tags = await _tags_between(store, prefixes, first, last)
    return [r for r in ranges if not is_version(tags.get(r.path) or "", r.e_tag)]


async def _tag_of(store: Store, path: str) -> str:
    try:
        return (await store.get(path, limit=1)).e_tag
    except ObjectNotFound:
        return ""


async def _tags_between(
    store: Store, prefixes: Sequence[str], first: str, last: str
) -> dict[str, str]:
    tags: dict[str, str] = {}
    for prefix in prefixes:
        # `after` is exclusive, so start from the path without its last character. Few other keys
        # are between the two.
        async for entry in store.list(prefix, after=first[:-1] or None):
            if entry.key > last:
                break
            tags[entry.key] = entry.e_tag
    return tags
