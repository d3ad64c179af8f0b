"""Checks of arguments' types, which raise a plain error before any request to a store. Pure.

A message quotes a wrong value by `quoted`, never by ``repr``: the value may have any type and size.

The public methods check types; the code behind them relies on these checks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import date, time
from decimal import Decimal
from typing import Final

from tidelog.errors import UsageError

WHOLE_MAX: Final = 2**64 - 1
QUOTED_MAX: Final = 200  # Characters; every valid name is shorter.
DIGITS_MAX: Final = 40  # Any position has fewer. Python refuses to parse thousands of digits.


def quoted(value: object) -> str:
    """Return a value for a message, cut if it is long: its ``repr``; numbers and times plainly."""
    if isinstance(value, Decimal | date | time):
        return str(value)
    if isinstance(value, str | bytes) and len(value) > QUOTED_MAX:
        return f"{value[:QUOTED_MAX]!r}..."
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a foreign repr, or an int with too many digits for Python
        return f"a value of type {type(value).__name__} that is too long to show"
    return text if len(text) <= QUOTED_MAX else f"{text[:QUOTED_MAX]}..."


_NAME: Final = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(?:,|\Z)')


def split_names(text: str) -> list[str]:
    """Return the names of a list with commas; a name in double quotes may have commas itself.

    Two double quotes within quotes are one. An empty name stays, so that the caller refuses it.
    """
    matches = _NAME.finditer(text + ",")
    return [
        match[2] if match[1] is None else match[1].replace('""', '"')
        for match in matches
        if match.end() > match.start()
    ]


def joined_names(names: Iterable[str]) -> str:
    """Return names in the form that `split_names` reads."""
    return ", ".join(
        '"' + name.replace('"', '""') + '"'
        if "," in name or name[:1] == '"' or name != name.strip()
        else name
        for name in names
    )


def check_kind(value: object, kind: type, told: str) -> None:
    """Check the type of a value; the message is ``told``, which names the required type.

    Raises:
        UsageError: the value has another type.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{told}, not {type(value).__name__}")


def check_names(names: object, what: str) -> list[object]:
    """Return an iterable of names as a list.

    Raises:
        UsageError: ``names`` is one string, whose letters would count as names, or not iterable.
    """
    if isinstance(names, str):
        raise UsageError(f"{what} must be a list of names, not one string: [{quoted(names)}]")
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise UsageError(f"{what} must be a list of names, not {type(names).__name__}")
    return list(names)


def check_whole(value: object, what: str) -> None:
    """Check that a value is an int from 0 to 2^64-1; a bool or another subclass is refused.

    Raises:
        UsageError: it is not.
    """
    if type(value) is not int or not 0 <= value <= WHOLE_MAX:
        raise UsageError(f"{what} must be a whole number (int) of at least 0", found=quoted(value))


def check_above_zero(value: object, what: str) -> None:
    """Check that a value is a number above 0 which a float can hold.

    Raises:
        UsageError: it is not.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= sys.float_info.max
    ):
        raise UsageError(f"{what} must be a number above 0", found=quoted(value))
