"""The contract of groups: records of several keys, appended together or not at all.

Source: decision 37.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.consensus import group_object
from tidelog.consensus.memory import MemoryConsensus
from tidelog.consensus.port import Consensus, KeyRecord
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import SeqNo
from tidelog.errors import CorruptionError, InvariantError, LocationError, OutcomeUnknown
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore, RecordedStore, Request

CLOCK = SystemClock()
GROUP = "g" + "0" * 31 + "1"
A, B, C = (f"{GROUP}-{n:012x}" for n in (10, 11, 12))
OBJECT = f"consensus/{GROUP}"
Open = Callable[[], Consensus]


def record(key: str, seqno: int, data: bytes = b"x", *, kept_from: int = 1) -> KeyRecord:
    return KeyRecord(key, SeqNo(seqno), data, kept_from)


async def heads(consensus: Consensus) -> list[int]:
    """Return the newest seqnos of the three keys; 0 without a record."""
    found = [await consensus.head(key) for key in (A, B, C)]
    return [0 if one is None else one.seqno for one in found]


async def scanned(consensus: Consensus, key: str, start: int = 1) -> list[tuple[int, bytes]]:
    return [(one.seqno, one.data) for one in await consensus.scan(key, SeqNo(start))]


async def test_records_of_several_keys_land_together(open_consensus: Open) -> None:
    """Each key has its record afterwards; the keys of a group are independent otherwise."""
    consensus = open_consensus()
    assert await consensus.compare_and_set_all([record(A, 1, b"a"), record(B, 1, b"b")])
    assert await consensus.compare_and_set(B, SeqNo(2), b"b2")
    assert await consensus.compare_and_set_all([record(A, 2, b"a2"), record(C, 1, b"c")])

    other = open_consensus()
    assert await heads(other) == [2, 2, 1]
    assert await scanned(other, A) == [(1, b"a"), (2, b"a2")]
    assert await scanned(other, B, 2) == [(2, b"b2")]
    assert [key async for key in other.list_keys()] == [A, B, C]
    assert [key async for key in other.list_keys(B)] == [B]


async def test_no_record_lands_if_one_of_them_cannot(open_consensus: Open) -> None:
    """One key has another seqno, so nothing is written to any of them."""
    consensus = open_consensus()
    assert await consensus.compare_and_set(B, SeqNo(1), b"b")
    for records in ([record(A, 1), record(B, 1)], [record(B, 3), record(A, 1)]):
        assert not await consensus.compare_and_set_all(records)
        assert await heads(open_consensus()) == [0, 1, 0]
    assert await consensus.compare_and_set_all([record(A, 1), record(B, 2), record(C, 1)])
    assert await heads(open_consensus()) == [1, 2, 1]


async def test_racing_writers_never_share_a_write(open_consensus: Open) -> None:
    """Six handles append to overlapping keys: each write is there as a whole, and once."""
    landed: list[tuple[bytes, tuple[str, ...]]] = []

    async def write(name: int) -> None:
        dice, consensus = random.Random(name), open_consensus()
        for turn in range(6):
            keys = tuple(dice.sample([A, B, C], dice.choice([1, 2, 3])))
            known = dict(zip((A, B, C), await heads(consensus), strict=True))
            data = b"%d %d" % (name, turn)
            if await consensus.compare_and_set_all([record(k, known[k] + 1, data) for k in keys]):
                landed.append((data, keys))

    await asyncio.gather(*map(write, range(6)))
    reader = open_consensus()
    for key in (A, B, C):
        there = [data for _, data in await scanned(reader, key)]
        assert sorted(there) == sorted(data for data, keys in landed if key in keys)
    assert landed


async def test_a_truncation_leaves_the_other_keys(open_consensus: Open) -> None:
    """The newest record of each key stays."""
    consensus = open_consensus()
    for seqno in range(1, 5):
        assert await consensus.compare_and_set_all([record(A, seqno), record(B, seqno)])
    assert await consensus.truncate(A, SeqNo(4)) == 3
    other = open_consensus()
    assert [seqno for seqno, _ in await scanned(other, A)] == [4]
    assert [seqno for seqno, _ in await scanned(other, B)] == [1, 2, 3, 4]
    assert await other.compare_and_set_all([record(A, 5), record(B, 5)])


def on(store: Store) -> StoreConsensus:
    return StoreConsensus(store=store, clock=CLOCK)


class Yielding(MemoryStore):
    """A store whose puts let other tasks run."""

    async def put(self, key: str, data: bytes, **given: Any) -> str:
        await asyncio.sleep(0)
        return await super().put(key, data, **given)


async def test_calls_at_once_share_puts_and_reads() -> None:
    """Ten appends cost two puts: the first one goes alone. Ten reads cost one get."""
    store = RecordedStore(Yielding())
    consensus = on(store)
    keys = [f"{GROUP}-{n:012x}" for n in range(10)]
    assert await consensus.compare_and_set(C, SeqNo(1), b"c")
    store.records.clear()
    assert all(
        await asyncio.gather(*(consensus.compare_and_set(key, SeqNo(1), b"x") for key in keys))
    )
    assert [one.op for one in store.records] == ["put", "put"]
    store.records.clear()
    found = await asyncio.gather(*(consensus.scan(key, SeqNo(1)) for key in keys))
    assert [len(one) for one in found] == [1] * 10
    assert len(store.records) == 1


async def test_a_read_that_began_after_a_request_sends_its_own() -> None:
    """It would miss a write that landed between the request and the read."""
    store = MemoryStore()
    began, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def get(self, key: str, *, start: int = 0, limit: int | None = None):  # type: ignore[no-untyped-def]
            found = await store.get(key, start=start, limit=limit)
            began.set()
            await goes_on.wait()
            return found

    writer, reader = on(store), on(Slow())
    assert await writer.compare_and_set(A, SeqNo(1), b"a")
    first = asyncio.create_task(reader.head(A))
    await began.wait()
    assert await writer.compare_and_set(A, SeqNo(2), b"a2")
    second = asyncio.create_task(reader.head(A))
    await asyncio.sleep(0)
    goes_on.set()
    old, new = await first, await second
    assert old is not None
    assert new is not None
    assert new.seqno == 2


@pytest.mark.parametrize("happened", [False, True], ids=["lost", "landed"])
async def test_a_lost_answer_is_resolved_for_each_call_of_a_put(happened: bool) -> None:
    """The put fails, and the object shows whether it landed: each call lands exactly once."""
    store = MemoryStore()
    failed: list[Request] = []

    def toss(request: Request) -> Fault:
        if request.changes and request.key == OBJECT and len(failed) < 3:
            failed.append(request)
            return Fault(happened=happened, told=False)
        return Fault()

    consensus = on(FaultyStore(store, toss=toss))
    writes = [[record(A, 1, b"a"), record(B, 1, b"a")], [record(C, 1, b"c")], [record(B, 1, b"z")]]
    done = await asyncio.gather(*map(consensus.compare_and_set_all, writes))
    assert done == [True, True, False]
    assert [await scanned(on(store), key) for key in (A, B, C)] == [
        [(1, b"a")], [(1, b"a")], [(1, b"c")]
    ]  # fmt: skip
    assert failed


async def test_a_cancelled_call_leaves_the_others() -> None:
    """The call that sends for all is cancelled: the others find out, or send again."""
    store, gate = MemoryStore(), asyncio.Event()

    class Gated(MemoryStore):
        async def get(self, key: str, *, start: int = 0, limit: int | None = None):  # type: ignore[no-untyped-def]
            return await store.get(key, start=start, limit=limit)

        async def refresh(self, key: str, e_tag: str):  # type: ignore[no-untyped-def]
            return await store.refresh(key, e_tag)

        async def put(self, key: str, data: bytes, **given: object) -> str:
            done = await store.put(key, data, **given)  # type: ignore[arg-type]
            await gate.wait()
            return done

    consensus = on(Gated())
    calls = [
        asyncio.create_task(consensus.compare_and_set(key, SeqNo(1), b"x")) for key in (A, B, C)
    ]
    for _ in range(8):
        await asyncio.sleep(0)
    calls[0].cancel()
    gate.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert done[1:] == [True, True]
    assert await heads(on(store)) == [1, 1, 1]


async def test_an_old_write_that_is_forgotten_is_unknown() -> None:
    """More writes followed than the object remembers, so the call does not guess."""
    store = MemoryStore()
    lost: list[Request] = []

    def toss(request: Request) -> Fault:
        if request.changes and request.key == OBJECT and not lost:
            lost.append(request)
            return Fault(told=False)
        return Fault()

    class Late(FaultyStore):
        async def get(self, key: str, *, start: int = 0, limit: int | None = None):  # type: ignore[no-untyped-def]
            if lost and len(lost) == 1:
                lost.append(lost[0])
                other = on(store)
                for seqno in range(2, group_object.WRITES_KEPT + 3):
                    assert await other.compare_and_set(A, SeqNo(seqno), b"o")
            return await super().get(key, start=start, limit=limit)

    with pytest.raises(OutcomeUnknown, match="so many writes followed"):
        await on(Late(store, toss=toss)).compare_and_set(A, SeqNo(1), b"a")


async def test_older_records_move_to_one_spill_for_all_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The object stays small, reads find the moved records, and truncations delete the spill."""
    monkeypatch.setattr(group_object, "RECORDS_MAX", 8)
    store = MemoryStore()
    consensus = on(store)
    for seqno in range(1, 13):
        data = b"%d" % seqno
        assert await consensus.compare_and_set_all([record(A, seqno, data), record(B, seqno, data)])
    spills = [key for key in store.objects if key.startswith("consensus-spill/")]
    assert len(spills) == 2  # One spill, and the witness of the object.
    wanted = [(n, b"%d" % n) for n in range(1, 13)]
    assert [await scanned(on(store), key) for key in (A, B)] == [wanted, wanted]
    assert await consensus.sweep(A) == 0

    assert await consensus.truncate(A, SeqNo(12)) == 11
    assert [key for key in store.objects if key.startswith("consensus-spill/")] == spills
    assert await scanned(on(store), B) == wanted
    assert await consensus.compare_and_set_all([record(B, 13, kept_from=13)])
    left = [key for key in store.objects if key.startswith("consensus-spill/")]
    assert left == [key for key in spills if key.endswith("/written")]


async def test_a_sweep_deletes_the_spill_of_a_killed_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An append that can still land keeps its spill."""
    monkeypatch.setattr(group_object, "RECORDS_MAX", 4)
    store = MemoryStore()
    consensus = on(store)
    for seqno in range(1, 5):
        assert await consensus.compare_and_set(A, SeqNo(seqno), b"x")

    def toss(request: Request) -> Fault:
        return Fault(happened=request.key != OBJECT or not request.changes)

    killed = StoreConsensus(store=FaultyStore(store, toss=toss), clock=CLOCK, attempts=1)
    killed._groups._held = dict(consensus._groups._held)
    with pytest.raises(LocationError):
        await killed.compare_and_set(A, SeqNo(5), b"x")
    assert await consensus.sweep(A) == 0
    assert await consensus.compare_and_set(A, SeqNo(5), b"x")
    assert await consensus.sweep(A) == 1
    assert [seqno for seqno, _ in await scanned(on(store), A)] == [1, 2, 3, 4, 5]


async def test_a_lost_object_is_no_new_group() -> None:
    """A witness that is written after the first version shows that the object existed."""
    store = MemoryStore()
    assert await on(store).compare_and_set(A, SeqNo(1), b"a")
    kept = store.objects.pop(OBJECT)
    for call in (on(store).head(A), on(store).compare_and_set(A, SeqNo(1), b"z")):
        with pytest.raises(CorruptionError, match=f"restore the object {OBJECT}"):
            await call
    store.objects[OBJECT] = kept
    assert await heads(on(store)) == [1, 0, 0]


@pytest.mark.parametrize("op", ["object", "witness"])
async def test_a_lost_answer_to_the_first_write_leaves_a_witness(op: str) -> None:
    """The process writes the witness with its next request, so a later loss is reported."""
    store = MemoryStore()
    lost: list[Request] = []

    def toss(request: Request) -> Fault:
        is_first = request.conditional if op == "object" else request.key.endswith("/written")
        if request.op == "put" and is_first and not lost:
            lost.append(request)
            return Fault(happened=op == "object", told=False)
        return Fault()

    consensus = on(FaultyStore(store, toss=toss))
    assert await consensus.compare_and_set(A, SeqNo(1), b"a")
    if op == "witness":
        assert await consensus.compare_and_set(A, SeqNo(2), b"a")
    del store.objects[OBJECT]
    with pytest.raises(CorruptionError, match=f"restore the object {OBJECT}"):
        await on(store).head(A)


@pytest.mark.parametrize("by", ["write", "sweep"])
async def test_a_group_whose_first_writer_was_killed_gets_its_witness(by: str) -> None:
    """The process dies after its first put. The next writer or a sweep leaves the witness."""
    store = MemoryStore()
    assert await on(store).compare_and_set(A, SeqNo(1), b"a")
    (witness,) = (key for key in store.objects if key.endswith("/written"))
    del store.objects[witness]
    if by == "write":
        next_one = on(store)
        assert await next_one.compare_and_set(A, SeqNo(2), b"a")
        del store.objects[witness]
        assert await next_one.compare_and_set(A, SeqNo(3), b"a")
        assert witness not in store.objects  # A known witness costs no further put.
        assert await on(store).compare_and_set(A, SeqNo(4), b"a")
    else:
        assert await on(store).sweep(A) == 0
    del store.objects[OBJECT]

    with pytest.raises(CorruptionError, match=f"restore the object {OBJECT}"):
        await on(store).head(A)


async def test_a_sweep_of_a_group_that_was_never_written_leaves_no_witness() -> None:
    """It would make the first process report a loss."""
    store = MemoryStore()
    assert await on(store).sweep(A) == 0
    assert await on(store).compare_and_set(A, SeqNo(1), b"a")


async def test_the_object_of_another_group_is_damage() -> None:
    """Its keys would look as if they were never written, and would begin again."""
    store, other = MemoryStore(), f"{GROUP[:-1]}2"
    assert await on(store).compare_and_set(A, SeqNo(1), b"a")
    assert await on(store).compare_and_set(f"{other}-{1:012x}", SeqNo(1), b"b")
    mine, theirs = OBJECT, f"consensus/{other}"
    store.objects[mine], store.objects[theirs] = store.objects[theirs], store.objects[mine]
    for call in (on(store).head(A), on(store).compare_and_set(A, SeqNo(1), b"z")):
        with pytest.raises(CorruptionError, match="that of another group: restore"):
            await call


async def test_swapped_spills_are_damage() -> None:
    """Two spills of one size have the same keys, but other seqnos."""
    store = MemoryStore()
    for seqno in range(1, 2 * group_object.RECORDS_MAX):
        assert await on(store).compare_and_set(A, SeqNo(seqno), b"%d" % seqno)
    one, other = sorted(k for k in store.objects if "-spill" in k and "/written" not in k)
    store.objects[one], store.objects[other] = store.objects[other], store.objects[one]
    with pytest.raises(CorruptionError, match="spilled consensus records are missing"):
        await on(store).scan(A, SeqNo(1))


async def test_changed_bytes_are_damage() -> None:
    """A changed object is reported, and never replaced."""
    store = MemoryStore()
    assert await on(store).compare_and_set(A, SeqNo(1), b"a")
    stored = store.objects[OBJECT]
    damaged = stored.data[:-1] + bytes([stored.data[-1] ^ 1])
    await store.put(OBJECT, damaged)
    with pytest.raises(CorruptionError, match="checksum"):
        await on(store).compare_and_set(A, SeqNo(2), b"b")
    assert store.objects[OBJECT].data == damaged


async def test_keys_of_two_groups_are_refused() -> None:
    """No put could append to both."""
    other = "g" + "0" * 31 + "2-" + "0" * 12
    with pytest.raises(InvariantError, match="one group"):
        await on(MemoryStore()).compare_and_set_all([record(A, 1), record(other, 1)])


async def test_records_of_another_place_are_adopted_once() -> None:
    """A move copies the records of each key with their seqnos."""
    consensus, store = MemoryConsensus(), MemoryStore()
    for seqno in range(1, 6):
        assert await consensus.compare_and_set(A, SeqNo(seqno), b"%d" % seqno)
    await consensus.truncate(A, SeqNo(3))
    found = await consensus.scan(A, SeqNo(1))
    target = on(store)
    await target.adopt(A, found)
    await target.adopt(A, found)
    assert await on(store).scan(A, SeqNo(1)) == found
    assert await on(store).compare_and_set(A, SeqNo(6), b"6")
