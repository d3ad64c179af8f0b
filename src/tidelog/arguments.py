"""Refusing arguments of a wrong type, in a sentence, before anything is asked of a store. Pure.

What is refused is quoted by `quoted`, never by ``repr``: it may be of any kind, and of any length.

Types are checked where users call; what lies below may rely on them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from tidelog.errors import UsageError

WHOLE_MAX: Final = 2**64 - 1
QUOTED_MAX: Final = 200  # Characters: enough for any name that can be given.
DIGITS_MAX: Final = 40  # More than any position has; Python refuses to read thousands of them.


def quoted(value: object) -> str:
    """Return a value as a message quotes it: as Python writes it, cut where it is long."""
    if isinstance(value, str | bytes) and len(value) > QUOTED_MAX:
        return f"{value[:QUOTED_MAX]!r}..."
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a foreign repr, or one of more digits than Python writes
        return f"a value of type {type(value).__name__}, too long to be shown"
    return text if len(text) <= QUOTED_MAX else f"{text[:QUOTED_MAX]}..."


def check_kind(value: object, kind: type, told: str) -> None:
    """Refuse a value of another type; ``told`` says what it has to be.

    Raises:
        UsageError: it is of another type.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{told}, not {type(value).__name__}")


def check_names(names: object, what: str) -> list[object]:
    """Return what is given as a list of names, or as another iterable of them.

    Raises:
        UsageError: it is one text, whose letters would be taken for names, or no list.
    """
    if isinstance(names, str):
        raise UsageError(f"{what} is a list of names, not one text: [{quoted(names)}]")
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise UsageError(f"{what} is a list of names, not {type(names).__name__}")
    return list(names)


def check_whole(value: object, what: str) -> None:
    """Refuse what is no whole number from 0 on, whatever its type says of itself.

    Raises:
        UsageError: it is none.
    """
    if type(value) is not int or not 0 <= value <= WHOLE_MAX:
        raise UsageError(f"{what} is a whole number (int) from 0 on", found=quoted(value))


def check_above_zero(value: object, what: str) -> None:
    """Refuse what is no number, none over 0, or more than a float can be.

    Raises:
        UsageError: so it is.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= sys.float_info.max
    ):
        raise UsageError(f"{what} is a number over 0", found=quoted(value))
