"""The types of csv's columns: each is one that all values of a sample are decoded as. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.casts import Formats, cast_values

Array: TypeAlias = "pa.Array[Any]"

# What a column's texts look like, all of them, and the types that they may then have. A number
# that begins with a zero, or a plus, is a code: as a number it would not be what it was.
_LOOKS: Final[tuple[tuple[str, tuple[pa.DataType, ...]], ...]] = (
    ("(?i)^(true|false)$", (pa.bool_(),)),
    (r"^(-?[1-9][0-9]*|0)$", (pa.int64(), pa.decimal128(38, 0), pa.float64())),
    (
        r"(?i)^(-?(0|[1-9][0-9]*)(\.[0-9]*)?(e[+-]?[0-9]+)?|-?\.[0-9]+|nan|-?inf)$",
        (pa.float64(),),
    ),
    (r"^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}$", (pa.date32(),)),
    (r"^[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?$", (pa.time64("us"),)),
)
_TIMESTAMP: Final = r"^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}[ T][0-9]{1,2}:[0-9]{2}"
_ZONED: Final = r":[0-9]{2}(\.[0-9]+)? ?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
DATES: Final = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
CLOCKS: Final = ("%H:%M:%S", "%H:%M", "%H:%M:%S.%f")
_ISO: Final = Formats()


def type_of(values: Array, formats: Formats = _ISO) -> pa.DataType:
    """Return the type of a column's texts."""
    texts = values.drop_null()
    if not len(texts):
        return pa.string()
    for look, kinds in _LOOKS:
        if _all_look(texts, look):
            return _first(texts, kinds, formats)
    if _all_look(texts, _TIMESTAMP):
        zoned = pc.any(pc.match_substring_regex(texts, _ZONED)).as_py()
        return _first(texts, (pa.timestamp("us", tz="UTC" if zoned else None),), formats)
    said: list[tuple[str | None, pa.DataType]] = [
        (formats.date, pa.date32()),
        (formats.timestamp, pa.timestamp("us")),
    ]
    return _first(texts, [kind for form, kind in said if form is not None], formats)


def guess_formats(columns: Iterable[Array], date: str | None, timestamp: str | None) -> Formats:
    """Return the formats of dates and times, where just one fits all texts of a column."""
    texts = [column.drop_null() for column in columns]
    texts = [t for t in texts if len(t) and pa.types.is_string(type_of(t))]
    for column in texts:
        if date is None:
            date = _only(column, DATES, date=True)
        if timestamp is None:
            both = [f"{day}{gap}{clock}" for day in DATES for gap in " T" for clock in CLOCKS]
            timestamp = _only(column, both, date=False)
    return Formats(date, timestamp)


def _only(texts: Array, forms: Iterable[str], *, date: bool) -> str | None:
    if not _all_look(texts, r"^[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}"):
        return None
    kind = pa.date32() if date else pa.timestamp("us")
    found = [f for f in forms if _fit(texts, kind, Formats(f, f)) and ("%H" in f) != date]
    # A day and a month that may be exchanged are left as text: to guess would be to invent.
    return found[0] if len(found) == 1 else None


def _all_look(texts: Array, look: str) -> bool:
    # Most looks are refused by the first texts.
    return all(pc.all(pc.match_substring_regex(some, look)).as_py() for some in (texts[:16], texts))


def _first(texts: Array, kinds: Iterable[pa.DataType], formats: Formats) -> pa.DataType:
    return next((kind for kind in kinds if _fit(texts, kind, formats)), pa.string())


def _fit(texts: Array, kind: pa.DataType, formats: Formats) -> bool:
    return not cast_values(texts, kind, formats)[1].any()
