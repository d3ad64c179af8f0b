"""Merging by key without SQL: the result equals that of SQL, and other cases are left to SQL."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.persist.format import updates
from tidelog.persist.format.bounds import SORTED_ROWS_MAX, can_sort, joined_in_order, summed
from tidelog.persist.format.schema import DIFF, ShardSchema
from tidelog.persist.format.updates import accumulate, merge

Update = tuple[int | None, str | None, int, int]

COLUMNS: list[tuple[str, pa.DataType]] = [
    ("n", pa.int64()),
    ("t", pa.string()),
    ("v", pa.int64()),
]
DATA = pa.schema(COLUMNS)
NARROW = ShardSchema(DATA, 0)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from(["", "a", "é", "\U0001f600", "\uffff"]),
        st.integers(0, 1),
        st.sampled_from([-1, 1, 1, 2]),
    ),
    max_size=6,
)


def table_of(rows: list[Update]) -> pa.Table:
    schema = DATA.append(pa.field(DIFF, pa.int64(), nullable=False))
    columns = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


@given(parts=st.lists(ROWS, max_size=3), key=st.sampled_from([["n"], ["n", "t"], ["n", "t", "v"]]))
def test_what_is_merged_by_key_is_what_sql_merges(
    parts: list[list[Update]], key: list[str]
) -> None:
    """SQL is the model. Rows may be null, repeated or retracted."""
    tables = [table_of(rows) for rows in parts]
    found = merge(tables, NARROW, key=key)
    with patch.object(updates, "can_sort", return_value=False):
        expected = merge(tables, NARROW, key=key)

    assert sum_of(found) == sum_of(expected)
    assert keys_in_turn(found, key) == keys_in_turn(expected, key)


def sum_of(table: pa.Table) -> dict[tuple[Any, ...], int]:
    """Return the count of each row. Equal rows may be separate in the table."""
    found: dict[tuple[Any, ...], int] = {}
    for *row, diff in rows_of(table):
        found[tuple(row)] = found.get(tuple(row), 0) + diff
    return {row: count for row, count in found.items() if count}


def keys_in_turn(table: pa.Table, key: list[str]) -> list[tuple[Any, ...]]:
    keys = rows_of(table.select(key))
    return [k for place, k in enumerate(keys) if not place or keys[place - 1] != k]


@given(rows=ROWS)
@example(rows=[(1, "a", 0, 1), (2, "a", 0, 1), (1, "a", 0, -1), (2, "a", 0, 2)])
def test_what_is_summed_is_what_sql_sums(rows: list[Update]) -> None:
    """SQL is the model. Rows with nulls may be left to it."""
    table = table_of(rows)
    found = summed(table)
    timed = table.append_column("_time", pa.array([0] * len(rows), pa.int64()))
    with patch.object(updates, "can_sort", return_value=False):
        expected = accumulate([timed], NARROW, as_of=0)

    if found is None:
        assert any(value is None for row in rows for value in row)
    else:
        assert sorted(rows_of(found)) == sorted(rows_of(expected))


def test_parts_that_follow_one_another_are_joined_in_whatever_order_they_come() -> None:
    """Parts with disjoint keys need no merge, so a join in key order keeps each diff."""
    first, second = table_of([(1, "a", 0, 1), (2, "b", 0, 1)]), table_of([(3, "a", 0, -1)])
    joined = joined_in_order([second, first], ["n"])

    assert joined is not None
    assert rows_of(joined) == [(1, "a", 0, 1), (2, "b", 0, 1), (3, "a", 0, -1)]


@pytest.mark.parametrize(
    "parts",
    [
        [[(1, "a", 0, 1), (3, "a", 0, 1)], [(2, "a", 0, 1)]],
        [[(1, "a", 0, 1)], [(1, "a", 0, -1)]],
        [[(1, "a", 0, 1)], [(1, "b", 0, 1)]],
        [[(2, "a", 0, 1), (1, "a", 0, 1)]],
        [[(1, "a", 0, 1)], [(None, "a", 0, 1)]],
    ],
    ids=["overlap", "taken back", "one key twice", "in no order", "null"],
)
def test_other_parts_are_not_joined_as_they_stand(parts: list[list[Update]]) -> None:
    """Other parts are not joined: rows would be out of order, or apart from their retractions."""
    assert joined_in_order([table_of(rows) for rows in parts], ["n"]) is None


def test_sql_is_left_what_it_alone_can_order_and_what_is_much() -> None:
    """SQL has its own order of floats and decimals, and can spill many rows."""
    whole = pa.table({"f": pa.array([1.5]), "n": pa.array([1]), DIFF: pa.array([1])})
    many = pa.table({"n": pa.nulls(SORTED_ROWS_MAX + 1, pa.int64())})

    assert can_sort([whole], ["n"])
    assert not can_sort([whole], ["n", "f"])
    assert not can_sort([whole], [])
    assert not can_sort([many], ["n"])


def test_a_dictionary_in_one_part_alone_is_no_reason_to_fail() -> None:
    """The writer decides per part whether a column gets a dictionary."""
    plain = table_of([(1, "a", 0, 1)])
    packed = table_of([(2, "b", 0, 1), (3, "b", 0, 1)])
    packed = packed.set_column(1, "t", packed.column("t").dictionary_encode())

    assert rows_of(merge([plain, packed], NARROW, key=["n"])) == rows_of(
        pa.concat_tables([plain, table_of([(2, "b", 0, 1), (3, "b", 0, 1)])])
    )
    overlapping = table_of([(2, "b", 0, -1), (2, "c", 0, 1)])
    overlapping = overlapping.set_column(1, "t", overlapping.column("t").dictionary_encode())
    assert rows_of(merge([packed, overlapping], NARROW, key=["n"])) == [
        (2, "c", 0, 1),
        (3, "b", 0, 1),
    ]
