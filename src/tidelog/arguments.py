"""Refusing arguments of a wrong type, in a sentence, before anything is asked of a store. Pure.

Types are checked where users call; what lies below may rely on them.
"""

from __future__ import annotations

import math
from typing import Final

from tidelog.errors import UsageError

WHOLE_MAX: Final = 2**64 - 1
DIGITS_MAX: Final = 40  # More than any position has; Python refuses to read thousands of them.


def check_kind(value: object, kind: type, told: str) -> None:
    """Refuse a value of another type; ``told`` says what it has to be.

    Raises:
        UsageError: it is of another type.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{told}, not {type(value).__name__}")


def check_whole(value: object, what: str) -> None:
    """Refuse what is no whole number from 0 on, whatever its type says of itself.

    Raises:
        UsageError: it is none.
    """
    if type(value) is not int or not 0 <= value <= WHOLE_MAX:
        raise UsageError(f"{what} is a whole number (int) from 0 on", found=repr(value))


def check_above_zero(value: object, what: str) -> None:
    """Refuse what is no finite number, or none over 0.

    Raises:
        UsageError: so it is.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"{what} is a number over 0", found=repr(value))
