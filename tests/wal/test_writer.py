"""Writing logs in wal3's form: what is acknowledged is there, once, where it was said to be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from goldens import objects
from tidelog.clock import SystemClock
from tidelog.errors import (
    BusyError,
    CorruptionError,
    HandleError,
    LocationError,
    NoSuchLog,
    Outcome,
    UsageError,
)
from tidelog.store.memory import MemoryStore
from tidelog.store.metered import Metered
from tidelog.store.port import Store
from tidelog.testing import Fault, Faulty
from tidelog.testing.faulty import Request
from tidelog.wal.committer import Committer
from tidelog.wal.fragment import encode_fragment, place_records
from tidelog.wal.manifest import MANIFEST, fragment_path
from tidelog.wal.reader import Wal3Reader
from tidelog.wal.scrub import scrub
from tidelog.wal.transitions import Rollover
from tidelog.wal.writer import Batching, Wal3Writer

T = TypeVar("T")
CLOCK = SystemClock()


def writer_on(store: Store, *, name: str = "w", **batching: int) -> Wal3Writer:
    committer = Committer(
        store=store, clock=CLOCK, writer=name, rollover=Rollover(fragments=3, snapshots=2)
    )
    return Wal3Writer(committer=committer, batching=Batching(interval_us=0, **batching))


async def opened(store: Store, **options: Any) -> Wal3Writer:
    writer = writer_on(store, **options)
    await writer.committer.open(make=True)
    return writer


async def contents(store: Store) -> dict[int, bytes]:
    """Give all records by position; a log that scrub complains of has none."""
    reader = Wal3Reader(store=store, clock=CLOCK)
    assert (await scrub(reader)).problems == []
    return {
        row["position"]: row["body"] async for table in reader.scan() for row in table.to_pylist()
    }


def test_records_stand_where_they_were_said_to() -> None:
    """Through rollovers, empty bodies, and a writer that is opened anew."""

    async def work() -> None:
        store = MemoryStore()
        wanted: dict[int, bytes] = {}
        for life in range(3):
            async with await opened(store) as writer:
                for number in range(12):
                    bodies = [b"%d-%d-%d" % (life, number, n) for n in range(number % 4)] + [b""]
                    first = await writer.append(bodies)
                    wanted |= dict(enumerate(bodies, first))
        assert await contents(store) == wanted
        assert min(wanted) == 1
        assert max(wanted) == len(wanted)

    asyncio.run(work())


def test_appends_at_once_share_fragments() -> None:
    """A request for each would cost a hundred times as much."""

    async def work() -> None:
        store = Metered(MemoryStore(), clock=CLOCK)
        async with await opened(store) as writer:
            before = store.usage().put_count
            firsts = await asyncio.gather(*(writer.append([b"%d" % n]) for n in range(300)))
            assert store.usage().put_count - before < 20
        found = await contents(store)
        assert {first: found[first] for first in firsts} == {
            first: b"%d" % n for n, first in enumerate(firsts)
        }
        assert sorted(firsts) == list(range(1, 301))

    asyncio.run(work())


def test_an_idle_log_takes_two_puts() -> None:
    """A fragment, then the manifest; nothing is read."""

    async def work() -> None:
        store = Metered(MemoryStore(), clock=CLOCK)
        async with await opened(store) as writer:
            before = store.usage()
            await writer.append([b"one"])
            used = store.usage() - before
            assert (used.put_count, used.requests_count) == (2, 2)

    asyncio.run(work())


def test_several_writers_lose_nothing() -> None:
    """They contend for numbers; each brings in what another left half done."""

    async def work() -> None:
        store = MemoryStore()
        wanted: dict[int, bytes] = {}
        writers = [await opened(store, name=f"w{n}") for n in range(3)]

        async def write(writer: Wal3Writer, name: int) -> None:
            for number in range(15):
                body = b"%d-%d" % (name, number)
                first = await writer.append([body])
                wanted[first] = body

        await asyncio.gather(*(write(writer, n) for n, writer in enumerate(writers)))
        for writer in writers:
            await writer.close()
        assert await contents(store) == wanted
        assert len(wanted) == 45

    asyncio.run(work())


def test_what_a_crash_left_half_done_is_brought_in() -> None:
    """A fragment that no manifest names yet is durable: its writer died before it could say so."""

    async def work() -> None:
        store = MemoryStore()
        async with await opened(store) as writer:
            await writer.append([b"one"])
        for number, start in ((2, 2), (3, 4)):
            bodies = pa.array([b"x", b"y"], pa.binary())
            records = place_records(bodies, start=start, timestamp_us=7)
            await store.put(fragment_path(number), encode_fragment(records, write_id="other"))
        async with await opened(store) as writer:
            assert await writer.append([b"two"]) == 6
        assert list((await contents(store)).values()) == [b"one", b"x", b"y", b"x", b"y", b"two"]

    asyncio.run(work())


def test_a_fragment_that_does_not_continue_the_log_is_left_alone() -> None:
    """wal3 itself would adopt it, and the log would be broken ever after."""

    async def work() -> None:
        store = MemoryStore()
        async with await opened(store) as writer:
            await writer.append([b"one"])
        before = (await store.get(MANIFEST)).data
        records = place_records(pa.array([b"x"], pa.binary()), start=9, timestamp_us=7)
        await store.put(fragment_path(2), encode_fragment(records, write_id="other"))
        with pytest.raises(CorruptionError, match="move it away"):
            await opened(store)
        assert (await store.get(MANIFEST)).data == before

    asyncio.run(work())


@pytest.mark.parametrize("seed", range(12))
def test_lost_answers_neither_lose_nor_double_a_record(seed: int) -> None:
    """Acknowledged: there, once. Refused for certain: not there. In doubt: at most once."""

    async def work() -> None:
        dice = random.Random(seed)
        inner = MemoryStore()

        def toss(request: Request) -> Fault:
            if not request.changes or dice.random() > 0.3:
                return Fault()
            return Fault(happened=dice.random() < 0.5, told=dice.random() < 0.3)

        async with await opened(inner):
            pass
        writer = writer_on(Faulty(inner, toss=toss))
        said: dict[bytes, int | Outcome] = {}
        for number in range(20):
            body = b"%d" % number
            try:
                said[body] = await writer.append([body])
            except LocationError as error:
                said[body] = error.outcome
        await writer.close()
        async with await opened(inner):
            pass
        found = await contents(inner)
        bodies = list(found.values())
        assert len(set(bodies)) == len(bodies), "a record is there twice"
        for body, answer in said.items():
            if isinstance(answer, int):
                assert found[answer] == body
            elif answer is Outcome.NOT_APPLIED:
                assert body not in bodies

    asyncio.run(work())


def test_to_stop_waiting_is_not_to_stop_writing() -> None:
    """The write runs in a task of the log's."""

    async def work() -> None:
        store = MemoryStore()
        async with await opened(store) as writer:
            waiting = asyncio.create_task(writer.append([b"one"]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting.cancel()
            assert await writer.append([b"two"]) == 2
        assert await contents(store) == {1: b"one", 2: b"two"}

    asyncio.run(work())


def test_a_writer_that_closes_answers_everybody_first() -> None:
    """And nobody after."""

    async def work() -> None:
        store = MemoryStore()
        writer = await opened(store)
        waiting = [asyncio.create_task(writer.append([b"x"])) for _ in range(50)]
        await asyncio.sleep(0)
        await writer.close()
        assert sorted(await asyncio.gather(*waiting)) == list(range(1, 51))
        with pytest.raises(HandleError):
            await writer.append([b"late"])

    asyncio.run(work())


def test_memory_is_bounded() -> None:
    """Appends wait, or are told to back off, where too much is pending."""

    async def work() -> None:
        store = MemoryStore()
        async with await opened(store, pending_bytes=4_000, batch_bytes=1_000) as writer:
            waiting = [asyncio.create_task(writer.append([b"x" * 900])) for _ in range(40)]
            for _ in range(3):
                await asyncio.sleep(0)
            with pytest.raises(BusyError):
                await writer.append([b"x" * 900], wait=False)
            await asyncio.gather(*waiting)
        assert len(await contents(store)) == 40

    asyncio.run(work())


def test_a_burst_and_then_silence_is_all_acknowledged() -> None:
    """wal3's own writer leaves a part of it waiting until the next append."""

    async def work() -> None:
        store = MemoryStore()
        async with await opened(store, batch_bytes=100) as writer:
            for _ in range(50):
                burst = (writer.append([b"x" * 60]) for _ in range(4))
                async with asyncio.timeout(5):
                    await asyncio.gather(*burst)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda w: w.append([]), UsageError),
        (lambda w: w.append_arrow(pa.array([b"x", None], pa.binary())), UsageError),
        (lambda w: w.append([b"x" * (64 * 1024 * 1024 + 1)]), UsageError),
    ],
    ids=["empty", "null", "large"],
)
def test_what_is_no_append_is_refused(
    call: Callable[[Wal3Writer], Awaitable[int]], error: type[Exception]
) -> None:
    """Before any request."""

    async def work() -> None:
        store = Metered(MemoryStore(), clock=CLOCK)
        writer = writer_on(store)
        with pytest.raises(error):
            await call(writer)
        assert store.usage().requests_count == 0

    asyncio.run(work())


def test_to_open_makes_no_log_unless_asked() -> None:
    """A name that was mistyped must not become a log."""

    async def work() -> None:
        store = MemoryStore()
        with pytest.raises(NoSuchLog):
            await writer_on(store).committer.open()
        with pytest.raises(NoSuchLog):
            await writer_on(store).append([b"x"])
        assert [entry async for entry in store.list("")] == []

    asyncio.run(work())


def test_a_new_log_is_chromas_to_the_byte() -> None:
    """Its manifest, and the columns of its fragments."""

    async def work() -> dict[str, bytes]:
        store = MemoryStore()
        async with await opened(store) as writer:
            empty = (await store.get(MANIFEST)).data
            assert empty == objects("e_empty")[MANIFEST]
            await writer.append([b"one"])
        return {entry.key: (await store.get(entry.key)).data async for entry in store.list("")}

    ours, theirs = asyncio.run(work()), objects("a_tiny")
    assert ours.keys() == theirs.keys()
    path = fragment_path(1)
    mine, chromas = (pq.ParquetFile(pa.BufferReader(log[path])) for log in (ours, theirs))
    assert mine.schema_arrow.remove_metadata() == chromas.schema_arrow.remove_metadata()
    for number in range(3):
        one, other = mine.schema.column(number), chromas.schema.column(number)
        assert (one.name, one.physical_type, str(one.logical_type), one.max_definition_level) == (
            other.name,
            other.physical_type,
            str(other.logical_type),
            other.max_definition_level,
        )


@pytest.mark.parametrize("name", ["a_tiny", "b_snapshots", "c_gc", "d1_copy_append", "f_bootstrap"])
def test_chromas_logs_are_appended_to(name: str) -> None:
    """From where they end, whatever is left of them."""

    async def work() -> None:
        store = MemoryStore()
        for key, data in objects(name).items():
            await store.put(key, data)
        before = await contents(store)
        async with await opened(store) as writer:
            firsts = [await writer.append([b"new"]) for _ in range(9)]
        assert firsts == list(range(max(before) + 1, max(before) + 10))
        assert await contents(store) == before | dict.fromkeys(firsts, b"new")

    asyncio.run(work())
