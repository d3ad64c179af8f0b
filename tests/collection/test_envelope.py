"""Envelopes against a replay in plain Python with a dictionary."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.decoding import info_of
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.ingest import envelope
from tidelog.collection.ingest.envelope import (
    DELETE,
    KeysBefore,
    apply_none,
    apply_upsert,
    current_rows,
    deletions_schema,
    hash_keys,
    messages_schema,
    stamp_rows,
)
from tidelog.persist.format.schema import ShardSchema
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
    rows = [(*key, value, time, time, *rest) for key, value, time, *rest in messages]
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[]] * 8
    return pa.table(columns, schema=messages_schema(SCHEMA))


def rows_of(current: dict[Any, Any]) -> pa.Table:
    rows = [{"k": k, "p": p, "v": v} for (k, p), v in current.items()]
    return pa.Table.from_pylist(rows, schema=SCHEMA.data)


def replayed(messages: list[Any], current: dict[Any, Any]) -> Counter[Any]:
    """Return the updates of a replay that writes each message into a dictionary."""
    state, found = dict(current), Counter[Any]()
    # Offsets may be equal in these examples, unlike in a file. Both sorts are stable.
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


def standing_in(updates: pa.Table, schema: ShardSchema, *, as_of: int) -> pa.Table:
    """Return the rows at time ``as_of``."""
    return current_rows([updates], hash_keys(updates, schema), schema, as_of=as_of)


@settings(max_examples=300)
@given(messages=MESSAGES, current=CURRENT)
def test_upsert_equals_a_dictionary(messages: list[Any], current: dict[Any, Any]) -> None:
    """The updates equal the replay in any order. Messages may delete absent keys or repeat rows."""
    updates = apply_upsert(table_of(messages), KeysBefore(rows_of(current)), SCHEMA).rows

    assert counted(updates) == replayed(messages, current)
    assert updates.schema.equals(SCHEMA.updates)


@settings(max_examples=100)
@given(messages=MESSAGES, current=CURRENT)
def test_keys_whose_hashes_meet_by_half_are_told_apart(
    messages: list[Any], current: dict[Any, Any]
) -> None:
    """Keys with equal 64-bit halves of their hashes stay distinct: collisions will happen."""

    def by_half(columns: Any, *, rows: int) -> Hashes:
        found = hash_rows(columns, rows=rows)
        return Hashes(np.zeros(rows, np.uint64), found.hi)

    with patch.object(envelope, "hash_rows", by_half):
        updates = apply_upsert(table_of(messages), KeysBefore(rows_of(current)), SCHEMA).rows

    assert counted(updates) == replayed(messages, current)


@settings(max_examples=100)
@given(messages=MESSAGES, as_of=st.integers(9, 14), dice=st.randoms(use_true_random=False))
def test_current_rows_do_not_depend_on_the_order_of_updates(
    messages: list[Any], as_of: int, dice: Any
) -> None:
    """Another process may concatenate the parts in another order."""
    updates = apply_upsert(table_of(messages), KeysBefore(rows_of({})), SCHEMA).rows
    places = list(range(updates.num_rows))
    dice.shuffle(places)
    shuffled = updates.take(np.array(places, np.int64))

    found = standing_in(shuffled, SCHEMA, as_of=as_of)

    there: Counter[Any] = Counter()
    for (*row, time), diff in counted(updates).items():
        there[tuple(row)] += diff * (time <= as_of)
    wanted = sorted((row for row, count in there.items() if count), key=repr)
    assert sorted((tuple(row.values()) for row in found.to_pylist()), key=repr) == wanted


@settings(max_examples=100)
@given(messages=MESSAGES, current=CURRENT)
def test_updates_come_by_key_with_their_hashes(
    messages: list[Any], current: dict[Any, Any]
) -> None:
    """Updates are in key order, with the hashes of their rows. Readers skip row groups by key."""
    found = apply_upsert(table_of(messages), KeysBefore(rows_of(current)), SCHEMA)

    rows = found.rows
    keys = [(row["k"], row["p"]) for row in rows.select(["k", "p"]).to_pylist()]
    assert keys == sorted(keys)
    if found.hashes is not None:
        wanted = hash_rows([rows.column(n) for n in SCHEMA.names], rows=rows.num_rows)
        assert found.hashes.lo.tolist() == wanted.lo.tolist()
        assert found.hashes.hi.tolist() == wanted.hi.tolist()


@given(messages=MESSAGES)
def test_none_appends_each(messages: list[Any]) -> None:
    """Equal messages are separate rows."""
    updates = apply_none(table_of(messages), SCHEMA)

    wanted = Counter((*key, value, time) for key, value, time, *_ in messages)
    assert Counter(tuple(row.values())[:-1] for row in updates.to_pylist()) == wanted
    assert {*updates.column("_diff").to_pylist()} <= {1}


@given(first=MESSAGES, second=MESSAGES)
def test_feedback_makes_two_ticks_one(first: list[Any], second: list[Any]) -> None:
    """Two ticks give the result of one. A tick knows only the output of the earlier ones."""
    later = [(key, value, time + 10, *rest) for key, value, time, *rest in second]
    before = apply_upsert(table_of(first), KeysBefore(rows_of({})), SCHEMA).rows
    messages = table_of(later)

    current = current_rows([before], hash_keys(messages, SCHEMA), SCHEMA, as_of=19)
    after = apply_upsert(messages, KeysBefore(current), SCHEMA).rows

    both = counted(before)
    both.update(counted(after))
    assert both == replayed([*first, *later], {})


TIMED = ShardSchema(pa.schema([*FIELDS, pa.field("at", pa.int64())]), 2)
KEPT = deletions_schema(TIMED, "at")
DATED = st.lists(
    st.tuples(KEYS, VALUES, st.integers(1, 40), st.booleans()), unique_by=lambda m: m[2]
)


@dataclass(slots=True)
class Output:
    """A shard and its deletions after some ticks, complete below ``upper``."""

    upper: int = 0
    rows: pa.Table = field(default_factory=TIMED.updates.empty_table)
    deleted: pa.Table = field(default_factory=KEPT.updates.empty_table)
    forgotten_below: int = 0

    def take(
        self, dated: list[Any], *, forgotten_below: int = 0, offsets: list[int] | None = None
    ) -> None:
        """Take messages in one tick. Late ones take effect at its lower."""
        self.forgotten_below = max(self.forgotten_below, forgotten_below)
        lower, upper = self.upper, max([self.upper, *(m[2] for m in dated)]) + 1
        rows = [
            (*key, value, at, max(at, lower), at, 0, offsets[n] if offsets else n, delete)
            for n, (key, value, at, delete) in enumerate(dated)
        ]
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[]] * 9
        messages = pa.table(columns, schema=messages_schema(TIMED))
        named = hash_keys(messages, TIMED)
        before = KeysBefore(
            current_rows([self.rows], named, TIMED, as_of=lower - 1),
            current_rows([self._counting()], named, KEPT, as_of=lower - 1),
        )
        found = apply_upsert(messages, before, TIMED, time_column="at")
        assert found.deleted is not None
        self.upper, self.rows = upper, pa.concat_tables([self.rows, found.rows])
        self.deleted = pa.concat_tables([self.deleted, found.deleted])

    def _counting(self) -> pa.Table:
        ats = self.deleted.column("at").to_numpy()
        return self.deleted.filter(pa.array(ats >= self.forgotten_below))

    def kept(self) -> dict[Any, Any]:
        """Return the time of each key's deletion, without forgotten ones."""
        rows = standing_in(self._counting(), KEPT, as_of=self.upper).to_pylist()
        assert len({(r["k"], r["p"]) for r in rows}) == len(rows)
        return {(r["k"], r["p"]): r["at"] for r in rows}

    def contents(self) -> dict[Any, Any]:
        """Return the value and time of each key."""
        rows = standing_in(self.rows, TIMED, as_of=self.upper).to_pylist()
        assert len({(r["k"], r["p"]) for r in rows}) == len(rows)
        return {(r["k"], r["p"]): (r["v"], r["at"]) for r in rows}


@settings(max_examples=150)
@given(dated=DATED, cuts=st.lists(st.integers(0, 8)), dice=st.randoms(use_true_random=False))
def test_what_is_newest_does_not_depend_on_when_it_comes(
    dated: list[Any], cuts: list[int], dice: Any
) -> None:
    """Rows and deletions take effect by their event times, in any order and division into ticks."""
    dice.shuffle(dated)
    output, left = Output(), list(dated)
    for size in [*cuts, len(dated)]:
        output.take(left[:size])
        left = left[size:]

    newest = {key: (value, at, gone) for key, value, at, gone in sorted(dated, key=lambda m: m[2])}
    assert output.contents() == {
        key: (value, at) for key, (value, at, gone) in newest.items() if not gone
    }
    assert output.kept() == {key: at for key, (_, at, gone) in newest.items() if gone}


MEETING = st.lists(st.tuples(KEYS, VALUES, st.integers(1, 3), st.booleans()), max_size=8)


@settings(max_examples=100)
@given(ticks=st.lists(st.tuples(MEETING, st.integers(0, 4)), max_size=4), same=st.booleans())
def test_a_key_is_in_the_output_or_among_the_deletions(ticks: list[Any], same: bool) -> None:
    """The newest message of a key decides. At equal times, the last one does."""
    output, state = Output(), dict[Any, Any]()
    for dated, forgotten_below in ticks:
        offsets = [0 if same else n for n in range(len(dated))]
        output.take(dated, forgotten_below=forgotten_below, offsets=offsets)
        for key in {key for key, *_ in dated}:
            value, at, gone = state.get(key, (None, 0, True))
            if gone and at < output.forgotten_below:
                at = 0
            found = [(value, at, gone), *((v, t, g) for k, v, t, g in dated if k == key)]
            state[key] = max(reversed(found), key=lambda message: message[1])

        rows, kept = output.contents(), output.kept()
        assert not rows.keys() & kept.keys()
        assert rows == {k: (v, at) for k, (v, at, gone) in state.items() if not gone}
        counts = {k for k, (_, at, gone) in state.items() if gone and at >= output.forgotten_below}
        assert kept.keys() == counts


def test_a_deletion_that_is_forgotten_counts_no_more_and_is_not_kept_twice() -> None:
    """A row later than the remembered deletions returns. Only the next deletion is kept."""
    key, output = ("a", 0), Output()
    output.take([(key, 1, 10, False), (key, None, 20, True)])
    output.take([(key, 2, 15, False)], forgotten_below=15)
    assert output.contents() == {}

    output.take([(key, 3, 16, False)], forgotten_below=21)
    assert output.contents() == {key: (3, 16)}

    output.take([(key, None, 30, True)], forgotten_below=21)
    assert output.contents() == {}
    assert output.kept() == {key: 30}


@pytest.mark.parametrize(
    "dtype", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.int64(), pa.uint64()]
)
def test_the_newest_within_a_millisecond_counts(dtype: pa.DataType) -> None:
    """Messages within a millisecond count by their exact times, not by their order in the file."""
    fields: list[Any] = [pa.field("k", pa.string()), pa.field("at", dtype)]
    source = info_of(envelope="upsert", key=("k",), time_column="at", time_unit="us")
    ats = pa.array([5_000_900, 5_000_100], pa.int64()).cast(dtype)
    rows = pa.table([["x", "x"], ats, [0, 1]], names=["k", "at", OFFSET])
    stamped = stamp_rows(rows, source, lower=0, upper=5_001, rank=0).rows
    schema = ShardSchema(pa.schema(fields), 1)
    messages = stamped.append_column(DELETE, pa.array([False, False]))
    messages = messages.select(messages_schema(schema).names).cast(messages_schema(schema))

    found = apply_upsert(
        messages, KeysBefore(schema.data.empty_table()), schema, time_column="at"
    ).rows

    assert found.column("at").cast(pa.int64()).to_pylist() == [5_000_900]
