"""Patterns of keys.

``*`` and ``?`` and ``[...]`` do not cross ``/``; ``**`` does; ``name/**`` is ``name`` and all that
lies below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

GLOB = re.compile(r"[*?[]")


def literal_prefix(pattern: str) -> str:
    """Return the beginning that all keys matching ``pattern`` share: what to list."""
    found = GLOB.search(pattern)
    if found is None:
        return pattern
    literal = pattern[: found.start()]
    return literal.removesuffix("/") if pattern[found.start() :] == "**" else literal


def distinct_prefixes(patterns: Iterable[str]) -> list[str]:
    """Return the prefixes to list for several patterns: none of them below another."""
    found: list[str] = []
    for prefix in sorted({literal_prefix(one) for one in patterns}):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found


def literal_parts(pattern: str) -> int:
    """Return how many parts of a path the pattern begins with that are names, and no patterns."""
    found = GLOB.search(pattern)
    return len(pattern.split("/")) if found is None else pattern[: found.start()].count("/")


def matches(pattern: str, key: str) -> bool:
    """Say whether ``key`` matches ``pattern``, whole."""
    return _compile(pattern).fullmatch(key) is not None


def escape(name: str) -> str:
    """Return the pattern that a name alone matches."""
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
    if not inside:  # Ranges that hold nothing, such as z-a.
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' if negated else ''}{inside}]"
