"""Snapshots in pieces: equal to the whole, in order, and read only as far as the caller asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.shard_tables import KINDS, TIMES, schema_of, table_of, updates
from kit.shards import counts_in, projected
from tidelog.core.clock import SystemClock
from tidelog.core.ids import ShardId
from tidelog.errors import CorruptionError
from tidelog.persist.format import parquet
from tidelog.persist.format.bounds import Box, box_of_group, is_ordered, ordered, rows_within
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import sort_updates
from tidelog.persist.read import opened, pieces, sweep
from tidelog.persist.read.opened import Group, PartOpener, is_in_order
from tidelog.persist.read.pieces import SnapshotQuery, changes_in_pieces, pieces_as_written
from tidelog.persist.read.sweep import pieces_by_key
from tidelog.persist.write.writer import PartWriter
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import RecordedStore
from tidelog.testing.models import accumulate, consolidate, updates_of

CLOCK = SystemClock()
SCHEMA = schema_of(["int64", "string"], keys=1)
ORDERED = [kind for kind, (dtype, _) in KINDS.items() if is_ordered(dtype)]


async def write_parts(
    store: Store, schema: ShardSchema, tables: Sequence[pa.Table], *, inline: bool = False
) -> list[Part]:
    """Write each table as a part, with row groups of two rows."""
    writer = PartWriter(store=store, clock=CLOCK, shard=ShardId("s"), schema=schema)
    found: list[Part] = []
    with patch.object(parquet, "ROW_GROUP_ROWS", 2):
        for table in tables:
            found.extend(await writer.write(sort_updates(table, schema), inline=inline))
    return found


def opener_of(store: Store, schema: ShardSchema, box: Box) -> PartOpener:
    names = frozenset([*schema.names[:1], *box])
    return PartOpener(store=store, clock=CLOCK, schema=schema, names=names)


@st.composite
def histories(draw: st.DrawFn, *, kinds: list[str]) -> tuple[ShardSchema, list[pa.Table]]:
    """Draw a schema, and updates of overlapping rows in several tables."""
    first, second = draw(st.sampled_from(kinds)), draw(st.sampled_from(sorted(KINDS)))
    schema = schema_of([first, second], keys=draw(st.integers(0, 2)))
    table = draw(updates(schema, [first, second], max_size=24))
    cuts = sorted(draw(st.lists(st.integers(0, table.num_rows), max_size=3)))
    edges = [0, *cuts, table.num_rows]
    return schema, [table.slice(a, b - a) for a, b in pairwise(edges) if a < b]


@st.composite
def boxes(draw: st.DrawFn, schema: ShardSchema, tables: list[pa.Table]) -> Box:
    """Draw bounds from the stored values."""
    found: dict[str, tuple[Any, Any]] = {}
    for field in schema.data:
        values = (
            {v for t in tables for v in ordered(t.column(field.name)).to_pylist()}
            if (is_ordered(field.type))
            else set()
        )
        if known := sorted(v for v in values if v is not None):
            side = st.none() | st.sampled_from(known)
            found[field.name] = draw(st.tuples(side, side))
    return found


@dataclass(frozen=True)
class Case:
    """A history, its stored form, and a query."""

    schema: ShardSchema
    tables: list[pa.Table]
    box: Box
    as_of: int
    after: int
    columns: tuple[str, ...]
    piece_rows: int
    room: int
    inline: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    schema, tables = draw(histories(kinds=draw(st.sampled_from([ORDERED, [*KINDS]]))))
    return Case(
        schema,
        tables,
        box=draw(boxes(schema, tables)),
        as_of=draw(TIMES),
        after=draw(st.integers(-1, 5)),
        columns=tuple(draw(st.permutations(schema.names)))[: draw(st.integers(1, 2))],
        piece_rows=draw(st.integers(1, 6)),
        room=draw(st.sampled_from([0, 1 << 30])),
        inline=draw(st.booleans()),
    )


@settings(max_examples=80)
@given(case=cases())
async def test_pieces_by_key_are_the_snapshot_in_the_order_of_the_key(case: Case) -> None:
    """The pieces equal the snapshot for any overlap of parts, any cut and any retractions."""
    schema, store = case.schema, MemoryStore()
    parts = await write_parts(store, schema, case.tables, inline=case.inline)
    wanted = SnapshotQuery(
        as_of=case.as_of, columns=case.columns, box=case.box, piece_rows=case.piece_rows
    )

    with (
        patch.object(pieces, "HELD_BYTES_MAX", case.room),
        patch.object(sweep, "HELD_BYTES_MAX", case.room),
        patch.object(sweep, "REST_BYTES_MAX", case.room),
    ):
        made = pieces_by_key(parts, wanted, opener_of(store, schema, case.box))
        found = [piece async for piece in made]

    whole = [rows_within(table, case.box) for table in case.tables]
    expected = accumulate([u for table in whole for u in updates_of(table)], case.as_of)
    assert counts_in(found, case.columns) == projected(expected, schema.names, case.columns)
    if schema.key and is_ordered(schema.data.field(0).type):
        keys = [k for t in found for k in ordered(t.column(schema.names[0])).to_pylist()]
        known = [key for key in keys if key is not None]
        assert keys == sorted(known) + [None] * (len(keys) - len(known))


@settings(max_examples=60)
@given(case=cases())
async def test_changes_in_pieces_are_those_of_the_whole(case: Case) -> None:
    """The pieces come in the order of times. Only updates of one time cancel."""
    schema, store, after, until = case.schema, MemoryStore(), case.after, case.as_of
    parts = await write_parts(store, schema, case.tables)
    wanted = SnapshotQuery(as_of=until, after=after, columns=tuple(schema.names), box={})

    found = [p async for p in changes_in_pieces(parts, wanted, opener_of(store, schema, {}))]

    model = consolidate((u for t in case.tables for u in updates_of(t)), after=after, until=until)
    got = [update for piece in found for update in updates_of(piece.select(schema.updates.names))]
    assert Counter({(u.row, u.time): u.diff for u in got}) == model
    assert [u.time for u in got] == sorted(u.time for u in got)


def numbered(start: int, count: int, *, time: int = 0, diff: int = 1) -> pa.Table:
    return table_of(SCHEMA, [(n, f"row {n}", time, diff) for n in range(start, start + count)])


async def first_of(made: AsyncGenerator[pa.Table, None]) -> pa.Table:
    async with aclosing(made):
        return await anext(made)


def got(store: RecordedStore) -> int:
    return sum(record.op == "get" for record in store.records)


@pytest.mark.parametrize("read", [pieces_by_key, pieces_as_written])
async def test_who_stops_early_has_not_read_the_rest(read: Any) -> None:
    """A reader that stops at the first rows of a large collection fetches at most two parts."""
    store = RecordedStore(MemoryStore())
    parts = await write_parts(store, SCHEMA, [numbered(10 * n, 10) for n in range(9)])
    wanted = SnapshotQuery(as_of=0, columns=("c1",), box={}, piece_rows=4)

    found = await first_of(read(parts, wanted, opener_of(store, SCHEMA, {})))

    assert found.column("c1").to_pylist()[0] == "row 0"
    assert found.num_rows < 10
    assert got(store) <= 2


@pytest.mark.parametrize("read", [pieces_by_key, pieces_as_written])
async def test_parts_and_row_groups_outside_of_the_box_are_not_read(read: Any) -> None:
    """A lookup by key decodes one row group of one part."""
    store = RecordedStore(MemoryStore())
    parts = await write_parts(store, SCHEMA, [numbered(10 * n, 10) for n in range(9)])
    box = {"c0": (37, 37)}
    wanted = SnapshotQuery(as_of=0, columns=("c1",), box=box)
    decoded: list[int] = []
    real = opened.OpenPart.read

    def counting(self: Any, groups: Sequence[int], *given: Any, **more: Any) -> pa.Table:
        decoded.extend(groups)
        return real(self, groups, *given, **more)

    with patch.object(opened.OpenPart, "read", counting):
        made = read(parts, wanted, opener_of(store, SCHEMA, box))
        found = [piece async for piece in made]

    assert [row for piece in found for row in piece.column("c1").to_pylist()] == ["row 37"]
    assert got(store) == 1
    assert len(decoded) == 1


async def test_a_row_that_was_taken_back_in_a_later_part_does_not_come() -> None:
    """The first piece lacks a row that a later part retracts."""
    store = MemoryStore()
    tables = [numbered(0, 10), numbered(0, 5, time=1, diff=-1)]
    parts = await write_parts(store, SCHEMA, tables)
    wanted = SnapshotQuery(as_of=1, columns=("c1",), box={}, piece_rows=2)

    found = await first_of(pieces_by_key(parts, wanted, opener_of(store, SCHEMA, {})))

    assert found.column("c1").to_pylist()[0] == "row 5"


@pytest.mark.parametrize("room", [0, 1 << 30])
async def test_a_row_group_that_ranges_cut_through_is_shared_out(room: int) -> None:
    """A row group that spans several ranges gives each range its rows, also if decoded again."""
    store = MemoryStore()
    whole = pa.concat_tables([numbered(0, 1), numbered(5, 1)])
    other = pa.concat_tables([numbered(5, 1, time=1, diff=-1), numbered(3, 1)])
    for tables, expected in (
        ([whole, numbered(5, 1, time=1, diff=-1)], ["row 0"]),
        ([whole, numbered(3, 2)], ["row 0", "row 3", "row 4", "row 5"]),
        ([whole, other], ["row 0", "row 3"]),
    ):
        parts = await write_parts(store, SCHEMA, tables)
        wanted = SnapshotQuery(as_of=1, columns=("c1",), box={}, piece_rows=1)
        with patch.object(sweep, "REST_BYTES_MAX", room):
            made = pieces_by_key(parts, wanted, opener_of(store, SCHEMA, {}))
            found = [piece async for piece in made]

        assert [row for piece in found for row in piece.column("c1").to_pylist()] == expected


async def test_what_is_only_appended_to_loses_nothing() -> None:
    """Append-only parts are read separately. A retraction in one of them raises CorruptionError."""
    store = MemoryStore()
    parts = await write_parts(store, SCHEMA, [numbered(0, 3), numbered(1, 1, diff=-1)])
    wanted = SnapshotQuery(as_of=0, columns=("c0",), box={})

    with pytest.raises(CorruptionError, match="has a negative diff"):
        [p async for p in pieces_as_written(parts, wanted, opener_of(store, SCHEMA, {}))]


@pytest.mark.parametrize("harm", ["flipped", "deleted"])
async def test_a_part_is_checked_whole_however_little_of_it_is_read(harm: str) -> None:
    """A read of one row still verifies the whole part, because a damaged bound would hide rows."""
    store = MemoryStore()
    (part,) = await write_parts(store, SCHEMA, [numbered(0, 10)])
    path = part.path or ""
    data = store.objects[path].data
    if harm == "deleted":
        await store.delete([path])
    else:
        await store.put(path, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    wanted = SnapshotQuery(as_of=0, columns=("c0",), box={"c0": (1, 1)})

    with pytest.raises(CorruptionError):
        await first_of(pieces_by_key([part], wanted, opener_of(store, SCHEMA, wanted.box)))


def test_a_path_that_two_columns_share_bounds_neither() -> None:
    """Parquet has one path for a column "a.b" and a field b of column a."""
    table = pa.table({"a": [{"b": 1}], "a.b": [9]})
    file = pq.ParquetFile(pa.BufferReader(parquet.encode_parquet(table)))

    assert box_of_group(file.metadata.row_group(0), frozenset(["a.b"])) == {}


def test_row_groups_are_in_order_where_it_is_known() -> None:
    """Groups without proven bounds would be decoded repeatedly."""

    def groups(*bounds: tuple[int | None, int | None]) -> list[Group]:
        return [Group(1, {"k": each}) for each in bounds]

    assert is_in_order(groups((1, 2), (2, 3), (5, None)), "k")
    assert is_in_order([Group(1)], "k")
    assert not is_in_order(groups((1, 3), (2, 4)), "k")
    assert not is_in_order(groups((1, None), (2, 4)), "k")
    assert not is_in_order([Group(1), Group(1)], "k")
