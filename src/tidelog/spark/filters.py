"""Filters that Spark pushes down, as bounds on columns. Pure.

Spark evaluates each filter again, so bounds only skip rows that need no decoding. A filter of an
unknown kind therefore adds no bound.

PySpark 4.1 and later push filters down. They refuse a source with filters in a session whose
setting ``spark.sql.python.filterPushdown.enabled`` is off. A reader cannot read the setting, so
this module looks for Spark's planning with filters among the calling frames.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from types import FrameType
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tidelog.persist.format.bounds import Interval, meet, whole_range

Bound: TypeAlias = "int | str | None"
PUSHING: Final = "data_source_pushdown_filters"  # PySpark's worker module for plans with filters.
_EPOCH: Final = date(1970, 1, 1).toordinal()


def is_asked_for_filters() -> bool:
    """Return True if Spark's planning with filters is among the calling frames."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        name = getattr(spec, "name", None) or frame.f_globals.get("__name__", "")
        if name.endswith(PUSHING):
            return True
        frame = frame.f_back
    return False


def box_of_filters(filters: Iterable[Any], schema: pa.Schema) -> dict[str, tuple[Bound, Bound]]:
    """Return bounds that every row has which satisfies all filters."""
    return meet(_bounds(filters, schema))


def _bounds(filters: Iterable[Any], schema: pa.Schema) -> Iterator[tuple[str, Interval]]:
    for each in filters:
        name, *inner = getattr(each, "attribute", None) or [""]
        if inner or name not in schema.names:
            continue
        kind = type(each).__name__
        given = list(each.value) if kind == "In" else [getattr(each, "value", None)]
        values: list[Any] = [_value(value, schema.field(name).type) for value in given]
        if not values or any(value is None for value in values):
            continue
        low, high = min(values), max(values)
        if kind in ("EqualTo", "In"):
            yield name, (low, high)
        elif kind in ("GreaterThan", "GreaterThanOrEqual"):
            yield name, (low, None)
        elif kind in ("LessThan", "LessThanOrEqual"):
            yield name, (None, high)


def _value(value: Any, dtype: pa.DataType) -> Bound:
    """Return a value in the form of bounds; None if its type is not its column's."""
    if pa.types.is_integer(dtype) and isinstance(value, int) and not isinstance(value, bool):
        return value if value in whole_range(dtype) else None
    if pa.types.is_string(dtype) and isinstance(value, str):
        return value
    if pa.types.is_date(dtype) and isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - _EPOCH
    return None
