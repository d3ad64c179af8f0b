"""Listings in key order, also from stores with another order.

AWS, Google and R2 order keys as plain strings. Stores built on a file system (SeaweedFS, Azure with
a hierarchical namespace) order them part by part: ``a/b`` before ``a-b``, though ``-`` comes before
``/``. This module turns both into key order. Does no I/O itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidelog.store.keys import is_odd_key
from tidelog.store.port import Entry

_HIGHEST = "\U0010fffd"


def listing_start(prefix: str, after: str | None, *, strings: bool) -> str | None:
    """Return a string after which a store can start its listing without omitting a wanted key.

    ``strings``: the store is known to order its keys as plain strings.
    """
    start = _start(prefix, after, strings=strings)
    # obstore accepts only a path as offset; otherwise the listing starts at the beginning.
    return None if start is None or is_odd_key(start) else start


def _start(prefix: str, after: str | None, *, strings: bool) -> str | None:
    if after is None or after < prefix:
        # A listing of a directory starts there by itself.
        return None if prefix.endswith("/") else _just_before(prefix)
    if strings:
        return after.rstrip("/")
    # In part order "a/x" comes before "a-b", and in key order after it, so start before everything
    # that begins with "a". The prefix is the same for all wanted keys, so the cut is after it.
    # Start before "a", not at it: a listing after "a" in SeaweedFS omits the directory of that
    # name.
    cut = len(after)
    for position in range(len(prefix), len(after)):
        if after[position] < "/":
            cut = position
            break
    return _just_before(after[:cut].rstrip("/"))


def _just_before(beginning: str) -> str | None:
    """Return a string below, and close to, all strings that begin with ``beginning``."""
    if not beginning:
        return None
    last = beginning[-1]
    if last <= "0" or "\ud800" <= last <= "\ue000":  # A name cannot have the character before it.
        return beginning[:-1] or None
    return beginning[:-1] + chr(ord(last) - 1) + _HIGHEST


def is_past(prefix: str, key: str) -> bool:
    """Return True if, in either order, no key from ``key`` on begins with ``prefix``."""
    directory, _, name = prefix.rpartition("/")
    part = key[len(directory) + 1 if directory else 0 :].partition("/")[0]
    return part > name and not part.startswith(name)


async def in_key_order(entries: AsyncIterator[Entry], prefix: str) -> AsyncIterator[Entry]:
    """Yield entries in key order, given in key order or part by part.

    One directory below the prefix at a time is held back and sorted: ``a/...`` is held until no
    further key can begin with ``a`` followed by a character below ``/``.
    """
    held: list[tuple[str, list[Entry]]] = []
    async for entry in entries:
        while held and not _may_precede(entry.key, held[-1][0]):
            for earlier in _sorted(held.pop()[1]):
                yield earlier
        slash = entry.key.find("/", len(prefix))
        if slash < 0:
            yield entry
        elif held and held[-1][0] == entry.key[:slash]:
            held[-1][1].append(entry)
        else:
            held.append((entry.key[:slash], [entry]))
    while held:
        for earlier in _sorted(held.pop()[1]):
            yield earlier


def _may_precede(key: str, directory: str) -> bool:
    """Return True if ``key``, or a later one, may have to precede the objects of ``directory``."""
    return key.startswith(directory) and key[len(directory) : len(directory) + 1] <= "/"


def _sorted(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.key)
