"""Pins: pinned records stay readable although the log is collected, and are deleted afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.protocols import CLOCK, SLOTS, contents, make_slots, slot_writer
from kit.stores import Crowd, Interposed, dying, keys_in
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
from tidelog.testing import Recorded
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.format.pin import PINS, Pin, decode_pin, encode_pin
from tidelog.wal.gc.orphans import sweep
from tidelog.wal.gc.pin_objects import PinWitness, each_pin
from tidelog.wal.gc.pin_reach import paths_pinned
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import Keep
from tidelog.wal.slot_log import SlotLog

ALL = Keep(share_max=1)


def log_on(store: Store) -> SlotLog:
    return SlotLog(name="x", store=store, clock=CLOCK, writer="me")


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
    found = _WRITTEN[count]
    return MemoryStore(objects=dict(found.objects), puts_count=found.puts_count)


async def pinned(store: Store, name: str) -> list[int]:
    found = log_on(store).scan_pin(name)
    return [row["position"] async for table in found for row in table.to_pylist()]


async def collect_to(store: Store, position: int) -> None:
    """Collect everything below a position."""
    log = log_on(store)
    if (cursors := (await log.cursors()).cursors).get("x") is None:
        await log.create_cursor("x", position)
    elif cursors["x"].position < position:
        await log.move_cursor(await log.load_cursor("x"), position)
    await log.collect(keep=ALL, grace_us=0)


@settings(max_examples=10)
@given(
    ranges=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 15)), min_size=1, max_size=3),
    cutoffs=st.lists(st.integers(1, 44), min_size=1, max_size=3).map(sorted),
    released=st.integers(0, 3),
)
async def test_what_is_pinned_is_read_and_then_goes(
    ranges: list[tuple[int, int]], cutoffs: list[int], released: int
) -> None:
    """Pinned records stay readable while the log is collected as usual.

    After the release, a collection deletes them, and a sweep finds nothing.
    """
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


async def test_a_name_is_free_again_once_the_pin_was_let_go_of() -> None:
    """A released pin frees its name.

    A new pin of that name has its own object, so the records of the old one are swept.
    """
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

    async def work() -> None:
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
        for work in (log.drop_pin, log._pins().load):
            with pytest.raises(NoSuchPin):
                await work("p")
        assert set(store.objects) == keys

    await work()


class Meddled(MemoryStore):
    """A store that runs a hook directly before puts of one key."""

    key: str = ""
    before: Callable[[], Awaitable[None]] | None = None

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        if self.key and key.startswith(self.key) and self.before is not None:
            act, self.before = self.before, None
            await act()
        return await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)


async def meddled(count: int) -> Meddled:
    store = Meddled()
    store.objects = dict((await log_of(count)).objects)
    store.puts_count = 10_000
    return store


@pytest.mark.parametrize("cutoff", [6, 12])
async def test_a_collection_right_before_the_pin_is_written(cutoff: int) -> None:
    """A collection directly before the pin's write may pass the start; then the pin is refused.

    Otherwise the pin is written again, because the collection made new snapshots.
    """
    store = await meddled(20)
    store.key, store.before = PINS, lambda: collect_to(store, cutoff)
    if cutoff > 9:
        with pytest.raises(PositionCollected):
            await log_on(store).create_pin("p", start=9, limit=14)
        assert await log_on(store).pins() == {}
        return
    await log_on(store).create_pin("p", start=9, limit=14)
    await collect_to(store, 18)
    assert await pinned(store, "p") == [9, 10, 11, 12, 13]


async def test_a_collection_that_has_replaced_the_manifest_spares_a_new_pin() -> None:
    """A collection that has replaced the manifest spares a pin made from the newer manifest.

    It checks the pins before it deletes.
    """
    store = await meddled(20)

    async def create() -> None:
        with pytest.raises(PositionCollected):
            await log_on(store).create_pin("low", start=3, limit=14)
        await log_on(store).create_pin("high", start=13, limit=19)

    class Late(Meddled):
        async def delete(self, keys: object) -> None:
            if self.before is not None:
                act, self.before = self.before, None
                await act()
            await MemoryStore.delete(self, keys)  # type: ignore[arg-type]

    late = Late()
    late.objects, late.puts_count = store.objects, 20_000
    late.before = create
    await collect_to(late, 12)
    await collect_to(late, 20)
    assert await pinned(late, "high") == [13, 14, 15, 16, 17, 18]


@pytest.mark.parametrize("happened", [True, False])
async def test_whoever_makes_a_pin_may_die_at_any_request(happened: bool) -> None:
    """The maker of a pin may die at any request.

    A read of the pin then returns its records or raises. The pin can be released, and the log can
    be collected.
    """
    counted = Recorded(await log_of(20))
    await log_on(counted).create_pin("p", start=9, limit=14)
    for number in range(len(counted.records)):
        store = await log_of(20)

        with pytest.raises(LocationError):
            await log_on(dying(store, number, happened=happened)).create_pin("p", start=9, limit=14)
        await collect_to(store, 18)
        with suppress(BusyError, NoSuchPin):
            assert await pinned(store, "p") == [9, 10, 11, 12, 13]
        if "p" in await log_on(store).pins():
            await log_on(store).drop_pin("p")
        await log_on(store).collect(keep=ALL, grace_us=0)
        assert (await log_on(store).create_pin("p")).pin.is_sure
        assert min(await contents(SLOTS, store)) == 18


async def test_a_held_pin_of_a_fork_is_not_let_go_of_by_chance() -> None:
    """A fork's pin is not released by its name alone.

    It can shrink with the fork's needs, and never grows.
    """
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
    """A missing snapshot that a pin names stops the collection.

    Without it, any record may be pinned.
    """
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
    went = False

    async def before(op: str, key: str) -> None:
        nonlocal went
        if op == "get" and key.startswith("snapshot/") and not went:
            went = True
            await log_on(inner).drop_pin("p")
            await collect_to(inner, 40)

    assert await paths_pinned(Interposed(inner, before=before), CLOCK) == set()
    assert went
    assert not [key for key in await keys_in(inner) if key.startswith(PINS)]


async def test_an_idle_collection_costs_the_same_however_many_pins_there_were() -> None:
    """An idle collection costs the same for any number of released pins.

    Released and swept pins leave nothing to read.
    """
    store = await log_of(20)
    costs = []
    for number in range(30):
        if number % 10 == 0:
            await log_on(store).collect(grace_us=0)
            recorded = Recorded(store)
            await log_on(recorded).collect(grace_us=0)
            costs.append(len(recorded.records))
        await log_on(store).create_pin(f"p{number}", start=number % 9 + 1, limit=10)
        await log_on(store).drop_pin(f"p{number}")
    assert costs == [costs[0]] * 3
    await log_on(store).collect(grace_us=0)
    assert await keys_in(store, PINS) == []


async def test_of_two_that_make_a_pin_of_one_name_one_is_sure_at_the_most() -> None:
    """At most one of two concurrent pins of one name becomes sure.

    Each maker writes, then lists. The second one sees the other.
    """
    store = await log_of(20)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def after(op: str, key: str) -> None:
        if op == "put" and key.startswith(PINS) and not begun.is_set():
            begun.set()
            await go_on.wait()

    slow = Interposed(store, after=after)
    first = asyncio.create_task(log_on(slow).create_pin("p", start=3, limit=9))
    await begun.wait()
    with pytest.raises(NameTaken):
        await log_on(store).create_pin("p", start=5, limit=7)
    go_on.set()
    assert (await first).pin.is_sure


async def test_of_two_that_both_wrote_before_either_listed_not_both_are_sure() -> None:
    """Two makers that both write before either lists do not both become sure.

    If both give up, the name is free again.
    """
    store = await log_of(20)
    both_to_write, both_wrote = asyncio.Barrier(2), asyncio.Barrier(2)
    puts = {"before": 0, "after": 0}

    async def meet(barrier: asyncio.Barrier, when: str, op: str, key: str) -> None:
        if op == "put" and key.startswith(PINS):
            puts[when] += 1
            if puts[when] <= 2:
                await barrier.wait()

    slow = Interposed(
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
    """A pin under the path of another pin raises CorruptionError.

    Each pin contains its name and id.
    """
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
    """A pin shrinks although another process changes it.

    A collection of the log and one of the fork may run concurrently.
    """
    store = await log_of(20)
    pins = Pins(store=store, clock=CLOCK, writer="me")
    await pins.create("f", holder="f")

    async def before(op: str, key: str) -> None:
        if op == "put" and key.startswith(PINS) and not others:
            others.append(key)
            await pins.shrink("f", 5)

    others: list[str] = []
    raced = Pins(store=Interposed(store, before=before), clock=CLOCK, writer="other")
    await raced.shrink("f", 7)
    assert others
    assert (await pins.load("f")).pin.start == 7


async def test_a_pin_that_may_have_been_made_is_told_as_unknown() -> None:
    """A pin whose check after the write fails reports UNKNOWN.

    It is stored, but the manifest could not be read.
    """
    store = await log_of(20)

    async def before(op: str, key: str) -> None:
        if op == "get" and key == MANIFEST and await keys_in(store, PINS):
            raise LocationError("gone")

    with pytest.raises(OutcomeUnknown, match="whether it holds") as told:
        await log_on(Interposed(store, before=before)).create_pin("p", start=3, limit=9)
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
    crowd = Crowd(store, clock=CLOCK, prefix=prefix)

    assert len(await paths_pinned(crowd.store, CLOCK)) >= 39
    assert crowd.most == AT_ONCE_MAX
