"""Writing parts: memory and records are bounded, and a part counts only once a state names it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from kit.shard_tables import schema_of, table_of
from tidelog.core import threads
from tidelog.core.clock import SystemClock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.errors import LocationError, Outcome, UsageError
from tidelog.persist.format import parquet, part
from tidelog.persist.format.part import decode_part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import prepare_updates
from tidelog.persist.write.writer import RECORD_BYTES_MAX, PartWriter, cut
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore
from tidelog.testing.models import updates_of

SCHEMA = schema_of(["string", "int64"], keys=1)


def rows(count: int) -> pa.Table:
    table = table_of(SCHEMA, [(f"key {n:06}", n, 0, 1) for n in range(count)])
    return prepare_updates(table, SCHEMA, lower=Frontier.at(0), upper=Frontier.at(1))


def writer(store: Store, **changed: Any) -> PartWriter:
    return PartWriter(
        store=store, clock=SystemClock(), shard=ShardId("s"), schema=SCHEMA, **changed
    )


async def test_parts_are_cut_and_together_are_the_whole() -> None:
    """The writer cuts updates of any size into small parts, in order and without loss."""
    store = MemoryStore()

    parts = await writer(store, part_bytes=20_000).write(rows(5_000))

    assert len(parts) > 5
    paths = [p.path for p in parts]
    assert sorted(store.objects) == sorted(p for p in paths if p is not None)
    found = [
        update
        for one in parts
        for update in updates_of(decode_part(one, store.objects[one.path or ""].data, SCHEMA))
    ]
    assert found == updates_of(rows(5_000))


async def test_at_most_two_uploads_are_under_way() -> None:
    """A writer that is faster than its store waits, with at most two parts in flight."""
    under_way = most = 0

    class CountingStore(MemoryStore):
        async def put(
            self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
        ) -> str:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.001)
            under_way -= 1
            return await super().put(key, data, if_absent=if_absent, if_match=if_match)

    await writer(CountingStore(), part_bytes=20_000).write(rows(5_000))

    assert most == 2


async def test_a_large_part_is_hashed_while_it_is_encoded() -> None:
    """Two threads hash and encode one part. One thread would leave the other core idle."""
    meeting = threading.Barrier(2, timeout=10)
    sums_of, encode = part.sums_of, parquet.encode_parquet

    def hashed(*given: Any) -> Any:
        meeting.wait()
        return sums_of(*given)

    def encoded(table: pa.Table) -> bytes:
        meeting.wait()
        return encode(table)

    with (
        patch.object(threads, "cores", return_value=2),
        patch.object(part, "APART_ROWS", 5_000),
        patch.object(part, "sums_of", hashed),
        patch.object(part, "encode_parquet", encoded),
    ):
        written = await writer(MemoryStore()).write(rows(5_000))

    assert [found.rows for found in written] == [5_000]


async def test_nothing_is_written_for_nothing() -> None:
    """An empty append needs no upload."""
    store = MemoryStore()

    assert await writer(store).write(rows(0)) == []
    assert not store.objects


async def test_a_few_rows_are_written_without_a_request_if_they_may_be() -> None:
    """Few rows are stored inline without an upload, so a small commit costs one round trip."""
    store = MemoryStore()

    (inline,) = await writer(store).write(rows(3))
    assert (inline.path, len(store.objects)) == (None, 0)
    (outside,) = await writer(store).write(rows(3), inline=False)
    assert outside.path in store.objects


@pytest.mark.parametrize("told", [True, False])
async def test_an_upload_that_fails_says_that_nothing_was_appended(told: bool) -> None:
    """A failed upload raises LocationError with NOT_APPLIED. Its uncommitted parts are garbage."""
    faulty = FaultyStore(MemoryStore(), toss=lambda r: Fault(happened=r.index != 3, told=told))

    with pytest.raises(LocationError) as caught:
        await writer(faulty, part_bytes=20_000).write(rows(5_000))
    assert caught.value.outcome is Outcome.NOT_APPLIED


def test_one_row_that_is_too_large_is_refused_among_many_that_are_not() -> None:
    """The limit of 8 MiB is for each row, not for the average."""
    small = [(f"k{n}", n, 0, 1) for n in range(1_000)]
    large = [("x" * (RECORD_BYTES_MAX + 1), 7, 0, 1)]

    loose = ShardSchema(SCHEMA.data, 0)
    assert len(cut(table_of(SCHEMA, small), 1_000, SCHEMA)) > 10
    with pytest.raises(
        UsageError, match=r"the row with .*=7 has over 8 MiB, mostly in the column "
    ):
        cut(table_of(SCHEMA, [*small, *large, *small]), 64 << 20, loose)
    with pytest.raises(UsageError, match=r"the row with .*='xxx.* has over 8 MiB"):
        cut(table_of(SCHEMA, large), 64 << 20, SCHEMA)
    mebibytes = [("x" * (1 << 20), n, 0, 1) for n in range(20)]
    assert len(cut(table_of(SCHEMA, mebibytes), 64 << 20, SCHEMA)) == 1


async def test_parts_carry_the_epoch_they_were_begun_under() -> None:
    """The path of a part contains the write epoch, so a sweeper finds old parts."""
    (part,) = await writer(MemoryStore(), write_epoch=17).write(rows(3), inline=False)

    assert part.path is not None
    assert part.path.startswith("shard/s/part/00000011/")
