"""Where a read stops: after so many records, bytes or fragments, or before a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.arguments import check_kind, quoted
from tidelog.clock import micros_of
from tidelog.errors import UsageError
from tidelog.wal.format.fragment import TIME_MAX_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A read stops at whichever comes first; None is no limit.

    Units: ``bytes`` are those of bodies; the first record is given however large it is.
    ``fragments`` are those of which records were given. ``until_us``: before the first record of
    that time or a later one.
    """

    records: int | None = None
    bytes: int | None = None
    fragments: int | None = None
    until_us: int | None = None

    def __post_init__(self) -> None:
        for name in ("records", "bytes", "fragments"):
            limit = getattr(self, name)
            if limit is not None and (type(limit) is not int or limit < 1):
                told = quoted(limit)
                raise UsageError(f"a limit is a whole number (int) from 1 on: {name}", limit=told)
        if self.until_us is not None:
            check_time_us(self.until_us)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a read has given so far."""

    records: int = 0
    bytes: int = 0
    fragments: int = 0


def check_limits(limits: Limits | None) -> None:
    """Refuse what does not say where a read stops.

    Raises:
        UsageError: so it is.
    """
    if limits is not None:
        check_kind(limits, Limits, "limits is a tidelog.Limits")


def check_time_us(time_us: int) -> None:
    """Refuse what is no time of a record.

    Raises:
        UsageError: it is none.
    """
    if type(time_us) is not int or not 0 <= time_us <= TIME_MAX_US:
        raise UsageError(
            "a time is a whole number (int) of microseconds since 1970, from 0 to 2^63-1",
            time_us=quoted(time_us),
        )


def time_us_of(when: int | datetime) -> int:
    """Return a time as records have it; a datetime without a zone is one in UTC.

    Raises:
        UsageError: it is neither a time in microseconds since 1970 nor a datetime since then.
    """
    if isinstance(when, datetime) and isinstance(when.year, int):  # Unlike the year of pandas' NaT.
        when = micros_of(when)
    check_time_us(when)
    return when


def spend(limits: Limits, spent: Spent, records: pa.Table) -> tuple[pa.Table, Spent, bool]:
    """Return those of a fragment's records that limits allow, what is spent, and whether all is.

    Shape: ``records`` are a table of ``timestamp_us`` and ``body`` at least, not empty.
    """
    count = records.num_rows
    if limits.until_us is not None:
        count = _first(records.column("timestamp_us").to_numpy() >= limits.until_us, count)
    if limits.records is not None:
        count = min(count, limits.records - spent.records)
    lengths = pc.binary_length(records.column("body")).to_numpy()
    totals = spent.bytes + np.cumsum(lengths, dtype=np.int64)
    if limits.bytes is not None:
        is_over = (totals > limits.bytes) | (totals - lengths >= limits.bytes)
        is_over[0] &= spent.records > 0
        count = min(count, _first(is_over, count))
    after = Spent(
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
    """Return where something holds first."""
    return int(holds.argmax()) if holds.any() else otherwise
