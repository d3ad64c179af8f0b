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

STREAM, KEY = b"s" * 1_000, b"k" * 1_000
KEYS: Any = pa.repeat(pa.scalar(KEY, pa.binary()), 10)


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
    """Both protocols refuse an append of too many records and accept the next one."""
    async with await opened(protocol) as log:
        with pytest.raises(UsageError, match="over 8388608 records") as told:
            await log.append_arrow(repeated(b"", RECORDS_MAX + 1))
        assert told.value.outcome is Outcome.NOT_APPLIED
        await log.append([b"one"])
        assert await count_of(log) == 1


async def test_an_append_whose_stream_s_id_comes_to_too_much_is_refused() -> None:
    """The ids of an append's stream count for each record; the largest allowed one is read."""
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


TEN = repeated(b"x", 10)
IDS = 10 * len(STREAM)


@pytest.mark.parametrize(
    ("limit", "value", "options", "size"),
    [
        ("RECORDS_MAX", 25, {}, TEN.nbytes),
        ("APPEND_BYTES_MAX", 2 * TEN.nbytes, {}, TEN.nbytes),
        ("BYTES_MIN", 2 * (TEN.nbytes + IDS), {"stream": STREAM}, TEN.nbytes + IDS),
        ("BYTES_MIN", 2 * (TEN.nbytes + KEYS.nbytes), {"keys": KEY}, TEN.nbytes + KEYS.nbytes),
    ],
    ids=["records", "one array", "ids of streams", "keys"],
)
async def test_a_batch_has_no_more_than_readers_take(
    limit: str, value: int, options: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id or key counts once for each record, whatever the settings of batches allow."""
    monkeypatch.setattr(append_queue, limit, value)
    queue = Queue(batching=Batching(batch_bytes=10**9, pending_bytes=10**9))
    sizes = [queue.add(TEN, **options).size for _ in range(5)]

    assert sizes == [size] * 5
    assert [len(queue.take()) for _ in range(3)] == [2, 2, 1]


def test_as_many_as_readers_take_are_taken() -> None:
    """Writers accept appends up to the exact limits of readers."""
    most = BYTES_MIN // 1_024

    assert len(checked(repeated(b"", RECORDS_MAX))) == RECORDS_MAX
    assert len(checked(repeated(b"", most), stream=bytes(1_024))) == most
    with pytest.raises(UsageError, match="id of the stream"):
        checked(repeated(b"", most + 1), stream=bytes(1_024))
