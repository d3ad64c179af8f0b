"""Snapshots return each row as often as it occurs, or once if the caller asks for consolidation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import AsyncMock, patch

import pyarrow as pa
import pytest

from kit.shard_tables import schema_of
from kit.shards import SCHEMA, Place, in_memory, rows
from tidelog.errors import UsageError
from tidelog.persist.format import parquet, part
from tidelog.persist.format.schema import ShardSchema, shard_schema
from tidelog.persist.format.updates import merge
from tidelog.persist.read import contents, opened, snapshot, sweep
from tidelog.persist.read.selection import each_row
from tidelog.persist.read.snapshot import ShardSnapshot

COUNT = 6_000
KEYLESS = shard_schema(pa.schema([SCHEMA.data.field(0), SCHEMA.data.field(1)]))


async def written(
    place: Place, schema: ShardSchema, *, taken_back: bool, columns: list[str] | None = None
) -> ShardSnapshot:
    """Return a snapshot with ten distinct values of c1. One row occurs three times."""
    shard = place.shard(schema=schema)
    many = [(f"{n:05}", n % 10, 0, 1) for n in range(COUNT)]
    await shard.compare_and_append(rows(*many), 0, 1)
    more = [("thrice", 3, 1, 3), *([("00000", 0, 1, -1)] if taken_back else [])]
    await shard.compare_and_append(rows(*more), 1, 2)
    await shard.compare_and_append(rows(("later", 9, 2, 1)), 2, 3)
    return await place.shard(schema=schema).snapshot(1, columns=columns)


@pytest.mark.parametrize("columns", [None, ["c1"], ["c1", "c0"]], ids=["all", "one", "turned"])
@pytest.mark.parametrize("taken_back", [False, True], ids=["appended only", "taken back"])
@pytest.mark.parametrize("schema", [SCHEMA, KEYLESS], ids=["keyed", "keyless"])
async def test_each_row_comes_as_often_as_it_occurs(
    schema: ShardSchema, taken_back: bool, columns: list[str] | None
) -> None:
    """Equal rows stay separate, so that a reader can count rows or sum a column."""
    snapshot = await written(in_memory(), schema, taken_back=taken_back, columns=columns)
    table = await snapshot.to_arrow()
    batches = pa.Table.from_batches([batch async for batch in snapshot.to_batches()])
    zeros = COUNT // 10 - taken_back

    for found in (table, batches):
        assert found.column_names == [*(columns or ["c0", "c1"]), "_diff"]
        assert found.num_rows == COUNT + 3 - taken_back
        assert set(found.column("_diff").to_pylist()) == {1}
        assert found.column("c1").to_pylist().count(0) == zeros
        assert found.column("c1").to_pylist().count(3) == COUNT // 10 + 3


@pytest.mark.parametrize("taken_back", [False, True], ids=["appended only", "taken back"])
@pytest.mark.parametrize("schema", [SCHEMA, KEYLESS], ids=["keyed", "keyless"])
async def test_equal_rows_come_once_if_the_caller_asks(
    schema: ShardSchema, taken_back: bool
) -> None:
    """With `consolidated=True`, equal rows come once, with their count in `_diff`."""
    snapshot = await written(in_memory(), schema, taken_back=taken_back, columns=["c1"])

    found = (await snapshot.to_arrow(consolidated=True)).to_pylist()

    each = COUNT // 10
    extra = {0: -taken_back, 3: 3}
    assert {row["c1"]: row["_diff"] for row in found} == {
        n: each + extra.get(n, 0) for n in range(10)
    }
    assert len(found) == 10


async def test_a_row_that_occurs_too_often_is_refused_by_name_of_the_remedy() -> None:
    """The table would exhaust memory. The error names `consolidated=True`."""
    shard = in_memory().shard()
    await shard.compare_and_append(rows(("a", 1, 0, 2**40)), 0, 1)
    snapshot = await shard.snapshot(0)

    with pytest.raises(UsageError, match=r"consolidated=True.*rows=1099511627776"):
        await snapshot.to_arrow()
    assert (await snapshot.to_arrow(consolidated=True)).to_pylist() == [
        {"c0": "a", "c1": 1, "_diff": 2**40}
    ]
    first = await anext(aiter(snapshot.to_batches()))
    assert (first.num_rows, set(first.column("_diff").to_pylist())) == (65_536, {1})


def test_counts_beyond_64_bits_are_refused_and_never_dropped() -> None:
    """A sum beyond 64 bits would be negative, and turn many rows into none."""
    counts = pa.array([2**62, 2**62, -1], pa.int64())
    contents = pa.table({"c1": pa.array([1, 2, 3], pa.int64()), "_diff": counts})

    with pytest.raises(UsageError, match=r"consolidated=True"):
        next(each_row(contents))


async def test_a_negative_count_keeps_its_sign() -> None:
    """A row with more retractions than insertions is returned with its negative count."""
    shard = in_memory().shard()
    await shard.compare_and_append(rows(("a", 1, 0, -2), ("b", 1, 0, 2)), 0, 1)

    found = await (await shard.snapshot(0)).to_arrow()

    assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [
        ("a", 1, -2),
        ("b", 1, 1),
        ("b", 1, 1),
    ]


@pytest.mark.parametrize("count", [3, COUNT], ids=["in the state", "an object"])
async def test_a_column_that_no_stored_part_has_comes_as_nulls(count: int) -> None:
    """Parts written before the column was added keep all their rows, with nulls."""
    place = in_memory()
    shard = place.shard(schema=KEYLESS)
    await shard.compare_and_append(rows(*((f"{n}", n, 0, 1) for n in range(count))), 0, 1)
    await shard.evolve_schema(KEYLESS.data.append(pa.field("c2", pa.int64())))

    snapshot = await place.shard(schema=None).snapshot(0, columns=["c2"])

    table = await snapshot.to_arrow()
    batches = pa.Table.from_batches([batch async for batch in snapshot.to_batches()])
    assert table.to_pylist() == batches.to_pylist() == [{"c2": None, "_diff": 1}] * count


@contextmanager
def decoded_columns() -> Iterator[list[list[str]]]:
    """Collect the columns of each call that decodes row groups."""
    decoded: list[list[str]] = []
    read = opened.Decoders.read

    def watched(self: opened.Decoders, groups, columns, **rest):  # type: ignore[no-untyped-def]
        decoded.append(list(columns))
        return read(self, groups, columns, **rest)

    with patch.object(opened.Decoders, "read", watched):
        yield decoded


async def test_one_column_is_decoded_without_the_others() -> None:
    """A narrow read decodes only the chosen columns, because decoding dominates its time."""
    place = in_memory()
    wide = schema_of(["int64"] * 4, keys=0)
    shard = place.shard(schema=wide)
    table = pa.table({f"c{n}": pa.array(range(COUNT), pa.int64()) for n in range(4)})
    stamped = table.append_column("_time", pa.array([0] * COUNT, pa.int64()))
    await shard.compare_and_append(
        stamped.append_column("_diff", pa.array([1] * COUNT, pa.int64())), 0, 1
    )

    with decoded_columns() as decoded:
        found = await (await shard.snapshot(0, columns=["c2"])).to_arrow()

    assert decoded == [["c2"]]
    assert found.column("c2").to_pylist() == list(range(COUNT))


async def test_only_parts_whose_keys_meet_a_retraction_are_consolidated() -> None:
    """A replaced row costs the parts of its keys, and not all others, their narrow read."""
    shard = in_memory().shard()
    with patch.object(part, "INLINE_BYTES", 0):
        await shard.compare_and_append(rows(("a", 1, 0, 1), ("c", 1, 0, 1)), 0, 1)
        await shard.compare_and_append(rows(("x", 1, 1, 1), ("y", 1, 1, 1)), 1, 2)
        await shard.compare_and_append(rows(("b", 1, 2, 1), ("c", 1, 2, -1)), 2, 3)
    summed: list[int] = []

    def counted(tables: Sequence[pa.Table], *given: Any, **named: Any) -> pa.Table:
        summed.append(sum(table.num_rows for table in tables))
        return merge(tables, *given, **named)

    with decoded_columns() as decoded, patch.object(sweep, "merge", counted):
        found = await (await shard.snapshot(2, columns=["c1"])).to_arrow()

    assert decoded[-1] == ["c1"], "the part of x and y"
    assert sum(summed) == 4
    assert found.to_pylist() == [{"c1": 1, "_diff": 1}] * 4
    with patch.object(snapshot, "IN_MEMORY_BYTES", 0):
        whole = await (await shard.snapshot(2)).to_arrow()
    assert whole.column("c0").to_pylist() == ["a", "b", "x", "y"]


async def test_small_parts_are_opened_and_decoded_by_one_thread() -> None:
    """Parts of few rows take a thread of the store each, and one for all other work on them."""
    place = in_memory()
    shard = place.shard()
    with patch.object(part, "INLINE_BYTES", 0):
        for time in range(5):
            await shard.compare_and_append(rows((f"k{time}", 1, time, 1)), time, time + 1)
    planned = await shard.snapshot(4)
    offloaded = AsyncMock(side_effect=lambda work: work())

    with patch.object(type(shard.clock), "offload", lambda _, work: offloaded(work)):
        table = await planned.to_arrow()

    assert table.num_rows == 5
    assert offloaded.await_count == 1


async def test_row_groups_that_threads_decode_side_by_side_stay_in_order() -> None:
    """Row groups stay in order, and all `_diff` ones share one block of memory."""
    shard = in_memory().shard()
    await shard.compare_and_append(rows(*[(f"{n:05}", n, 0, 1) for n in range(2_000)]), 0, 1)
    with patch.object(parquet, "ROW_GROUP_ROWS", 100):
        many = [(f"{n:05}", n, 1, 1) for n in range(2_000, 5_000)]
        await shard.compare_and_append(rows(*many), 1, 2)

    with patch.object(contents, "ONES_ROWS", 700):
        table = await (await shard.snapshot(1, columns=["c1"])).to_arrow()
    assert table.column("c1").to_pylist() == list(range(5_000))
    assert table.column("_diff").to_pylist() == [1] * 5_000
    chunks = table.column("_diff").chunks
    blocks = {buffer.address for chunk in chunks if (buffer := chunk.buffers()[1]) is not None}
    assert (len(chunks), len(blocks)) == (8, 1)
