"""Appends, also by concurrent writers.

| scenario of wal3's | shown by |
| --- | --- |
| the first append: offset 1, exact manifest and fragment | test_the_first_append |
| appends until snapshots appear; exact shapes | test_snapshots_appear_as_thresholds_say |
| the same, to the byte | wal/test_transitions.py: test_the_same_appends_leave_the_same_bytes |
| an orphan: open repairs, appends go on at 2 | test_what_a_dead_writer_left_is_in_the_log |
| (not there) hundreds of orphans | test_hundreds_of_orphans_are_brought_in |
| three appends of 1, 2, 3 bytes, the first batch has two | test_a_batch_takes_what_fits |
| two writers ping-pong 250 appends | test_two_writers_take_turns |
| an upload onto an existing object is tried again | test_an_occupied_place_costs_nothing |
| (not there) large fragments under contention | test_large_fragments_under_contention |
| a burst (not there) | wal/test_log.py: test_a_burst_and_then_silence_is_all_acknowledged |
| (not there) cancellation at every await | test_an_append_may_be_cancelled_anywhere |
| (not there) the clock goes backwards | test_a_clock_that_goes_back |
| predicates see queued appends; a veto leaves the queue usable | not ours: no conditional appends |
| required starts: conflicts split the batch, others stay | not ours: no conditional appends |
| bootstrap with 1000 records at 42; with none | not ours: a log begins at 1 |
| logs that were bootstrapped go on | wal/test_writer.py: test_chromas_logs_are_appended_to |
"""

from __future__ import annotations

import asyncio
import json

import pyarrow as pa
import pytest

from kit.clocks import StuckClock
from kit.protocols import CLOCK, WAL3, Kind, Writer, contents, rows_of
from tidelog.core.setsum import record_setsum
from tidelog.errors import ContentionError, Fenced
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.manifest import MANIFEST, Manifest, decode_manifest
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.wal3_records import decode_fragment, encode_fragment, place_records
from tidelog.wal.log import Log
from tidelog.wal.opening import open_log
from tidelog.wal.slot_protocol.shape import Shape

MIB = 1024 * 1024


async def manifest_of(store: Store) -> Manifest:
    return decode_manifest((await store.get(MANIFEST)).data)


async def log_of(store: Store, *, clock: StuckClock | None = None) -> Log:
    shape = Shape(alpha=2, rollover=Rollover(fragments=2, snapshots=2))
    batching = Batching(interval_us=0)
    return await open_log(
        store, name="x", clock=clock or CLOCK, writer="w", shape=shape, batching=batching
    )


async def test_the_first_append(kind: Kind, store: Store) -> None:
    """The first append stores a fragment and a manifest with exactly these fields."""
    await kind.make(store)
    async with kind.writer(store) as writer:
        assert await writer.append([b"one", b"two"]) == 1
    found = json.loads((await store.get(MANIFEST)).data)
    (fragment,) = found["fragments"]
    data = (await store.get(fragment["path"])).data
    assert {name: found[name] for name in ("collected", "snapshots", "writer")} == {
        "collected": "0" * 64,
        "snapshots": [],
        "writer": "w",
    }
    assert found["setsum"] == fragment["setsum"]
    assert found["acc_bytes"] == fragment["num_bytes"] == len(data)
    assert (fragment["seq_no"], fragment["start"], fragment["limit"]) == (
        1,
        {"offset": 1},
        {"offset": 3},
    )
    if kind is WAL3:
        assert fragment["path"] == fragment_path(1)
        rows = decode_fragment(data, path=fragment["path"]).to_pylist()
        assert [(row["position"], row["body"]) for row in rows] == [(1, b"one"), (2, b"two")]
        sums = [record_setsum(r["position"], r["timestamp_us"], r["body"]) for r in rows]
        assert (sums[0] + sums[1]).hex() == fragment["setsum"]
        assert rows[0]["timestamp_us"] == rows[1]["timestamp_us"]


# By number of appends: the depths of the manifest's snapshots, and its number of fragments.
SHAPES = {
    "manifest": {1: ([], 1), 2: ([], 2), 3: ([1], 1), 4: ([1], 2), 5: ([1, 1], 1), 6: ([2], 2)},
    # One roll-up takes all slots that are due.
    "slot": {1: ([], 1), 2: ([], 2), 3: ([1], 1), 4: ([1], 2), 5: ([2], 1), 6: ([2], 2)},
}


@pytest.mark.parametrize("count", range(1, 7))
async def test_snapshots_appear_as_thresholds_say(kind: Kind, store: Store, count: int) -> None:
    """Two fragments become a snapshot, and two snapshots a deeper one (wal3's example has one)."""
    await kind.make(store)
    log = await log_of(store)
    for number in range(count):
        assert await log.append([b"%d" % number]) == number + 1
    await log.close()
    manifest = await manifest_of(store)
    depths = [pointer.depth for pointer in manifest.snapshots]
    assert (depths, len(manifest.fragments)) == SHAPES[kind.name][count]
    assert len(await contents(kind, store)) == count


async def test_what_a_dead_writer_left_is_in_the_log(kind: Kind, store: Store) -> None:
    """The next writer adds a stored fragment that no manifest names, because its writer died."""
    await kind.make(store)
    empty = (await store.get(MANIFEST)).data
    async with kind.writer(store) as writer:
        await writer.append([b"one"])
    await store.put(MANIFEST, empty)
    async with kind.writer(store) as writer:
        assert await writer.append([b"two"]) == 2
    assert await contents(kind, store) == {1: b"one", 2: b"two"}


async def test_hundreds_of_orphans_are_brought_in(kind: Kind) -> None:
    """One open adds 300 orphans (wal3 adds two, and then reports contention)."""
    store, count = MemoryStore(), 300
    await kind.make(store)
    empty = (await store.get(MANIFEST)).data
    async with kind.writer(store, batch_bytes=1) as writer:
        for number in range(count):
            await writer.append([b"%d" % number])
    await store.delete([key for key in store.objects if key.startswith("snapshot/")])
    await store.put(MANIFEST, empty)
    await kind.settle(store)
    found = await contents(kind, store)
    assert list(found.values()) == [b"%d" % number for number in range(count)]


async def test_a_batch_takes_what_fits(kind: Kind, store: Store) -> None:
    """A batch has whole appends in order; an append that does not fit goes to the next batch."""
    await kind.make(store)
    sizes = [pa.array([b"x" * n], pa.binary()).nbytes for n in (1, 2, 3)]
    async with kind.writer(store, batch_bytes=sizes[0] + sizes[1]) as writer:
        bodies = (b"x", b"xx", b"xxx")
        assert await asyncio.gather(*(writer.append([body]) for body in bodies)) == [1, 2, 3]
    fragments = (await manifest_of(store)).fragments
    assert [(one.start, one.limit) for one in fragments] == [(1, 3), (3, 4)]


async def test_two_writers_take_turns(kind: Kind, store: Store) -> None:
    """A writer fails only by contention and then opens again; no append is lost or doubled."""
    await kind.make(store)
    wanted: dict[int, bytes] = {}
    writers: list[Writer] = [kind.writer(store, name=name) for name in ("ping", "pong")]
    for number in range(250 if isinstance(store, MemoryStore) else 24):
        place, body = number % 2, b"%d" % number
        while True:
            try:
                wanted[await writers[place].append([body])] = body
                break
            except (ContentionError, Fenced):
                await writers[place].close()
                writers[place] = kind.writer(store, name="again")
    for writer in writers:
        await writer.close()
    assert await contents(kind, store) == wanted


@pytest.mark.parametrize("kind", [WAL3], ids=str)
async def test_an_occupied_place_costs_nothing(kind: Kind, store: Store) -> None:
    """If the next place holds another writer's fragment, the append follows it, each once."""
    await kind.make(store)
    async with kind.writer(store) as writer:
        await writer.append([b"one"])
        records = place_records(pa.array([b"theirs"], pa.binary()), start=2, timestamp_us=7)
        await store.put(fragment_path(2), encode_fragment(records, write_id="other"))
        assert await writer.append([b"ours"]) == 3
    assert list((await contents(kind, store)).values()) == [b"one", b"theirs", b"ours"]


async def test_large_fragments_under_contention(kind: Kind, store: Store) -> None:
    """Fragments above the size of a multipart put are appended by two writers in turn."""
    await kind.make(store)
    writers: list[Writer] = [kind.writer(store, name=name) for name in ("one", "two")]
    wanted: dict[int, bytes] = {}
    for number in range(3):
        body = bytes([number]) * (6 * MIB)
        try:
            wanted[await writers[number % 2].append([body])] = body
        except Fenced:
            assert number == 2
    for writer in writers:
        await writer.close()
    assert await contents(kind, store) == wanted
    assert len(wanted) == (3 if kind is WAL3 else 2)


async def test_an_append_may_be_cancelled_anywhere(kind: Kind) -> None:
    """A cancelled append is in the log once or not at all, and the log accepts later appends."""
    landed = 0
    for steps in range(40):
        store = MemoryStore()
        await kind.make(store)
        async with kind.writer(store) as writer:
            waiting = asyncio.create_task(writer.append([b"cancelled"]))
            for _ in range(steps):
                await asyncio.sleep(0)
            waiting.cancel()
            first = await writer.append([b"after"])
        found = await contents(kind, store)
        assert list(found.values()) in ([b"after"], [b"cancelled", b"after"])
        assert found[first] == b"after"
        landed += len(found) - 1
    assert 0 < landed < 40


async def test_a_read_may_be_cancelled_anywhere(kind: Kind) -> None:
    """A cancelled read leaves no running task."""
    store = MemoryStore()
    await kind.make(store)
    async with kind.writer(store, batch_bytes=1) as writer:
        for number in range(12):
            await writer.append([b"%d" % number])
    before = len(asyncio.all_tasks())
    for steps in range(0, 120, 3):
        reading = asyncio.create_task(contents(kind, store))
        for _ in range(steps):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert len(asyncio.all_tasks()) == before
    assert len(await contents(kind, store)) == 12


async def test_a_clock_that_goes_back(kind: Kind, store: Store) -> None:
    """If the clock goes back, positions still rise, and times are stored as read."""
    await kind.make(store)
    clock = StuckClock()
    first_us = clock.wall_us
    log = await log_of(store, clock=clock)
    for number in range(6):
        assert await log.append([b"%d" % number]) == number + 1
        clock.wall_us -= 1_000_000
    await log.close()
    times = [row["timestamp_us"] for row in await rows_of(kind, store)]
    assert times == [first_us - number * 1_000_000 for number in range(6)]
