"""Times of collections, in milliseconds since 1970, and the texts that users write for them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.types import sql_type
from tidelog.core.arguments import quoted
from tidelog.core.clock import micros_of
from tidelog.core.frontier import TIME_MAX
from tidelog.errors import UsageError

UNITS: Final = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}  # negative: divide
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]{1,9}) ?(ms|s|m|h|d)")
_DAY_US: Final = 86_400_000_000
_DAYS_BACK: Final = {"today": 0, "yesterday": 1}
_INTEGER: Final = re.compile(r"[0-9]{1,19}")
# A year that datetime cannot hold is printed as a number of milliseconds instead.
_ISO_MAX_MS: Final = 253_402_300_799_999


# The values that users may pass as a time; a pandas Timestamp is a datetime.
When: TypeAlias = "str | int | date | pa.Scalar[Any] | np.datetime64 | np.integer[Any]"


def parse_time(when: When, *, what: str = "as_of=", now_us: int | None = None) -> int:
    """Return the milliseconds since 1970 of a time.

    A time is ISO 8601 text, a date (UTC without an offset), or a number of milliseconds since 1970.
    With ``now_us``, it may also be relative: now, today, yesterday or -1h. A moment between two
    milliseconds is the earlier of them; a day is its midnight.

    Raises:
        UsageError: the value is not a time, or is before 1970.
    """
    time = _time_of(when, what, now_us)
    if not 0 <= time <= TIME_MAX:
        raise UsageError(
            f"{what} {quoted(when)} is out of range: a time must be from 1970-01-01T00:00:00Z to "
            "2^63-1 milliseconds after it"
        )
    return time


def is_now(when: object) -> bool:
    """Return True if a time is the word ``now``."""
    return isinstance(when, str) and when.strip().lower() == "now"


def is_relative(text: str) -> bool:
    """Return True if a text is a time relative to now, such as ``yesterday`` or ``-1h``."""
    return _relative_us(text.strip().lower(), 0, "") is not None


def _time_of(when: When, what: str, now_us: int | None) -> int:
    if isinstance(when, str):
        return _time_in(when, 1_000, "milliseconds", what, now_us)
    if isinstance(when, int | np.integer) and not isinstance(when, bool):
        return int(when)
    if isinstance(when, date) and isinstance(when.year, int):  # Unlike the year of pandas' NaT.
        at = when if isinstance(when, datetime) else datetime.combine(when, clock_time())
        return micros_of(at) // 1_000
    if isinstance(when, np.datetime64) and not np.isnat(when):
        return int(when.astype("datetime64[ms]").astype(np.int64))
    if isinstance(when, pa.Scalar) and when.is_valid:
        return _time_of_scalar(when, what, now_us)
    raise UsageError(
        f"{what} {quoted(when)} is not a time: pass ISO 8601 text, a datetime, a date, or a "
        "number of milliseconds since 1970"
    )


def _time_of_scalar(when: pa.Scalar[Any], what: str, now_us: int | None) -> int:
    dtype = when.type
    if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype) or pa.types.is_integer(dtype):
        # Convert by numbers: Python's range of times is smaller, and a time zone needs a database.
        column = pa.chunked_array([pa.array([when])])
        times, there = times_of(column, "ms")
        if there[0]:
            return int(times[0])
    found = when.as_py()
    if isinstance(found, str):
        return _time_of(found, what, now_us)
    raise UsageError(f"{what} has the type {dtype}, which is not a time: pass a timestamp")


def parse_time_us(text: str, *, what: str, now_us: int | None = None) -> int:
    """Return the microseconds since 1970 of a time of a log's records; see `parse_time`.

    Raises:
        UsageError: the text is not a time.
    """
    return _time_in(text, 1, "microseconds", what, now_us)


def _time_in(text: str, unit_us: int, units: str, what: str, now_us: int | None) -> int:
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    if now_us is not None:
        relative_us = _relative_us(text.strip().lower(), now_us, what)
        if relative_us is not None:
            return relative_us // unit_us
    also = "" if now_us is None else ", now, yesterday or -1h"
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(
            f"{what} {quoted(text)} is not a time: write 2013-01-15T14:00:00Z{also}, or a "
            f"number of {units} since 1970"
        ) from error
    return micros_of(found) // unit_us


def _relative_us(word: str, now_us: int, what: str) -> int | None:
    """Return the time of a word or of ``-1h``; None for any other text."""
    if word == "now":
        return now_us
    if word in _DAYS_BACK:
        return now_us - now_us % _DAY_US - _DAYS_BACK[word] * _DAY_US
    if word.startswith("-") and _DURATION.fullmatch(word[1:]):
        return now_us - 1_000 * parse_duration_ms(word[1:], what=what)
    return None


def parse_duration_ms(text: str, *, what: str) -> int:
    """Return the milliseconds of a duration: a number and its unit, such as 90s, 12h or 7d.

    Raises:
        UsageError: the text is not a duration.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{what} {quoted(text)} is not a duration: write a number and its unit, such as 90s, "
            "10m, 12h or 1d"
        )
    return int(found[1]) * _UNITS_MS[found[2]]


def duration_text(duration_ms: int) -> str:
    """Return the text of a duration for `parse_duration_ms`, in the largest exact unit."""
    units = sorted(_UNITS_MS.items(), key=lambda unit: -unit[1])
    name, size_ms = next(unit for unit in units if duration_ms % unit[1] == 0)
    return f"{duration_ms // size_ms}{name}"


def format_time(time: int) -> str:
    """Return a time as ISO 8601 text in UTC, with milliseconds only if they are not zero."""
    if time > _ISO_MAX_MS:
        return str(time)
    moment = _EPOCH + timedelta(milliseconds=time)
    spec = "milliseconds" if time % 1_000 else "seconds"
    return moment.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def check_time_type(name: str, dtype: pa.DataType) -> None:
    """Check the type of a time column.

    Raises:
        UsageError: the type is not a timestamp, a date or an integer.
    """
    if not (pa.types.is_timestamp(dtype) or pa.types.is_integer(dtype) or pa.types.is_date(dtype)):
        raise UsageError(
            f"the time column {name!r} has the type {sql_type(dtype)}, but must have timestamps, "
            "dates or integers: give its type with schema="
        )


def exact_times(column: pa.ChunkedArray[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return numbers in the same order as a column's times, in the column's full precision.

    Shape: the column has a type that `check_time_type` accepts. For a null, or a time of 2^63 or
        more, the number has no meaning.
    """
    if pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    filled = pc.fill_null(column, pa.scalar(0, column.type))
    return cast("pa.ChunkedArray[Any]", filled).to_numpy().astype(np.int64, copy=False)


def times_of(
    column: pa.ChunkedArray[Any], unit: str
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return a column's times in milliseconds, and a mask of the rows with a valid time.

    Times before 1970 are negative; the caller counts them as late.
    """
    dtype = column.type
    there = np.asarray(column.is_valid().to_numpy(), dtype=np.bool_)
    if pa.types.is_date(dtype):
        column, unit = column.cast(pa.timestamp("us")), "us"
    elif pa.types.is_timestamp(dtype):
        unit = dtype.unit
    filled = cast("pa.ChunkedArray[Any]", pc.fill_null(column, pa.scalar(0, column.type)))
    if pa.types.is_uint64(dtype):
        wide = filled.to_numpy()
        there &= wide < 2**63
        raw = np.where(there, wide, 0).astype(np.int64)
    else:
        raw = filled.cast(pa.int64()).to_numpy().astype(np.int64, copy=False)
    factor = UNITS[unit]
    if factor < 0:
        return np.floor_divide(raw, -factor), there
    bound = (TIME_MAX - 1) // factor
    there &= (raw <= bound) & (raw >= -bound)
    return np.where(there, raw, 0) * factor, there
