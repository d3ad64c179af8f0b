"""Appends that return at their placement: the promised position and the final result."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import pyarrow as pa
import pytest

from kit.protocols import SLOTS, contents, make_slots, slot_reader, slot_store, slot_writer
from kit.stores import InterposedStore
from tidelog.errors import (
    BusyError,
    Fenced,
    HandleError,
    LocationError,
    Outcome,
    OutcomeUnknown,
    TidelogError,
)
from tidelog.store.conditional import Resend
from tidelog.store.memory import MemoryStore
from tidelog.testing import Fault, FaultyStore
from tidelog.testing.faulty import Request
from tidelog.wal.append.queue import Queue, Watermark
from tidelog.wal.append.work import PlacedRecords
from tidelog.wal.slot_protocol.writer import SlotWriter


def of(*bodies: bytes) -> pa.BinaryArray:
    array: pa.BinaryArray = pa.array(bodies, pa.binary())
    return array


class Gate:
    """A hook that blocks puts of slots while it is shut, and refuses the slots in ``refused``."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.refused: set[int] = set()

    async def __call__(self, op: str, key: str) -> None:
        if op != "put" or not key.startswith("epoch/"):
            return
        await self.open.wait()
        slot = int(key.rpartition("/")[2].removesuffix(".parquet"), 16)
        if slot in self.refused:
            self.refused.discard(slot)
            raise LocationError("refused", outcome=Outcome.NOT_APPLIED)


async def gated(**settings: Any) -> tuple[SlotWriter, Gate, MemoryStore]:
    """Return a writer with an epoch and one record, the gate, and the store."""
    gate, inner = Gate(), MemoryStore()
    await make_slots(inner)
    writer = slot_writer(InterposedStore(inner, before=gate), batch_bytes=1, **settings)
    writer.resend = Resend(attempts=1)
    assert await writer.append([b"first"]) == 1
    return writer, gate, inner


async def test_what_is_placed_has_a_position_before_it_is_durable() -> None:
    """A placed append has a position at once; a flush waits until it is durable."""
    writer, gate, inner = await gated()
    told: list[int] = []
    stop = writer.on_durable(told.append)
    gate.open.clear()

    one = await writer.place(of(b"a", b"b"))
    two = await writer.place(of(b"c"))

    assert (one.position, two.position) == (2, 4)
    assert (writer.durable_position(), told) == (2, [])
    assert await contents(SLOTS, inner) == {1: b"first"}
    flushing = asyncio.create_task(writer.flush())
    await asyncio.sleep(0.01)
    assert not flushing.done()
    gate.open.set()
    assert await flushing == writer.durable_position() == 5
    assert (await one.durable, await two.durable) == (2, 4)
    assert told == [4, 5]
    stop()
    await writer.append([b"d"])
    await writer.close()
    assert told == [4, 5]
    assert writer.durable_position() == 6
    assert list((await contents(SLOTS, inner)).values()) == [b"first", b"a", b"b", b"c", b"d"]


async def test_each_of_one_batch_is_told_its_own_position() -> None:
    """Each append of a batch gets its own position, although the batch is one object."""
    inner = await slot_store()
    writer = slot_writer(inner)
    bodies = [of(b"a", b"b"), of(b"c"), of(b"d", b"e", b"f")]
    placed = await asyncio.gather(*(writer.place(one, key=b"k") for one in bodies))
    assert [one.position for one in placed] == [1, 3, 4]
    assert [await one.durable for one in placed] == [1, 3, 4]
    await writer.close()
    assert list((await contents(SLOTS, inner)).values()) == [b"%c" % n for n in b"abcdef"]


async def test_a_position_that_was_told_is_given_again_where_the_store_refuses() -> None:
    """The next append gets a refused one's position; one flush reports the loss."""
    writer, gate, inner = await gated()
    gate.open.clear()
    gate.refused = {2}
    lost = await writer.place(of(b"lost"))
    assert lost.position == 2
    gate.open.set()
    with pytest.raises(LocationError) as told:
        await writer.flush()
    assert told.value.outcome is Outcome.NOT_APPLIED
    assert await writer.flush() == 2

    again = await writer.place(of(b"again"))

    assert again.position == 2
    assert await again.durable == 2
    with pytest.raises(LocationError):
        await lost.durable
    await writer.close()
    assert await contents(SLOTS, inner) == {1: b"first", 2: b"again"}


async def test_what_stood_behind_a_refused_batch_is_placed_again() -> None:
    """An append behind a refused batch becomes durable at an earlier position, and exists once."""
    writer, gate, inner = await gated()
    gate.open.clear()
    gate.refused = {2}
    lost = await writer.place(of(b"l1", b"l2"))
    moved = await writer.place(of(b"moved"))
    assert (lost.position, moved.position) == (2, 4)
    gate.open.set()

    assert await moved.durable == 2
    with pytest.raises(LocationError):
        await lost.durable
    with pytest.raises(LocationError):
        await writer.flush()
    assert writer.durable_position() == 3
    await writer.close()
    assert await contents(SLOTS, inner) == {1: b"first", 2: b"moved"}


async def test_a_takeover_gives_what_was_placed_to_others() -> None:
    """After a takeover, placed appends raise Fenced and are not in the log."""
    writer, gate, inner = await gated()
    gate.open.clear()
    placed = [await writer.place(of(b"%d" % n)) for n in range(3)]
    assert [one.position for one in placed] == [2, 3, 4]
    other = slot_writer(inner, name="other")
    assert await other.append([b"other"]) == 2
    gate.open.set()

    for one in placed:
        with pytest.raises(Fenced):
            await one.durable
    with pytest.raises(Fenced):
        await writer.flush()
    with pytest.raises(Fenced):
        await writer.place(of(b"late"))
    assert writer.durable_position() == 2
    await writer.close()
    await other.close()
    assert await contents(SLOTS, inner) == {1: b"first", 2: b"other"}


@pytest.mark.parametrize("happened", [True, False], ids=["landed", "lost"])
async def test_a_batch_without_an_answer_gets_its_final_position(happened: bool) -> None:
    """After a lost answer, each append reports its final position, in order."""
    inner, silent = MemoryStore(), list[str]()

    def toss(request: Request) -> Fault:
        if request.op == "put" and request.key.endswith("2.parquet") and not silent:
            silent.append(request.key)
            return Fault(happened=happened, told=False)
        return Fault()

    await make_slots(inner)
    writer = slot_writer(FaultyStore(inner, toss=toss), alpha=4, batch_bytes=1)
    writer.resend = Resend(attempts=1)
    placed = [await writer.place(of(b"%d" % n)) for n in range(6)]
    limit = await writer.flush()
    ended = [await one.durable for one in placed]
    await writer.close()

    assert silent
    assert limit == 7
    assert await contents(SLOTS, inner) == {at: b"%d" % n for n, at in enumerate(ended)}
    assert ended == sorted(ended)


async def test_a_placed_append_is_unknown_while_the_store_is_gone() -> None:
    """A placed append and a flush without a store report UNKNOWN; then the writer continues."""
    inner, gone = MemoryStore(), asyncio.Event()

    def toss(_: Request) -> Fault:
        return Fault(happened=False, told=False) if gone.is_set() else Fault()

    await make_slots(inner)
    writer = slot_writer(FaultyStore(inner, toss=toss))
    await writer.append([b"one"])
    gone.set()
    placed = await writer.place(of(b"two"))
    assert placed.position == 2
    with pytest.raises(OutcomeUnknown):
        await placed.durable
    with pytest.raises(OutcomeUnknown):
        await writer.flush()
    gone.clear()
    assert await writer.flush() == 2
    assert (await writer.place(of(b"three"))).position == 2
    assert await writer.flush() == 3
    await writer.close()
    assert await contents(SLOTS, inner) == {1: b"one", 2: b"three"}


async def answered(queue: Queue) -> None:
    while queue.is_waited_for:
        await queue.changed.wait()


async def test_a_close_reports_lost_appends_that_no_caller_awaited() -> None:
    """A close reports lost appends, except those that a flush or the caller saw."""
    for hears in ("nobody", "flush", "durable"):
        writer, gate, _ = await gated()
        gate.open.clear()
        gate.refused = {2}
        placed = await writer.place(of(b"lost"))
        gate.open.set()
        await answered(writer._queue)
        if hears == "nobody":
            with pytest.raises(LocationError, match="some appends were not acknowledged"):
                await writer.close()
            continue
        with pytest.raises(LocationError):
            await (writer.flush() if hears == "flush" else placed.durable)
        await writer.close()


async def test_nobody_has_to_await_what_becomes_of_it() -> None:
    """The loop reports no unretrieved error, and a cancelled wait affects no other."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    writer, gate, _ = await gated()
    gate.open.clear()
    gate.refused = {2}
    placed: PlacedRecords | None = await writer.place(of(b"lost"))
    assert placed is not None
    waiting = asyncio.ensure_future(placed.durable)
    waiting.cancel()
    seen, unseen = placed.durable, placed.durable
    gate.open.set()
    with pytest.raises(LocationError):
        await writer.flush()
    await writer.close()
    assert isinstance(seen.exception(), LocationError)
    assert unseen.done()
    del placed, waiting, seen, unseen
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_concurrent_flushes_report_the_same_loss() -> None:
    """Two concurrent flushes report the same loss, and the next flush starts fresh."""
    writer, gate, _ = await gated()
    gate.open.clear()
    gate.refused = {2}
    await writer.place(of(b"lost"))
    flushing = [asyncio.create_task(writer.flush()) for _ in range(2)]
    await asyncio.sleep(0)
    gate.open.set()
    told = await asyncio.gather(*flushing, return_exceptions=True)
    assert [type(one) for one in told] == [LocationError, LocationError]
    assert told[0] is not told[1]
    assert await writer.flush() == 2
    await writer.close()


async def test_who_keeps_what_was_placed_keeps_no_records() -> None:
    """A placement keeps no records, because a caller may keep it for long."""
    writer, _, _ = await gated()
    bodies = of(b"x" * 1_000)
    gone = weakref.ref(bodies)
    placed = await writer.place(bodies)
    await writer.flush()
    del bodies
    # The encoding thread releases the records when it gets other work.
    for _ in range(1_000):
        gc.collect()
        if gone() is None:
            break
        await asyncio.sleep(0.01)
    assert gone() is None
    assert await placed.durable == 2
    await writer.close()


async def test_what_a_listener_raises_is_not_the_writer_s_trouble() -> None:
    """A listener's exception stops no writer, and a removed one gets no position."""
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    writer, _, inner = await gated()
    stops: list[Any] = []
    told: list[int] = []

    def fail(_: int) -> None:
        stops[0]()
        raise ValueError("a listener's own")

    stops.append(writer.on_durable(fail))
    writer.on_durable(told.append)
    for body in (b"a", b"b"):
        await writer.append([body])
    await writer.close()
    assert [str(one["exception"]) for one in complaints] == ["a listener's own"]
    assert told == [3, 4]
    assert len(await contents(SLOTS, inner)) == 3


async def test_who_has_stopped_listening_is_told_no_more() -> None:
    """A removed listener gets no pending position; others get each one once."""
    mark = Watermark()
    told: dict[str, list[int]] = {"one": [], "two": []}
    stop = mark.subscribe(told["one"].append)
    mark.subscribe(told["two"].append)
    for position in (3, 2, 3, 5):
        mark.advance(position)
    stop()
    stop()
    await asyncio.sleep(0)
    assert told == {"one": [], "two": [3, 5]}
    assert mark.position == 5


async def test_what_was_there_is_known_to_be_durable_once_the_log_is_opened() -> None:
    """A new handle knows the durable position as soon as it opens the log."""
    writer, gate, inner = await gated()
    await writer.close()
    again = slot_writer(InterposedStore(inner, before=gate), name="again")
    assert (again.durable_position(), await again.flush()) == (1, 1)
    assert (await again.place(of(b"second"))).position == 2
    assert again.durable_position() == 2
    assert await again.flush() == 3
    await again.close()


async def test_there_is_room_for_as_much_as_for_appends() -> None:
    """Placed appends take room until they are durable; a cancelled wait drops its own."""
    writer, gate, inner = await gated(pending_bytes=40)
    gate.open.clear()
    await writer.place(of(b"x" * 20))
    with pytest.raises(BusyError):
        await writer.place(of(b"y" * 20), wait=False)
    in_line = asyncio.create_task(writer.place(of(b"z" * 20)))
    await asyncio.sleep(0)
    flushing = asyncio.create_task(writer.flush())
    await asyncio.sleep(0)
    in_line.cancel()
    gate.open.set()
    assert await flushing == 3
    await writer.close()
    with pytest.raises(HandleError):
        await writer.place(of(b"late"))
    assert len(await contents(SLOTS, inner)) == 2


@pytest.mark.parametrize("seed", range(30))
async def test_what_is_told_in_the_end_is_true(seed: int) -> None:
    """A reported position holds its record; one that reports NOT_APPLIED is missing."""
    dice = random.Random(seed)
    inner = MemoryStore()
    rate = 0.0

    def toss(request: Request) -> Fault:
        if not request.changes or dice.random() >= rate:
            return Fault()
        return Fault(happened=dice.random() < 0.5, told=dice.random() < 0.5)

    await make_slots(inner)
    writer = slot_writer(FaultyStore(inner, toss=toss), batch_bytes=1, alpha=3)
    writer.resend = Resend(attempts=1)
    watermarks: list[int] = []
    writer.on_durable(watermarks.append)
    await writer.append([b"first"])
    rate, placed = 0.3, dict[bytes, PlacedRecords]()
    for number in range(40):
        body = b"%d" % number
        try:
            placed[body] = await writer.place(of(body), key=body)
        except TidelogError:
            continue
        if dice.random() < 0.2:
            await asyncio.sleep(0)
    if seed % 3 == 0:
        other = slot_writer(inner, name="other")
        await other.append([b"other"])
        await other.close()
    ended = await asyncio.gather(*(one.durable for one in placed.values()), return_exceptions=True)
    rate = 0.0
    try:
        await writer.flush()
        assert all(isinstance(one, int) for one in ended)
    except TidelogError:
        assert not all(isinstance(one, int) for one in ended)
    durable = writer.durable_position()
    await writer.close()

    found = await contents(SLOTS, inner)
    said = dict(zip(placed, ended, strict=True))
    for body, answer in said.items():
        if isinstance(answer, int):
            assert found[answer] == body
        else:
            assert isinstance(answer, TidelogError)
            is_there = body in found.values()
            assert not is_there or answer.outcome is not Outcome.NOT_APPLIED
    positions = [answer for answer in ended if isinstance(answer, int)]
    assert positions == sorted(positions)
    assert watermarks == sorted(set(watermarks))
    assert durable <= (await slot_reader(inner).bounds()).next
    assert all(position < durable for position in positions)
