"""Inference of the types of csv columns: all values of a sample must fit the type. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.casts import Formats, cast_columns
from tidelog.collection.formats.looks import BOOLEAN, CLOCK, DAY, MOMENT, NUMBER, WHOLE

Array: TypeAlias = "pa.Array[Any]"

# A pattern for all texts of a column, and the possible types of a column that matches it.
_LOOKS: Final[tuple[tuple[str, tuple[pa.DataType, ...]], ...]] = (
    (BOOLEAN, (pa.bool_(),)),
    (WHOLE, (pa.int64(), pa.decimal128(38, 0), pa.float64())),
    (NUMBER, (pa.float64(),)),
    (DAY, (pa.date32(),)),
    (CLOCK, (pa.time64("us"),)),
)
_ZONED: Final = r":[0-9]{2}(\.[0-9]+)? ?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_SOME_DAY: Final = r"^[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}"
DATES: Final = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
CLOCKS: Final = ("%H:%M:%S", "%H:%M", "%H:%M:%S.%f")
_ISO: Final = Formats()


def types_of(columns: Sequence[Array], formats: Formats = _ISO) -> list[pa.DataType]:
    """Return the inferred type of each column of texts."""
    texts = [column.drop_null() for column in columns]
    found: list[pa.DataType] = [pa.string()] * len(texts)
    left = {place: _kinds_of(one, formats) for place, one in enumerate(texts)}
    while left := {place: kinds for place, kinds in left.items() if kinds}:
        by_kind: dict[pa.DataType, list[int]] = {}
        for place, kinds in left.items():
            by_kind.setdefault(kinds[0], []).append(place)
        for kind, places in by_kind.items():
            fits = _fit([texts[place] for place in places], kind, formats)
            for place, is_fit in zip(places, fits, strict=True):
                left[place] = [] if is_fit else left[place][1:]
                found[place] = kind if is_fit else found[place]
    return found


def _kinds_of(texts: Array, formats: Formats) -> Sequence[pa.DataType]:
    """Return the types that the texts may have by their patterns, the narrowest first."""
    if not len(texts):
        return ()
    for look, kinds in _LOOKS:
        if _all_look(texts, look):
            return kinds
    if _all_look(texts, MOMENT):
        zoned = pc.any(pc.match_substring_regex(texts, _ZONED)).as_py()
        return (pa.timestamp("us", tz="UTC" if zoned else None),)
    said: list[tuple[str | None, pa.DataType]] = [
        (formats.date, pa.date32()),
        (formats.timestamp, pa.timestamp("us")),
    ]
    return [kind for form, kind in said if form is not None]


def guess_formats(columns: Sequence[Array], date: str | None, timestamp: str | None) -> Formats:
    """Return the formats of dates and times; a guess must be the only one that fits a column."""
    if date is not None and timestamp is not None:
        return Formats(date, timestamp)
    kinds = types_of(columns)
    texts = [c.drop_null() for c, kind in zip(columns, kinds, strict=True) if kind == pa.string()]
    likely = [one for one in texts if len(one) and _all_look(one, _SOME_DAY)]
    if date is None:
        date = _first_only(likely, DATES, pa.date32())
    if timestamp is None:
        both = [f"{day}{gap}{clock}" for day in DATES for gap in " T" for clock in CLOCKS]
        timestamp = _first_only(likely, both, pa.timestamp("us"))
    return Formats(date, timestamp)


def _first_only(columns: Sequence[Array], forms: Sequence[str], kind: pa.DataType) -> str | None:
    """Return the only format that fits a column, of the first column that has just one."""
    start, count = 0, 1
    while start < len(columns):
        some = columns[start : start + count]
        fits = [_fit(some, kind, Formats(form, form)) for form in forms]
        for place in range(len(some)):
            found = [form for form, one in zip(forms, fits, strict=True) if one[place]]
            # If day and month could be exchanged, several formats fit, and the column stays text: a
            # wrong guess would invent data.
            if len(found) == 1:
                return found[0]
        # The first column mostly decides. If it does not, there may be thousands, so try more of
        # them at once.
        start, count = start + count, 2 * count
    return None


def _all_look(texts: Array, look: str) -> bool:
    # Test a few texts by Python first: most patterns fail there. Its regular expressions accept all
    # texts that Arrow's accept.
    pattern = re.compile(look)
    return all(pattern.search(str(text)) for text in texts[:16].to_pylist()) and _are_all(
        texts, look
    )


def _are_all(texts: Array, look: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, look)).as_py())


def _fit(columns: Sequence[Array], kind: pa.DataType, formats: Formats) -> list[bool]:
    """Return for each column whether all of its texts fit a type."""
    return [not unfit.any() for _, unfit in cast_columns(columns, kind, formats)]
