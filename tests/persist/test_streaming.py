"""Streams of updates: they arrive in pieces, and become a few parts and one commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from kit.shards import COMMITTED, MISMATCH, SCHEMA, Place, contents, in_memory, rows, writer_for
from tidelog.errors import UpperMismatch, UsageError
from tidelog.persist.handle.shard import Shard
from tidelog.store.memory import MemoryStore

COUNT = 40


def tables(*, times: int = COUNT) -> Iterator[pa.Table]:
    for time in range(times):
        yield rows(*((f"k{n}", n, time, 1) for n in range(100)))


async def awaited() -> AsyncIterator[pa.Table]:
    for table in tables():
        await asyncio.sleep(0)
        yield table


def reader() -> pa.RecordBatchReader:
    batches = [batch for table in tables() for batch in table.to_batches()]
    return pa.RecordBatchReader.from_batches(SCHEMA.updates, batches)


@pytest.mark.parametrize("kind", ["iterator", "async iterator", "reader", "one batch"])
async def test_whatever_brings_them_the_updates_are_one_commit(place: Place, kind: str) -> None:
    """T16: a stream of any type becomes several parts and one commit."""
    shard = place.shard()
    writer = writer_for(shard, schema=SCHEMA, part_bytes=10_000)
    whole = pa.concat_tables(tables()).combine_chunks().to_batches()[0]
    streams: dict[str, Any] = {
        "iterator": tables(),
        "async iterator": awaited(),
        "reader": reader(),
        "one batch": whole,
    }
    with patch.object(Shard, "writer", lambda *_: writer):
        done = await shard.compare_and_append(streams[kind], 0, COUNT)
    assert done.verdict is COMMITTED
    (batch,) = shard.state.batches
    assert len(batch.parts) > 5
    assert batch.rows == 100 * COUNT
    assert await contents(place.shard(), COUNT - 1) == {(f"k{n}", n): COUNT for n in range(100)}


async def test_few_rows_that_come_bit_by_bit_ride_in_the_state() -> None:
    """Few rows stay inline in the state, as those of one small table do."""
    store = MemoryStore()
    shard = Place(store, in_memory()._consensus).shard()
    await shard.compare_and_append(iter([rows(("a", 1, 0, 1)), rows(("b", 1, 0, 1))]), 0, 1)
    await shard.compare_and_append(iter([]), 1, 2)
    assert [entry async for entry in store.list("")] == []
    assert await contents(shard, 1) == {("a", 1): 1, ("b", 1): 1}


async def test_who_brings_more_waits_for_what_is_under_way() -> None:
    """A writer pauses the stream while uploads run, so memory holds only a few parts."""
    place = in_memory()
    shard = place.shard()
    begun = ended = most = 0

    class SlowStore(MemoryStore):
        async def put(
            self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
        ) -> str:
            nonlocal ended
            await asyncio.sleep(0.002)
            ended += 1
            return await super().put(key, data, if_absent=if_absent, if_match=if_match)

    def counted() -> Iterator[pa.Table]:
        nonlocal begun, most
        for table in tables():
            begun += 1
            most = max(most, begun - ended)
            yield table

    part_bytes = 2 * next(tables()).nbytes
    writer = writer_for(shard, store=SlowStore(), schema=SCHEMA, part_bytes=part_bytes)
    with patch.object(Shard, "writer", lambda *_: writer):
        await shard.compare_and_append(counted(), 0, COUNT)
    assert begun == COUNT
    assert ended >= COUNT // 4
    assert most <= COUNT // 2


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (lambda: iter([rows(("a", 1, 5, 1))]), "outside the interval"),
        (lambda: iter([1, 2]), "must yield Arrow tables or batches, not int"),
        (
            lambda: iter([rows(("a", 1, 0, 1)), None]),
            "must yield Arrow tables or batches, not NoneType",
        ),
        (lambda: 7, "rows must be an Arrow table.*, not int"),
        (lambda: iter([rows(("a", 1, 0, 1)), pa.table({"x": [1]})]), "different schemas"),
        (lambda: iter([pa.table({"x": [1]})]), "a column is missing"),
    ],
    ids=["time", "numbers", "nothing in between", "a number", "mixed", "columns"],
)
async def test_what_will_not_do_is_refused_and_nothing_counts(stream: Any, message: str) -> None:
    """A bad stream raises the same error as a bad table, and nothing is written."""
    shard = in_memory().shard()
    with pytest.raises(UsageError, match=message):
        await shard.compare_and_append(stream(), 0, 3)
    assert (await shard.refresh()).upper == 0


async def test_a_stream_to_another_upper_is_a_mismatch() -> None:
    """A stream behind the upper gets MISMATCH, as a table does."""
    place = in_memory()
    await place.shard().compare_and_append(rows(("a", 1, 0, 1)), 0, 3)
    done = await place.shard().try_compare_and_append(tables(times=3), 0, 3)
    assert (done.verdict, done.upper.time) == (MISMATCH, 3)
    with pytest.raises(UpperMismatch):
        await place.shard().compare_and_append(tables(times=3), 0, 3)
    assert await contents(place.shard(), 2) == {("a", 1): 1}
