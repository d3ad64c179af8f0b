"""Patterns of csv texts that are inferred as a type. They are narrower than a cast. Pure.

A text of digits that begins with a zero, a plus or a space is taken for a code, not for a number: a
number would not keep that first character.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

BOOLEAN: Final = "(?i)^(true|false)$"
WHOLE: Final = "^(-?[1-9][0-9]*|0)$"
NUMBER: Final = r"(?i)^(-?(0|[1-9][0-9]*)(\.[0-9]*)?(e[+-]?[0-9]+)?|-?\.[0-9]+|nan|-?inf)$"
DAY: Final = "^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}$"
CLOCK: Final = r"^[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?$"
MOMENT: Final = "^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}[ T][0-9]{1,2}:[0-9]{2}"


def look_of(dtype: pa.DataType, *, by_format: bool) -> str | None:
    """Return the pattern that each text of an inferred column matches; None to try only the cast.

    ``by_format`` is True if the source has a format of its own for dates or timestamps.
    """
    if pa.types.is_boolean(dtype):
        return BOOLEAN
    if pa.types.is_integer(dtype) or pa.types.is_decimal(dtype):
        return WHOLE
    if pa.types.is_floating(dtype):
        return NUMBER
    if pa.types.is_time(dtype):
        return CLOCK
    if by_format:
        return None
    if pa.types.is_date(dtype):
        return DAY
    return MOMENT if pa.types.is_timestamp(dtype) else None
