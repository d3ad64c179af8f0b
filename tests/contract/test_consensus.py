"""The contract of every kind of consensus, on every store that can hold it.

Source: persist, "Consensus"; the anchor notes, T1 and T2.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tidelog.consensus import object_consensus
from tidelog.consensus.port import Consensus, VersionedRecord
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import SEQNO_MAX, SeqNo
from tidelog.errors import CorruptionError, LocationError, Outcome, OutcomeUnknown, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore, RecordedStore, Request

CLOCK = SystemClock()
Open = Callable[[], Consensus]


async def fill(consensus: Consensus, key: str, last: int, *, first: int = 1) -> None:
    for number in range(first, last + 1):
        assert await consensus.compare_and_set(key, SeqNo(number), b"%d" % number)


def records(first: int, last: int) -> list[VersionedRecord]:
    return [VersionedRecord(SeqNo(n), b"%d" % n) for n in range(first, last + 1)]


async def test_a_key_without_records_has_no_head(open_consensus: Open) -> None:
    """A key without records has no head, and no read or refused write creates it."""
    consensus = open_consensus()

    assert await consensus.head("k") is None
    assert await consensus.scan("k", SeqNo(1)) == []
    assert not await consensus.compare_and_set("k", SeqNo(2), b"two")
    with pytest.raises(UsageError):
        await consensus.truncate("k", SeqNo(1))
    assert [key async for key in consensus.list_keys()] == []


async def test_only_the_next_record_lands(open_consensus: Open) -> None:
    """Seqnos are dense from 1, and one writer wins each; other seqnos are refused."""
    first, second = open_consensus(), open_consensus()

    assert await first.compare_and_set("k", SeqNo(1), b"1")
    assert not await second.compare_and_set("k", SeqNo(1), b"other")
    assert not await second.compare_and_set("k", SeqNo(3), b"other")
    assert await second.compare_and_set("k", SeqNo(2), b"2")
    assert not await first.compare_and_set("k", SeqNo(2), b"other")
    assert await first.head("k") == VersionedRecord(SeqNo(2), b"2")
    assert await second.scan("k", SeqNo(1)) == records(1, 2)


@pytest.mark.parametrize("seqno", [0, -1, SEQNO_MAX + 1])
async def test_a_seqno_that_cannot_be_is_refused(open_consensus: Open, seqno: int) -> None:
    """An impossible seqno raises UsageError; it is not a lost race."""
    with pytest.raises(UsageError):
        await open_consensus().compare_and_set("k", SeqNo(seqno), b"")
    assert not await open_consensus().compare_and_set("k", SeqNo(SEQNO_MAX), b"")


async def test_a_scan_begins_and_ends_where_it_is_told(open_consensus: Open) -> None:
    """A scan returns the records from its start, at most as many as its limit."""
    await fill(open_consensus(), "k", 4)
    consensus = open_consensus()

    assert await consensus.scan("k", SeqNo(1)) == records(1, 4)
    assert await consensus.scan("k", SeqNo(3)) == records(3, 4)
    assert await consensus.scan("k", SeqNo(4)) == records(4, 4)
    assert await consensus.scan("k", SeqNo(5)) == []
    assert await consensus.scan("k", SeqNo(1), 2) == records(1, 2)
    assert await consensus.scan("k", SeqNo(1), 4) == records(1, 4)
    assert await consensus.scan("k", SeqNo(1), 9) == records(1, 4)


async def test_truncation_drops_what_lies_before_and_counts_it(open_consensus: Open) -> None:
    """A truncation drops and counts older records, is idempotent, and keeps the newest record."""
    await fill(open_consensus(), "k", 5)
    consensus = open_consensus()

    assert await consensus.truncate("k", SeqNo(1)) == 0
    assert await consensus.truncate("k", SeqNo(4)) == 3
    assert await consensus.truncate("k", SeqNo(4)) == 0
    assert await open_consensus().truncate("k", SeqNo(2)) == 0
    assert await open_consensus().scan("k", SeqNo(1)) == records(4, 5)
    with pytest.raises(UsageError):
        await consensus.truncate("k", SeqNo(6))
    assert await consensus.truncate("k", SeqNo(5)) == 1
    assert await open_consensus().head("k") == VersionedRecord(SeqNo(5), b"5")
    assert not await open_consensus().compare_and_set("k", SeqNo(5), b"other")
    assert await open_consensus().compare_and_set("k", SeqNo(6), b"6")


async def test_keys_know_nothing_of_each_other(open_consensus: Open) -> None:
    """The records of two keys are independent, also if one key is a prefix of the other."""
    consensus = open_consensus()
    await fill(consensus, "k", 2)
    await fill(consensus, "k2", 3)
    await consensus.truncate("k2", SeqNo(3))

    assert await consensus.scan("k", SeqNo(1)) == records(1, 2)
    assert await consensus.scan("k2", SeqNo(1)) == records(3, 3)
    assert [key async for key in open_consensus().list_keys()] == ["k", "k2"]


async def test_records_of_any_bytes_are_kept(open_consensus: Open) -> None:
    """Empty, binary and large records are read back unchanged."""
    bodies = [b"", bytes(range(256)), b"x" * 10_240]

    consensus = open_consensus()
    for number, body in enumerate(bodies, start=1):
        assert await consensus.compare_and_set("k", SeqNo(number), body)

    assert [r.data for r in await open_consensus().scan("k", SeqNo(1))] == bodies


async def test_one_of_a_hundred_proposers_wins(open_consensus: Open) -> None:
    """One of a hundred concurrent proposers wins; two winners would give a shard two histories."""

    async def propose(number: int) -> bool:
        return await open_consensus().compare_and_set("k", SeqNo(1), b"%d" % number)

    answers = await asyncio.gather(*(propose(number) for number in range(100)))

    assert sum(answers) == 1
    assert await open_consensus().scan("k", SeqNo(1)) == [
        VersionedRecord(SeqNo(1), b"%d" % answers.index(True))
    ]


async def test_all_of_many_contenders_come_through(open_consensus: Open) -> None:
    """If losers read and retry, each contender's records are all stored, each once."""
    contenders, each = 5, 4

    async def contend(name: str) -> None:
        consensus = open_consensus()
        for number in range(each):
            while True:
                newest = await consensus.head("k")
                seqno = SeqNo((newest.seqno if newest else 0) + 1)
                if await consensus.compare_and_set("k", seqno, f"{name}{number}".encode()):
                    break

    await asyncio.gather(*(contend(name) for name in "abcde"[:contenders]))

    found = await open_consensus().scan("k", SeqNo(1))
    assert [r.seqno for r in found] == list(range(1, contenders * each + 1))
    assert len({r.data for r in found}) == contenders * each


# The rest tests consensus on a store, whose object must stay small.


def on(store: Store) -> StoreConsensus:
    return StoreConsensus(store=store, clock=CLOCK)


async def filled(count: int) -> MemoryStore:
    """Return a store with a key ``k`` of this many records."""
    store = MemoryStore()
    await fill(on(store), "k", count)
    return store


def object_of(store: MemoryStore) -> object_consensus.ConsensusObject:
    return object_consensus.decode_object(store.objects["consensus/k"].data, key="k")


async def test_many_records_spill_into_an_object_of_their_own() -> None:
    """Older records move to spills: the object stays small, and scans return all records."""
    store = await filled(300)

    assert len(object_of(store).records) <= object_consensus.RECORDS_MAX
    assert len(object_of(store).spills) >= 2
    assert await on(store).scan("k", SeqNo(1)) == records(1, 300)
    assert await on(store).scan("k", SeqNo(40), 100) == records(40, 139)
    assert await on(store).head("k") == VersionedRecord(SeqNo(300), b"300")


async def test_large_records_spill_by_their_bytes() -> None:
    """Large records also move to spills, so that each change replaces a small object."""
    store = MemoryStore()

    body = bytes(40_000)
    consensus = on(store)
    for number in range(1, 30):
        assert await consensus.compare_and_set("k", SeqNo(number), body)
        assert len(store.objects["consensus/k"].data) <= object_consensus.BYTES_MAX + 1_000

    assert len(await on(store).scan("k", SeqNo(1))) == 29


async def test_truncation_takes_spills_with_it() -> None:
    """A truncation deletes the spills that it empties; no later call would find them."""
    store = await filled(300)
    await on(store).truncate("k", SeqNo(300))

    assert [key for key in store.objects if "spill" in key] == []
    assert await on(store).scan("k", SeqNo(1)) == records(300, 300)


async def test_a_sweep_deletes_the_spill_that_a_killed_truncation_left() -> None:
    """A sweep deletes the spills of a killed truncation, whose rows a user may have erased."""
    store = await filled(300)
    await fill(on(store), "k/other", 300)

    class KilledStore(MemoryStore):
        async def delete(self, keys: Sequence[str]) -> None:
            raise asyncio.CancelledError

    killed = KilledStore(objects=store.objects)
    with pytest.raises(asyncio.CancelledError):
        await on(killed).truncate("k", SeqNo(300))
    left = [key for key in store.objects if key.startswith("consensus-spill/k/0")]
    others = [key for key in store.objects if key.startswith("consensus-spill/k/other/")]
    store.objects["consensus-spill/k/notes.txt"] = store.objects[left[0]]

    assert await on(store).sweep("k") == len(left) > 1
    spills = [key for key in store.objects if "spill" in key]
    assert sorted(spills) == sorted([*others, "consensus-spill/k/notes.txt"])
    assert await on(store).scan("k", SeqNo(1)) == records(300, 300)
    assert await on(store).scan("k/other", SeqNo(1)) == records(1, 300)


@pytest.mark.parametrize("overtaken", [False, True])
async def test_a_sweep_leaves_the_spill_of_an_append_that_may_still_land(overtaken: bool) -> None:
    """A sweep keeps the spill of an append in flight, unless another append won the race."""
    store, swept = MemoryStore(), list[int]()
    newest = object_consensus.RECORDS_MAX + 1
    await fill(on(store), "k", object_consensus.RECORDS_MAX)

    class LateConsensus(StoreConsensus):
        async def _replace(
            self, key: str, held: Any, body: object_consensus.ConsensusObject
        ) -> None:
            if overtaken:
                assert await on(store).compare_and_set(key, SeqNo(newest), b"%d" % newest)
            swept.append(await on(store).sweep(key))
            await super()._replace(key, held, body)

    late = LateConsensus(store=store, clock=CLOCK)
    landed = await late.compare_and_set("k", SeqNo(newest), b"%d" % newest)

    assert (landed, swept) == (not overtaken, [int(overtaken)])
    assert await on(store).scan("k", SeqNo(1)) == records(1, newest)


async def test_truncation_inside_of_a_spill_loses_nothing_after_it() -> None:
    """A spill is deleted once all of its records are truncated; later records are never lost."""
    store = await filled(300)
    await on(store).truncate("k", SeqNo(100))

    found = await on(store).scan("k", SeqNo(1))
    assert found[-201:] == records(100, 300)
    assert await on(store).truncate("k", SeqNo(100)) == 0


async def test_a_poller_is_told_that_nothing_changed() -> None:
    """A repeated scan without changes costs a refresh without a body, because listeners poll."""
    store = await filled(1)
    recorded = RecordedStore(store)
    consensus = on(recorded)
    for _ in range(3):
        await consensus.scan("k", SeqNo(1))

    assert [record.op for record in recorded.records] == ["get", "refresh", "refresh"]


async def test_a_compare_and_set_costs_one_request() -> None:
    """A handle that knows the head writes with one put, without a read."""
    recorded = RecordedStore(MemoryStore())
    await fill(on(recorded), "k", 4)

    assert [record.op for record in recorded.records] == ["get", *["put"] * 4]


@pytest.mark.parametrize("happened", [True, False])
async def test_a_lost_answer_is_found_out(happened: bool) -> None:
    """After a lost answer, the writer learns the true outcome, and the record is stored once."""
    lost = {1}

    def toss(request: Request) -> Fault:
        if request.op == "put" and request.index in lost:
            return Fault(happened=happened, told=False)
        return Fault()

    store = MemoryStore()

    assert await on(FaultyStore(store, toss=toss)).compare_and_set("k", SeqNo(1), b"1")
    assert await on(store).scan("k", SeqNo(1)) == records(1, 1)


def lose_the_answer(request: Request) -> Fault:
    """Lose the answer to the first put, and fail the first try to read it back."""
    return Fault(happened=request.index != 2, told=request.index != 1)


class BusyClock(SystemClock):
    """A clock that does not sleep, and runs other work instead."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = meanwhile

    async def sleep(self, duration_us: int) -> None:
        found = self.meanwhile()
        if asyncio.iscoroutine(found):
            await found


async def test_a_lost_answer_is_found_out_though_others_went_on() -> None:
    """Write ids outlive truncated records, so a slow proposer still learns that it won."""
    store = MemoryStore()
    went_on = False

    async def go_on() -> None:
        nonlocal went_on
        if not went_on:
            went_on = True
            await fill(on(store), "k", 39, first=2)
            await on(store).truncate("k", SeqNo(39))

    slow = StoreConsensus(store=FaultyStore(store, toss=lose_the_answer), clock=BusyClock(go_on))

    assert await slow.compare_and_set("k", SeqNo(1), b"1")
    assert went_on


async def test_an_answer_that_is_lost_for_good_is_said_to_be_unknown() -> None:
    """After more than 64 later writes and a truncation, the outcome is UNKNOWN, and not guessed."""
    store = MemoryStore()

    async def go_on() -> None:
        other = on(store)
        newest = await other.head("k")
        if newest is not None and newest.seqno == 1:
            await fill(other, "k", 99, first=2)
            await other.truncate("k", SeqNo(99))

    slow = StoreConsensus(store=FaultyStore(store, toss=lose_the_answer), clock=BusyClock(go_on))

    with pytest.raises(OutcomeUnknown) as caught:
        await slow.compare_and_set("k", SeqNo(1), b"1")
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_lost_answer_is_read_back_before_the_writer_waits() -> None:
    """A writer reads back before it waits, because the object keeps only the newest write ids."""
    store = MemoryStore()

    async def go_on() -> None:
        raise AssertionError("the writer waited")

    faulty = FaultyStore(store, toss=lambda request: Fault(told=request.index != 1))
    writer = StoreConsensus(store=faulty, clock=BusyClock(go_on))

    assert await writer.compare_and_set("k", SeqNo(1), b"1")


@pytest.mark.parametrize("gone", [False, True])
async def test_what_became_of_a_write_is_unknown_while_its_spill_cannot_be_read(gone: bool) -> None:
    """If the spill with the write's record cannot be read, the write's outcome is UNKNOWN."""
    store = MemoryStore()

    async def go_on() -> None:
        other = on(store)
        newest = await other.head("k")
        if newest is not None and newest.seqno == 1:
            await fill(other, "k", 299, first=2)

    def toss(request: Request) -> Fault:
        if request.op == "get" and "spill" in request.key:
            if gone:
                store.objects.pop(request.key)
                return Fault()
            return Fault(happened=False)
        return lose_the_answer(request)

    slow = StoreConsensus(store=FaultyStore(store, toss=toss), clock=BusyClock(go_on))

    with pytest.raises(LocationError) as caught:
        await slow.compare_and_set("k", SeqNo(1), b"1")
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_spill_that_is_missing_is_corruption_and_one_that_was_truncated_is_not() -> None:
    """A reader behind a truncation reads again; a spill that the object names must exist."""
    store = MemoryStore()
    truncated = False

    await fill(on(store), "k", 300)

    async def truncate_first() -> None:
        nonlocal truncated
        if not truncated:
            truncated = True
            await on(store).truncate("k", SeqNo(290))

    class StaleConsensus(StoreConsensus):
        async def _load_spills(
            self, held: object_consensus.ConsensusObject, start: SeqNo
        ) -> list[object_consensus.ConsensusEntry]:
            await truncate_first()
            return await super()._load_spills(held, start)

    behind = StaleConsensus(store=store, clock=CLOCK)
    assert (await behind.scan("k", SeqNo(1)))[-11:] == records(290, 300)

    await fill(on(store), "k", 500, first=301)
    for key in [k for k in store.objects if "spill" in k]:
        del store.objects[key]
    with pytest.raises(CorruptionError):
        await on(store).scan("k", SeqNo(1))


async def test_an_object_that_is_no_box_is_corruption_and_a_newer_one_is_left_alone() -> None:
    """A damaged object, or one of a newer format, raises an error and is not overwritten."""
    store = await filled(2)
    whole = store.objects["consensus/k"].data
    for data in (b"", b"{}", whole[:-1], b"\x93\x01\x02\x03"):
        await store.put("consensus/k", data)
        with pytest.raises(CorruptionError):
            await on(store).head("k")
        with pytest.raises(CorruptionError):
            await on(store).compare_and_set("k", SeqNo(3), b"3")
        assert store.objects["consensus/k"].data == data
    newer = bytes([whole[0], object_consensus.FORMAT + 1]) + whole[2:]
    await store.put("consensus/k", newer)
    with pytest.raises(UsageError, match="newer tidelog"):
        await on(store).compare_and_set("k", SeqNo(3), b"3")
    assert store.objects["consensus/k"].data == newer


async def test_no_flipped_bit_of_a_box_or_a_spill_passes() -> None:
    """Objects and spills have checksums, so each flipped bit raises an error."""
    store = await filled(140)
    dice = random.Random(1)
    for key in list(store.objects):
        whole = store.objects[key]
        for _ in range(100):
            place = dice.randrange(len(whole.data))
            flipped = bytearray(whole.data)
            flipped[place] ^= 1 << dice.randrange(8)
            await store.put(key, bytes(flipped))
            with pytest.raises((CorruptionError, UsageError)):
                await on(store).scan("k", SeqNo(1))
        store.objects[key] = whole
    assert len(store.objects) == 2
    assert await on(store).scan("k", SeqNo(1)) == records(1, 140)


async def test_a_box_that_vanished_is_corruption() -> None:
    """No process deletes an object, so a missing one is corruption, not an empty shard."""
    store = MemoryStore()

    consensus = on(store)
    await fill(consensus, "k", 1)
    await store.delete(["consensus/k"])

    with pytest.raises(CorruptionError):
        await consensus.head("k")


@pytest.mark.parametrize("kept", [2, 5])
async def test_a_box_that_was_set_back_is_corruption(kept: int) -> None:
    """An object that was set back to an older version is corruption; else writers retry forever."""
    store = MemoryStore()
    consensus = on(store)
    await fill(consensus, "k", 2)
    older = (await store.get("consensus/k")).data
    await fill(on(store), "k", 5, first=3)
    assert len(await consensus.scan("k", SeqNo(1))) == 5
    await store.put("consensus/k", older)
    if kept == 5:
        # Writers that had not seen the lost records continued from the older state.
        for seqno in range(3, 6):
            assert await on(store).compare_and_set("k", SeqNo(seqno), b"other")

    with pytest.raises(CorruptionError, match="set back to an older state"):
        await consensus.scan("k", SeqNo(1))
    with pytest.raises(CorruptionError, match="set back to an older state") as caught:
        await consensus.compare_and_set("k", SeqNo(6), b"mine")
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_histories_of_several_keys_are_read_at_one_time(
    open_consensus: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent scans of several keys by one handle return each key's own records."""
    monkeypatch.setattr(object_consensus, "RECORDS_MAX", 2)
    writer = open_consensus()
    lengths = {"a": 5, "b": 9, "c": 12}
    for key, length in lengths.items():
        await fill(writer, key, length)
    reader = open_consensus()

    found = await asyncio.gather(*(reader.scan(key, SeqNo(1)) for key in [*lengths, *lengths]))

    assert found == [records(1, length) for length in [*lengths.values(), *lengths.values()]]
