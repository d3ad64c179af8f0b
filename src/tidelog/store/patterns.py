"""Patterns of keys.

``*``, ``?`` and ``[...]`` do not match ``/``; ``**`` does. ``name/**`` matches ``name`` and
everything below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

GLOB = re.compile(r"[*?[]")


def literal_prefix(pattern: str) -> str:
    """Return the common prefix of all keys that match ``pattern``, for a listing."""
    found = GLOB.search(pattern)
    if found is None:
        return pattern
    literal = pattern[: found.start()]
    return literal.removesuffix("/") if pattern[found.start() :] == "**" else literal


def distinct_prefixes(patterns: Iterable[str]) -> list[str]:
    """Return the prefixes to list for several patterns, without those below another one."""
    found: list[str] = []
    for prefix in sorted({literal_prefix(one) for one in patterns}):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found


def literal_parts(pattern: str) -> int:
    """Return the number of leading parts of a pattern that are plain names."""
    found = GLOB.search(pattern)
    return len(pattern.split("/")) if found is None else pattern[: found.start()].count("/")


def matches(pattern: str, key: str) -> bool:
    """Return True if ``pattern`` matches the whole ``key``."""
    return _compile(pattern).fullmatch(key) is not None


def escape(name: str) -> str:
    """Return the pattern that matches only ``name``."""
    return GLOB.sub(lambda found: f"[{found.group()}]", name)


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
