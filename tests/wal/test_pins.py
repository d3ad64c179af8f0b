"""Pins: pinned records stay readable although the log is collected, and are deleted afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.protocols import ALL, CLOCK, SLOTS, collect_to, contents, log_on, make_slots, slot_writer
from kit.stores import CrowdedStore, Hold, InterposedStore, Once, copy_of, deaths, keys_in
from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.errors import (
    BusyError,
    CorruptionError,
    LocationError,
    NameTaken,
    NoSuchPin,
    Outcome,
    OutcomeUnknown,
    PositionCollected,
    UsageError,
)
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import RecordedStore
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.format.pin import PINS, Pin, decode_pin, encode_pin
from tidelog.wal.gc.orphans import sweep
from tidelog.wal.gc.pin_objects import PinWitness, each_pin
from tidelog.wal.gc.pin_reach import paths_pinned
from tidelog.wal.gc.pins import Pins


async def append(store: Store, count: int) -> None:
    async with slot_writer(store) as writer:
        for number in range(count):
            await writer.append([b"%d" % number])


_WRITTEN: dict[int, MemoryStore] = {}


async def log_of(count: int) -> MemoryStore:
    """Return a log of one-record fragments. It is a copy, because writing one takes a while."""
    if count not in _WRITTEN:
        store = _WRITTEN[count] = MemoryStore()
        await make_slots(store)
        await append(store, count)
    return copy_of(_WRITTEN[count])


async def pinned(store: Store, name: str) -> list[int]:
    found = log_on(store).scan_pin(name)
    return [row["position"] async for table in found for row in table.to_pylist()]


@settings(max_examples=10)
@given(
    ranges=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 15)), min_size=1, max_size=3),
    cutoffs=st.lists(st.integers(1, 44), min_size=1, max_size=3).map(sorted),
    released=st.integers(0, 3),
)
async def test_what_is_pinned_is_read_and_then_goes(
    ranges: list[tuple[int, int]], cutoffs: list[int], released: int
) -> None:
    """Pinned records stay readable; after the release a collection deletes them all."""
    store = await log_of(45)
    before, log = await contents(SLOTS, store), log_on(store)
    held = {f"p{n}": (a, min(a + size, 46)) for n, (a, size) in enumerate(ranges)}
    for name, (start, limit) in held.items():
        await log.create_pin(name, start=start, limit=limit)
    for number, cutoff in enumerate(cutoffs):
        await collect_to(store, cutoff)
        if number < released and f"p{number}" in held:
            await log.drop_pin(f"p{number}")
            del held[f"p{number}"]
        for name, (start, limit) in held.items():
            assert await pinned(store, name) == list(range(start, limit))
    await append(store, 3)
    for name in held:
        await log.drop_pin(name)
    await log.collect(keep=ALL, grace_us=0)
    after = await contents(SLOTS, store)
    assert {n: after[n] for n in after if n <= 45} == {n: before[n] for n in range(min(after), 46)}
    assert max(cutoffs) >= min(after)
    swept = await sweep(store, clock=CLOCK, grace_us=0)
    assert [key for key in swept.deleted if "epoch" not in key] == []
    assert await log.pins() == {}


async def test_a_released_pin_frees_its_name() -> None:
    """A new pin of a released name has its own object; the old records are swept."""
    store = await log_of(20)
    log = log_on(store)
    await log.create_pin("p", start=3, limit=5)
    with pytest.raises(NameTaken):
        await log.create_pin("p")
    await collect_to(store, 7)
    await log.drop_pin("p")
    await log.create_pin("p", start=7, limit=9)
    assert await pinned(store, "p") == [7, 8]
    await log.collect(grace_us=0)
    assert await pinned(store, "p") == [7, 8]
    assert (await sweep(store, clock=CLOCK, grace_us=0)).deleted == []
    assert len(await keys_in(store, PINS)) == 1


async def test_bad_input_is_told_before_anything_is_written() -> None:
    """A wrong range or pin name raises an error before any write."""
    store = await log_of(20)
    log = log_on(store)
    await collect_to(store, 9)
    keys = set(store.objects)
    for start, limit, told in (
        (0, 99, "the log's next position, 21, not 99"),
        (12, 12, "at least one of"),
        (14, 12, "ends before it starts"),
    ):
        with pytest.raises(UsageError, match=told):
            await log.create_pin("p", start=start, limit=limit)
    with pytest.raises(UsageError, match="cannot be the name of a pin"):
        await log.create_pin("a-b")
    with pytest.raises(PositionCollected, match="the oldest record is 9"):
        await log.create_pin("p", start=3, limit=12)
    for call in (log.drop_pin, log._pins().load):
        with pytest.raises(NoSuchPin):
            await call("p")
    assert set(store.objects) == keys


@pytest.mark.parametrize("cutoff", [6, 12])
async def test_a_collection_right_before_the_pin_is_written(cutoff: int) -> None:
    """A collection just before a pin's write refuses the pin, or the pin is written again."""
    store = await log_of(20)
    collect = Once("put", PINS, lambda: collect_to(store, cutoff))
    log = log_on(InterposedStore(store, before=collect))
    if cutoff > 9:
        with pytest.raises(PositionCollected):
            await log.create_pin("p", start=9, limit=14)
        assert await log_on(store).pins() == {}
        return
    await log.create_pin("p", start=9, limit=14)
    await collect_to(store, 18)
    assert await pinned(store, "p") == [9, 10, 11, 12, 13]


async def test_a_collection_that_has_replaced_the_manifest_spares_a_new_pin() -> None:
    """A collection checks the pins before it deletes, so a pin of the newer manifest holds."""
    store = await log_of(20)

    async def create() -> None:
        with pytest.raises(PositionCollected):
            await log_on(store).create_pin("low", start=3, limit=14)
        await log_on(store).create_pin("high", start=13, limit=19)

    late = Once("delete", "", create)
    await collect_to(InterposedStore(store, before=late), 12)
    assert late.met
    await collect_to(store, 20)
    assert await pinned(store, "high") == [13, 14, 15, 16, 17, 18]


@pytest.mark.parametrize("happened", [True, False])
async def test_the_maker_of_a_pin_may_die_at_any_request(happened: bool) -> None:
    """After the death, the pin returns its records or raises, and can be released."""
    async for store in deaths(
        await log_of(20),
        lambda s: log_on(s).create_pin("p", start=9, limit=14),
        happened=happened,
    ):
        await collect_to(store, 18)
        with suppress(BusyError, NoSuchPin):
            assert await pinned(store, "p") == [9, 10, 11, 12, 13]
        if "p" in await log_on(store).pins():
            await log_on(store).drop_pin("p")
        await log_on(store).collect(keep=ALL, grace_us=0)
        assert (await log_on(store).create_pin("p")).pin.is_sure
        assert min(await contents(SLOTS, store)) == 18


async def test_the_pin_of_a_fork_is_not_released_by_its_name_alone() -> None:
    """A fork's pin shrinks with the fork's needs, never grows, and needs the fork's drop."""
    store = await log_of(20)
    pins = Pins(store=store, clock=CLOCK, writer="me")
    await pins.create("f", holder="f")
    with pytest.raises(UsageError, match="drop the fork first"):
        await pins.release("f")
    await pins.shrink("f", 7)
    await pins.shrink("f", 3)
    assert (await pins.load("f")).pin.start == 7
    await collect_to(store, 15)
    assert await pinned(store, "f") == list(range(7, 21))
    await pins.shrink("f", 99)
    assert await pins.list() == {}


async def test_a_snapshot_that_a_pin_needs_and_is_gone_stops_the_collection() -> None:
    """A collection stops at a missing snapshot of a pin: any record may be pinned."""
    store = await log_of(20)
    await log_on(store).create_pin("p", start=2, limit=9)
    await collect_to(store, 14)
    pins = [found.pin async for found in each_pin(store)]
    await store.delete([pins[0].snapshots[0].path])
    with pytest.raises(CorruptionError, match="a pin names a missing snapshot"):
        await collect_to(store, 18)


async def test_every_byte_of_a_pin_counts() -> None:
    """Every flipped bit of a pin raises CorruptionError, because a pin has a checksum."""
    store = await log_of(20)
    await log_on(store).create_pin("p", start=3, limit=9)
    (path,) = await keys_in(store, PINS)
    data = (await store.get(path)).data
    assert encode_pin(decode_pin(data, where=path)) == data
    for place in range(len(data)):
        for mask in (1, 32):
            flipped = data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]
            with pytest.raises(CorruptionError):
                decode_pin(flipped, where=path)
    wrong = Pin(name="p", id="0" * 16, start=9, limit=3, swept=9, epoch_us=1, writer="x")
    with pytest.raises(CorruptionError, match="between"):
        decode_pin(encode_pin(wrong), where=wrong.path)
    assert MANIFEST in store.objects


async def test_a_pin_that_goes_while_it_is_read_stops_no_collection() -> None:
    """A pin that is released and deleted during a read does not stop a collection."""
    inner = await log_of(45)
    await log_on(inner).create_pin("p", start=1, limit=31)
    await collect_to(inner, 40)

    async def release() -> None:
        await log_on(inner).drop_pin("p")
        await collect_to(inner, 40)

    hook = Once("get", "snapshot/", release)
    assert await paths_pinned(InterposedStore(inner, before=hook), CLOCK) == set()
    assert hook.met
    assert not [key for key in await keys_in(inner) if key.startswith(PINS)]


async def test_an_idle_collection_costs_the_same_however_many_pins_there_were() -> None:
    """An idle collection reads nothing of released and swept pins."""
    store = await log_of(20)
    costs = []
    for number in range(30):
        if number % 10 == 0:
            await log_on(store).collect(grace_us=0)
            recorded = RecordedStore(store)
            await log_on(recorded).collect(grace_us=0)
            costs.append(len(recorded.records))
        await log_on(store).create_pin(f"p{number}", start=number % 9 + 1, limit=10)
        await log_on(store).drop_pin(f"p{number}")
    assert costs == [costs[0]] * 3
    await log_on(store).collect(grace_us=0)
    assert await keys_in(store, PINS) == []


async def test_at_most_one_of_two_pins_of_one_name_becomes_sure() -> None:
    """Each maker of a pin writes, then lists, so the second one sees the first."""
    store = await log_of(20)
    hold = Hold("put", PINS)
    slow = InterposedStore(store, after=hold)
    first = asyncio.create_task(log_on(slow).create_pin("p", start=3, limit=9))
    await hold.met.wait()
    with pytest.raises(NameTaken):
        await log_on(store).create_pin("p", start=5, limit=7)
    hold.go_on.set()
    assert (await first).pin.is_sure


async def test_two_makers_that_wrote_before_listing_are_not_both_sure() -> None:
    """Two makers that both write before either lists are not both sure."""
    store = await log_of(20)
    both_to_write, both_wrote = asyncio.Barrier(2), asyncio.Barrier(2)
    puts = {"before": 0, "after": 0}

    async def meet(barrier: asyncio.Barrier, when: str, op: str, key: str) -> None:
        if op == "put" and key.startswith(PINS):
            puts[when] += 1
            if puts[when] <= 2:
                await barrier.wait()

    slow = InterposedStore(
        store,
        before=partial(meet, both_to_write, "before"),
        after=partial(meet, both_wrote, "after"),
    )
    makers = [log_on(slow).create_pin("p", start=3, limit=9) for _ in range(2)]
    ends = await asyncio.gather(*makers, return_exceptions=True)
    assert [end for end in ends if isinstance(end, NameTaken)]
    held = [found.pin async for found in each_pin(store) if found.pin.is_held]
    assert len(held) == sum(isinstance(end, PinWitness) for end in ends)
    if held:
        await log_on(store).drop_pin("p")
    assert (await log_on(store).create_pin("p")).pin.is_sure


async def test_pins_that_changed_places_are_told() -> None:
    """A pin contains its name and id, so a pin under another's path raises."""
    store = await log_of(20)
    for name, start in (("p", 3), ("q", 11)):
        await log_on(store).create_pin(name, start=start, limit=start + 4)
    one, other = await keys_in(store, PINS)
    store.objects[one], store.objects[other] = store.objects[other], store.objects[one]
    with pytest.raises(CorruptionError, match="does not match the object's path"):
        await pinned(store, "p")
    with pytest.raises(CorruptionError, match="does not match the object's path"):
        await collect_to(store, 18)
    problems = (await log_on(store).scrub()).problems
    assert {problem.path for problem in problems} == {one, other}


async def test_a_pin_shrinks_though_another_changes_it_meanwhile() -> None:
    """A pin shrinks although a collection of the log or of the fork changes it."""
    store = await log_of(20)
    pins = Pins(store=store, clock=CLOCK, writer="me")
    await pins.create("f", holder="f")

    other = Once("put", PINS, lambda: pins.shrink("f", 5))
    raced = Pins(store=InterposedStore(store, before=other), clock=CLOCK, writer="other")
    await raced.shrink("f", 7)
    assert other.met
    assert (await pins.load("f")).pin.start == 7


async def test_a_pin_that_may_have_been_made_is_told_as_unknown() -> None:
    """A pin whose check after the write fails is stored and reports UNKNOWN."""
    store = await log_of(20)

    async def before(op: str, key: str) -> None:
        if op == "get" and key == MANIFEST and await keys_in(store, PINS):
            raise LocationError("gone")

    with pytest.raises(OutcomeUnknown, match="it may not hold") as told:
        await log_on(InterposedStore(store, before=before)).create_pin("p", start=3, limit=9)
    assert told.value.outcome is Outcome.UNKNOWN
    with pytest.raises(BusyError):
        await pinned(store, "p")
    await log_on(store).drop_pin("p")
    assert (await log_on(store).create_pin("p")).pin.is_sure


@pytest.mark.parametrize("prefix", [PINS, "snapshot/"], ids=["pins", "what they name"])
async def test_pins_are_read_side_by_side(prefix: str) -> None:
    """A collection reads pins, and the snapshots that they name, concurrently."""
    store = await log_of(60)
    for number in range(20):
        await log_on(store).create_pin(f"held_{number:02}", start=1 + number, limit=40)
    crowd = CrowdedStore(store, clock=CLOCK, prefix=prefix)

    assert len(await paths_pinned(crowd.store, CLOCK)) >= 39
    assert crowd.most == AT_ONCE_MAX
