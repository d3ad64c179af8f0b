"""Reads of a slot log end although a writer keeps appending, and read links where they suffice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from kit.protocols import CLOCK, cursors_on, slot_store
from kit.saturated import saturated
from kit.stores import InterposedStore, Once
from sim.kernel.loop import run
from tidelog.spark.log_view import open_view
from tidelog.store.port import Store
from tidelog.testing.recorded import RecordedStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.link import DataLink
from tidelog.wal.format.manifest import tail_of
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.format.streams import OPEN, Control
from tidelog.wal.gc.collector import Collector
from tidelog.wal.read.head import load_head
from tidelog.wal.read.stream_selection import Selection
from tidelog.wal.slot_protocol.chain import Step
from tidelog.wal.slot_protocol.chain_reader import ChainReader
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.link_reader import read_link
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.seek import position_at
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter

PACES = [(10, 10, 8), (20, 60, 8), (40, 40, 16), (100, 20, 1)]  # Milliseconds, and alpha.


def within(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Run work on the simulator's loop, for at most this many virtual seconds."""

    async def main() -> None:
        async with asyncio.timeout(seconds):
            await work()

    run(main, 1)


async def _bounds(reader: SlotReader) -> int:
    return (await reader.bounds()).next


async def _fragments(reader: SlotReader) -> int:
    return (await reader.fragments())[-1].limit


async def _streams(reader: SlotReader) -> int:
    return (await reader.end()).tail.position


async def _position_at(reader: SlotReader) -> int:
    return await position_at(reader, 2**62)


async def _view(reader: SlotReader) -> int:
    view = await open_view(reader.store, clock=reader.clock)
    await view.renew()
    await view.renew()
    return view.next


ASKED = [(_bounds, *pace) for pace in PACES] + [
    (ask, 10, 10, 8) for ask in (_fragments, _streams, _position_at, _view)
]


@pytest.mark.parametrize(("ask", "put_ms", "get_ms", "alpha"), ASKED)
def test_the_end_of_a_log_is_found_while_a_writer_is_saturated(
    ask: Callable[[SlotReader], Awaitable[int]], put_ms: int, get_ms: int, alpha: int
) -> None:
    """A reader that looks only for slots that exist when it asks ends while a writer goes on."""

    async def work() -> None:
        async with saturated(put_ms=put_ms, get_ms=get_ms, alpha=alpha) as busy:
            store, clock = busy.client()
            before, since = busy.acknowledged, asyncio.get_running_loop().time()
            found = await ask(SlotReader(store=store, clock=clock))
            took_s = asyncio.get_running_loop().time() - since

            assert before < found <= busy.acknowledged + 1 + 2 * alpha
            assert took_s < 16 * get_ms / 1_000
            assert len(store.records) < 24 + 16 * alpha

    within(60, work)


@pytest.mark.parametrize("stream", [None, b"nobody's"])
def test_a_scan_ends_while_a_writer_is_saturated(stream: bytes | None) -> None:
    """A scan ends at the records that existed when it began, also for an absent stream."""

    async def work() -> None:
        async with saturated(put_ms=20, get_ms=20, alpha=4) as busy:
            store, clock = busy.client()
            before, found = busy.acknowledged, list[int]()
            reader = SlotReader(store=store, clock=clock)
            async for table in reader.scan(selection=Selection(stream=stream)):
                found += table.column("position").to_numpy().tolist()
                await clock.sleep(7_000)  # As long as 1.4 slots.
            late = busy.acknowledged

            if stream is None:
                assert found == list(range(1, len(found) + 1))
                assert before <= len(found) < late / 2
            assert late < 8 * before

    within(60, work)


async def roll_up(store: Store, *, slot: int) -> None:
    """Make the manifest name all slots before ``slot``."""
    head, steps = await load_head(store), list[Step]()
    async for passed in ChainReader(store=store, clock=CLOCK).walk(tail_of(head.manifest)):
        if passed.tail.slot <= slot:
            steps.append(passed.step)
    await Checkpointer(store=store, clock=CLOCK, writer="r").roll_up(head, steps)


async def slots_of(
    count: int, *, lanes: int = 1, size: int = 1
) -> tuple[RecordedStore, SlotReader]:
    """Return a log of one-record slots whose manifest names an epoch, but no slot."""
    store = await slot_store()
    shape = Shape(lanes=lanes, alpha=4, rollup_slots=2**20, rollup_interval_us=2**50)
    batching = Batching(interval_us=0)
    writer = SlotWriter(store=store, clock=CLOCK, writer="w", shape=shape, batching=batching)
    for number in range(count):
        await writer.append([random.Random(number).randbytes(size)])
    await roll_up(store, slot=1)
    recorded = RecordedStore(store)  # The writer crashes here: it is never closed.
    return recorded, SlotReader(store=recorded, clock=CLOCK)


async def test_the_end_is_found_by_links() -> None:
    """A reader finds the end by links and reads no bodies."""
    store, reader = await slots_of(20, size=300_000)

    end = await reader.end()

    assert (end.tail.position, len(end.fragments)) == (21, 20)
    assert [one.num_bytes > 300_000 for one in end.fragments] == [True] * 20
    assert sum(record.size for record in store.records) < 25 * 16 * 1024


async def test_an_idle_log_is_asked_three_times() -> None:
    """The bounds of an idle log cost three gets: manifest, next slot, newer manifest."""
    store, reader = await slots_of(0)

    assert (await reader.bounds()).next == 1
    assert [record.op for record in store.records] == ["get", "get", "refresh"]


@pytest.mark.parametrize("lanes", [2, 5, 64])
async def test_lanes_are_listed_as_far_as_there_is_something(lanes: int) -> None:
    """A reader lists each lane once, and skips lanes that the writer has not reached."""
    store, reader = await slots_of(9, lanes=lanes)

    assert (await reader.bounds()).next == 10
    listed = [record.key for record in store.records if record.op == "list"]
    assert len(listed) == 1 + min(lanes, 15)


async def test_what_was_missing_when_looked_for_is_not_read() -> None:
    """A walk stops at the missing slot, although that slot and later ones appear afterwards."""
    store, reader = await slots_of(6)
    tail = tail_of((await load_head(store)).manifest)
    fourth = tail.epoch.path(4)
    data = (await store.get(fourth)).data
    await store.delete([fourth])
    seen = await reader.walker.look(tail)
    await store.put(fourth, data)

    assert sorted(seen.sizes) == [tail.epoch.path(slot) for slot in (1, 2, 3, 5, 6)]
    assert [passed.tail.slot async for passed in reader.walker.links(tail, seen)] == [2, 3, 4]
    assert [passed.tail.slot async for passed in reader.walker.walk(tail, seen=seen)] == [2, 3, 4]


@pytest.mark.parametrize("count", [1, 300])
async def test_a_long_link_takes_a_second_request(count: int) -> None:
    """A link that exceeds the first read, as one of many streams may, costs one more request."""
    store = await slot_store()
    writer = SlotWriter(store=store, clock=CLOCK, writer="w", batching=Batching(interval_us=0))
    names = [b"%0500d" % number for number in range(count)]
    opened = [writer.control(Control(op=OPEN, stream=name)) for name in names]
    await asyncio.gather(*opened, writer.append([bytes(20_000)]))
    tail = (await SlotReader(store=store, clock=CLOCK).end()).tail
    path = max([entry.key async for entry in store.list(f"epoch/{tail.epoch.name}/")])
    data = (await store.get(path)).data

    recorded = RecordedStore(store)
    assert await read_link(recorded, path, len(data)) == (decode_link(data, path=path), len(data))
    assert len(recorded.records) == 1 + (count > 1)


async def test_an_object_of_another_size_than_was_listed_is_read_whole() -> None:
    """A reader uses the object that exists now: a slow writer's fence may differ in size."""
    store, reader = await slots_of(1, size=100_000)
    tail = (await reader.end()).tail
    path = tail.epoch.path(1)
    for size_bytes in (50_000, 10**9):
        link, found = await read_link(store, path, size_bytes)
        assert found == len((await store.get(path)).data)
        assert isinstance(link, DataLink)


async def test_what_was_collected_while_one_looked_is_no_end() -> None:
    """A slot that was collected during the look is not the end of the log."""
    store, _ = await slots_of(9)
    await roll_up(store, slot=3)
    tail = tail_of((await load_head(store)).manifest)
    cursors = cursors_on(store, "w")
    witness = await cursors.create("c", 1)

    async def collect() -> None:
        await roll_up(store, slot=7)
        await cursors.save(witness, 6)
        await Collector(store=store, clock=CLOCK, writer="c", grace_us=0).collect()
        assert tail.path not in [entry.key async for entry in store.list("epoch/")]

    hook = Once("get", tail.path, collect)
    reader = SlotReader(store=InterposedStore(store, after=hook), clock=CLOCK)
    bounds = await reader.bounds()

    assert (hook.met, bounds.oldest, bounds.next) == (tail.path, 6, 10)
