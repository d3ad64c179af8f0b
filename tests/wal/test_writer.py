"""Writers of logs in wal3's form: races, recovery, and Chroma's own logs."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.goldens import objects
from kit.protocols import CLOCK, WAL3, wal3_writer
from kit.protocols import contents as contents_of
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    ObjectChanged,
    Outcome,
    OutcomeUnknown,
    StoreRefused,
    TidelogError,
)
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object, Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.testing import Fault, FaultyStore, Request
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.format.wal3_records import encode_fragment, place_records
from tidelog.wal.manifest_protocol.writer import Wal3Writer


async def opened(store: Store, **options: Any) -> Wal3Writer:
    writer = wal3_writer(store, **options)
    await writer.committer.open(make=True)
    return writer


async def contents(store: Store) -> dict[int, bytes]:
    return await contents_of(WAL3, store)


async def test_an_idle_log_takes_two_puts() -> None:
    """An append to an idle log costs two puts and no read: a fragment and the manifest."""
    store = MeteringStore(MemoryStore(), clock=CLOCK)
    async with await opened(store) as writer:
        before = store.usage()
        await writer.append([b"one"])
        used = store.usage() - before
        assert (used.put_count, used.requests_count) == (2, 2)


async def test_several_writers_lose_nothing() -> None:
    """Concurrent writers compete for numbers, complete fragments of others, lose no record."""
    store = MemoryStore()
    wanted: dict[int, bytes] = {}
    writers = [await opened(store, name=f"w{n}") for n in range(3)]

    async def write(writer: Wal3Writer, name: int) -> None:
        for number in range(15):
            body = b"%d-%d" % (name, number)
            first = await writer.append([body])
            wanted[first] = body

    await asyncio.gather(*(write(writer, n) for n, writer in enumerate(writers)))
    for writer in writers:
        await writer.close()
    assert await contents(store) == wanted
    assert len(wanted) == 45


async def test_a_fragment_that_does_not_continue_the_log_is_left_alone() -> None:
    """A fragment that does not continue the log raises; wal3 would include it."""
    store = MemoryStore()
    async with await opened(store) as writer:
        await writer.append([b"one"])
    before = (await store.get(MANIFEST)).data
    records = place_records(pa.array([b"x"], pa.binary()), start=9, timestamp_us=7)
    await store.put(fragment_path(2), encode_fragment(records, write_id="other"))
    with pytest.raises(CorruptionError, match="move that fragment out of the log's folder"):
        await opened(store)
    assert (await store.get(MANIFEST)).data == before


async def test_a_new_log_is_chromas_to_the_byte() -> None:
    """A new log has the bytes of Chroma's manifest, and the columns of Chroma's fragments."""

    async def work() -> dict[str, bytes]:
        store = MemoryStore()
        async with await opened(store) as writer:
            empty = (await store.get(MANIFEST)).data
            assert empty == objects("e_empty")[MANIFEST]
            await writer.append([b"one"])
        return {entry.key: (await store.get(entry.key)).data async for entry in store.list("")}

    ours, theirs = await work(), objects("a_tiny")
    assert ours.keys() == theirs.keys()
    path = fragment_path(1)
    mine, chromas = (pq.ParquetFile(pa.BufferReader(log[path])) for log in (ours, theirs))
    assert mine.schema_arrow.remove_metadata() == chromas.schema_arrow.remove_metadata()
    for number in range(3):
        one, other = mine.schema.column(number), chromas.schema.column(number)
        assert (one.name, one.physical_type, str(one.logical_type), one.max_definition_level) == (
            other.name,
            other.physical_type,
            str(other.logical_type),
            other.max_definition_level,
        )


@pytest.mark.parametrize("name", ["a_tiny", "b_snapshots", "c_gc", "d1_copy_append", "f_bootstrap"])
async def test_chromas_logs_are_appended_to(name: str) -> None:
    """Chroma's logs accept appends at their end, in any state."""
    store = MemoryStore()
    for key, data in objects(name).items():
        await store.put(key, data)
    before = await contents(store)
    async with await opened(store) as writer:
        firsts = [await writer.append([b"new"]) for _ in range(9)]
    assert firsts == list(range(max(before) + 1, max(before) + 10))
    assert await contents(store) == before | dict.fromkeys(firsts, b"new")


class FailingStore(MemoryStore):
    """A store whose puts of the manifest, and whose reads, fail with the given errors."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[TidelogError] = []
        self.gets: list[TidelogError] = []

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        if self.puts and if_match is not None:
            raise self.puts.pop(0)
        return await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        if self.gets:
            raise self.gets.pop(0)
        return await MemoryStore.get(self, key, start=start, limit=limit)


def busy() -> ContentionError:
    return ContentionError("the store is busy with other writes of the object")


async def test_a_conflict_over_the_manifest_is_no_answer() -> None:
    """A conflict over the manifest is retried: NOT_APPLIED would store the append twice."""
    store = FailingStore()
    writer = await opened(store)
    await writer.append([b"one"])

    store.puts = [busy()]
    assert await writer.append([b"two"]) == 2
    await writer.close()

    assert await contents(store) == {1: b"one", 2: b"two"}


@pytest.mark.parametrize(
    ("puts", "gets"),
    [
        ([busy() for _ in range(9_999)], []),
        ([StoreRefused("denied")], []),
        (
            [ObjectChanged("another") for _ in range(9_999)],
            [CorruptionError("cut short") for _ in range(9_999)],
        ),
    ],
    ids=["busy", "refused", "cut short"],
)
async def test_what_is_stored_and_not_named_is_unknown(
    puts: list[TidelogError], gets: list[TidelogError]
) -> None:
    """An append whose fragment is stored but not named is UNKNOWN; the next writer names it."""
    store = FailingStore()
    writer = await opened(store)
    await writer.append([b"one"])

    store.puts, store.gets = puts, gets
    with pytest.raises(OutcomeUnknown, match="reason="):
        await writer.append([b"two"])
    store.puts, store.gets = [], []
    assert await writer.append([b"three"]) == 3
    await writer.close()

    assert await contents(store) == {1: b"one", 2: b"two", 3: b"three"}


async def test_what_was_never_sent_is_not_applied() -> None:
    """An append that was never sent is NOT_APPLIED, even if the opening was UNKNOWN."""
    inner = MemoryStore()
    await (await opened(inner)).close()
    records = place_records(pa.array([b"x"], pa.binary()), start=1, timestamp_us=7)
    await inner.put(fragment_path(1), encode_fragment(records, write_id="other"))

    def toss(request: Request) -> Fault:
        is_manifest = request.op == "put" and request.key == MANIFEST
        return Fault(happened=not is_manifest, told=not is_manifest)

    writer = wal3_writer(FaultyStore(inner, toss=toss))
    with pytest.raises(LocationError) as failed:
        await writer.append([b"two"])
    await writer.close()

    assert failed.value.outcome is Outcome.NOT_APPLIED
