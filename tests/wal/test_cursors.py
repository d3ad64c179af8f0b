"""Cursors: a valid witness holds its records, and no process overwrites an unread cursor."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.goldens import golden
from kit.protocols import CLOCK, collector_on, cursors_on
from kit.stores import CrowdedStore, InterposedStore
from kit.wal3_logs import append, log_of
from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.errors import (
    BusyError,
    CorruptionError,
    LocationError,
    NoSuchCursor,
    Outcome,
    OutcomeUnknown,
    PositionCollected,
    UsageError,
)
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.testing import Fault, FaultyStore, RecordedStore
from tidelog.testing.faulty import Request
from tidelog.wal.format.cursor import INTRINSIC, Cursor, cursor_path, decode_cursor, encode_cursor
from tidelog.wal.format.gc_plan import GARBAGE, Garbage, encode_garbage
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.gc.collector import Collector
from tidelog.wal.logs import Logs


async def collected(store: Store, position: int) -> None:
    """Collect everything below a position with a temporary cursor."""
    cursors = cursors_on(store)
    await cursors.create("scratch", position)
    await collector_on(store).collect()
    await cursors.delete("scratch")


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_a_cursor_that_is_not_there_is_not_deleted(protocol: str) -> None:
    """A caller that misspells a name must not believe that the log is free to collect."""
    logs = Logs(store=MemoryStore(), clock=CLOCK, writer="me")
    log = await logs.create("a", protocol=protocol)
    await log.append([b"1"])
    await log.create_cursor("mine", 1)

    with pytest.raises(NoSuchCursor, match="name=mini"):
        await log.drop_cursor("mini")
    await log.store.put(cursor_path("mine"), b"what nobody can read")
    await log.drop_cursor("mine")
    with pytest.raises(NoSuchCursor):
        await log.drop_cursor("mine")
    await log.close()


async def test_chromas_cursors_are_loaded_and_moved() -> None:
    """Cursors of Chroma can be loaded and moved. They keep Chroma's three fields in its order."""
    store = await golden("c0_before_gc")
    cursors = cursors_on(store)
    witness = await cursors.load(INTRINSIC)
    assert witness.cursor == Cursor(
        position=55, epoch_us=1_700_000_000_000_002, writer="golden c intrinsic"
    )
    await cursors.save(witness, 60)
    data = (await store.get(cursor_path(INTRINSIC))).data
    assert data.startswith(b'{"position":{"offset":60},"epoch_us":')
    assert encode_cursor(decode_cursor(data, where="")) == data
    assert (await cursors.load("reader_1")).position == 81


async def test_no_two_writes_are_equal() -> None:
    """Each write of a cursor has other bytes, so that no e-tag makes an old witness valid."""
    store = await log_of([2])
    cursors, seen = cursors_on(store), set[bytes]()
    witness = await cursors.create("x", 1)
    for _ in range(20):
        seen.add((await store.get(cursor_path("x"))).data)
        witness = await cursors.save(witness, 1)
    assert len(seen) == 20


@pytest.mark.parametrize("position", [-1, 0, 22, 2**64])
async def test_positions_outside_of_the_log_are_refused(position: int) -> None:
    """A cursor past the end would release records before any process reads them."""
    store = MeteringStore(await log_of([2] * 10), clock=CLOCK)
    cursors = cursors_on(store)
    witness = await cursors.create("x", 21)
    before = store.usage().put_count
    for call in (
        cursors.create("y", position),
        cursors.save(witness, position, allow_back=True),
    ):
        with pytest.raises(UsageError, match="next=21"):
            await call
    assert store.usage().put_count == before


@pytest.mark.parametrize("name", ["", "a-b", "a/b", "a.b", "ä", "x\n"])
async def test_names_that_chroma_cannot_list_are_refused(name: str) -> None:
    """A cursor name that Chroma cannot list would stop Chroma's collection."""
    cursors = cursors_on(await log_of([2]))
    for call in (cursors.create(name, 1), cursors.load(name), cursors.delete(name)):
        with pytest.raises(UsageError, match="cannot be the name of a cursor"):
            await call


async def test_what_is_gone_is_not_held() -> None:
    """A cursor at a collected position raises with the oldest one, and stores nothing."""
    store = await log_of([2] * 10)
    cursors = cursors_on(store)
    witness = await cursors.create("x", 15)
    await collected(store, 9)
    with pytest.raises(PositionCollected, match="start from 9"):
        await cursors.create("y", 8)
    with pytest.raises(PositionCollected, match="start from 9"):
        await cursors.save(witness, 8, allow_back=True)
    assert list((await cursors.list()).cursors) == ["x"]
    assert await cursors.load("x") == witness


async def test_a_plan_that_is_written_counts_before_it_is_carried_out() -> None:
    """A stored plan counts: its collector may have read the cursors already."""
    store = await log_of([2] * 10)
    cursors = cursors_on(store)
    witness = await cursors.create("x", 15)
    await store.put(GARBAGE, encode_garbage(Garbage(first_to_keep=11, fragments_limit=6)))
    with pytest.raises(PositionCollected, match="start from 11"):
        await cursors.create("y", 10)
    with pytest.raises(PositionCollected, match="start from 11"):
        await cursors.save(witness, 10, allow_back=True)

    assert (await cursors.load("x")).position == 15, "it was set forward again"
    assert (await cursors.load("y")).position == 11, "it holds what is certain to stay"
    assert (await cursors.create("z", 11)).position == 11


async def test_the_look_is_at_the_plan_and_then_at_the_manifest() -> None:
    """A cursor reads the plan before the manifest, or a collection could happen in between."""
    inner = await log_of([2] * 10)
    store = RecordedStore(inner)
    cursors = cursors_on(store)
    witness = await cursors.create("x", 5)
    await cursors.save(witness, 4, allow_back=True)
    await cursors.load("x")
    asked = [(record.op, record.key) for record in store.records]
    path, look = cursor_path("x"), [("get", GARBAGE), ("get", MANIFEST)]
    write = [("get", MANIFEST), ("put", path), *look]
    assert asked == [*write, *write, ("get", path), *look]


async def test_a_cursor_whose_writer_died_before_its_look_is_not_believed() -> None:
    """A cursor whose writer died before its check stops collections and cannot be loaded."""
    store = await log_of([2] * 10)
    cursors = cursors_on(store)
    await collected(store, 9)
    stale = Cursor(position=3, epoch_us=1, writer="dead")
    await store.put(cursor_path("x"), encode_cursor(stale))
    with pytest.raises(PositionCollected):
        await cursors.load("x")
    await cursors.create("y", 15)
    report = await collector_on(store).collect()
    assert (report.held_by, report.fragments) == ("x", 0)
    await cursors.delete("x")
    report = await collector_on(store).collect()
    assert (report.held_by, report.oldest) == ("y", 15)


async def test_to_load_a_cursor_waits_for_what_becomes_of_a_plan() -> None:
    """The load of a cursor waits for a stored plan's end, or raises BusyError."""
    store = await log_of([2] * 10)
    cursors = cursors_on(store)
    made = await cursors.create("x", 5)
    plan = encode_garbage(Garbage(first_to_keep=11, fragments_start=1, fragments_limit=6))
    await store.put(GARBAGE, plan)
    before = CLOCK.slept_us
    with pytest.raises(BusyError, match="collect the log, which finishes the plan"):
        await cursors.load("x")
    assert CLOCK.slept_us - before > 5_000_000

    async def collect() -> None:
        await Collector(store=store, clock=CLOCK, writer="gc", grace_us=0).collect()

    loaded, _ = await asyncio.gather(cursors.load("x"), collect())
    assert loaded == made


async def test_foreign_objects_among_cursors_are_reported_and_skipped() -> None:
    """Foreign objects are skipped; an unreadable cursor raises, because it may hold records."""
    store = await log_of([2] * 3)
    cursors = cursors_on(store)
    await cursors.create("x", 2)
    strange = ["cursor/a-b.json", "cursor/deep/x.json", "cursor/notes.txt"]
    for key in strange:
        await store.put(key, b"?")
    listed = await cursors.list()
    assert (list(listed.cursors), listed.foreign) == (["x"], strange)

    await store.put(cursor_path("broken"), b"?")
    with pytest.raises(CorruptionError):
        await cursors.list()


class VanishingStore(MemoryStore):
    """A store in which a listed cursor disappears before it is read."""

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        async for entry in MemoryStore.list(self, prefix, after=after):
            yield entry
            await self.delete([cursor_path("x")])


async def test_a_cursor_that_vanishes_while_they_are_listed_is_left_out() -> None:
    """A listing leaves out a cursor that is deleted during it."""
    store = VanishingStore()
    await append(store, [2] * 3)
    cursors = cursors_on(store)
    await cursors.create("x", 2)
    await cursors.create("y", 2)
    assert list((await cursors.list()).cursors) == ["y"]


@pytest.mark.parametrize("seed", range(12))
async def test_lost_answers_leave_no_doubt_about_a_witness(seed: int) -> None:
    """An acknowledged cursor write is stored, and one refused as NOT_APPLIED is not."""
    dice = random.Random(f"tests {seed}")
    inner = await log_of([2] * 10)

    def toss(request: Request) -> Fault:
        if dice.random() > 0.3:
            return Fault()
        return Fault(happened=dice.random() < 0.5, told=dice.random() < 0.3)

    faulty, sound = cursors_on(FaultyStore(inner, toss=toss)), cursors_on(inner)
    moves = 0
    for number in range(40):
        name, position = dice.choice("ab"), dice.randrange(1, 22)
        before = (await sound.list()).cursors.get(name)
        try:
            if before is None:
                witness = await faulty.create(name, position)
            else:
                loaded = await sound.load(name)
                witness = await faulty.save(loaded, position, allow_back=True)
        except LocationError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                assert (await sound.list()).cursors.get(name) == before
        else:
            assert await sound.load(name) == witness
            moves += 1
        if number % 10 == 9:
            await sound.delete(name)
    assert moves > 5


@given(
    position=st.integers(0, 2**64 - 1),
    epoch_us=st.integers(0, 2**64 - 1),
    writer=st.text(max_size=20),
)
def test_any_cursor_comes_out_as_it_went_in(position: int, epoch_us: int, writer: str) -> None:
    """A cursor with any fields and any text survives storage."""
    cursor = Cursor(position=position, epoch_us=epoch_us, writer=writer)

    assert decode_cursor(encode_cursor(cursor), where="x") == cursor


async def test_a_cursor_whose_second_look_met_damage_may_stand() -> None:
    """A cursor whose check after the write fails is stored and reports UNKNOWN."""
    store = await log_of([2] * 10)
    wrote: list[str] = []

    async def before(op: str, key: str) -> None:
        if (op, key) == ("put", cursor_path("c")):
            wrote.append(key)
        if (op, key) == ("get", MANIFEST) and wrote:
            raise CorruptionError("the store gave other bytes than it announced")

    with pytest.raises(OutcomeUnknown, match="check for a concurrent collector failed") as told:
        await cursors_on(InterposedStore(store, before=before)).create("c", 3)
    assert told.value.outcome is Outcome.UNKNOWN
    assert (await cursors_on(store).load("c")).position == 3


async def test_cursors_are_read_side_by_side() -> None:
    """A listing reads cursors concurrently: every collection reads hundreds of them twice."""
    store = await log_of([2] * 10)
    names = [f"reader_{number:02}" for number in range(20)]
    for name in names:
        await cursors_on(store).create(name, 5)
    crowd = CrowdedStore(store, clock=CLOCK, prefix="cursor/")

    assert [*(await cursors_on(crowd.store).list()).cursors] == names
    assert crowd.most == AT_ONCE_MAX
