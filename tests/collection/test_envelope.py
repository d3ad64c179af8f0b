"""Envelopes, held against a replay in plain Python that keeps a dictionary."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.collection import envelope
from tidelog.collection.envelope import apply_none, apply_upsert, current_rows, messages_schema
from tidelog.persist.schema import ShardSchema
from tidelog.rowhash import Hashes, hash_rows

FIELDS: list[Any] = [
    pa.field("k", pa.string()),
    pa.field("p", pa.int64()),
    pa.field("v", pa.int64()),
]
SCHEMA = ShardSchema(pa.schema(FIELDS), 2)
KEYS = st.tuples(st.sampled_from(["a", "b", "ab", ""]), st.integers(0, 1))
VALUES = st.none() | st.integers(0, 2)
MESSAGES = st.lists(
    st.tuples(
        KEYS, VALUES, st.integers(10, 13), st.integers(0, 1), st.integers(0, 3), st.booleans()
    )
)
CURRENT = st.dictionaries(KEYS, VALUES)


def table_of(messages: list[Any]) -> pa.Table:
    rows = [(*key, *rest) for key, *rest in messages]
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[]] * 7
    return pa.table(columns, schema=messages_schema(SCHEMA))


def rows_of(current: dict[Any, Any]) -> pa.Table:
    rows = [{"k": k, "p": p, "v": v} for (k, p), v in current.items()]
    return pa.Table.from_pylist(rows, schema=SCHEMA.data)


def replayed(messages: list[Any], current: dict[Any, Any]) -> Counter[Any]:
    """Return the updates, by writing each message into a dictionary."""
    state, found = dict(current), Counter[Any]()
    # Offsets may meet in these examples, though not in a file: Python's sort is stable, as ours.
    for key, value, time, _, _, delete in sorted(messages, key=lambda m: m[2:5]):
        if key in state:
            found[(*key, state.pop(key), time)] -= 1
        if not delete:
            state[key] = value
            found[(*key, value, time)] += 1
    return Counter({update: diff for update, diff in found.items() if diff})


def counted(updates: pa.Table) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in updates.to_pylist():
        *update, diff = row.values()
        found[tuple(update)] += diff
    assert len(found) == updates.num_rows, "an update came in two rows"
    return found


@settings(max_examples=300)
@given(messages=MESSAGES, current=CURRENT)
def test_upsert_equals_a_dictionary(messages: list[Any], current: dict[Any, Any]) -> None:
    """Whatever the order, deletes of nothing and changes to the same among them."""
    updates = apply_upsert(table_of(messages), rows_of(current), SCHEMA)

    assert counted(updates) == replayed(messages, current)
    assert updates.schema.equals(SCHEMA.updates)


@settings(max_examples=100)
@given(messages=MESSAGES, current=CURRENT)
def test_keys_whose_hashes_meet_by_half_are_told_apart(
    messages: list[Any], current: dict[Any, Any]
) -> None:
    """A collision of 64 bits is to be expected some day; one of 128 is not."""

    def by_half(columns: Any, *, rows: int) -> Hashes:
        found = hash_rows(columns, rows=rows)
        return Hashes(np.zeros(rows, np.uint64), found.hi)

    with patch.object(envelope, "hash_rows", by_half):
        updates = apply_upsert(table_of(messages), rows_of(current), SCHEMA)

    assert counted(updates) == replayed(messages, current)


@given(messages=MESSAGES)
def test_none_appends_each(messages: list[Any]) -> None:
    """Twice the same is there twice."""
    updates = apply_none(table_of(messages), SCHEMA)

    wanted = Counter((*key, value, time) for key, value, time, *_ in messages)
    found: Counter[Any] = Counter()
    for row in updates.to_pylist():
        *update, diff = row.values()
        found[tuple(update)] += diff
    assert found == wanted


@given(first=MESSAGES, second=MESSAGES)
def test_feedback_makes_two_ticks_one(first: list[Any], second: list[Any]) -> None:
    """What the output has is all that a tick knows of the ticks before."""
    later = [(key, value, time + 10, *rest) for key, value, time, *rest in second]
    before = apply_upsert(table_of(first), rows_of({}), SCHEMA)
    messages = table_of(later)

    current = current_rows([before], messages, SCHEMA, as_of=19)
    after = apply_upsert(messages, current, SCHEMA)

    both = counted(before)
    both.update(counted(after))
    assert both == replayed([*first, *later], {})
