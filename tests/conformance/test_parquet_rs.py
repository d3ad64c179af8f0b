"""Fragments that tidelog and parquet-rs exchange. wal3 uses parquet-rs, and arro3-io embeds it.

| scenario of wal3's | shown by |
| --- | --- |
| columns are named `offset`, `timestamp_us`, `body` | test_parquet_rs_reads_what_we_write |
| a large batch | test_parquet_rs_reads_what_we_write |
| the reader's setsum is the writer's | test_we_read_what_parquet_rs_writes |
| (not there) scrub of another encoder's log | test_a_log_that_parquet_rs_wrote_is_ours |
| the setsum differs by position | core/test_setsum.py: test_records_sum_with_their_place_and_time |
| an empty list of messages | wal/test_log.py: test_what_is_no_append_is_refused |
| the wrong flavour is refused | test_columns_that_wal3_could_not_read_are_refused |
| relative offsets, and their translation | not ours: fragments of the replicated kind |
| a read that skips the setsum | not ours: each read checks the setsum |
"""

from __future__ import annotations

import io
from typing import Any

import arro3.io
import numpy as np
import pyarrow as pa
import pytest

from kit.goldens import NAMES, objects
from kit.protocols import CLOCK, SLOTS, WAL3, contents, cursors_on
from tidelog.core.setsum import record_setsum
from tidelog.errors import CorruptionError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.wal3_records import (
    decode_fragment,
    encode_fragment,
    place_records,
    setsum_of_records,
)
from tidelog.wal.gc.collector import Collector
from tidelog.wal.gc.plan import Keep

TIME_US = 1_700_000_000_000_000
BATCHES = {
    "one": [b"abcd"],
    "empty bodies": [b"", b"", b"x", b""],
    "all bytes": [bytes(range(256)), b"\x00", b"\xff" * 9],
    "alike": [b"same" * 10] * 500,
    "large": [b"%d" % n * (n % 50) for n in range(20_000)],
    "pages": [bytes([n % 251]) * 70_000 for n in range(40)],
}


def chromas(bodies: list[bytes], *, start: int, timestamp_us: int = TIME_US) -> bytes:
    """Write a fragment as wal3's writer does: with parquet-rs, its defaults, and snappy."""
    names = ["offset", "timestamp_us", "body"]
    records = place_records(pa.array(bodies, pa.binary()), start=start, timestamp_us=timestamp_us)
    sink = io.BytesIO()
    arro3.io.write_parquet(records.rename_columns(names), sink, compression="snappy")
    return sink.getvalue()


def read_by_parquet_rs(data: bytes) -> pa.Table:
    """Read as wal3 does: with the Arrow types of the file, without a cast."""
    return pa.table(arro3.io.read_parquet(io.BytesIO(data)).read_all())


@pytest.mark.parametrize("bodies", BATCHES.values(), ids=BATCHES)
def test_parquet_rs_reads_what_we_write(bodies: list[bytes]) -> None:
    """parquet-rs reads a fragment with exactly the types that wal3's reader requires."""
    records = place_records(pa.array(bodies, pa.binary()), start=7, timestamp_us=TIME_US)

    found = read_by_parquet_rs(encode_fragment(records, write_id="w"))

    assert found.schema.names[:3] == ["offset", "timestamp_us", "body"]
    types = [found.schema.field(name).type for name in ("offset", "timestamp_us", "body")]
    assert types == [pa.uint64(), pa.uint64(), pa.binary()]
    assert not any(field.nullable for field in found.schema)
    assert found.column("offset").to_pylist() == list(range(7, 7 + len(bodies)))
    assert set(found.column("timestamp_us").to_pylist()) == {TIME_US}
    assert found.column("body").to_pylist() == bodies


@pytest.mark.parametrize("bodies", BATCHES.values(), ids=BATCHES)
def test_we_read_what_parquet_rs_writes(bodies: list[bytes]) -> None:
    """A fragment by parquet-rs is read unchanged, and the setsum does not depend on the encoder."""
    found = decode_fragment(chromas(bodies, start=7), path="x")

    assert found.column("position").to_pylist() == list(range(7, 7 + len(bodies)))
    assert found.column("body").to_pylist() == bodies
    wanted = record_setsum(7, TIME_US, bodies[0])
    for number, body in enumerate(bodies[1:], start=8):
        wanted = wanted + record_setsum(number, TIME_US, body)
    assert setsum_of_records(found) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_parquet_rs_and_we_read_chromas_fragments_alike(name: str) -> None:
    """Both readers return the same rows of the golden fragments by Chroma's own writer."""
    for key, data in objects(name).items():
        if key.startswith("log/"):
            ours, theirs = decode_fragment(data, path=key), read_by_parquet_rs(data)
            names = ["position", "timestamp_us", "body"]
            assert theirs.rename_columns(names).to_pydict() == ours.to_pydict()


async def written_by_parquet_rs(store: Store, counts: list[int]) -> dict[int, bytes]:
    """Make a log of fragments by another encoder; return its records.

    The fragments are stored as orphans, as by a writer that dies before its manifest put. The next
    opener adds them.
    """
    await WAL3.make(store)
    wanted: dict[int, bytes] = {}
    for number, count in enumerate(counts, start=1):
        start = 1 + len(wanted)
        bodies = [b"%d-%d" % (number, n) for n in range(count)]
        await store.put(fragment_path(number), chromas(bodies, start=start))
        wanted |= dict(enumerate(bodies, start))
        if number % 2 == 0:
            await WAL3.settle(store)
    await WAL3.settle(store)
    return wanted


async def test_a_log_that_parquet_rs_wrote_is_ours(store: Store) -> None:
    """A log with fragments of both encoders can be read, appended to, rolled up and collected."""
    wanted = await written_by_parquet_rs(store, [1, 3, 2, 5, 1, 1, 4])
    assert await contents(WAL3, store) == wanted
    async with WAL3.writer(store) as writer:
        for number in range(5):
            body = b"ours %d" % number
            wanted[await writer.append([body])] = body
    await store.put(fragment_path(13), chromas([b"theirs"], start=len(wanted) + 1))
    await WAL3.settle(store)
    wanted[len(wanted) + 1] = b"theirs"
    assert await contents(WAL3, store) == wanted
    cursors = cursors_on(store)
    await cursors.create("reader", 12)
    collector = Collector(store=store, clock=CLOCK, writer="gc", keep=Keep(share_max=1), grace_us=1)
    report = await collector.collect()
    assert report.oldest == 12
    left = {position: body for position, body in wanted.items() if position >= 12}
    assert await contents(WAL3, store) == left


@pytest.mark.parametrize("kind", [WAL3, SLOTS], ids=str)
async def test_parquet_rs_reads_whole_logs_of_ours(kind: Any, store: Store) -> None:
    """parquet-rs reads every file of both protocols, including fences, which have no rows."""
    await kind.make(store)
    wanted: list[bytes] = []
    async with kind.writer(store) as writer:
        for number in range(7):
            records = [b"%d-%d" % (number, n) for n in range(number + 1)]
            await writer.append(records)
            wanted += records
    position = "offset" if kind is WAL3 else "position"
    found: dict[Any, Any] = {}
    async for entry in store.list(""):
        if not entry.key.endswith(".parquet"):
            continue
        table = read_by_parquet_rs((await store.get(entry.key)).data)
        positions, bodies = (table.column(name).to_pylist() for name in (position, "body"))
        found |= dict(zip(positions, bodies, strict=True))
        types = dict(zip(table.schema.names, table.schema.types, strict=True))
        assert types["body"] == pa.binary()
        if kind is SLOTS:
            assert types[position] == types["timestamp_us"] == pa.int64()
            assert types["stream"] == pa.binary()
    assert found == dict(enumerate(wanted, start=1))
    assert await contents(kind, store) == found


def _cast(types: dict[str, pa.DataType], **renamed: str) -> bytes:
    table = pa.table(
        {
            "offset": pa.array(np.arange(1, 3), pa.uint64()),
            "timestamp_us": pa.array([5, 5], pa.uint64()),
            "body": pa.array([b"a", b"b"], pa.binary()),
        }
    )
    arrays = {
        renamed.get(name, name): table.column(name).cast(types.get(name, table.column(name).type))
        for name in table.column_names
    }
    sink = io.BytesIO()
    arro3.io.write_parquet(pa.table(arrays), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        _cast({"offset": pa.int64()}),
        _cast({"timestamp_us": pa.int64()}),
        _cast({"body": pa.string()}),
        _cast({}, offset="relative_offset"),
        _cast({}, body="data"),
    ],
    ids=["signed offset", "signed time", "text", "relative", "no body"],
)
async def test_columns_that_wal3_could_not_read_are_refused(data: bytes) -> None:
    """Columns that wal3's reader refuses raise CorruptionError here as well."""
    with pytest.raises(CorruptionError):
        decode_fragment(data, path="x")

    store = MemoryStore()
    await WAL3.make(store)
    await store.put(fragment_path(1), data)
    with pytest.raises(CorruptionError):
        await WAL3.settle(store)
