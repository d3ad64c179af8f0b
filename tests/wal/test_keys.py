"""Records with keys in slot logs: storage, reads by key, skipped fragments, and refused keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.golden_slots import TAIL
from kit.protocols import CLOCK
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, Outcome, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.wal.admin.rebuild import rebuild_log
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.bodies import keys_in
from tidelog.wal.append.queue import Queue
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.fragment_sets import KEY_BYTES_MAX, KeyBloom
from tidelog.wal.format.link import DataLink
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.format.parquet import BYTES_MIN
from tidelog.wal.format.slot_object import (
    SLOT_RECORDS,
    _encode,
    decode_data,
    encode_data,
    place_slot_records,
    problems_of_data,
)
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log, open_log
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import step


def records_with(keys: list[bytes | None]) -> pa.Table:
    return place_slot_records(
        pa.array([b"%d" % n for n in range(len(keys))], pa.binary()),
        start=TAIL.position,
        times=np.full(len(keys), 7, dtype=np.int64),
        keys=pa.array(keys, pa.binary()),
    )


def written(records: pa.Table) -> tuple[DataLink, bytes, Fragment]:
    link, data = encode_data(records, TAIL, writer="w")
    fragment = step(TAIL, link, len(data))[1]
    assert isinstance(fragment, Fragment)
    return link, data, fragment


async def created(store: Store | None = None, protocol: str = "slot") -> Log:
    return await create_log(
        store or MemoryStore(), name="x", clock=CLOCK, writer="w", protocol=protocol
    )


async def read(log: Log, **asked: Any) -> list[tuple[int, bytes | None, bytes]]:
    rows = [row async for table in log.scan(**asked) for row in table.to_pylist()]
    return [(row["position"], row["key"], row["body"]) for row in rows]


def column_names(data: bytes) -> list[str]:
    return list(pq.read_schema(pa.BufferReader(data)).names)


def test_the_column_is_there_where_a_record_has_a_key() -> None:
    """An object has the key column only if a record has a key, so others keep their bytes."""
    cases: list[tuple[list[bytes | None], list[str]]] = [
        ([None, None], ["position", "timestamp_us", "stream", "body"]),
        ([None, b""], ["position", "timestamp_us", "stream", "key", "body"]),
    ]
    for keys, names in cases:
        records = records_with(keys)
        link, data, fragment = written(records)
        assert column_names(data) == names
        assert decode_data(data, path="p") == (link, records)
        assert records.schema == SLOT_RECORDS
        assert problems_of_data(records, link, len(data), fragment, with_setsum=True) == []
        assert (b'"keys"' in data) == (b"" in keys)


def test_links_and_sums_are_held_against_keys() -> None:
    """A changed key, and a link or manifest with other keys, is detected."""
    keys: list[bytes | None] = [b"a", None, b"", b"b"]
    link, data, fragment = written(records_with(keys))
    assert (link.keys, fragment.keys) == ((b"", b"a", b"b"), (b"", b"a", b"b"))
    for at, other in ((0, b"b"), (0, None), (1, b""), (2, None), (3, b"")):
        changed = [*keys[:at], other, *keys[at + 1 :]]
        problems = problems_of_data(records_with(changed), link, len(data), fragment)
        assert "its column sum does not match its records" in problems
    others: list[Any] = [(), (b"a", b"b"), None, KeyBloom(b"\xff", 1)]
    for said in others:
        wrong = _encode(records_with(keys), replace(link, keys=said))
        found = decode_data(wrong, path="p")[0]
        assert isinstance(found, DataLink)
        assert found.keys == said
        named = replace(fragment, num_bytes=len(wrong), keys=said)
        problems = problems_of_data(records_with(keys), found, len(wrong), named)
        assert problems == ["its keys differ from its link"]
        named = replace(fragment, keys=said)
        problems = problems_of_data(records_with(keys), link, len(data), named)
        assert problems == ["its keys differ from the log's description"]


def test_a_file_that_has_the_column_for_nothing_is_read_as_one_without() -> None:
    """An object with an empty key column reads like one without it. Only the records count."""
    records = records_with([None, None])
    link, data, _ = written(records)
    text: Any = pq.read_metadata(pa.BufferReader(data)).metadata
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SLOT_RECORDS, store_schema=False) as writer:
        writer.write_table(records)
        writer.add_key_value_metadata({key.decode(): text[key].decode() for key in text})
    assert decode_data(sink.getvalue().to_pybytes(), path="p") == (link, records)


async def test_keys_come_back() -> None:
    """An append takes one key for all records, one for each, or none; scans return them."""
    store = MemoryStore()
    async with await created(store) as log:
        await log.open_stream(b"s")
        await log.append([b"0"])
        await log.append([b"1", b"2"], key=b"a")
        await log.append([b"3"], key=b"", stream=b"s")
        keys: Any = pa.array([b"a", None, b"\xff" * KEY_BYTES_MAX], pa.binary())
        await log.append_arrow(pa.array([b"4", b"5", b"6"], pa.binary()), key=keys, stream=b"s")
        none: Any = pa.array([None], pa.binary())
        await log.append_arrow(pa.array([b"7"], pa.binary()), key=none)
    again = await open_log(store, name="x", clock=CLOCK, writer="again")
    everything = [
        (2, None, b"0"),
        (3, b"a", b"1"),
        (4, b"a", b"2"),
        (5, b"", b"3"),
        (6, b"a", b"4"),
        (7, None, b"5"),
        (8, b"\xff" * KEY_BYTES_MAX, b"6"),
        (9, None, b"7"),
    ]
    assert await read(again) == everything
    for key in (b"a", b"", b"\xff" * KEY_BYTES_MAX, b"nobody's"):
        assert await read(again, key=key) == [row for row in everything if row[1] == key]
    assert await read(again, key=b"a", stream=b"s") == [everything[4]]
    assert await read(again, key=b"a", start=4, limit=6) == [everything[2]]
    with_control = [at for at, _, _ in await read(again, key=b"a", stream=b"s", control=True)]
    assert with_control == [1, 6]
    assert (await again.scrub()).is_clean


async def test_appends_of_one_batch_keep_their_keys() -> None:
    """Appends with one key, with many and with none keep their keys in a shared object."""
    queue = Queue(batching=Batching())
    queue.add(pa.array([b"1", b"2"], pa.binary()), keys=b"a")
    queue.add(pa.array([b"3"], pa.binary()))
    queue.add(pa.array([b"4", b"5"], pa.binary()), keys=pa.array([None, b"b"], pa.binary()))
    batch = queue.take()

    column: Any = keys_in(batch)
    assert column.to_pylist() == [b"a", b"a", None, None, b"b"]
    assert keys_in(batch[1:2]) is None


@pytest.mark.parametrize("rolled_up", [False, True])
async def test_fragments_without_the_key_are_not_read(rolled_up: bool) -> None:
    """A read by key skips fragments by the key sets of the manifest, which equal the links'."""
    inner = MemoryStore()
    log = await created(inner)
    for number in range(12):
        await log.append([b"x"], key=b"key-%d" % number)
    many: Any = pa.array([b"many-%d" % n for n in range(1_000)], pa.binary())
    await log.append_arrow(many, key=many)
    await log.append_arrow(pa.concat_arrays([many] * 3), key=pa.concat_arrays([many] * 3))
    await log.append([b"x"])
    if rolled_up:
        await log.close()

    wanted = {b"key-3": (1, 2), b"many-7": (4, 2), b"nobody's": (0, 1)}
    costs = {}
    for key, (rows, _) in wanted.items():
        store = MeteringStore(inner, clock=CLOCK)
        again = await open_log(store, name="x", clock=CLOCK, writer="again")
        before = store.usage()
        assert len(await read(again, key=key)) == rows
        costs[key] = (store.usage() - before).get_count
    fragments = await log.fragments()
    held = [fragment.keys for fragment in fragments]
    assert held[:12] == [(b"key-%d" % n,) for n in range(12)]
    assert [type(one) for one in held[12:]] == [KeyBloom, type(None), tuple]
    if rolled_up:
        # A read gets the manifest and each fragment that may hold the key. One fragment has no key
        # set.
        assert {key: costs[key] - costs[b"nobody's"] for key in wanted} == {
            b"key-3": 1, b"many-7": 1, b"nobody's": 0,
        }  # fmt: skip
    else:
        await log.close()


async def test_a_pin_is_read_by_key() -> None:
    """A read of a pin by key skips fragments without the key. A wrong key raises UsageError."""
    inner = MemoryStore()
    log = await created(inner)
    for number in range(6):
        await log.append([b"%d" % number], key=b"key-%d" % (number % 3))
    await log.create_pin("held")
    await log.close()
    costs = []
    for key, bodies in ((b"key-1", [b"1", b"4"]), (b"nobody's", [])):
        store = MeteringStore(inner, clock=CLOCK)
        again = await open_log(store, name="x", clock=CLOCK, writer="again")
        before = store.usage()
        tables = [table async for table in again.scan_pin("held", key=key)]
        assert [body for table in tables for body in table.column("body").to_pylist()] == bodies
        costs.append((store.usage() - before).get_count)
    assert costs[0] - costs[1] == 2
    with pytest.raises(UsageError, match="not str"):
        await anext(log.scan_pin("none", key="text"))  # type: ignore[arg-type]


async def test_a_rebuilt_log_knows_its_keys() -> None:
    """A rebuilt manifest has the same key sets as the lost one, because links hold them."""
    store = MemoryStore()
    many: Any = pa.array([b"many-%d" % n for n in range(100)], pa.binary())
    async with await created(store) as log:
        await log.append([b"1"], key=b"a")
        await log.append_arrow(many, key=many)
        await log.append_arrow(pa.concat_arrays([many] * 3), key=pa.concat_arrays([many] * 3))
        await log.append([b"2"])
    lost = (await load_head(store)).manifest
    await store.delete([MANIFEST])
    await rebuild_log(store, clock=CLOCK, writer="w")
    rebuilt = (await load_head(store)).manifest
    assert [one.keys for one in rebuilt.fragments] == [one.keys for one in lost.fragments]
    assert [type(one.keys) for one in lost.fragments] == [tuple, KeyBloom, type(None), tuple]
    again = await open_log(store, name="x", clock=CLOCK, writer="again")
    assert len(await read(again, key=b"many-7")) == 4


async def test_a_follower_of_a_key_gets_what_comes() -> None:
    """A follower of a key skips records of other keys in every fragment."""
    async with await created() as log:
        await log.append([b"1"], key=b"a")
        following = log.follow(key=b"a")
        assert (await anext(following)).column("body").to_pylist() == [b"1"]
        await log.append([b"2"], key=b"b")
        keys: Any = pa.array([b"b", b"a"], pa.binary())
        await log.append_arrow(pa.array([b"3", b"4"], pa.binary()), key=keys)
        assert (await anext(following)).column("position").to_pylist() == [4]


BODIES: Any = pa.array([b"x", b"y"], pa.binary())


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("text", "not str"),
        (7, "not int"),
        (bytearray(b"a"), "not bytearray"),
        (b"x" * (KEY_BYTES_MAX + 1), "at most 16384"),
        (pa.array([b"a"], pa.binary()), "for each record"),
        (pa.array(["a", "b"]), "not string"),
        (pa.chunked_array([[b"a", b"b"]], pa.binary()), "chunked"),
        (pa.array([b"a", b"x" * (KEY_BYTES_MAX + 1)], pa.binary()), "at most 16384"),
        ([b"a", b"b"], "not list"),
    ],
)
async def test_what_is_no_key_is_refused_before_any_request(key: Any, said: str) -> None:
    """A wrong key raises UsageError before any request; the next append succeeds."""
    store = MeteringStore(MemoryStore(), clock=CLOCK)
    async with await created(store) as log:
        before = store.usage()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: log.append_arrow(BODIES, key=key),
            lambda: log.append([b"x", b"y"], key=key),
            lambda: log.place(BODIES, key=key),  # type: ignore[attr-defined]
        ]
        for call in calls:
            with pytest.raises(UsageError, match=said) as told:
                await call()
            assert told.value.outcome is Outcome.NOT_APPLIED
        if not isinstance(key, pa.Array | pa.ChunkedArray):
            for read_by in (log.scan, log.follow):
                with pytest.raises(UsageError, match=said):
                    read_by(key=key)
        assert store.usage() == before
        assert await log.append([b"one"], key=b"") == 1


async def test_keys_that_come_to_more_than_readers_take_are_refused() -> None:
    """The largest append whose keys readers accept is read back, a larger one is refused."""
    key = b"k" * KEY_BYTES_MAX
    most = BYTES_MIN // KEY_BYTES_MAX
    bodies: Any = pa.repeat(pa.scalar(b"", pa.binary()), most + 1)
    async with await created() as log:
        for keys in (key, pa.repeat(pa.scalar(key, pa.binary()), most + 1)):
            with pytest.raises(UsageError, match="keys of one append"):
                await log.append_arrow(bodies, key=keys)
        await log.append_arrow(bodies.slice(1), key=key)
        assert sum([table.num_rows async for table in log.scan(key=key)]) == most


async def test_a_slice_of_keys_keeps_no_more_than_it_counts() -> None:
    """A slice of keys is copied, so that the queue keeps no more memory than it counts."""
    many: Any = pa.array([b"k" * 1_000] * 10_000, pa.binary())
    queue = Queue(batching=Batching())
    work = queue.add(pa.array([b"x"], pa.binary()), keys=many.slice(7, 1))
    assert work.keys is not None
    assert work.keys.get_total_buffer_size() < 100_000
    assert work.keys.to_pylist() == [b"k" * 1_000]


async def test_logs_of_the_manifest_protocol_have_no_keys() -> None:
    """Logs in wal3's form refuse keys before any request. wal3's bytes have no place for keys."""
    store = MeteringStore(MemoryStore(), clock=CLOCK)
    log = await created(store, protocol="manifest")
    before = store.usage()
    with pytest.raises(UsageError, match="no keys"):
        await log.append([b"x"], key=b"a")
    for read_by in (log.scan, log.follow):
        with pytest.raises(UsageError, match="no keys"):
            read_by(key=b"a")
    assert store.usage() == before
    await log.append([b"x"])
    assert await read(log) == [(1, None, b"x")]
    await log.close()


def test_a_key_that_its_link_denies_is_damage() -> None:
    """A key that its link does not list is damage: readers of it would skip its records."""
    link, data, _ = written(records_with([b"a"]))
    assert link.setsum != Setsum.zero()
    with pytest.raises(CorruptionError):
        decode_data(data.replace(b'"keys":["YQ=="]', b'"keys":["Yg=="]'), path="p")
