"""Keys: the strings that may name an object on every store.

A key that a store would fold into another one (``a//b``, ``./a``), or that would leave the root
(``../a``), is refused before any I/O. So a location can move from one store to another. Does no
I/O.
"""

from __future__ import annotations

import re

from tidelog.errors import UsageError

_ODD = re.compile(r"[\x00-\x1f\x7f]|(^|/)\.{0,2}(/|$)")
PRIVATE = ".tidelog"  # The local store's folder for temporary files and locks.


def check_key(key: str) -> str:
    """Return ``key`` if it may name an object.

    Raises:
        UsageError: it is empty, or a part of it is empty, ``.``, ``..`` or ``.tidelog``, or it has
        a NUL or a lone surrogate.
    """
    fault = _fault(key)
    if fault is not None:
        raise UsageError(f"{key!r} cannot be the key of an object: {fault}")
    return key


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


def _fault(key: str) -> str | None:
    if not key:
        return "it is empty"
    if "\0" in key:
        return "it has a NUL character"
    try:
        key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "it has a lone surrogate (half of a UTF-16 pair)"
    if any(_bad_part(part) for part in key.split("/")):
        return f"no part between '/' may be empty, '.', '..' or {PRIVATE!r}"
    return None


def _bad_part(part: str) -> bool:
    return part in ("", ".", "..", PRIVATE)
