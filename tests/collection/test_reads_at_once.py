"""Reads that hold all rows of a collection: the same rows as a read in pieces, decoded once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kit.shard_tables import schema_of, shard_updates, table_of
from kit.shards import append_cut, counts_in, in_memory, projected, reading_of
from kit.tables import SCHEMA, new_lake, some_rows
from tidelog.core.frontier import Frontier
from tidelog.persist.format import parquet, part
from tidelog.persist.format.schema import DIFF, ShardSchema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read import sweep
from tidelog.persist.read.contents import parts_in_order
from tidelog.persist.read.opened import OpenPart
from tidelog.persist.read.selection import repeated
from tidelog.testing.models import accumulate, updates_of


async def written(schema: ShardSchema, table: pa.Table, cuts: list[int], inline: int) -> Shard:
    """Write updates in batches by time, with row groups of two rows."""
    shard = in_memory().shard(schema=schema)
    groups = patch.object(parquet, "ROW_GROUP_ROWS", 2)
    with groups, patch.object(part, "INLINE_BYTES", inline):
        await append_cut(shard, table, [*cuts, 6])
    return shard


@settings(deadline=None)
@given(
    drawn=shard_updates(),
    cuts=st.sets(st.integers(1, 5)).map(sorted),
    as_of=st.integers(0, 5),
    picked=st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
    are_inserts=st.booleans(),
    inline=st.sampled_from([0, part.INLINE_BYTES]),
)
async def test_a_read_at_once_has_the_rows_of_a_read_in_pieces(
    drawn: tuple[ShardSchema, pa.Table],
    cuts: list[int],
    as_of: int,
    picked: list[int],
    are_inserts: bool,
    inline: int,
) -> None:
    """It holds for any parts, types, times after the read, retractions and inline rows."""
    schema, table = drawn
    if are_inserts:
        place = table.schema.get_field_index(DIFF)
        plain = pa.array([1] * table.num_rows, pa.int64())
        table = table.set_column(place, table.schema.field(place), plain)
    expected = accumulate(updates_of(table), as_of)
    assume(min(expected.values(), default=0) >= 0)
    columns = [schema.names[n] for n in picked if n < len(schema.names)] or schema.names
    shard = await written(schema, table, cuts, inline)
    parts = (await shard.snapshot(as_of)).parts
    pieces = reading_of(shard, schema, columns)
    whole = replace(pieces, is_at_once=True)

    found = [piece async for piece in whole.contents(parts, as_of)]

    assert counts_in(found, columns) == projected(expected, schema.names, columns)
    for table in found:
        assert table.schema.names == [*columns, DIFF]
    if schema.key and set(schema.key) <= set(columns):
        one_by_one = [piece async for piece in pieces.contents(parts, as_of)]
        assert keys_of(found, schema) == keys_of(one_by_one, schema)


def keys_of(tables: list[pa.Table], schema: ShardSchema) -> list[Any]:
    rows = [row for table in tables for each in repeated(table) for row in each.to_pylist()]
    return [repr([row[name] for name in schema.key]) for row in rows]


KEYED = schema_of(["int64", "int64"], keys=1)


@pytest.mark.parametrize(
    ("batches", "is_known"),
    [
        ([[(1, 1), (2, 1)], [(3, 1)]], True),
        ([[(3, 1)], [(1, 1), (2, 1)]], True),
        ([[(1, 1), (3, 1)], [(2, 1)]], False),
        ([[(1, 1)], [(1, -1)]], False),
        ([[(1, 2)], [(2, 1)]], False),
        ([[(None, 1)], [(2, 1)]], False),
    ],
)
async def test_parts_have_an_order_if_no_update_meets_another(
    batches: list[list[tuple[int | None, int]]], is_known: bool
) -> None:
    """Bounds and diffs of the descriptors decide."""
    shard = in_memory().shard(schema=KEYED)
    for time, rows in enumerate(batches):
        updates = [(key, 0, time, diff) for key, diff in rows]
        await shard.compare_and_append(table_of(KEYED, updates), time, time + 1)
    found = parts_in_order((await shard.snapshot(len(batches) - 1)).parts, KEYED)

    assert (found is not None) is is_known
    if found is not None:
        assert [one.time_min for one in found] == ([0, 1] if batches[0][0][0] == 1 else [1, 0])


class Decoded:
    """The columns of each call that decodes rows; rows must not be merged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[list[str]] = []
        read = OpenPart.read

        def watched(opened: OpenPart, groups: Any, names: Any, **named: Any) -> pa.Table:
            self.names.append(list(names))
            return read(opened, groups, names, **named)

        monkeypatch.setattr(OpenPart, "read", watched)
        monkeypatch.setattr(sweep, "merge", None)


async def test_a_snapshot_of_one_column_decodes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has the rows of all parts in the order of writes."""
    table = await (await new_lake()).tables.create("t", SCHEMA)
    with patch.object(part, "INLINE_BYTES", 0):
        for start in (0, 10, 20):
            await table.insert(some_rows(*range(start, start + 10)))
    decoded = Decoded(monkeypatch)

    found = await (await table.snapshot(columns=["b"])).to_arrow()

    assert found.column("b").to_pylist() == [f"row {n}" for n in range(30)]
    assert decoded.names == [["b"]] * 3


async def test_parts_of_unique_keys_are_read_in_key_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer marks them as sorted, although the ingester does not sort by all columns."""
    shard = in_memory().shard(schema=KEYED)
    for time, start in enumerate((20, 0, 10)):
        rows = table_of(KEYED, [(start + n, -n, time, 1) for n in range(10)])
        writer = replace(shard.writer(), is_sorted=False)
        parts = await writer.write(rows, inline=False)
        await shard.commit_parts(parts, Frontier.at(time), Frontier.at(time + 1))
    reading = replace(reading_of(shard, KEYED, ["c1"]), is_at_once=True)
    decoded = Decoded(monkeypatch)

    (found,) = [piece async for piece in reading.contents((await shard.snapshot(2)).parts, 2)]

    assert found.column("c1").to_pylist() == 3 * [-n for n in range(10)]
    assert decoded.names == [["c1"]] * 3
