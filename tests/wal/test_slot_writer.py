"""Writers of slot logs: one round trip, several puts in flight, takeovers, and lost answers."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from kit.protocols import (
    CLOCK,
    SLOTS,
    contents,
    make_slots,
    opener_on,
    rows_of,
    slot_reader,
    slot_store,
    slot_writer,
)
from kit.stores import CrowdedStore
from tidelog.core.clock import SystemClock
from tidelog.errors import CorruptionError, Fenced, LogSealed, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.testing import Fault, FaultyStore
from tidelog.testing.faulty import Request
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.queue import Queue
from tidelog.wal.format.manifest import MANIFEST, decode_manifest
from tidelog.wal.slot_protocol.manifest_maintenance import BEHIND_MAX
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter


async def made(store: Store) -> SlotWriter:
    await make_slots(store)
    return slot_writer(store)


async def test_an_append_takes_one_put() -> None:
    """An append costs one put and no read. A roll-up follows after many appends."""
    store = MeteringStore(MemoryStore(), clock=CLOCK)
    await make_slots(store)
    quiet = Shape(alpha=4, rollup_interval_us=60_000_000)
    writer = SlotWriter(store=store, clock=SystemClock(), writer="w", shape=quiet)
    await writer.append([b"the first opens the log"])
    before = store.usage()
    for _ in range(3):
        await writer.append([b"one"])
    used = store.usage() - before
    assert (used.put_count, used.requests_count) == (3, 3)
    await writer.close()
    assert len(await contents(SLOTS, store)) == 4


async def test_appends_overlap() -> None:
    """Of forty appends, as many as alpha allows are in flight at once."""
    inner = await slot_store()
    crowd = CrowdedStore(inner, clock=CLOCK, prefix="epoch/", op="put")
    async with slot_writer(crowd.store, alpha=8, batch_bytes=1) as writer:
        await writer.append([b"open"])
        await asyncio.gather(*(writer.append([b"%d" % n]) for n in range(40)))
    assert crowd.most == 8
    assert len(await contents(SLOTS, inner)) == 41


async def test_a_writer_ends_the_turn_of_the_one_before() -> None:
    """A new writer fences the old one, whose later appends raise Fenced and are not in the log."""
    store = MemoryStore()
    one = await made(store)
    two = slot_writer(store, name="two", lanes=3, alpha=2)
    assert [await one.append([b"a"]), await one.append([b"b"])] == [1, 2]
    assert await two.append([b"c"]) == 3
    for _ in range(2):
        with pytest.raises(Fenced, match="by='two'"):
            await one.append([b"lost"])
    assert [await two.append([b"%d" % n]) for n in range(9)] == list(range(4, 13))
    await one.close()
    await two.close()
    found = list((await contents(SLOTS, store)).values())
    assert found == [b"a", b"b", b"c", *(b"%d" % n for n in range(9))]


async def test_lanes_and_alpha_are_those_of_the_epoch() -> None:
    """Each epoch has its own lanes and alpha. Readers learn them from the fence that opened it."""
    store = await slot_store()
    wanted = 0
    for lanes, alpha in ((1, 1), (4, 2), (2, 8), (64, 64)):
        async with slot_writer(store, lanes=lanes, alpha=alpha, batch_bytes=1) as writer:
            await asyncio.gather(*(writer.append([b"x"]) for _ in range(10)))
            wanted += 10
        newest = decode_manifest((await store.get(MANIFEST)).data).chain
        assert newest is not None
        assert (newest.last.lanes, newest.last.alpha) == (lanes, alpha)
    assert len(await contents(SLOTS, store)) == wanted


async def test_times_are_those_given() -> None:
    """Records have the given time, by default the current time. A wrong time raises UsageError."""
    store = MemoryStore()
    writer = await made(store)
    before = CLOCK.now_us()
    await asyncio.gather(writer.append([b"a"]), writer.append([b"b", b"c"], timestamp_us=7))
    for wrong in (-1, 2**63):
        with pytest.raises(UsageError):
            await writer.append([b"x"], timestamp_us=wrong)
    await writer.close()
    times = [row["timestamp_us"] for row in await rows_of(SLOTS, store)]
    assert times[1:] == [7, 7]
    assert before <= times[0] <= CLOCK.now_us()


async def test_a_sealed_log_takes_no_more() -> None:
    """A sealed log refuses appends of every writer, and the error names the successor."""
    store = MemoryStore()
    writer = await made(store)
    await writer.append([b"one"])
    seal = await opener_on(store).seal(successor="orders-2")
    for one in (writer, writer, slot_writer(store)):
        with pytest.raises(LogSealed, match="orders-2"):
            await one.append([b"two"])
        await one.close()
    with pytest.raises(LogSealed):
        await opener_on(store).seal()
    assert (await slot_reader(store).bounds()).seal == seal
    assert await contents(SLOTS, store) == {1: b"one"}


async def test_the_manifest_keeps_up() -> None:
    """A writer that cannot roll up makes appends wait, so that readers walk little."""
    inner, stuck = MemoryStore(), asyncio.Event()

    def toss(request: Request) -> Fault:
        is_manifest = request.op == "put" and request.key == MANIFEST
        return Fault(happened=not (stuck.is_set() and is_manifest))

    await make_slots(inner)
    writer = slot_writer(FaultyStore(inner, toss=toss), batch_bytes=1)
    for _ in range(60):
        await writer.append([b"x"])
    manifest = decode_manifest((await inner.get(MANIFEST)).data)
    assert manifest.next > 60 - BEHIND_MAX * 5
    stuck.set()
    calls = [asyncio.create_task(writer.append([b"y"])) for _ in range(60)]
    await asyncio.wait(calls, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(300):  # Time for more appends to finish, if any could.
        await asyncio.sleep(0.001)
    assert 0 < sum(call.done() for call in calls) <= BEHIND_MAX * 5 < len(calls)
    stuck.clear()
    await asyncio.gather(*calls)
    await writer.close()
    manifest = decode_manifest((await inner.get(MANIFEST)).data)
    assert manifest.next == 121
    assert len(await contents(SLOTS, inner)) == 120


async def test_a_foreign_object_in_a_slot_stops_the_writer() -> None:
    """A foreign object in a slot makes each append and the close raise CorruptionError."""
    store = MemoryStore()
    writer = await made(store)
    await writer.append([b"one"])
    chain = decode_manifest((await store.get(MANIFEST)).data).chain
    epoch = writer._pipeline.epoch if writer._pipeline else None
    assert chain is not None
    assert epoch is not None
    await store.put(epoch.path(2), b"not ours")
    for _ in range(2):
        with pytest.raises(CorruptionError, match="move it away"):
            await writer.append([b"two"])
    with pytest.raises(CorruptionError):
        await writer.close()


async def test_bodies_come_back_as_they_were() -> None:
    """Bodies of any size and count survive storage, also from slices of larger arrays."""
    store = MemoryStore()
    writer = await made(store)
    bodies = pa.array([b"", b"\x00\xff" * 3, b"x" * 70_000, b"", b"end"], pa.binary())
    first = await writer.append_arrow(bodies[1:])
    await writer.close()
    assert await contents(SLOTS, store) == dict(enumerate(bodies[1:].to_pylist(), first))


async def test_a_long_queue_is_sent_in_shares() -> None:
    """A long queue is split, so that one batch is encoded while another is sent."""
    queue = Queue(batching=Batching(batch_bytes=8 * 2**20))
    body = pa.array([bytes(2**20 - 4)], pa.binary())
    for _ in range(12):
        queue.add(body)
    assert [len(queue.take(shares=2)) for _ in range(2)] == [6, 6]
    for _ in range(6):
        queue.add(pa.array([b"small"], pa.binary()))
    assert len(queue.take(shares=2)) == 6
