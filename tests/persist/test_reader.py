"""Reading parts: whole, verified, and in splits that any process can read."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.shard_tables import schema_of, shard_updates, table_of
from tidelog.consensus.memory import MemoryConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import ShardId
from tidelog.errors import CorruptionError, LocationError, UsageError
from tidelog.persist.format import parquet
from tidelog.persist.format import part as part_format
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import TIME, ShardSchema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.opened import Decoders
from tidelog.persist.read.reader import PartReader
from tidelog.persist.read.splits import Split, plan_splits, read_split
from tidelog.persist.write.writer import PartWriter
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object, Store
from tidelog.testing import Fault, FaultyStore, RecordedStore
from tidelog.testing.models import Row, accumulate, contents_of, updates_of

CLOCK = SystemClock()
SCHEMA = schema_of(["string", "int64"], keys=1)


def shard_on(store: Store, schema: ShardSchema = SCHEMA) -> Shard:
    return Shard(
        id=ShardId("s"), store=store, consensus=MemoryConsensus(), clock=CLOCK, schema=schema
    )


async def parts_on(store: Store, *, count: int = 4, rows: int = 200) -> list[Part]:
    """Write each table as an object of its own."""
    writer = PartWriter(store=store, clock=CLOCK, shard=ShardId("s"), schema=SCHEMA)
    found: list[Part] = []
    for number in range(count):
        table = table_of(SCHEMA, [(f"k{n}", number, 0, 1) for n in range(rows)])
        found.extend(await writer.write(table, inline=False))
    return found


def part_of(number: int, size_bytes: int, rows: int) -> Part:
    """Return a descriptor for a plan, which reads no part."""
    return Part(
        path=f"p{number}",
        size_bytes=size_bytes,
        xxh3=b"",
        rows=rows,
        diffs=rows,
        time_min=0,
        time_max=0,
        sum_v=b"",
        sum_t=b"",
    )


async def contents_of_splits(splits: list[Split], store: Store) -> Counter[Row]:
    """Read each split as an executor does, from its encoded form alone."""
    total: Counter[Row] = Counter()
    for split in splits:
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(split), type=Split)
        for update in updates_of(await read_split(sent, store=store, clock=CLOCK)):
            assert update.time == split.as_of
            total[update.row] += update.diff
    return Counter({row: n for row, n in total.items() if n})


@settings(max_examples=60)
@given(
    drawn=shard_updates(),
    count=st.integers(1, 7),
    as_of=st.integers(0, 5),
    cut=st.integers(1, 6),
    group_rows=st.integers(1, 3),
    inline_bytes=st.sampled_from([0, 4_096]),
    is_merged=st.booleans(),
)
async def test_splits_are_as_many_as_asked_for_and_make_the_snapshot(
    drawn: tuple[ShardSchema, pa.Table],
    count: int,
    as_of: int,
    cut: int,
    group_rows: int,
    inline_bytes: int,
    is_merged: bool,
) -> None:
    """All splits add up to the snapshot, also if a cut comes between updates of one row."""
    schema, table = drawn
    early = pc.less(table.column(TIME), pa.scalar(cut, pa.int64()))
    wanted = accumulate(updates_of(table), as_of)

    store = MemoryStore()
    shard = shard_on(store, schema)
    with (
        patch.object(part_format, "INLINE_BYTES", inline_bytes),
        patch.object(parquet, "ROW_GROUP_ROWS", group_rows),
    ):
        await shard.compare_and_append(table.filter(early), 0, cut)
        await shard.compare_and_append(table.filter(pc.invert(early)), cut, 9)
        if is_merged:
            await shard.compact(full=True)
    snapshot = await shard.snapshot(as_of)
    splits = snapshot.splits(count)

    assert len(splits) == count
    assert await contents_of_splits(splits, store) == wanted
    await shard.compare_and_append(None, 9, 12)
    assert await contents_of_splits(splits, store) == wanted
    assert contents_of(await snapshot.to_arrow(consolidated=True)) == wanted


@settings(max_examples=100)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 5_000), st.integers(1, 90)), max_size=9),
    count=st.integers(1, 12),
)
def test_splits_share_the_bytes_equally(sizes: list[tuple[int, int]], count: int) -> None:
    """Each row is in exactly one split. A split differs from its share by few rows of two parts."""
    parts = [part_of(number, *size) for number, size in enumerate(sizes)]
    splits = plan_splits("s", SCHEMA, 0, parts, count)

    rows = [
        (part.path, row)
        for split in splits
        for part, range_ in zip(split.parts, split.ranges, strict=True)
        for row in range(*range_)
    ]
    assert rows == [(part.path, row) for part in parts for row in range(part.rows)]
    share = sum(part.size_bytes for part in parts) / count
    a_row = max((part.size_bytes / part.rows for part in parts), default=0)
    for split in splits:
        assert abs(split.size_bytes - share) <= 2 * a_row + len(split.parts)


async def test_one_part_is_divided_by_its_rows() -> None:
    """A part of one row group has rows for each of four readers; a row group is cut if needed."""
    store = MemoryStore()
    (small,) = await parts_on(store, count=1)
    with patch.object(parquet, "ROW_GROUP_ROWS", 30):
        (grouped,) = await parts_on(store, count=1)

    for part in (small, grouped):
        splits = plan_splits("s", SCHEMA, 0, [part], 4)
        assert [split.size_bytes for split in splits] == [part.size_bytes // 4] * 4
        found = [await read_split(split, store=store, clock=CLOCK) for split in splits]
        assert [table.num_rows for table in found] == [50] * 4
        assert pa.concat_tables(found)["c0"].to_pylist() == [f"k{n}" for n in range(200)]


async def test_a_reader_decodes_only_the_row_groups_of_its_rows() -> None:
    """Four readers of one part decode a quarter of its row groups each."""
    store = MemoryStore()
    with patch.object(parquet, "ROW_GROUP_ROWS", 10):
        parts = await parts_on(store, count=1)
    decoded: list[int] = []
    read = Decoders.read

    def counted(self: Decoders, groups: list[int], *rest: Any, **options: Any) -> pa.Table:
        decoded.extend(groups)
        return read(self, groups, *rest, **options)

    with patch.object(Decoders, "read", counted):
        for split in plan_splits("s", SCHEMA, 0, parts, 4):
            await read_split(split, store=store, clock=CLOCK)

    assert decoded == list(range(20))


async def test_less_than_one_split_is_refused() -> None:
    """A request for zero splits raises UsageError. It would read as an empty shard."""
    shard = shard_on(MemoryStore())
    await shard.compare_and_append(None, 0, 1)
    with pytest.raises(UsageError):
        (await shard.snapshot(0)).splits(0)


@pytest.mark.parametrize("harm", ["flipped", "cut", "emptied", "grown", "swapped", "deleted"])
async def test_an_object_that_is_not_what_was_written_is_an_error_never_rows(harm: str) -> None:
    """A read of a changed or missing object raises CorruptionError, which names the path."""
    store = MemoryStore()
    parts = await parts_on(store)
    path, other = parts[1].path or "", parts[2].path or ""
    good = store.objects[path].data
    bad = {
        "flipped": bytes([good[0] ^ 1]) + good[1:],
        "cut": good[:-1],
        "emptied": b"",
        "grown": good + b"\0",
        "swapped": store.objects[other].data,
    }
    if harm == "deleted":
        await store.delete([path])
    else:
        store.objects[path] = Object(bad[harm], "e", 0)

    reader = PartReader(store=store, clock=CLOCK)
    with pytest.raises(CorruptionError, match=path):
        await reader.read(parts, SCHEMA)
    with pytest.raises(CorruptionError):
        await read_split(plan_splits("s", SCHEMA, 0, parts, 1)[0], store=store, clock=CLOCK)
    assert len(await reader.read([parts[0], parts[3]], SCHEMA)) == 2


async def test_a_store_that_fails_is_one_error_not_a_group() -> None:
    """Parallel reads raise a plain LocationError, which callers can catch, not a group."""
    store = MemoryStore()
    parts = await parts_on(store)
    failing = FaultyStore(store, toss=lambda r: Fault(happened=False))
    with pytest.raises(LocationError):
        await PartReader(store=failing, clock=CLOCK).read(parts, SCHEMA)


async def test_parts_that_are_kept_are_not_read_again() -> None:
    """Parts never change, so a cache can keep them, within its bound."""
    store = RecordedStore(MemoryStore())
    parts = await parts_on(store, count=6)
    store.records.clear()
    tables = await PartReader(store=store, clock=CLOCK).read(parts, SCHEMA)
    room_for_two = 2 * tables[0].nbytes + 100
    reader = PartReader(store=store, clock=CLOCK, cache_bytes=room_for_two)
    store.records.clear()
    for _ in range(3):
        await reader.read(parts[:2], SCHEMA)
    assert len(store.records) == 2

    # The bound also holds under concurrent and repeated reads.
    for _ in range(4):
        await asyncio.gather(*(reader.read(parts, SCHEMA) for _ in range(4)))
    assert sum(t.nbytes for t in reader._kept.values()) <= room_for_two
