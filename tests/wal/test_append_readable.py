"""Limits of writers and readers agree: a writer acknowledges nothing that readers refuse."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidelog.core.clock import SystemClock
from tidelog.errors import Outcome, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.wal.append import queue as append_queue
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.bodies import checked
from tidelog.wal.append.queue import Queue
from tidelog.wal.format.parquet import BYTES_MIN, RECORDS_MAX
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log

STREAM = b"s" * 1_000


def repeated(body: bytes, count: int) -> pa.BinaryArray:
    one: Any = pa.array([body], pa.binary())
    found: pa.BinaryArray = one.take(pa.repeat(0, count))
    return found


async def opened(protocol: str = "slot") -> Log:
    log = await create_log(
        MemoryStore(), name="x", clock=SystemClock(), writer="w", protocol=protocol
    )
    if protocol == "slot":
        await log.open_stream(STREAM)
    return log


async def count_of(log: Log) -> int:
    return sum([table.num_rows async for table in log.scan()])


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_an_append_of_too_many_records_is_refused(protocol: str) -> None:
    """Both protocols refuse an append of too many records.

    The next append succeeds, and readers see only that one.
    """
    async with await opened(protocol) as log:
        with pytest.raises(UsageError, match="over 8388608 records") as told:
            await log.append_arrow(repeated(b"", RECORDS_MAX + 1))
        assert told.value.outcome is Outcome.NOT_APPLIED
        await log.append([b"one"])
        assert await count_of(log) == 1


async def test_an_append_whose_stream_s_id_comes_to_too_much_is_refused() -> None:
    """An append is refused if the ids of its stream take too many bytes.

    Each record that is read carries the id; the largest allowed append is read back.
    """
    most = BYTES_MIN // len(STREAM)
    async with await opened() as log:
        with pytest.raises(UsageError, match="id of the stream") as told:
            await log.append_arrow(repeated(b"a", most + 1), stream=STREAM)
        assert told.value.outcome is Outcome.NOT_APPLIED
        await log.append_arrow(repeated(b"a", most), stream=STREAM)
        assert await count_of(log) == most


async def test_bodies_that_compress_as_well_as_they_can_are_read() -> None:
    """Readers accept bodies that compress extremely well, here 150 MB of zeros."""
    count = 3
    async with await opened() as log:
        await log.append_arrow(repeated(bytes(50_000_000), count))
        assert await count_of(log) == count


async def test_batches_have_no_more_records_than_readers_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch has at most as many records as readers accept, whatever the settings allow."""
    monkeypatch.setattr(append_queue, "RECORDS_MAX", 25)
    queue = Queue(batching=Batching(batch_bytes=10**9, pending_bytes=10**9))
    for _ in range(5):
        queue.add(repeated(b"x" * 10, 10))

    assert [len(queue.take()) for _ in range(3)] == [2, 2, 1]


async def test_batches_have_no_more_bytes_of_ids_than_readers_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch has at most as many bytes of ids and bodies as readers accept.

    The id counts once for each record.
    """
    one = repeated(b"x", 10)
    monkeypatch.setattr(append_queue, "BYTES_MIN", 2 * one.nbytes + 2 * 10 * len(STREAM))
    queue = Queue(batching=Batching(batch_bytes=10**9, pending_bytes=10**9))
    sizes = [queue.add(one, stream=STREAM).size for _ in range(5)]

    assert sizes == [one.nbytes + 10 * len(STREAM)] * 5
    assert [len(queue.take()) for _ in range(3)] == [2, 2, 1]


def test_as_many_as_readers_take_are_taken() -> None:
    """Writers accept appends up to the exact limits of readers."""
    most = BYTES_MIN // 1_024

    assert len(checked(repeated(b"", RECORDS_MAX))) == RECORDS_MAX
    assert len(checked(repeated(b"", most), stream=bytes(1_024))) == most
    with pytest.raises(UsageError, match="id of the stream"):
        checked(repeated(b"", most + 1), stream=bytes(1_024))
