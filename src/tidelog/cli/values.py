"""The JSON and the text of values.

- Dates, times and timestamps are ISO 8601. They end in ``Z`` if the type has a time zone, and have
  a fraction of a second only if it is not zero. After the year 32767 they are the type's number.
- Whole numbers are numbers of any size. Decimals of up to 15 digits are numbers, which every reader
  keeps exactly; wider ones are strings.
- NaN and the infinities, which JSON lacks, are the strings "NaN", "Infinity" and "-Infinity".
- A FLOAT is the shortest number that reads back as the same FLOAT.
- Bytes are base64.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

EXACT_DIGITS: Final = 15  # A double keeps so many digits exactly, and JSON readers use doubles.


def json_values(column: pa.Array[Any]) -> list[Any]:
    """Return the values of a column for JSON; null is None."""
    dtype = column.type
    if isinstance(column, pa.ListArray):
        return _lists(column)
    if isinstance(column, pa.StructArray):
        return _structs(column)
    if pa.types.is_temporal(dtype):
        return iso_text(column).to_pylist()
    if pa.types.is_floating(dtype):
        return _floats(column)
    values = column.to_pylist()
    if pa.types.is_binary(dtype):
        return [None if v is None else base64.b64encode(v).decode() for v in values]
    if pa.types.is_decimal(dtype):
        if dtype.precision > EXACT_DIGITS:
            return [None if v is None else f"{v:f}" for v in values]
        number = float if dtype.scale else int
        return [None if v is None else number(v) for v in values]
    return values


def text_values(column: pa.Array[Any]) -> list[str | None]:
    """Return the values of a column as text for csv and tables; nested values are JSON."""
    if pa.types.is_decimal(column.type):
        return [None if v is None else f"{v:f}" for v in column.to_pylist()]
    return [
        v if v is None or isinstance(v, str) else msgspec.json.encode(v).decode()
        for v in json_values(column)
    ]


def is_number(dtype: pa.DataType) -> bool:
    """Return True for a type of numbers, which tables align to the right."""
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)


def is_time(dtype: pa.DataType) -> bool:
    """Return True for a type of dates or times."""
    return bool(pa.types.is_temporal(dtype))


def _lists(column: pa.ListArray[Any]) -> list[Any]:
    items = iter(json_values(column.flatten()))
    lengths = pc.list_value_length(column).to_pylist()
    return [None if n is None else [next(items) for _ in range(n)] for n in lengths]


def _structs(column: pa.StructArray) -> list[Any]:
    names = [field.name for field in column.type]
    fields = [json_values(field) for field in column.flatten()]
    rows = zip(*fields, strict=True) if fields else ((),) * len(column)
    there = column.is_valid().to_pylist()
    return [
        dict(zip(names, row, strict=True)) if valid else None
        for row, valid in zip(rows, there, strict=True)
    ]


# Infinite dates (32 bits) and timestamps (64 bits), as DuckDB and PostgreSQL store them.
_INFINITE: Final = {
    sign + str(2**bits - 1): f"{sign}infinity" for sign in ("", "-") for bits in (31, 63)
}


def iso_text(column: pa.Array[Any]) -> pa.StringArray:
    """Return a column of dates or times as text; see the module."""
    # Arrow's text covers years that Python's datetime lacks, and is much faster.
    dtype = column.type
    zoned = pa.types.is_timestamp(dtype) and dtype.tz is not None
    if zoned:
        # Cast through integers: a direct cast would need a time zone database.
        column = column.cast(pa.int64()).cast(pa.timestamp("us"))
    text = column.cast(pa.string())
    if not pa.types.is_date(dtype):
        text = pc.replace_substring_regex(text, r"\.0*$|(\.\d*[1-9])0*$", r"\1")
        text = pc.replace_substring(text, " ", "T")
    if zoned:
        text = pc.replace_substring_regex(text, "$", "Z")
    if pc.any(pc.starts_with(text, "<")).as_py():  # As in "<value out of range: 123>".
        text = pc.if_else(
            pc.starts_with(text, "<"), pc.replace_substring_regex(text, "[^0-9-]+", ""), text
        )
        for number, name in _INFINITE.items():
            text = pc.if_else(pc.is_in(text, pa.array([number])), name, text)
    return cast("pa.StringArray", text)


def _floats(column: pa.Array[Any]) -> list[Any]:
    if not pa.types.is_float64(column.type):
        column = column.cast(pa.string()).cast(pa.float64())
    values = column.to_pylist()
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return values
    return [v if v is None or math.isfinite(v) else _not_finite(v) for v in values]


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
