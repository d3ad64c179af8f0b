"""Limits of a read: a number of records, bytes or fragments, or a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa

from tidelog.core.arguments import check_kind, quoted
from tidelog.core.clock import micros_of
from tidelog.errors import UsageError
from tidelog.wal.format.arrays import lengths_of, numbers_of
from tidelog.wal.format.fragment import TIME_MAX_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A read stops at the first limit that it reaches; None is no limit.

    Units:
        records: records returned.
        bytes: bytes of bodies. The first record is returned whatever its size.
        fragments: fragments with a returned record.
        to_time_us: the read stops before the first record of this time or a later one.
    """

    records: int | None = None
    bytes: int | None = None
    fragments: int | None = None
    to_time_us: int | None = None

    def __post_init__(self) -> None:
        for name in ("records", "bytes", "fragments"):
            limit = getattr(self, name)
            if limit is not None and (type(limit) is not int or limit < 1):
                told = quoted(limit)
                raise UsageError(
                    f"the limit {name} must be a whole number (int) of at least 1", limit=told
                )
        if self.to_time_us is not None:
            check_time_us(self.to_time_us)


@dataclass(frozen=True, slots=True)
class ReadUsage:
    """The records, bytes and fragments that a read has returned so far."""

    records: int = 0
    bytes: int = 0
    fragments: int = 0


def check_limits(limits: Limits | None) -> None:
    """Refuse a value that is not a `Limits` or None.

    Raises:
        UsageError: the value is something else.
    """
    if limits is not None:
        check_kind(limits, Limits, "limits must be a tidelog.Limits")


def check_time_us(time_us: int) -> None:
    """Refuse a value that cannot be the time of a record.

    Raises:
        UsageError: the value is not such a time.
    """
    if type(time_us) is not int or not 0 <= time_us <= TIME_MAX_US:
        raise UsageError(
            "a time must be a whole number (int) of microseconds since 1970, from 0 to 2^63-1",
            time_us=quoted(time_us),
        )


def time_us_of(when: int | datetime) -> int:
    """Return a time in microseconds; a datetime without a zone is in UTC.

    Raises:
        UsageError: ``when`` is neither microseconds since 1970 nor a datetime since 1970.
    """
    # The year of pandas' NaT is not an int.
    if isinstance(when, datetime) and isinstance(when.year, int):
        when = micros_of(when)
    check_time_us(when)
    return when


def spend(limits: Limits, spent: ReadUsage, records: pa.Table) -> tuple[pa.Table, ReadUsage, bool]:
    """Return the allowed records of a fragment, the new amounts, and True if the read is done.

    Shape: ``records`` is a non-empty table with at least ``timestamp_us`` and ``body``.
    """
    count = records.num_rows
    if limits.to_time_us is not None:
        count = _first(numbers_of(records.column("timestamp_us")) >= limits.to_time_us, count)
    if limits.records is not None:
        count = min(count, limits.records - spent.records)
    lengths = lengths_of(records.column("body"))
    totals = spent.bytes + np.cumsum(lengths, dtype=np.int64)
    if limits.bytes is not None:
        is_over = (totals > limits.bytes) | (totals - lengths >= limits.bytes)
        is_over[0] &= spent.records > 0
        count = min(count, _first(is_over, count))
    after = ReadUsage(
        spent.records + count,
        int(totals[count - 1]) if count else spent.bytes,
        spent.fragments + bool(count),
    )
    is_done = (
        count < records.num_rows
        or (limits.records is not None and after.records >= limits.records)
        or (limits.bytes is not None and after.bytes >= limits.bytes)
        or (limits.fragments is not None and after.fragments >= limits.fragments)
    )
    return records.slice(0, count), after, is_done


def _first(holds: np.ndarray, otherwise: int) -> int:
    """Return the first index that holds True, or ``otherwise``."""
    return int(holds.argmax()) if holds.any() else otherwise
