"""Rebuilds of copies: the collection plan of a copy states its start."""

from __future__ import annotations

import pytest

from kit import named_logs
from kit.named_logs import ALL, shelf_on
from kit.protocols import CLOCK
from tidelog.errors import (
    CorruptionError,
    LocationError,
    NameTaken,
    NoSuchStream,
    ObjectNotFound,
    PositionCollected,
)
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.testing import Fault, FaultyStore, RecordedStore
from tidelog.testing.faulty import NO_FAULT, Request
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST, chain_of
from tidelog.wal.log import Log
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.fencing import make_log

COPY = "log/copy"


async def source_with_a_stream() -> MemoryStore:
    """Return a store with a log `a` of six positions, in which a stream opens at position 2."""
    store = MemoryStore()
    async with await shelf_on(store).create("a") as log:
        await log.append([b"1"])
        await log.open_stream(b"s", b"meta")
        for body in (b"3", b"4", b"5"):
            await log.append([body], stream=b"s")
        await log.append([b"6"])
    return store


async def seen(store: MemoryStore, name: str) -> object:
    """Return everything that users see of a log, and the streams at its start."""
    log = await shelf_on(store).open(name)
    records = [row async for table in log.scan(control=True) for row in table.to_pylist()]
    manifest = (await load_head(Within(store, f"log/{name}"))).manifest
    assert (await log.scrub()).problems == []
    begin = chain_of(manifest).streams_at_start
    return await log.bounds(), await log.streams(), begin, manifest.collected, records


async def rebuilt(store: MemoryStore, name: str = "copy", **options: int) -> Log:
    """Delete the manifest and rebuild it."""
    await store.delete([f"log/{name}/{MANIFEST}"])
    return await shelf_on(store).rebuild(name, **options)


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 6])
@pytest.mark.parametrize("closes", [True, False])
async def test_a_copy_has_the_streams_that_were_open_where_it_begins(
    start: int, *, closes: bool
) -> None:
    """In a rebuilt copy, the streams open at its start accept appends, closed ones do not."""
    store = await source_with_a_stream()
    async with await shelf_on(store).copy("a", "copy", start=start) as log:
        await log.append([b"x"], stream=b"s")
        if closes:
            await log.close_stream(b"s")
    before = await seen(store, "copy")

    log = await rebuilt(store)

    assert await seen(store, "copy") == before
    async with log:
        if closes:
            with pytest.raises(NoSuchStream):
                await log.append([b"y"], stream=b"s")
        else:
            assert await log.append([b"y"], stream=b"s") == 8


async def test_a_copy_of_no_records_goes_on_where_it_was_made() -> None:
    """A rebuilt copy without records continues at its position, which no object states."""
    store = await source_with_a_stream()
    async with await shelf_on(store).copy("a", "copy", start=7) as log:
        with pytest.raises(NoSuchStream):
            await log.append([b"x"], stream=b"none")  # This opens the log and writes no record.
    before = await seen(store, "copy")

    async with await rebuilt(store) as log:
        assert await seen(store, "copy") == before
        assert await log.append([b"x"], stream=b"s") == 7


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_a_copy_of_what_a_collection_left_is_made_again(protocol: str) -> None:
    """A copy of a collected log can be rebuilt, also after its own collections."""
    store = MemoryStore()
    if protocol == "slot":
        store = await source_with_a_stream()
    else:
        await named_logs.log_of(store, "a", 6, protocol="manifest")
    await named_logs.collect_to(store, "a", 4)
    await shelf_on(store).copy("a", "copy", protocol="slot")
    await named_logs.append(store, "copy", 4)
    for cutoff in (4, 7, 9):
        await named_logs.collect_to(store, "copy", cutoff)
        before = await seen(store, "copy")
        await rebuilt(store)
        assert await seen(store, "copy") == before


async def test_a_copys_first_collection_that_was_broken_off_loses_nothing() -> None:
    """The plan of a copy's interrupted first collection states the streams before it."""
    store = await source_with_a_stream()
    await shelf_on(store).copy("a", "copy", start=3)
    await named_logs.append(store, "copy", 4)
    log = await shelf_on(store).open("copy")
    await log.create_cursor("x", 8)
    before = await seen(store, "copy")

    def dies(request: Request) -> Fault:
        return Fault(happened=False, told=False) if request.op == "delete" else NO_FAULT

    broken = await shelf_on(FaultyStore(store, toss=dies)).open("copy")
    with pytest.raises(LocationError):
        await broken.collect(keep=ALL, grace_us=0)
    await rebuilt(store)

    assert await seen(store, "copy") == before


async def test_a_copy_stores_its_plan_before_its_manifest() -> None:
    """A copy stores its plan before its manifest, and no collection deletes by that plan."""
    store = await source_with_a_stream()
    recorded = RecordedStore(store)
    log = await shelf_on(recorded).copy("a", "copy", start=3)
    puts = [record.key for record in recorded.records if record.op == "put"]

    assert puts[-2:] == [f"{COPY}/{GARBAGE}", f"{COPY}/{MANIFEST}"]
    await log.create_cursor("x", 3)
    assert (await log.collect(keep=ALL, grace_us=0)).discarded == 0
    assert (await log.bounds()).oldest == 3


async def broken_off(store: MemoryStore) -> None:
    """Make a copy, then delete its manifest."""
    await shelf_on(store).copy("a", "copy", start=3)
    await store.delete([f"{COPY}/{MANIFEST}"])


async def test_what_a_copy_that_was_broken_off_says_is_taken_for_no_other_logs() -> None:
    """The plan of an interrupted copy never applies to another log of that name.

    A process created that log because it saw an empty place just before the copy began. The log is
    rebuilt as it was, or the rebuild is refused.
    """
    store = await source_with_a_stream()
    await broken_off(store)
    assert await make_log(shelf_on(store).within("copy"), clock=CLOCK, writer="me")
    async with await shelf_on(store).open("copy") as log:
        with pytest.raises(NoSuchStream):
            await log.append([b"x"], stream=b"s")
    manifest = await store.get(f"{COPY}/{MANIFEST}")
    with pytest.raises(CorruptionError, match="move the plan away"):
        await rebuilt(store)
    with pytest.raises(ObjectNotFound):
        await store.get(f"{COPY}/{MANIFEST}")
    await store.put(f"{COPY}/{MANIFEST}", manifest.data)
    await named_logs.append(store, "copy", 2)
    await (await shelf_on(store).open("copy")).create_cursor("x", 1)
    before = await seen(store, "copy")

    await rebuilt(store)

    assert await seen(store, "copy") == before


async def test_to_copy_again_replaces_the_plan_of_a_copy_that_was_broken_off() -> None:
    """A second copy replaces the plan of an interrupted one, which may have another start."""
    store = await source_with_a_stream()
    await broken_off(store)
    async with await shelf_on(store).copy("a", "copy", start=6) as log:
        await log.append([b"x"], stream=b"s")
    before = await seen(store, "copy")

    await rebuilt(store)

    assert await seen(store, "copy") == before


async def test_no_copy_replaces_the_plan_of_a_log_that_lost_its_manifest() -> None:
    """A copy writes nothing over a log without a manifest, which can still be rebuilt."""
    store = await source_with_a_stream()
    await named_logs.log_of(store, "copy", 6)
    await named_logs.collect_to(store, "copy", 4)
    before = await seen(store, "copy")
    await store.delete([f"{COPY}/{MANIFEST}"])
    keys = set(store.objects)

    with pytest.raises(NameTaken):
        await shelf_on(store).copy("a", "copy")

    assert set(store.objects) == keys
    await shelf_on(store).rebuild("copy")
    assert await seen(store, "copy") == before


async def test_a_rebuild_of_a_copy_without_its_plan_needs_a_start() -> None:
    """A rebuild of a copy without its plan needs a start; its streams are the links'."""
    store = await source_with_a_stream()
    async with await shelf_on(store).copy("a", "copy", start=4) as log:
        await log.close_stream(b"s")
    bounds = await log.bounds()
    await store.delete([f"{COPY}/{GARBAGE}"])
    with pytest.raises(CorruptionError, match="the log seems to be a copy"):
        await rebuilt(store)
    with pytest.raises(PositionCollected):
        await (await shelf_on(store).rebuild("copy", start=4)).create_cursor("x", 3)

    log = await shelf_on(store).open("copy")
    assert await log.bounds() == bounds
    assert await log.streams() == []
