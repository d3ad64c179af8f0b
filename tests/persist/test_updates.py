"""Updates: consolidation adds diffs by values, as SQL groups them. The model does it in Python."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kit.shard_tables import KINDS, schema_of, shard_updates, table_of
from tidelog.core.frontier import TIME_MAX, Frontier
from tidelog.errors import CorruptionError, UsageError
from tidelog.persist.format import bounds
from tidelog.persist.format.bounds import sorted_in_shares
from tidelog.persist.format.part import encode_inline
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.format.updates import (
    DIFF_MAX,
    accumulate,
    conform,
    consolidate,
    is_sortable,
    prepare_updates,
    sort_updates,
    time_bounds,
)
from tidelog.testing import models
from tidelog.testing.models import contents_of, updates_of

ALL = Frontier.at(0)
END = Frontier.empty()


@given(drawn=shard_updates(), as_of=st.integers(-1, 6))
def test_contents_are_those_of_the_model(drawn: tuple[ShardSchema, pa.Table], as_of: int) -> None:
    """Each row with a nonzero sum comes once. This includes floats, nulls and nested values."""
    schema, table = drawn

    found = accumulate([table], schema, as_of=as_of)

    assert contents_of(found) == models.accumulate(updates_of(table), as_of)
    assert found.schema.names == [*schema.names, DIFF]


@given(drawn=shard_updates(), after=st.integers(-1, 6), until=st.none() | st.integers(-1, 6))
def test_changes_are_those_of_the_model(
    drawn: tuple[ShardSchema, pa.Table], after: int, until: int | None
) -> None:
    """Each change comes once per row and time, in the order of times."""
    schema, table = drawn

    found = consolidate([table], schema, after=after, until=until)

    given_back = updates_of(found)
    wanted = models.consolidate(updates_of(table), after=after, until=until)
    assert models.consolidate(given_back) == wanted
    assert len(given_back) == len(wanted)
    assert [u.time for u in given_back] == sorted(u.time for u in given_back)
    assert found.schema.equals(schema.updates)


@given(drawn=shard_updates(), data=st.data())
def test_how_updates_are_cut_into_tables_does_not_matter(
    drawn: tuple[ShardSchema, pa.Table], data: st.DataObject
) -> None:
    """The contents do not depend on the division into parts."""
    schema, table = drawn
    cut = data.draw(st.integers(0, table.num_rows), label="cut")
    pieces = [table.slice(cut), schema.updates.empty_table(), table.slice(0, cut)]

    whole, cut_up = accumulate([table], schema, as_of=9), accumulate(pieces, schema, as_of=9)

    assert contents_of(whole) == contents_of(cut_up)


@given(drawn=shard_updates(), as_of=st.integers(0, 5))
def test_contents_and_later_changes_make_the_whole(
    drawn: tuple[ShardSchema, pa.Table], as_of: int
) -> None:
    """A snapshot and the changes after it add up to all contents."""
    schema, table = drawn

    total = models.accumulate(updates_of(table), 9)
    before = contents_of(accumulate([table], schema, as_of=as_of))
    for update in updates_of(consolidate([table], schema, after=as_of)):
        before[update.row] += update.diff

    assert {row: n for row, n in before.items() if n} == total


@given(drawn=shard_updates())
def test_prepared_updates_are_the_same_updates(drawn: tuple[ShardSchema, pa.Table]) -> None:
    """Prepared updates are sorted and have no zero diffs, but equal the given ones."""
    schema, table = drawn

    ready = prepare_updates(table, schema, lower=ALL, upper=END)

    assert models.consolidate(updates_of(ready)) == models.consolidate(updates_of(table))
    assert ready.schema.equals(schema.updates)
    assert updates_of(sort_updates(ready, schema)) == updates_of(ready)


def test_updates_of_zero_are_not_written() -> None:
    """Updates with a diff of 0 are not written, because they change nothing."""
    schema = schema_of(["int64"], keys=1)
    table = table_of(schema, [(1, 0, 0), (2, 0, 1), (3, 7, 0)])

    ready = prepare_updates(table, schema, lower=ALL, upper=Frontier.at(5))

    assert [u.row for u in updates_of(ready)] == [(2,)]


@pytest.mark.parametrize(("time", "lower", "upper"), [(4, 5, 9), (9, 5, 9), (10, 5, 9)])
def test_times_outside_of_the_interval_are_refused(time: int, lower: int, upper: int) -> None:
    """The update would change complete times, or belong to a later append."""
    schema = schema_of(["int64"], keys=1)

    with pytest.raises(UsageError, match="outside the interval"):
        prepare_updates(
            table_of(schema, [(1, 6, 1), (1, time, 1)]),
            schema,
            lower=Frontier.at(lower),
            upper=Frontier.at(upper),
        )


def test_the_last_time_there_is_can_be_written() -> None:
    """The last time, 2^63-1, can be written and read."""
    schema = schema_of(["int64"], keys=1)
    table = table_of(schema, [(1, TIME_MAX, 1)])

    assert time_bounds(prepare_updates(table, schema, lower=ALL, upper=END)) == (
        TIME_MAX,
        TIME_MAX,
    )
    assert contents_of(accumulate([table], schema, as_of=TIME_MAX)) == {(1,): 1}
    assert contents_of(accumulate([table], schema, as_of=TIME_MAX - 1)) == {}


def _changed(name: str, values: list[Any], dtype: pa.DataType) -> pa.Table:
    schema = schema_of(["int64", "string"], keys=1)
    table = table_of(schema, [(1, "x", 0, 1)])
    if name not in table.column_names:
        return table
    position = table.column_names.index(name)
    return table.set_column(position, name, pa.array(values, dtype))


@pytest.mark.parametrize(
    "table",
    [
        _changed("c0", [1], pa.int64()).drop_columns(["c0"]),
        _changed("c0", [1], pa.int64()).drop_columns([TIME]),
        _changed("c0", [1], pa.int64()).drop_columns([DIFF]),
        _changed("c0", ["one"], pa.string()),
        _changed("c0", [1.5], pa.float64()),
        _changed("c0", [2**64 - 1], pa.uint64()),
        _changed("c1", [b"\xff"], pa.binary()),
        _changed(TIME, [None], pa.int64()),
        _changed(DIFF, [None], pa.int64()),
        _changed(TIME, [-1], pa.int64()),
        _changed(TIME, [2**63], pa.uint64()),
        _changed(DIFF, [0.5], pa.float64()),
        _changed(DIFF, [DIFF_MAX + 1], pa.int64()),
        _changed(DIFF, [-DIFF_MAX - 1], pa.int64()),
        _changed(DIFF, [-(2**63)], pa.int64()),
    ],
    ids=range(15),
)
def test_tables_that_do_not_fit_are_refused(table: pa.Table) -> None:
    """A table that does not fit raises UsageError before any write. No value is changed to fit."""
    schema = schema_of(["int64", "string"], keys=1)

    with pytest.raises(UsageError):
        prepare_updates(table, schema, lower=ALL, upper=END)


def test_columns_come_in_any_order_and_in_kindred_types() -> None:
    """Columns may be in any order and in related types, as other libraries produce them."""
    schema = schema_of(["int64", "string"], keys=1)
    table = pa.table(
        {
            DIFF: pa.array([1], pa.int8()),
            "extra": [True],
            "c1": pa.array(["x"]).dictionary_encode(),
            TIME: pa.array([0], pa.uint32()),
            "c0": pa.array([7], pa.int16()),
        }
    )

    assert updates_of(conform(table, schema.updates)) == [models.Update((7, "x"), 0, 1)]


def test_many_rows_are_grouped_as_few_are() -> None:
    """Many rows give the contents of the model. The engine then works in parallel and spills."""
    schema = schema_of(["int64", "float64"], keys=1)
    rows = 300_000
    table = pa.table(
        {
            "c0": pa.array([n % 1_000 for n in range(rows)]),
            "c1": pa.array([(0.0, -0.0, float("nan"))[n % 3] for n in range(rows)]),
            TIME: pa.array([n % 7 for n in range(rows)]),
            DIFF: pa.array([1 - 2 * (n % 2) for n in range(rows)]),
        },
        schema=schema.updates,
    )

    found = accumulate([table.slice(0, 100_000), table.slice(100_000)], schema, as_of=4)

    assert contents_of(found) == models.accumulate(updates_of(table), 4)


@pytest.mark.parametrize("kind", KINDS)
def test_nulls_of_every_type_are_grouped(kind: str) -> None:
    """Nulls of each type group together in contents, although null equals nothing in SQL."""
    schema = schema_of([kind, "int8"], keys=1)
    table = table_of(schema, [(None, None, 0, 1), (None, None, 1, 1), (None, 1, 0, 1)])

    assert contents_of(accumulate([table], schema, as_of=1)) == {(None, None): 2, (None, 1): 1}


def test_ten_thousand_columns_are_looked_up_by_a_table_of_names() -> None:
    """Arrow builds a list of all names at each access to `names`. The work is linear."""
    wide = pa.table({f"c{n}": [n] for n in range(10_000)})
    schema = pa.schema([*list(wide.schema)[1:], wide.schema.field(0)])
    begun = time.process_time()
    for _ in range(10):
        list(wide.schema.names)
    ten_lists = time.process_time() - begun

    begun = time.process_time()
    found = conform(wide, schema)

    # A list per column would be 10,000 lists.
    assert time.process_time() - begun < 200 * ten_lists
    assert found.column_names[-1] == "c0"


def test_rows_that_come_in_the_order_of_their_key_are_not_sorted_again() -> None:
    """Rows already in key order are not sorted again, because sorting is a third of a write."""
    schema = schema_of(["int64", "string"], keys=1)
    rising = table_of(schema, [(n, "x", 0, 1) for n in range(9)])
    equal = table_of(schema, [(1, "b", 0, 1), (1, "a", 0, 1)])
    null = table_of(schema, [(None, "b", 0, 1), (1, "a", 0, 1)])

    assert sort_updates(rising, schema) is rising
    for table in (equal, null, rising.take([1, 0])):
        assert updates_of(sort_updates(table, schema)) == updates_of(table.take([1, 0]))


@given(drawn=shard_updates(), data=st.data())
def test_cores_sort_shares_into_the_order_of_one_sort(
    drawn: tuple[ShardSchema, pa.Table], data: st.DataObject
) -> None:
    """Three cores that each sort a share write the same bytes as one core."""
    schema, table = drawn
    order = [*schema.names, TIME]
    key = order[: data.draw(st.integers(1, len(schema.names)), label="key columns")]
    assume(is_sortable(schema) and table.num_rows > 1)

    with (
        patch.object(bounds, "SHARE_ROWS", 1),
        patch.object(bounds, "SAMPLE_ROWS", data.draw(st.integers(1, 4), label="sample")),
        patch.object(bounds, "cores", return_value=3),
    ):
        found = sorted_in_shares(table, key, order)

    wanted = table.sort_by([(name, "ascending") for name in order])
    assert encode_inline(found) == encode_inline(wanted)


def test_each_core_sorts_a_share_of_a_large_table() -> None:
    """The rows of a large table are sorted in as many calls as cores, each about as large."""
    schema = schema_of(["int64"], keys=1)
    table = table_of(schema, [(n * 7 % 1_000, 0, 1) for n in range(1_000)])
    shares: list[int] = []
    sorted_share = bounds._sorted_share

    def watched(some: pa.Table, share: Any, *rest: Any) -> pa.Table:
        shares.append(len(share))
        return sorted_share(some, share, *rest)

    with (
        patch.object(bounds, "SHARE_ROWS", 100),
        patch.object(bounds, "cores", return_value=4),
        patch.object(bounds, "_sorted_share", watched),
    ):
        found = sort_updates(table, schema)

    assert sorted(shares) == [250] * 4
    assert found.column("c0").to_pylist() == list(range(1_000))


@pytest.mark.parametrize("diffs", [[2**62] * 4, [2**63 - 1, 1], [-(2**63), -(2**63)]])
@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_sums_that_do_not_fit_are_told(kind: str, diffs: list[int]) -> None:
    """A sum beyond 64 bits raises CorruptionError. An overflow to 0 would hide a row."""
    schema = schema_of([kind], keys=1)
    table = table_of(schema, [(1.0 if kind == "float64" else 1, 0, diff) for diff in diffs])

    with pytest.raises(CorruptionError, match="exceeds 64 bits"):
        accumulate([table], schema, as_of=0)
    with pytest.raises(CorruptionError, match="exceeds 64 bits"):
        consolidate([table], schema)


def test_large_diffs_that_take_each_other_back_are_added_up() -> None:
    """Large diffs may cancel: only the final sum has to fit into 64 bits."""
    schema = schema_of(["int64"], keys=1)
    table = table_of(schema, [(1, 0, 2**63 - 1), (1, 0, 2**63 - 1), (1, 0, -(2**63)), (1, 0, 1)])

    found = accumulate([table], schema, as_of=0)

    assert found.column(DIFF).to_pylist() == [2**63 - 1]
