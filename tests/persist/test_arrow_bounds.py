"""Bounds of Arrow expressions: they exclude no row for which the expression is true."""

from __future__ import annotations

import datetime as dt
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.persist.format.bounds import ordered
from tidelog.persist.read.arrow_bounds import box_of_filter, columns_of

ODD = "v == 1) and (k"
TIMES = pa.timestamp("us", tz="UTC")
FIELDS: dict[str, pa.DataType] = {
    "k": pa.string(),
    "v": pa.int64(),
    "is_x": pa.int32(),
    "at": TIMES,
    "day": pa.date32(),
    "f": pa.float64(),
    ODD: pa.int64(),
}
SCHEMA = pa.schema(FIELDS)
MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
MICROS = 1_704_164_645_000_006


def number(value: int, dtype: pa.DataType | None = None) -> Any:
    return pa.scalar(value, dtype or pa.int64())


K: Any = pc.field("k")  # The stubs of Arrow lack some operators of expressions.
V: Any = pc.field("v")
AT: Any = pc.field("at")


@pytest.mark.parametrize(
    ("expression", "box"),
    [
        (K == "a", {"k": ("a", "a")}),
        (K >= 'a") and (v > "5', {"k": ('a") and (v > "5', None)}),
        (K == 'x\n"y\\', {"k": ('x\n"y\\', 'x\n"y\\')}),
        ((V > 5) & (V <= 9), {"v": (5, 9)}),
        (V.is_valid() & (V < -3), {"v": (None, -3)}),
        ((V > 5) | (V < 2), {}),
        (((V > 5) | K.is_null()) & (V < 2), {"v": (None, 2)}),
        (pc.field("is_x") == number(3, pa.int32()), {"is_x": (3, 3)}),
        (pa.scalar(MOMENT, TIMES) < AT, {"at": (MICROS, None)}),
        (pc.field("day") == pa.scalar(dt.date(1970, 1, 3)), {"day": (2, 2)}),
        (pc.field(ODD) == number(7), {ODD: (7, 7)}),
        (pc.field("f") > 1.5, {}),
        ((V == 1) & V.isin([1, 2]), {}),
        (pc.field("s", "x") == 1, {}),
        (number(3, pa.int8()) == V, {}),  # Another type may compare in another way.
    ],
    ids=str,
)
def test_the_box_has_the_bounds_of_simple_comparisons(
    expression: pc.Expression, box: dict[str, Any]
) -> None:
    """AND joins bounds, and OR has none; a form that is not understood has none."""
    assert dict(box_of_filter(expression, SCHEMA)) == box


COMPARISONS = st.builds(
    lambda compare, case: compare(pc.field(case[0]), case[1]),
    st.sampled_from([eq, lt, le, gt, ge]),
    st.one_of(
        st.tuples(st.just("k"), st.text(max_size=3)),
        st.tuples(st.sampled_from(["v", ODD]), st.integers(-3, 3).map(number)),
    ),
)
EXPRESSIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.builds(
        reduce,
        st.sampled_from([and_, or_]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.none() | st.text(max_size=3),
            "v": st.none() | st.integers(-3, 3),
            ODD: st.none() | st.integers(-3, 3),
        }
    ),
    max_size=20,
)


@given(EXPRESSIONS, ROWS)
def test_each_row_of_an_expression_lies_in_its_box(
    expression: pc.Expression, rows: list[dict[str, Any]]
) -> None:
    """A reader with the box loses no row, and reads each column of the expression."""
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    chosen = table.filter(expression)
    read = table.select(sorted(columns_of(expression, SCHEMA)))

    assert read.filter(expression).num_rows == chosen.num_rows
    for name, (low, high) in box_of_filter(expression, SCHEMA).items():
        for value in ordered(chosen.column(name)).to_pylist():
            assert low is None or value >= low
            assert high is None or value <= high
