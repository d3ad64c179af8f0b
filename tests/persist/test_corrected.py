"""Large tables corrected by a few updates: the result equals that of SQL, in the same order."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.persist.format import updates
from tidelog.persist.format.corrected import consolidated, corrected
from tidelog.persist.format.schema import DIFF, ShardSchema
from tidelog.persist.format.updates import merge

ROWS = 200
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "whole": (pa.int64(), [None, 0, -1, 2**63 - 1]),
    "float": (pa.float64(), [None, 0.0, -0.0, math.nan, -math.inf, 1.5]),
    "text": (pa.string(), [None, "", "a", "\U0001f600", "\uffff"]),
    "flag": (pa.bool_(), [None, True, False]),
    "moment": (pa.timestamp("ms"), [None, 0, -1, 2**62]),
}
KEYS: dict[str, tuple[pa.DataType, Any]] = {
    "number": (pa.int32(), int),
    "text": (pa.string(), "k{:04}".format),
    "day": (pa.date32(), int),
}


def schema_of(key: str) -> pa.Schema:
    fields = [("key", KEYS[key][0]), ("second", pa.int8())]
    return pa.schema([*fields, *((name, dtype) for name, (dtype, _) in VALUES.items())])


def row(dice: Random, key: str, number: int, diff: int) -> list[Any]:
    given = [dice.choice(values) for _, values in VALUES.values()]
    return [KEYS[key][1](number), dice.randrange(2), *given, diff]


def table_of(rows: list[list[Any]], schema: pa.Schema) -> pa.Table:
    fields = schema.append(pa.field(DIFF, pa.int64(), nullable=False))
    columns = [pa.array([one[n] for one in rows], f.type) for n, f in enumerate(fields)]
    return pa.Table.from_arrays(columns, schema=fields)


def large_and_updates(dice: Random, key: str) -> list[list[list[Any]]]:
    """Return rows in the order of the key, and two small tables that change some of them."""
    numbers = sorted(dice.sample(range(2 * ROWS), ROWS))
    large = [row(dice, key, number, dice.choice([1, 1, 1, 2, -1])) for number in numbers]
    changes: list[list[Any]] = []
    for old in dice.sample(large, 12):
        changes.append([*old[:-1], -old[-1]])
        changes += [row(dice, key, numbers[dice.randrange(ROWS)], 1)] * dice.randrange(3)
    changes += [row(dice, key, dice.randrange(-3, 2 * ROWS + 3), 1) for _ in range(6)]
    middle = dice.randrange(len(changes) + 1)
    return [changes[:middle], large, changes[middle:]]


def comparable(table: pa.Table) -> list[str]:
    """Return rows as text; all NaN are equal, and so are -0.0 and 0.0."""
    # Python has no such times, so compare their numbers.
    place = table.schema.get_field_index("moment")
    rows = table.set_column(place, "moment", table.column(place).cast(pa.int64())).to_pylist()
    return [str([0.0 if value == 0 else value for value in one.values()]) for one in rows]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("seed", range(12))
def test_a_corrected_table_is_what_sql_groups(seed: int, key: str) -> None:
    """SQL is the model, for all types of columns, keys that occur again, and rows that cancel."""
    schema = schema_of(key)
    by = ["key", "second"] if seed % 2 else ["key"]
    tables = [table_of(rows, schema) for rows in large_and_updates(Random(seed), key)]

    found = corrected(tables, by)
    with patch.object(updates, "can_sort", return_value=False):
        expected = merge(tables, ShardSchema(schema, 0), key=by, is_grouped=True)

    assert found is not None
    assert comparable(found) == comparable(expected)
    assert found.num_rows < sum(table.num_rows for table in tables)


def test_other_tables_are_left_to_a_sort_or_to_sql() -> None:
    """Without a large table in order, with a null key, or with large diffs, there is no result."""
    dice, schema = Random(1), schema_of("number")
    few, large, more = (table_of(rows, schema) for rows in large_and_updates(dice, "number"))
    null_key = table_of([[None, *row(dice, "number", 1, 1)[1:]]], schema)
    huge = table_of([row(dice, "number", number, 2**61) for number in range(9)], schema)
    nested = large.append_column("list", pa.array([[1]] * ROWS))

    assert corrected([large, few, more], ["key"]) is not None
    assert corrected([large.take(list(range(ROWS - 1, -1, -1))), few], ["key"]) is None
    assert corrected([large.slice(0, 9), few, more], ["key"]) is None
    assert corrected([large, null_key], ["key"]) is None
    assert corrected([large, huge], ["key"]) is None
    assert corrected([nested, nested.slice(0, 2)], ["key"]) is None


def test_a_first_column_of_few_values_is_left_to_a_sort() -> None:
    """If most rows of the large table share the values of the updates, it is sorted as a whole."""
    rows = [[1, number] for number in range(100)]
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    large = table_of([[*one, 1] for one in rows], schema)
    update = table_of([[1, 7, -1]], schema)

    assert corrected([large, update], ["a", "b"]) is None
    merged = merge([large, update], ShardSchema(schema, 0), key=["a", "b"])
    assert merged.select(["a", "b"]).to_pylist() == [{"a": a, "b": b} for a, b in rows if b != 7]


@given(
    rows=st.lists(
        st.tuples(
            st.integers(-3, 3), st.sampled_from([None, "", "a"]), st.sampled_from([-2, -1, 1])
        )
    )
)
def test_rows_whose_key_occurs_once_need_no_sum(rows: list[tuple[int, str | None, int]]) -> None:
    """With or without the key, the result has the same rows and diffs."""
    fields = [("k", pa.int64()), ("t", pa.string()), (DIFF, pa.int64())]
    columns = [[row[n] for row in rows] for n in range(3)]
    arrays = [pa.array(one, dtype) for one, (_, dtype) in zip(columns, fields, strict=True)]
    table = pa.Table.from_arrays(arrays, [name for name, _ in fields])
    wanted: Counter[tuple[int, str | None]] = Counter()
    for key, text, diff in rows:
        wanted[key, text] += diff

    keys: list[list[str]] = [[], ["k"], ["t"], ["k", "t"]]
    for names in keys:
        found = consolidated(table, key=names).to_pylist()
        assert {(row["k"], row["t"]): row[DIFF] for row in found} == {
            row: diff for row, diff in wanted.items() if diff
        }
        assert len(found) == sum(bool(diff) for diff in wanted.values())
