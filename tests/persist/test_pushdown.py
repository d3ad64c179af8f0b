"""Pushdown: the column bounds that a condition implies."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.persist.format.bounds import Box, rows_within
from tidelog.persist.read.pushdown import bounds_of
from tidelog.predicate.expression import check_predicate
from tidelog.predicate.predicate import open_sandbox

COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "small": pa.int8(),
    "name": pa.string(),
    "day": pa.date32(),
    "moment": pa.timestamp("us"),
    "instant": pa.timestamp("us", "UTC"),
    "amount": pa.float64(),
    "price": pa.decimal128(9, 2),
}
SCHEMA = pa.schema(COLUMNS)
DAY = dt.date(2020, 1, 2).toordinal() - dt.date(1970, 1, 1).toordinal()
NOON_US = (DAY * 24 + 12) * 3_600_000_000


def bounds(sql: str) -> Box:
    return bounds_of(check_predicate(sql, SCHEMA, definite=False)).box


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("id = 5", {"id": (5, 5)}),
        ("5 = ID", {"id": (5, 5)}),
        ("\"id\" > -5 AND name = 'JFK'", {"id": (-4, None), "name": ("JFK", "JFK")}),
        ("3 < id AND id <= 9 AND id < 12", {"id": (4, 9)}),
        ("id BETWEEN 1 AND 3", {"id": (1, 3)}),
        ("id IN (4, 2, 9) AND amount > 0", {"id": (2, 9)}),
        (
            "name >= 'a' AND (id = 1 AND small = 2)",
            {"name": ("a", None), "id": (1, 1), "small": (2, 2)},
        ),
        ("day = DATE '2020-01-02'", {"day": (DAY, DAY)}),
        ("day >= '2020-01-02'", {"day": (DAY, None)}),
        ("moment < TIMESTAMP '2020-01-02 12:00'", {"moment": (None, NOON_US)}),
        ("instant > '2020-01-02 12:00'", {"instant": (NOON_US, None)}),
        ("instant > '2020-01-02 14:00+02'", {"instant": (NOON_US, None)}),
    ],
)
def test_plain_comparisons_bound_their_columns(sql: str, expected: Box) -> None:
    """A plain comparison gives inclusive bounds. The reader still applies the condition."""
    assert bounds(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "id = 5 OR name = 'a'",
        "NOT id = 5",
        "id <> 5",
        "id = 5.5",
        "id + 1 = 5",
        "id = small",
        "small = 1000",
        "name = 5",
        "name LIKE 'a%'",
        "name = 'a' COLLATE NOCASE",
        "lower(name) = 'a'",
        "amount > 1",
        "price > 1",
        "day < TIMESTAMP '2020-01-02 12:00'",
        "moment > DATE '2020-01-02'",
        "CAST(id AS VARCHAR) = '5'",
        "id IN (1, NULL)",
        "id IS NULL",
        "true",
    ],
)
def test_all_else_bounds_nothing(sql: str) -> None:
    """Other conditions give no bounds, because a wrong bound would drop requested rows."""
    assert bounds(sql) == {}


LITERALS = {
    "id": ["-1", "0", "1", "2", "1.5", "'1'", "NULL"],
    "small": ["-1", "1", "200", "1.5"],
    "name": ["'a'", "'B'", "''", "'é'", "1"],
    "day": ["'2020-01-02'", "DATE '2020-01-02'", "TIMESTAMP '2020-01-02 12:00'"],
    "moment": ["'2020-01-02'", "DATE '2020-01-02'", "TIMESTAMP '2020-01-02 12:00'"],
    "amount": ["1", "'nan'::DOUBLE", "0.5"],
}
ROWS = pa.Table.from_pylist(
    [
        {
            "id": i,
            "small": small,
            "name": name,
            "day": day,
            "moment": moment,
            "amount": float("nan") if i == 1 else 0.5,
        }
        for i in (-1, 0, 1, 2, None)
        for small, name in ((1, "a"), (-1, "A"), (None, "é"), (100, None))
        for day, moment in (
            (dt.date(2020, 1, 2), dt.datetime(2020, 1, 2, 12)),  # noqa: DTZ001 - naive is meant
            (dt.date(2020, 1, 3), dt.datetime(2020, 1, 2)),  # noqa: DTZ001 - naive is meant
            (None, None),
        )
    ],
    schema=SCHEMA,
)
ROWS = ROWS.append_column("place", pa.array(range(ROWS.num_rows)))


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(LITERALS)))
    one, two = draw(st.sampled_from(LITERALS[name])), draw(st.sampled_from(LITERALS[name]))
    operator = draw(st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]))
    return draw(
        st.sampled_from(
            [
                f"{name} {operator} {one}",
                f"{one} {operator} {name}",
                f"{name} BETWEEN {one} AND {two}",
                f"{name} NOT BETWEEN {one} AND {two}",
                f"{name} IN ({one}, {two})",
                f"({name} {operator} {one}) IS NOT TRUE",
            ]
        )
    )


CONDITIONS: Any = st.recursive(
    comparisons(),
    lambda inner: st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(
        lambda t: f"({t[0]}) {t[1]} ({t[2]})"
    ),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None)
@given(sql=CONDITIONS)
def test_every_row_that_fulfils_a_condition_lies_within_its_bounds(sql: str) -> None:
    """A chosen row is within the bounds. If they are exact, each row within them is chosen."""
    try:
        predicate = check_predicate(sql, SCHEMA, definite=False)
    except ValueError:
        return  # DuckDB cannot compare these types.
    with open_sandbox() as opened:
        try:
            chosen = ROWS.filter(predicate.mask_in(opened, ROWS))
        except ValueError:
            return
    found = bounds_of(predicate)

    assert rows_within(chosen, found.box).num_rows == chosen.num_rows, found.box
    if found.is_exact:
        places = chosen.column("place")
        assert rows_within(ROWS, found.box).column("place") == places, found.box
