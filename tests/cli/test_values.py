"""The text of values: JSON that any reader takes for the same value, and plain text."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from datetime import time as clock_time
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.values import json_values, text_values

NOON = datetime(2013, 1, 15, 14, tzinfo=UTC).replace(tzinfo=None)

CASES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), True, True),
    (pa.int64(), -(2**63), -(2**63)),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.float64(), 0.1, 0.1),
    (pa.float32(), 0.1, 0.1),
    (pa.float64(), float("nan"), "NaN"),
    (pa.float64(), float("inf"), "Infinity"),
    (pa.float32(), float("-inf"), "-Infinity"),
    (pa.string(), "Zürich", "Zürich"),
    (pa.binary(), b"\x00\xff", "AP8="),
    (pa.date32(), date(2013, 1, 15), "2013-01-15"),
    (pa.time64("us"), clock_time(14, 0), "14:00:00"),
    (pa.time64("us"), clock_time(14, 0, 0, 1_500), "14:00:00.0015"),
    (pa.timestamp("us"), NOON, "2013-01-15T14:00:00"),
    (pa.timestamp("us"), NOON.replace(microsecond=250_000), "2013-01-15T14:00:00.25"),
    (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=UTC), "2013-01-15T14:00:00Z"),
    (pa.timestamp("us", "UTC"), NOON.replace(second=10, tzinfo=UTC), "2013-01-15T14:00:10Z"),
    (pa.decimal128(15, 2), Decimal("12.50"), 12.5),
    (pa.decimal128(10, 0), Decimal(7), 7),
    (pa.decimal128(38, 2), Decimal("12.50"), "12.50"),
    (pa.decimal128(38, 20), Decimal("1E-20"), "0.00000000000000000001"),
    (pa.list_(pa.date32()), [date(2013, 1, 15), None], ["2013-01-15", None]),
    (pa.list_(pa.list_(pa.int8())), [[1], [], None, [2, 3]], [[1], [], None, [2, 3]]),
    (pa.struct([("b", pa.binary()), ("n", pa.int8())]), {"b": b"a", "n": 1}, {"b": "YQ==", "n": 1}),
    (pa.struct([("x", pa.float64())]), {"x": float("nan")}, {"x": "NaN"}),
]


@pytest.mark.parametrize(("dtype", "value", "expected"), CASES, ids=str)
def test_a_value_of_each_type(dtype: pa.DataType, value: Any, expected: Any) -> None:
    """A value is written the same next to nulls and in a slice with an offset."""
    column = pa.array([None, value, None, value], dtype)

    assert json_values(column) == [None, expected, None, expected]
    assert json_values(column.slice(1, 2)) == [expected, None]
    assert json.loads(msgspec.json.encode(json_values(column))) == [None, expected, None, expected]


def test_times_that_python_has_not() -> None:
    """A year after 9999 is written as a date, and one after 32767 as a number."""
    far = pa.array([2**58, 2**60, None], pa.int64())

    assert json_values(far.cast(pa.timestamp("us", "UTC"))) == [
        "11103-08-29T17:22:31.711744Z",
        str(2**60),
        None,
    ]
    assert json_values(pa.array([2**30], pa.int32()).cast(pa.date32())) == [str(2**30)]


def test_infinite_dates_and_moments_are_written_as_sql_writes_them() -> None:
    """SQL reads 'infinity' back, while a number of microseconds would look like a fault."""
    days = pa.array([2**31 - 1, 1 - 2**31, 0], pa.int32()).cast(pa.date32())
    for dtype in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        moments = pa.array([2**63 - 1, 1 - 2**63], pa.int64()).cast(dtype)
        assert json_values(moments) == ["infinity", "-infinity"]
    assert json_values(days) == ["infinity", "-infinity", "1970-01-01"]


def test_text_is_json_but_for_strings_and_decimals() -> None:
    """Csv and tables quote by themselves, and show a decimal in full."""
    assert text_values(pa.array(["a", None, ""])) == ["a", None, ""]
    assert text_values(pa.array([True, None])) == ["true", None]
    assert text_values(pa.array([1.5, float("nan")])) == ["1.5", "NaN"]
    assert text_values(pa.array([Decimal("12.50")], pa.decimal128(4, 2))) == ["12.50"]
    assert text_values(pa.array([{"a": [1, None]}])) == ['{"a":[1,null]}']
    assert text_values(pa.array([], pa.int64())) == []


@given(st.lists(st.none() | st.decimals(places=3, min_value=-(10**11), max_value=10**11)))
def test_decimals_of_fifteen_digits_survive_as_numbers(values: list[Decimal | None]) -> None:
    """A double distinguishes all decimals of 15 digits, so they are written as numbers."""
    column = pa.array(values, pa.decimal128(15, 3))
    back = json.loads(msgspec.json.encode(json_values(column)))

    assert [v if v is None else Decimal(repr(v)) for v in back] == values


@given(st.lists(st.none() | st.floats(width=32, allow_nan=False)))
def test_floats_are_as_short_as_they_can_be(values: list[float | None]) -> None:
    """A FLOAT of 0.1 is written 0.1, and read back as the same FLOAT."""
    column = pa.array(values, pa.float32())
    back = [float(v) if isinstance(v, str) else v for v in json_values(column)]

    assert pa.array(back, pa.float32()).equals(column)
