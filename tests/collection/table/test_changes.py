"""Changes of a table: their updates, judged by a dict of rows or a list of rows."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.collection.table.changes import (
    TableChange,
    check_absent,
    delete_of,
    insert_of,
    merge_of,
    unread_keys,
    update_of,
    upsert_of,
)
from tidelog.errors import KeyExists, UsageError
from tidelog.persist.format.corrected import consolidated
from tidelog.persist.format.schema import DIFF, ShardSchema, shard_schema

TYPES: dict[str, pa.DataType] = {"id": pa.int64(), "place": pa.string(), "n": pa.int64()}
COLUMNS = pa.schema(TYPES)
KEYED = shard_schema(COLUMNS, key=["id"])
PAIR = shard_schema(COLUMNS, key=["id", "place"])
LOOSE = shard_schema(COLUMNS, key=[])
Row = tuple[Any, ...]


def table_of(rows: Counter[Row], schema: ShardSchema) -> pa.Table:
    """Return counted rows as contents."""
    kept = [row for row, count in rows.items() if count]
    columns = [[row[at] for row in kept] for at in range(len(schema.names))]
    counts = [rows[row] for row in kept]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema.data, strict=True)]
    return pa.table([*arrays, pa.array(counts, pa.int64())], schema=schema.contents)


def counted(updates: pa.Table) -> Counter[Row]:
    """Return updates as counted rows; equal rows must occur once."""
    found = [tuple(row.values()) for row in updates.to_pylist()]
    assert len({row[:-1] for row in found}) == len(found)
    return Counter({row[:-1]: row[-1] for row in found})


def changed(rows: Counter[Row], change: TableChange) -> Counter[Row]:
    """Return the rows after a change; only the rows of its lookup are shown to it."""
    old = table_of(rows, change.schema)
    seen = old.slice(0, 0)
    if change.lookup is not None:
        seen = old.filter(pa.array(change.lookup.mask(old)))
    updates = change.updates(seen)
    new = unread_keys(change, updates)
    if new is not None:
        check_absent(new, old)
    made = counted(updates)
    found = Counter(rows)
    for row, diff in made.items():
        found[row] += diff
    assert min(found.values(), default=0) >= 0
    assert all(diff for diff in made.values())
    return +found


def rows_of(*rows: Row) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS.names, row, strict=True)) for row in rows]


START = Counter({(1, "a", 10): 1, (2, "b", 20): 1, (3, None, None): 1})


def test_an_insert_adds_new_keys() -> None:
    """The rows of other keys stay."""
    found = changed(START, insert_of(rows_of((4, "d", 40)), KEYED))

    assert found == START + Counter({(4, "d", 40): 1})


def test_an_insert_of_an_existing_key_names_the_first_one() -> None:
    """The caller must find the row in its own batch, so the batch's order decides."""
    rows = rows_of((9, "x", 0), (2, "x", 0), (1, "x", 0))

    with pytest.raises(KeyExists, match="the key id=2 exists: choose another key, or upsert"):
        changed(START, insert_of(rows, KEYED))


def test_an_insert_without_a_key_reads_nothing() -> None:
    """Such an insert never conflicts, and equal rows are counted."""
    change = insert_of(rows_of((1, "a", 10), (1, "a", 10)), LOOSE)

    assert change.lookup is None
    assert change.updates(LOOSE.contents.empty_table()).num_rows == 2


def test_an_upsert_replaces_and_inserts() -> None:
    """An equal row gives no update, so that followers see only real changes."""
    change = upsert_of(rows_of((1, "a", 10), (2, "c", 20), (4, None, 40)), KEYED)
    old = table_of(START, KEYED).slice(0, 2)

    assert counted(change.updates(old)) == Counter(
        {(2, "b", 20): -1, (2, "c", 20): 1, (4, None, 40): 1}
    )


def test_a_delete_by_keys_ignores_absent_keys() -> None:
    """A delete that runs again is no error."""
    assert changed(START, delete_of([1, 7, 7], None, KEYED)) == START - Counter({(1, "a", 10): 1})


@pytest.mark.parametrize("schema", [KEYED, LOOSE])
def test_a_delete_where_uses_the_nulls_of_sql(schema: ShardSchema) -> None:
    """A condition that is null selects no row."""
    assert set(changed(START, delete_of(None, "n > 15", schema))) == {(1, "a", 10), (3, None, None)}
    assert set(changed(START, delete_of(None, "not n > 15", schema))) == {
        (2, "b", 20),
        (3, None, None),
    }


def test_an_update_computes_over_the_old_row() -> None:
    """All expressions see the old row, as in SQL."""
    change = update_of({"n": "n + id", "place": "place || n"}, "place is not null", KEYED)

    assert set(changed(START, change)) == {(1, "a10", 11), (2, "b20", 22), (3, None, None)}


def test_an_update_of_equal_rows_keeps_their_count() -> None:
    """A table without a key may have a row many times."""
    rows = Counter({(1, "a", 10): 3, (1, "b", 10): 2})

    assert changed(rows, update_of({"place": "'b'"}, "id = 1", LOOSE)) == {(1, "b", 10): 5}


def test_an_update_may_move_keys() -> None:
    """The keys are unique after the whole update, whatever order of rows would be needed."""
    rows = Counter({(1, "a", 1): 1, (2, "b", 2): 1, (3, "c", 3): 1})
    shifted = {(2, "a", 1): 1, (3, "b", 2): 1, (4, "c", 3): 1}

    assert changed(rows, update_of({"id": "id + 1"}, "true", KEYED)) == shifted


def test_an_update_must_keep_keys_unique() -> None:
    """A key must collide neither with a row outside of the update, nor with one inside."""
    with pytest.raises(KeyExists, match="id=2"):
        changed(START, update_of({"id": "2"}, "id = 1", KEYED))
    with pytest.raises(UsageError, match="two rows would have the key id=9"):
        changed(START, update_of({"id": "9"}, "id < 3", KEYED))


def test_an_update_must_fit_the_columns() -> None:
    """A value is cast only if it stays equal, as that of an insert."""
    assert changed(START, update_of({"n": "n * 2.0"}, "id = 1", KEYED))[(1, "a", 20)] == 1
    told = r"set= of 'n' gives 5\.5 for the row with id=2, .* its type is BIGINT"
    with pytest.raises(UsageError, match=told):
        changed(
            START, update_of({"n": "case id when 2 then 5.5::double else id end"}, "true", KEYED)
        )
    with pytest.raises(UsageError, match=r"gives null for the row with id=3, .* never null"):
        changed(START, update_of({"id": "nullif(id, 3)"}, "true", KEYED))
    told = r"gives 'a' for the row with id=1, place='a', n=10, which"
    with pytest.raises(UsageError, match=told):
        changed(START, update_of({"n": "place"}, "id = 1", LOOSE))
    assert changed(START, update_of({"place": "null"}, "id = 1", KEYED))[(1, None, 10)] == 1


@pytest.mark.parametrize(
    ("set", "where", "message"),
    [
        ({}, "true", "set must be a dict"),
        ("n = 1", "true", "set must be a dict"),
        ({"m": "1"}, "true", "unknown column: 'm'; the columns are id, place, n"),
        ({"n": 1}, "true", "set= of 'n' must be a SQL expression, as a str, not int"),
        ({"n": "m + 1"}, "true", "set= of 'n' reads 'm', which is not a column"),
        ({"n": "1, id = 2"}, "true", "set= of 'n' is not one"),
        ({"n": "sum(n)"}, "true", "aggregates many rows"),
        ({"n": "(select 1)"}, "true", "contains a subquery"),
        ({"place": "content from read_text('/etc/passwd')"}, "true", "set= of 'place' is not one"),
        ({"n": "n +"}, "true", "set= of 'n' is not one"),
        ({"n": ""}, "true", "set= of 'n' is empty"),
        ({"n": "1"}, "m > 1", "where= reads 'm', which is not a column"),
        ({"n": "1"}, "n", "where= must be a condition"),
        ({"n": "1"}, None, "where= must be a condition in SQL, as a str, not NoneType"),
    ],
)
def test_wrong_updates_are_refused_before_any_read(set: Any, where: Any, message: str) -> None:
    """Expressions are of one row, and reach no file."""
    with pytest.raises(UsageError, match=message):
        update_of(set, where, KEYED)


@pytest.mark.parametrize(
    ("matched", "not_matched", "wanted"),
    [
        ("update", "insert", {(1, "z", 0): 1, (2, "b", 20): 1, (4, "w", 0): 1}),
        ("update", "ignore", {(1, "z", 0): 1, (2, "b", 20): 1}),
        ("delete", "insert", {(2, "b", 20): 1, (4, "w", 0): 1}),
        ("delete", "ignore", {(2, "b", 20): 1}),
        ("ignore", "insert", {(1, "a", 10): 1, (2, "b", 20): 1, (4, "w", 0): 1}),
        ("ignore", "ignore", {(1, "a", 10): 1, (2, "b", 20): 1}),
    ],
)
def test_each_rule_of_a_merge(matched: Any, not_matched: Any, wanted: dict[Row, int]) -> None:
    """By default the columns of the key are compared."""
    rows = Counter({(1, "a", 10): 1, (2, "b", 20): 1})
    change = merge_of(
        rows_of((1, "z", 0), (4, "w", 0)),
        None,
        KEYED,
        when_matched=matched,
        when_not_matched=not_matched,
    )

    assert changed(rows, change) == wanted


def merged(rows: list[dict[str, Any]], on: Any, schema: ShardSchema = KEYED) -> TableChange:
    return merge_of(rows, on, schema, when_matched="update", when_not_matched="insert")


def test_a_merge_on_other_columns() -> None:
    """Each row that matches is replaced; a null matches no null, as in SQL."""
    rows = Counter({(1, "a", 10): 2, (2, "a", 20): 1, (3, None, 30): 1})
    change = merged(rows_of((7, "a", 0), (8, None, 0)), ["place"], LOOSE)

    assert changed(rows, change) == {(7, "a", 0): 3, (8, None, 0): 1, (3, None, 30): 1}


def test_a_merge_on_other_columns_keeps_keys_unique() -> None:
    """The key of a merged row may exist in a row that does not match."""
    with pytest.raises(KeyExists, match="id=2"):
        changed(START, merged(rows_of((2, "a", 0)), ["place"]))
    with pytest.raises(KeyExists, match="id=1"):
        changed(START, merged(rows_of((1, "new", 0)), ["place"]))
    with pytest.raises(UsageError, match="two rows would have the key id=9"):
        changed(START, merged(rows_of((9, "a", 0), (9, "b", 0)), ["place"]))
    assert changed(START, merged(rows_of((5, "a", 0)), ["place"]))[(5, "a", 0)] == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: insert_of(rows_of((1, "a", 1), (1, "b", 2)), KEYED), "two rows .* have id=1"),
        (lambda: upsert_of(rows_of((1, "a", 1), (1, "b", 2)), KEYED), "two rows .* have id=1"),
        (
            lambda: upsert_of(rows_of((1, "a", 1), (2, "a", 1), (1, "a", 2)), PAIR),
            "two rows of the write have id=1, place='a': keep one of them",
        ),
        (lambda: upsert_of(rows_of((1, "a", 1)), LOOSE), "the table has no key"),
        (lambda: delete_of([1], None, LOOSE), "the table has no key"),
        (lambda: delete_of(None, None, KEYED), "either keys= or where="),
        (lambda: delete_of([1], "true", KEYED), "either keys= or where="),
        (lambda: delete_of(None, "n + 1", KEYED), "where= must be a condition"),
        (lambda: merged(rows_of(), ["nope"]), "unknown column: 'nope'; the columns are id"),
        (lambda: merged(rows_of(), "id"), "on must be a list of names"),
        (lambda: merged(rows_of(), None, LOOSE), "the table has no key: pass on="),
        (lambda: merged(rows_of(), [], KEYED), "on= names no column: pass the columns"),
        (lambda: merged(rows_of((1, "a", 1), (2, "a", 2)), ["place"]), "merge have place='a'"),
        (
            lambda: merge_of([], None, KEYED, when_matched="drop", when_not_matched="insert"),  # type: ignore[arg-type]
            "when_matched must be update or delete or ignore, not 'drop'",
        ),
    ],
)
def test_wrong_calls_are_refused_before_any_read(call: Any, message: str) -> None:
    """The error states the value and the remedy."""
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.parametrize("seed", range(6))
def test_upserts_and_deletes_equal_a_dict(seed: int) -> None:
    """The dict of the model has the newest row of each key, of any types and with nulls."""
    pick = random.Random(seed)
    schema = PAIR if seed % 2 else KEYED
    model: dict[Row, Row] = {}
    rows: Counter[Row] = Counter()
    for _ in range(12):
        batch: dict[Row, Row] = {}
        for _ in range(pick.randrange(40)):
            row = (pick.randrange(30), pick.choice("ab"), pick.choice([None, 1, 2]))
            batch[row[: schema.key_columns]] = row
        if pick.random() < 0.3:
            keys = [dict(zip(schema.key, key, strict=True)) for key in batch]
            rows = changed(rows, delete_of(keys, None, schema))
            model = {key: row for key, row in model.items() if key not in batch}
        else:
            rows = changed(rows, upsert_of(rows_of(*batch.values()), schema))
            model |= batch

        assert rows == Counter(model.values())


def test_consolidation_of_many_updates() -> None:
    """Equal rows are found whatever their order, also with nulls."""
    pick = np.random.default_rng(7)
    ids, diffs = pick.integers(0, 50, 5_000), pick.integers(-3, 4, 5_000)
    places = pa.array([None if one % 7 == 0 else str(one % 3) for one in ids.tolist()])
    updates = pa.table({"id": ids, "place": places, DIFF: diffs})
    wanted: Counter[Row] = Counter()
    for row in updates.to_pylist():
        wanted[(row["id"], row["place"])] += row[DIFF]

    assert counted(consolidated(updates)) == {row: n for row, n in wanted.items() if n}
