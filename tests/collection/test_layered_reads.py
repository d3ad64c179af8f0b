"""Reads in which the newest update of a key decides: the rows of a read that adds up all diffs."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.shard_tables import schema_of, table_of
from kit.shards import in_memory, reading_of
from tidelog.collection.reading import Reading
from tidelog.errors import CorruptionError
from tidelog.persist.format import parquet, part
from tidelog.persist.format.newest import Joined
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read import contents, sweep
from tidelog.persist.read import opened as opened_parts
from tidelog.persist.read import reader as read_parts
from tidelog.persist.read.contents import layers_of

KEYED = schema_of(["int64", "int64"], keys=1)
Commit = dict[int, int | None]  # The new value of each key; None deletes it.


def whole_of(shard: Shard, schema: ShardSchema, columns: list[str] | None = None) -> Reading:
    """Return the read of a caller that holds all rows, whose keys are unique."""
    reading = reading_of(shard, schema, columns or schema.names)
    return replace(reading, is_at_once=True, is_unique=True)


def updates_of(commits: list[Commit], shown: Any = int) -> list[list[tuple[Any, int, int, int]]]:
    """Return the updates of each commit, as a table's writer makes them."""
    rows: dict[int, int] = {}
    found = []
    for time, commit in enumerate(commits):
        updates = []
        for key, value in commit.items():
            if key in rows:
                updates.append((shown(key), rows.pop(key), time, -1))
            if value is not None:
                rows[key] = value
                updates.append((shown(key), value, time, 1))
        found.append([one for one in updates if (*one[:3], -one[3]) not in updates])
    return found


def rows_after(commits: list[Commit]) -> list[tuple[int, int]]:
    """Return the rows after some commits, in the order of the key."""
    rows: dict[int, int | None] = {}
    for commit in commits:
        rows |= commit
    return [(key, value) for key, value in sorted(rows.items()) if value is not None]


async def written(schema: ShardSchema, commits: list[list[Any]], ends: list[int]) -> Shard:
    """Write updates, in a batch up to each of ``ends``."""
    shard, begin = in_memory().shard(schema=schema), 0
    for end in ends:
        together = [update for commit in commits[begin:end] for update in commit]
        await shard.compare_and_append(table_of(schema, together), begin, end)
        begin = end
    return shard


COMMIT = st.dictionaries(st.integers(-5, 9), st.none() | st.integers(0, 3), max_size=8)


@settings(deadline=None)
@given(
    commits=st.lists(COMMIT, min_size=1, max_size=6),
    cuts=st.sets(st.integers(1, 5)),
    as_of=st.integers(0, 5),
    columns=st.sampled_from([None, ["c1"], ["c1", "c0"]]),
    inline=st.sampled_from([0, part.INLINE_BYTES]),
    small=st.sampled_from([1, read_parts.SMALL_ROWS]),
)
async def test_a_layered_read_has_the_rows_of_the_commits(
    commits: list[Commit],
    cuts: set[int],
    as_of: int,
    columns: list[str] | None,
    inline: int,
    small: int,
) -> None:
    """It holds for inserts, updates, deletes, parts of several times, and earlier times.

    Parts are small or large, with one row group or several.
    """
    as_of = min(as_of, len(commits) - 1)
    ends = sorted({*(cut for cut in cuts if cut < len(commits)), len(commits)})
    with (
        patch.object(part, "INLINE_BYTES", inline),
        patch.object(parquet, "ROW_GROUP_ROWS", 3),
    ):
        shard = await written(KEYED, updates_of(commits), ends)
    parts = (await shard.snapshot(as_of)).parts
    whole = whole_of(shard, KEYED, columns)

    for reading in (whole, replace(whole, is_unique=False)):
        with (
            patch.object(contents, "SMALL_ROWS", small),
            patch.object(read_parts, "SMALL_ROWS", small),
        ):
            found = [piece async for piece in reading.contents(parts, as_of)]
        expected = [{"c0": key, "c1": value} for key, value in rows_after(commits[: as_of + 1])]
        names = columns or ["c0", "c1"]
        assert [row for piece in found for row in piece.to_pylist()] == [
            {**{name: row[name] for name in names}, "_diff": 1} for row in expected
        ]


BASE_AND_CHANGES: list[Commit] = [{1: 1, 2: 2, 5: 5, 7: 7}, {2: 3, 4: 4, 5: None}, {2: 6, 5: 8}]


def day(key: int) -> dt.date:
    return dt.date(2026, 1, 1) + dt.timedelta(days=key)


@pytest.mark.parametrize(("kind", "shown"), [("int64", int), ("int8", int), ("date", day)])
async def test_changed_rows_of_a_numbered_key_are_not_hashed(
    kind: str, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last update of a key replaces its row, and no diffs are added up."""
    schema = schema_of([kind, "int64"], keys=1)
    shard = await written(schema, updates_of(BASE_AND_CHANGES, shown), [1, 2, 3])
    parts = (await shard.snapshot(2)).parts
    monkeypatch.setattr(sweep, "merge", None)

    found = [piece async for piece in whole_of(shard, schema).contents(parts, 2)]

    rows = [(row["c0"], row["c1"]) for piece in found for row in piece.to_pylist()]
    assert rows == [(shown(k), v) for k, v in [(1, 1), (2, 6), (4, 4), (5, 8), (7, 7)]]


async def test_layers_need_one_key_column_and_times_that_do_not_overlap() -> None:
    """Otherwise the newest update of a key may not be known, and diffs must be added up."""
    updates = updates_of(BASE_AND_CHANGES)
    for ends, is_layered in (([1, 2, 3], True), ([1, 3], False), ([2, 3], False), ([1], False)):
        shard = await written(KEYED, updates, ends)
        parts = (await shard.snapshot(ends[-1] - 1)).parts
        assert (layers_of(parts, KEYED) is not None) is is_layered, ends
        assert layers_of(parts, schema_of(["int64", "int64"], keys=2)) is None


async def test_updates_that_contradict_one_another_are_reported() -> None:
    """A removal of a row that does not exist must not pass for a deletion of its key."""
    shard = await written(KEYED, [[(1, 1, 0, 1)], [(2, 2, 1, -1)]], [1, 2])
    parts = (await shard.snapshot(1)).parts

    with pytest.raises(CorruptionError, match="negative count"):
        _ = [piece async for piece in whole_of(shard, KEYED).contents(parts, 1)]


async def test_a_layered_read_of_texts_adds_up_their_diffs() -> None:
    """Only keys of numbers are searched, and the rows are the same."""
    schema = schema_of(["string", "int64"], keys=1)
    shard = await written(schema, updates_of(BASE_AND_CHANGES, str), [1, 2, 3])
    parts = (await shard.snapshot(2)).parts

    found = [piece async for piece in whole_of(shard, schema).contents(parts, 2)]

    rows = [(row["c0"], row["c1"]) for piece in found for row in piece.to_pylist()]
    assert rows == [("1", 1), ("2", 6), ("4", 4), ("5", 8), ("7", 7)]
    assert pa.concat_tables(found).schema.names == ["c0", "c1", "_diff"]


async def test_texts_of_a_large_part_are_read_with_their_dictionary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The columns of the result have no dictionary, and nulls stay."""
    schema = schema_of(["int64", "string"], keys=1)
    words = [None if key % 5 == 0 else f"word {key % 3}" for key in range(200)]
    monkeypatch.setattr(part, "INLINE_BYTES", 0)
    base = [(key, word, 0, 1) for key, word in enumerate(words)]
    changed = [(3, words[3], 1, -1), (3, "new", 1, 1), (10, None, 1, -1), (11, words[11], 1, -1)]
    later = [*changed, (11, None, 1, 1), (900, "last", 1, 1)]
    shard = await written(schema, [base, later], [1, 2])
    monkeypatch.setattr(contents, "SMALL_ROWS", 50)
    monkeypatch.setattr(read_parts, "SMALL_ROWS", 50)
    monkeypatch.setattr(opened_parts, "LARGE_ROWS", 50)

    monkeypatch.setattr(sweep, "merge", None)
    seen: list[pa.DataType] = []
    column = Joined.column

    def noted(joined: Joined, base: pa.ChunkedArray[Any], changed: pa.ChunkedArray[Any]) -> Any:
        seen.append(base.type)
        return column(joined, base, changed)

    monkeypatch.setattr(Joined, "column", noted)

    parts = (await shard.snapshot(1)).parts
    found = pa.concat_tables([p async for p in whole_of(shard, schema).contents(parts, 1)])

    rows = dict(enumerate(words)) | {3: "new", 11: None, 900: "last"}
    del rows[10]
    assert any(pa.types.is_dictionary(dtype) for dtype in seen)
    assert found.schema.field("c1").type == pa.string()
    assert list(zip(*found.select(["c0", "c1"]).to_pydict().values(), strict=True)) == sorted(
        rows.items()
    )
