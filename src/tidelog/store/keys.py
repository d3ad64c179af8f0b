"""Keys: the strings that may name an object on every store; patterns, versions and folders of them.

A key that a store would fold into another one (``a//b``, ``./a``), or that would leave the root
(``../a``), is refused before any I/O. So a location can move from one store to another.

In a pattern, ``*``, ``?`` and ``[...]`` do not match ``/``; ``**`` does. ``name/**`` matches
``name`` and everything below it.

`Within` is a folder of a store as a store of its own. There a key that begins with ``../name/`` is
read in the sibling folder ``name``, and cannot be written. So a log can share the objects of
another one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from tidelog.errors import UsageError
from tidelog.store.port import Entry, Object, Store

_ODD = re.compile(r"[\x00-\x1f\x7f]|(^|/)\.{0,2}(/|$)")
# A part that is empty, ".", ".." or private; a NUL; a lone surrogate that no file name decodes to.
_BAD = re.compile(r"(?:^|/)(?:\.{0,2}|\.tidelog)(?:/|\Z)|\0|[\ud800-\udc7f\udd00-\udfff]")
PRIVATE = ".tidelog"  # The local store's folder for temporary files and locks.


def check_key(key: str) -> str:
    """Return ``key`` if it may name an object.

    Raises:
        UsageError: it is empty, or a part of it is empty, ``.``, ``..`` or ``.tidelog``, or it has
        a NUL or a lone surrogate.
    """
    if _BAD.search(key) is None:
        return key
    raise UsageError(f"{key!r} cannot be the key of an object: {_fault(key)}")


def shown_key(key: str) -> str:
    """Return a key as text, with bytes that are not UTF-8 escaped."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_odd_key(key: str) -> bool:
    """Return True if no request to a cloud store can name a key that its listing shows."""
    return _ODD.search(key) is not None


def may_begin_key(prefix: str) -> bool:
    """Return True if a key could begin with ``prefix``, so that a listing never leaves the root."""
    whole_parts = prefix.split("/")[:-1]
    return "\0" not in prefix and not any(_bad_part(part) for part in whole_parts)


def _fault(key: str) -> str:
    if not key:
        return "it is empty"
    if "\0" in key:
        return "it has a NUL character"
    if any(_bad_part(part) for part in key.split("/")):
        return f"no part between '/' may be empty, '.', '..' or {PRIVATE!r}"
    return "it has a lone surrogate (half of a UTF-16 pair)"


def _bad_part(part: str) -> bool:
    return part in ("", ".", "..", PRIVATE)


GLOB = re.compile(r"[*?[]")


def literal_prefix(pattern: str) -> str:
    """Return the common prefix of all keys that match ``pattern``, for a listing."""
    glob = GLOB.search(pattern)
    if glob is None:
        return pattern
    literal = pattern[: glob.start()]
    return literal.removesuffix("/") if pattern[glob.start() :] == "**" else literal


def distinct_prefixes(patterns: Iterable[str]) -> list[str]:
    """Return the prefixes to list for several patterns, without those below another one."""
    prefixes: list[str] = []
    for prefix in sorted({literal_prefix(pattern) for pattern in patterns}):
        if not prefixes or not prefix.startswith(prefixes[-1]):
            prefixes.append(prefix)
    return prefixes


def literal_parts(pattern: str) -> int:
    """Return the number of leading parts of a pattern that are plain names."""
    glob = GLOB.search(pattern)
    return len(pattern.split("/")) if glob is None else pattern[: glob.start()].count("/")


def matches(pattern: str, key: str) -> bool:
    """Return True if ``pattern`` matches the whole ``key``."""
    return _compile(pattern).fullmatch(key) is not None


def escape(name: str) -> str:
    """Return the pattern that matches only ``name``."""
    return GLOB.sub(lambda match: f"[{match.group()}]", name)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(_translate(pattern)), re.DOTALL)


_TOKEN = re.compile(r"/\*\*$|(?<![^/])\*\*/|\*\*|\*|\?|\[(?:![^/]|[^/!])[^]/]*\]|.", re.DOTALL)
_MEANINGS = {"/**": "(?:/.*)?", "**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_MEMBER = re.compile("(.)-(.)|(.)", re.DOTALL)


def _translate(pattern: str) -> list[str]:
    return [_meaning(token) for token in _TOKEN.findall(pattern)]


def _meaning(token: str) -> str:
    if token in _MEANINGS:
        return _MEANINGS[token]
    if len(token) == 1:
        return re.escape(token)
    negated = token.startswith("[!")
    inside = "".join(
        f"{re.escape(first)}-{re.escape(last)}" if first and first <= last else re.escape(single)
        for first, last, single in _MEMBER.findall(token[2 if negated else 1 : -1])
    )
    if not inside:  # Only empty ranges, such as z-a.
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' if negated else ''}{inside}]"


def is_version(e_tag: str, other: str) -> bool:
    """Return True if two e_tags name the same version of an object.

    If a store numbers versions, the number precedes a ``|``; a listing may lack it.
    """
    (number, _, tag), (other_number, _, other_tag) = e_tag.rpartition("|"), other.rpartition("|")
    return tag == other_tag and (number == other_number or not (number and other_number))


BESIDE: Final = "../"


class Within:
    """The objects of a store below ``folder``, with keys relative to it."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = check_key(folder)
        self._prefix = self._folder + "/"

    def sibling(self, name: str) -> Within:
        """Return a folder with the same parent."""
        above, slash, _ = self._folder.rpartition("/")
        return Within(self._store, f"{above}{slash}{check_key(name)}")

    def _readable(self, key: str) -> str:
        if not key.startswith(BESIDE):
            return self._prefix + check_key(key)
        name, _, rest = key.removeprefix(BESIDE).partition("/")
        return self.sibling(name)._prefix + check_key(rest)

    @property
    def url(self) -> str:
        return f"{self._store.url.rstrip('/')}/{self._prefix.rstrip('/')}"

    @property
    def is_read_only(self) -> bool:
        return bool(getattr(self._store, "is_read_only", False))

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        return await self._store.get(self._readable(key), start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._store.refresh(self._readable(key), e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        # The store checks the whole key: the prefix makes no bad key a good one.
        return await self._store.put(
            self._prefix + key, data, if_absent=if_absent, if_match=if_match
        )

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete([self._prefix + check_key(key) for key in keys])

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        if not may_begin_key(prefix):
            return
        start = None if after is None else self._prefix + after
        async for entry in self._store.list(self._prefix + prefix, after=start):
            yield replace(entry, key=entry.key.removeprefix(self._prefix))
