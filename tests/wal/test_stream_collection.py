"""Collections of logs with streams: the streams open at the log's start are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.named_logs import opened
from kit.protocols import ALL
from kit.stores import deaths
from tidelog.errors import LocationError, ManifestMoved
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore, RecordedStore
from tidelog.testing.faulty import Request
from tidelog.wal.format.gc_plan import GARBAGE, decode_garbage, encode_garbage
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.format.streams import StreamInfo, Streams
from tidelog.wal.gc.plan import apply_garbage
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_log import SlotLog

Table = dict[bytes, tuple[bytes, int]]


def plain(streams: Streams | list[StreamInfo]) -> Table:
    return {info.id: (info.meta, info.position) for info in streams}


async def at_start(store: Store) -> Table:
    chain = (await load_head(store)).manifest.chain
    assert chain is not None
    return plain(chain.streams_at_start)


FEW = st.sampled_from([b"a", b"b", b"c"])
OPS = st.tuples(st.sampled_from(["open", "close", "meta", "append"]), FEW)


async def perform(log: SlotLog, ops: list[tuple[str, bytes]], model: Table) -> list[Table]:
    """Apply the valid operations in order. Return the open streams before each position."""
    tables = [dict(model)]
    for number, (op, stream) in enumerate(ops):
        meta = b"%d" % number
        if op == "append" or (op == "open") == (stream in model):
            await log.append([meta], stream=stream if stream in model else None)
        elif op == "open":
            model[stream] = (meta, await log.open_stream(stream, meta))
        elif op == "close":
            await log.close_stream(stream)
            del model[stream]
        else:
            await log.meta_stream(stream, meta)
            model[stream] = (meta, model[stream][1])
        tables.append(dict(model))
    return tables


@settings(max_examples=20, deadline=None)
@given(
    ops=st.lists(OPS, min_size=2, max_size=40),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
)
async def test_what_is_open_where_a_log_begins_is_kept(
    ops: list[tuple[str, bytes]], cuts: list[int]
) -> None:
    """A later writer knows the streams at the start, after any number of collections."""
    store = MemoryStore()
    log = await opened(store, is_new=True)
    model: Table = {}
    tables = await perform(log, ops, model)
    await log.close()
    for cut in sorted(cuts):
        again = await opened(store, f"gc{cut}")
        position = min(max(cut, (await again.bounds()).oldest), len(ops))
        witness = await again.create_cursor("c", position)
        assert witness.cursor.position == position
        await again.collect(keep=ALL, grace_us=0)
        await again.drop_cursor("c")
        oldest = (await again.bounds()).oldest
        assert await at_start(store) == tables[oldest - 1]
        assert await again.position_at(0) == oldest
        assert plain(await again.streams()) == model
        assert (await again.scrub()).problems == []
    after = await opened(store, "after")
    tables = await perform(after, [("meta", b"a"), ("open", b"b"), ("append", b"a")], model)
    assert plain(await after.streams()) == model
    await after.close()


async def with_streams() -> MemoryStore:
    """Return a log with scattered control records, and a cursor near its end."""
    store = MemoryStore()
    log = await opened(store, is_new=True)
    await log.open_stream(b"a", b"kept")
    await log.open_stream(b"b")
    for number in range(20):
        await log.append([b"%d" % number], stream=b"a")
    await log.close_stream(b"b")
    await log.append([b"x"] * 5)
    await log.create_cursor("c", 24)
    await log.close()
    return store


async def test_only_fragments_with_control_records_are_read() -> None:
    """A collection reads only the links of fragments with control records."""
    store = RecordedStore(await with_streams())
    log = await opened(store, "gc")
    await log.collect(keep=ALL, grace_us=0)
    read = [one.key for one in store.records if one.op == "get" and "epoch/" in one.key]
    slots = {int(key[-24:-8], 16) for key in read}
    assert {1, 2, 23} <= slots
    assert not slots & set(range(3, 23))
    assert await at_start(store) == {b"a": (b"kept", 1)}


@pytest.mark.parametrize("happened", [True, False], ids=["landed", "lost"])
async def test_a_collector_that_continues_a_plan_keeps_the_same_streams(happened: bool) -> None:
    """The plan holds the streams, so a collector that dies anywhere loses none of them."""
    requests = 0

    async def collect(store: Store) -> None:
        await (await opened(store, "dies")).collect(keep=ALL, grace_us=0)

    async for store in deaths(await with_streams(), collect, happened=happened):
        requests += 1
        heir = await opened(store, "heir")
        await heir.collect(keep=ALL, grace_us=0)
        assert await at_start(store) == {b"a": (b"kept", 1)}
        assert plain(await heir.streams()) == {b"a": (b"kept", 1)}
        assert (await heir.scrub()).problems == []
    assert requests > 9


async def test_a_plan_without_streams_is_not_carried_out() -> None:
    """A plan without streams is discarded and made again, because it would lose them."""
    store = await with_streams()

    def toss(request: Request) -> Fault:
        return Fault(happened=not (request.changes and request.key == MANIFEST))

    log = await opened(store, "dies")
    log.store = FaultyStore(store, toss=toss)
    with pytest.raises(LocationError):
        await log.collect(keep=ALL, grace_us=0)
    manifest = (await load_head(store)).manifest
    plan = decode_garbage((await store.get(GARBAGE)).data)
    assert decode_garbage(encode_garbage(plan)) == plan
    bare = replace(plan, streams_at_start=None)
    assert decode_garbage(encode_garbage(bare)) == bare
    assert apply_garbage(manifest, plan).oldest == plan.first_to_keep > 1
    with pytest.raises(ManifestMoved):
        apply_garbage(manifest, bare)

    await store.put(GARBAGE, encode_garbage(bare))
    done = await (await opened(store, "heir")).collect(keep=ALL, grace_us=0)
    assert (done.discarded, done.oldest) == (1, plan.first_to_keep)
    assert await at_start(store) == {b"a": (b"kept", 1)}


async def test_a_pin_gives_users_their_records() -> None:
    """A scan of a pin leaves control records out, like a scan of the log."""
    store = await with_streams()
    log = await opened(store, "pins")
    await log.create_pin("p")
    await log.collect(keep=ALL, grace_us=0)
    rows = [row async for table in log.scan_pin("p") for row in table.to_pylist()]
    assert [row["body"] for row in rows] == [b"%d" % n for n in range(20)] + [b"x"] * 5
    assert {row["stream"] for row in rows} == {b"a", None}
