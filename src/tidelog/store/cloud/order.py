"""Listings in key order, also from stores that order their keys another way.

AWS, Google and R2 order keys as plain strings. Stores built on a file system (SeaweedFS, Azure
with a hierarchical namespace) order them part by part, as a file system does: ``a/b`` before
``a-b``, though ``-`` comes before ``/``. Here is what makes one out of both. Does no I/O itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidelog.store.keys import is_odd_key
from tidelog.store.port import Entry

_HIGHEST = "\U0010fffd"


def listing_start(prefix: str, after: str | None, *, strings: bool) -> str | None:
    """Return a string after which a store may begin to list: it leaves out none that is wanted.

    ``strings``: the store is known to order its keys as plain strings.
    """
    start = _start(prefix, after, strings=strings)
    # obstore takes no offset that is no path; then the listing begins at the beginning.
    return None if start is None or is_odd_key(start) else start


def _start(prefix: str, after: str | None, *, strings: bool) -> str | None:
    if after is None or after < prefix:
        # Asked for a directory, a store begins there by itself.
        return None if prefix.endswith("/") else _just_before(prefix)
    if strings:
        return after.rstrip("/")
    # Part by part, "a/x" comes before "a-b", and in key order after it: begin before all that
    # begins with "a". What the prefix fixes is the same for all keys wanted, and cannot mislead.
    # Before, and not at: asked to begin after "a", SeaweedFS leaves out the directory of that name.
    cut = len(after)
    for position in range(len(prefix), len(after)):
        if after[position] < "/":
            cut = position
            break
    return _just_before(after[:cut].rstrip("/"))


def _just_before(beginning: str) -> str | None:
    """Return a string below all that begin with ``beginning``, and close to them."""
    if not beginning:
        return None
    last = beginning[-1]
    if last <= "0" or "\ud800" <= last <= "\ue000":  # No such character before it in a name.
        return beginning[:-1] or None
    return beginning[:-1] + chr(ord(last) - 1) + _HIGHEST


def is_past(prefix: str, key: str) -> bool:
    """Say whether, in either order, no key from ``key`` on begins with ``prefix``."""
    directory, _, name = prefix.rpartition("/")
    part = key[len(directory) + 1 if directory else 0 :].partition("/")[0]
    return part > name and not part.startswith(name)


async def in_key_order(entries: AsyncIterator[Entry], prefix: str) -> AsyncIterator[Entry]:
    """Bring entries into key order that come in that order, or part by part.

    Held back, and sorted, is one directory below the prefix at a time: ``a/...`` until nothing can
    come any more that begins with ``a`` and goes on with a character below ``/``.
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
    """Say whether ``key``, or one after it, may have to come before what is in ``directory``."""
    return key.startswith(directory) and key[len(directory) : len(directory) + 1] <= "/"


def _sorted(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.key)
