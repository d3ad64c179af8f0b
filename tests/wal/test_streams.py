"""Streams of slot logs: their state, the permitted appends, and the cost of a read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from kit.named_logs import opened
from kit.protocols import CLOCK, SLOTS, opener_on, rows_of, slot_reader
from kit.stores import InterposedStore
from tidelog.errors import (
    Fenced,
    NameTaken,
    NoSuchStream,
    Outcome,
    StoreRefused,
    TidelogError,
    UsageError,
)
from tidelog.store.conditional import Resend
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.testing import Fault, FaultyStore
from tidelog.testing.faulty import Request
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.fragment_sets import Bloom
from tidelog.wal.format.manifest import decode_manifest, encode_manifest
from tidelog.wal.format.streams import (
    CLOSE,
    META,
    OPEN,
    StreamInfo,
    Streams,
    apply_controls,
    decode_control,
)
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.shape import Shape

T = TypeVar("T")


async def read(log: Log, **options: Any) -> list[dict[str, Any]]:
    return [row async for table in log.scan(**options) for row in table.to_pylist()]


async def test_records_are_in_their_streams() -> None:
    """A stream is read alone; control records have positions and are returned on request."""
    log = await opened(MemoryStore(), is_new=True)
    assert await log.open_stream(b"a", b"of a") == 1
    assert await log.append([b"1", b"2"], stream=b"a") == 2
    assert await log.append([b"none"]) == 4
    await asyncio.gather(
        log.open_stream(b"\xff" * 1_024),
        log.append([b"3"], stream=b"\xff" * 1_024),
        log.append([b"4"], stream=b"a"),
    )
    assert await log.meta_stream(b"a", b"new") == 8
    assert await log.streams() == [
        StreamInfo(id=b"a", meta=b"new", position=1),
        StreamInfo(id=b"\xff" * 1_024, position=5),
    ]
    assert await log.close_stream(b"a") == 9
    await log.close()

    rows = await read(log)
    assert [(row["position"], row["stream"], row["body"]) for row in rows] == [
        (2, b"a", b"1"),
        (3, b"a", b"2"),
        (4, None, b"none"),
        (6, b"\xff" * 1_024, b"3"),
        (7, b"a", b"4"),
    ]
    assert await read(log, stream=b"a") == [row for row in rows if row["stream"] == b"a"]
    assert await read(log, stream=b"b") == []
    everything = await read(log, control=True)
    assert [row["position"] for row in everything] == list(range(1, 10))
    said = [row for row in everything if row["stream"] == b""]
    assert [decode_control(row["body"], where="x").op for row in said] == [OPEN] * 2 + [
        META,
        CLOSE,
    ]
    assert [row["position"] for row in await read(log, stream=b"a", control=True)] == [
        *(1, 2, 3, 5, 7, 8, 9)
    ]
    assert (await log.scrub()).problems == []


async def test_a_follower_of_one_stream_sees_that_alone() -> None:
    """A follower of a stream gets its new records alone, until the log is sealed."""
    store = MemoryStore()
    log = await opened(store, is_new=True)
    await log.open_stream(b"a")

    async def follow() -> list[bytes]:
        reader = await opened(store, "r")
        found = reader.follow(stream=b"a")
        return [row["body"] async for table in found for row in table.to_pylist()]

    following = asyncio.create_task(follow())
    for number in range(20):
        await log.append([b"%d" % number], stream=b"a" if number % 3 else None)
    await log.close()
    await log.seal()
    assert await following == [b"%d" % number for number in range(20) if number % 3]


async def test_what_does_not_fit_is_refused_without_a_put() -> None:
    """An invalid stream operation is refused without a put. Other appends in its batch succeed."""
    store = MemoryStore()
    log = await opened(store, is_new=True)

    def slots() -> list[str]:
        """Return the slot objects, because a roll-up may happen at any time."""
        return [key for key in store.objects if key.startswith("epoch/")]

    await log.open_stream(b"a")
    calls: list[tuple[Callable[[], Awaitable[int]], type[TidelogError]]] = [
        (lambda: log.append([b"x"], stream=b"b"), NoSuchStream),
        (lambda: log.close_stream(b"b"), NoSuchStream),
        (lambda: log.meta_stream(b"b", b""), NoSuchStream),
        (lambda: log.open_stream(b"a"), NameTaken),
        (lambda: log.append([b"x"], stream=b""), UsageError),
        (lambda: log.append([b"x"], stream=b"x" * 1_025), UsageError),
        (lambda: log.append([b"x"], stream="a"), UsageError),  # type: ignore[arg-type]
        (lambda: log.open_stream(b""), UsageError),
        (lambda: log.open_stream(b"c", b"x" * 1_025), UsageError),
    ]
    await asyncio.sleep(0)
    before = slots()
    assert before
    for call, error in calls:
        with pytest.raises(error) as raised:
            await call()
        assert raised.value.outcome is Outcome.NOT_APPLIED
    assert slots() == before
    with pytest.raises(UsageError):
        log.scan(stream=b"")
    found = await asyncio.gather(
        log.append([b"y"], stream=b"a"),
        log.append([b"x"], stream=b"b"),
        log.append([b"z"]),
        return_exceptions=True,
    )
    assert (found[0], type(found[1]), found[2]) == (2, NoSuchStream, 3)
    await log.close()


async def test_one_of_several_concurrent_opens_of_a_stream_succeeds() -> None:
    """One of several concurrent opens succeeds; an append may follow without a wait."""
    log = await opened(MemoryStore(), is_new=True)
    answers = await asyncio.gather(
        *(log.open_stream(b"a", b"%d" % number) for number in range(5)),
        log.append([b"x"], stream=b"a"),
        log.close_stream(b"a"),
        log.append([b"y"], stream=b"a"),
        log.open_stream(b"a", b"again"),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [
        *(int, NameTaken, NameTaken, NameTaken, NameTaken, int, int, NoSuchStream, int)
    ]
    [info] = await log.streams()
    assert info == StreamInfo(id=b"a", meta=b"again", position=4)
    await log.close()


@dataclass
class Model:
    """A model of streams: a dict from id to metadata, and all records with their streams."""

    open: dict[bytes, bytes] = field(default_factory=dict)
    records: list[tuple[bytes | None, bytes]] = field(default_factory=list)

    def does(self, op: str, stream: bytes | None, value: bytes) -> bool:
        if op == "append":
            fits = stream is None or stream in self.open
            self.records += [(stream, value)] * fits
            return fits
        assert stream is not None
        fits = (stream not in self.open) if op == OPEN else stream in self.open
        if fits:
            self.records.append((b"", value))
            if op == CLOSE:
                del self.open[stream]
            elif op in (OPEN, META):
                self.open[stream] = value
        return fits


FEW = st.sampled_from([b"a", b"b", b"c"])
OPS = st.one_of(
    st.tuples(st.sampled_from([OPEN, META, CLOSE]), FEW, st.binary(max_size=3)),
    st.tuples(st.just("append"), st.none() | FEW, st.binary(max_size=3)),
    st.tuples(st.sampled_from(["reopen", "takeover"]), st.none(), st.just(b"")),
)


async def apply(log: Log, op: str, stream: bytes | None, value: bytes) -> int:
    if op == "append":
        return await log.append([value], stream=stream)
    assert stream is not None
    if op == OPEN:
        return await log.open_stream(stream, value)
    return await (log.meta_stream(stream, value) if op == META else log.close_stream(stream))


@settings(max_examples=25, deadline=None)
@given(rounds=st.lists(st.lists(OPS, min_size=1, max_size=6), max_size=8))
async def test_streams_are_what_a_dict_says(rounds: list[list[tuple[str, Any, bytes]]]) -> None:
    """Streams behave like a dict, through roll-ups, reopened logs and takeovers."""
    store, model = MemoryStore(), Model()
    log = await opened(store, is_new=True)
    lives, has_turn = 1, False
    for ops in rounds:
        calls: list[Awaitable[int]] = []
        fits: list[bool] = []
        for op, stream, value in ops:
            if op in ("reopen", "takeover"):
                continue
            fits.append(model.does(op, stream, value))
            calls.append(apply(log, op, stream, value))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(answer, int) for answer in answers] == fits
        has_turn = has_turn or bool(calls)
        if any(op in ("reopen", "takeover") for op, _, _ in ops):
            old, log = log, await opened(store, f"w{lives}")
            lives += 1
            if any(op == "takeover" for op, _, _ in ops):
                await log.append([b"over"])
                model.records.append((None, b"over"))
                if has_turn:
                    with pytest.raises(Fenced):
                        await old.append([b"late"])
            await old.close()
            has_turn = any(op == "takeover" for op, _, _ in ops)
        assert {info.id: info.meta for info in await log.streams()} == model.open
    await log.close()
    await check(store, log, model)


async def check(store: Store, log: Log, model: Model) -> None:
    """Compare a log, its manifest and its records with the model."""
    everything = await read(log, control=True)
    users = [(row["stream"], row["body"]) for row in everything if row["stream"] != b""]
    assert [row["position"] for row in everything] == list(range(1, len(everything) + 1))
    assert users == [record for record in model.records if record[0] != b""]
    for stream in (b"a", b"b", b"c"):
        found = [row["body"] for row in await read(log, stream=stream)]
        assert found == [body for one, body in users if one == stream]
    replayed = apply_controls(
        Streams(),
        tuple(
            (row["position"], decode_control(row["body"], where="x"))
            for row in everything
            if row["stream"] == b""
        ),
    )
    assert list(replayed) == await log.streams()
    assert {info.id: info.meta for info in replayed} == model.open
    manifest = (await load_head(store)).manifest
    assert manifest.chain is not None
    assert manifest.next == (await log.bounds()).next
    assert manifest.chain.streams == replayed
    assert len(manifest.chain.streams_at_start) == 0
    assert (await log.scrub()).problems == []


@pytest.mark.parametrize("happened", [True, False], ids=["landed", "lost"])
@pytest.mark.parametrize("slot", [1, 2, 3])
async def test_what_is_sent_again_is_opened_once(happened: bool, slot: int) -> None:
    """A stream operation without an answer happens once: the writer keeps what landed."""
    inner = MemoryStore()
    silent: set[str] = set()

    def toss(request: Request) -> Fault:
        is_it = request.op == "put" and request.key.endswith(f"{slot}.parquet")
        if is_it and not silent and request.key.startswith("epoch/0000000000000001"):
            silent.add(request.key)
            return Fault(happened=happened, told=False)
        return Fault()

    log = await opened(inner, is_new=True)
    log._writer.store = FaultyStore(inner, toss=toss)
    log._writer.resend = Resend(attempts=1)
    log._writer.batching = log._writer._queue.batching = Batching(batch_bytes=1, interval_us=0)
    answers = await asyncio.gather(
        log.open_stream(b"a"),
        log.append([b"1"], stream=b"a"),
        log.close_stream(b"a"),
        log.append([b"2"], stream=b"a"),
        log.open_stream(b"a", b"again"),
        log.append([b"3"], stream=b"a"),
        return_exceptions=True,
    )
    await log.close()
    assert silent
    assert [type(answer) for answer in answers] == [int, int, int, NoSuchStream, int, int]
    assert [row["body"] for row in await read(log, stream=b"a")] == [b"1", b"3"]
    assert [info.meta for info in await log.streams()] == [b"again"]
    assert (await log.scrub()).problems == []


async def test_what_was_void_was_never_opened() -> None:
    """A stream whose open was fenced never existed, and the next writer may open it."""
    store = MemoryStore()
    one, two = await opened(store, "one", is_new=True), await opened(store, "two")
    await one.open_stream(b"a")
    await two.append([b"over"])
    with pytest.raises(Fenced):
        await one.open_stream(b"b")
    with pytest.raises(NoSuchStream):
        await two.append([b"x"], stream=b"b")
    await two.open_stream(b"b")
    await two.append([b"y"], stream=b"a")
    await one.close()
    await two.close()
    assert [info.id for info in await two.streams()] == [b"a", b"b"]


class HeldClock(SwiftClock):
    """A clock whose threads wait for ``gate``. It sets ``at_gate`` when one waits."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.at_gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def offload(self, work: Callable[[], T]) -> T:
        if not self.gate.is_set():
            self.at_gate.set()
        await self.gate.wait()
        return work()


@pytest.mark.parametrize("what", ["append", "meta", "close"])
async def test_a_refused_open_takes_with_it_what_was_encoded_upon_it(what: str) -> None:
    """A refused open of a stream fails only the appends encoded after it that need it."""
    refuse, met = asyncio.Event(), asyncio.Event()

    async def before(op: str, key: str) -> None:
        if op == "put" and key.endswith("2.parquet") and not met.is_set():
            met.set()
            await refuse.wait()
            raise StoreRefused("denied", key=key)

    log = await opened(InterposedStore(MemoryStore(), before=before), is_new=True)
    log._writer.clock = clock = HeldClock()
    log._writer.inline_bytes = 0
    await log.append([b"first"])
    opening = asyncio.create_task(log.open_stream(b"s"))
    await met.wait()
    clock.gate.clear()

    upon = {
        "append": lambda: log.append([b"in it"], stream=b"s"),
        "meta": lambda: log.meta_stream(b"s", b"new"),
        "close": lambda: log.close_stream(b"s"),
    }
    second = asyncio.create_task(upon[what]())
    innocent = asyncio.create_task(log.append([b"innocent"]))
    await clock.at_gate.wait()
    refuse.set()
    told = list(await asyncio.gather(opening, return_exceptions=True))
    clock.gate.set()
    told += await asyncio.gather(second, innocent, return_exceptions=True)
    await log.close()

    assert [type(one) for one in told] == [StoreRefused, NoSuchStream, int]
    assert [row["body"] for row in await read(log, control=True)] == [b"first", b"innocent"]


async def test_one_stream_is_read_without_the_rest() -> None:
    """A read of a stream fetches no fragment without it, whether listed or filtered."""
    inner = MemoryStore()
    log = await opened(inner, is_new=True)
    await asyncio.gather(*(log.open_stream(b"many-%d" % n) for n in range(40)))
    for name in (b"a", b"b"):
        await log.open_stream(name)
    for number in range(60):
        await log.append([b"%d" % number], stream=b"a" if number % 20 == 7 else b"b")
    await asyncio.gather(*(log.append([b"x"], stream=b"many-%d" % n) for n in range(40)))
    await log.append([b"in none"] * 3)
    await log.close()
    fragments = await log.fragments()
    assert any(isinstance(one.streams, Bloom) for one in fragments)

    store = MeteringStore(inner, clock=CLOCK)
    again = await opened(store, "r")
    before = store.usage()
    await again.fragments()
    tree = (store.usage() - before).get_count
    wanted: list[tuple[bytes | None, int]] = [(b"a", 3), (b"b", 57), (b"nobody's", 0)]
    for stream, fetched in [*wanted, (None, len(fragments))]:
        before = store.usage()
        found = await read(again, stream=stream)
        gets = (store.usage() - before).get_count
        assert gets <= tree + fetched + (0 if stream is None else 1)  # One for the filter.
        if stream == b"a":
            assert [row["body"] for row in found] == [b"7", b"27", b"47"]


async def test_to_open_a_log_with_streams_takes_no_more_requests() -> None:
    """The manifest and the walked links hold the streams, so an opening costs no more."""
    costs: list[int] = []
    for streams in (0, 30):
        inner = MemoryStore()
        # It never rolls up on its own, so that the opener must walk.
        lazy = Shape(alpha=4, rollup_slots=16, rollup_interval_us=10**15)
        log = await opened(inner, is_new=True, shape=lazy)
        for number in range(30):
            if streams:
                await log.open_stream(b"%d" % number)
            else:
                await log.append([b"%d" % number])
        store = MeteringStore(inner, clock=CLOCK)
        again = await opened(store, "next", shape=lazy)
        assert len(await again.streams()) == streams
        before = store.usage()
        await again.append([b"x"], stream=b"29" if streams else None)
        costs.append((store.usage() - before).requests_count)
        await log.close()
        await again.close()
    assert costs[0] == costs[1]


async def test_logs_of_the_manifest_protocol_have_no_streams() -> None:
    """Logs in wal3's form refuse streams before any write. wal3's bytes have no place for them."""
    store = MeteringStore(MemoryStore(), clock=CLOCK)
    log = await create_log(store, name="x", clock=CLOCK, writer="w", protocol="manifest")
    before = store.usage()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: log.append([b"x"], stream=b"a"),
        lambda: log.open_stream(b"a"),
        lambda: log.close_stream(b"a"),
        lambda: log.meta_stream(b"a", b""),
        log.streams,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="no streams"):
            await call()
    for scan in (log.scan, log.follow):
        with pytest.raises(UsageError, match="no streams"):
            scan(stream=b"a")
    assert store.usage() == before
    await log.append([b"x"])
    await log.close()
    [fragment] = await log.fragments()
    assert (fragment.last_us, fragment.streams, fragment.keys) == (None, None, None)


async def test_logs_from_before_there_were_streams_are_read() -> None:
    """Logs whose manifests have neither times nor streams are readable and accept streams."""
    store = MemoryStore()
    log = await opened(store, is_new=True)
    for number in range(4):
        await log.append([b"%d" % number], timestamp_us=number)
    await log.close()
    manifest = (await load_head(store)).manifest
    old = [replace(one, last_us=None, streams=None, keys=None) for one in manifest.fragments]
    bare = replace(
        manifest,
        snapshots=tuple(replace(one, last_us=None) for one in manifest.snapshots),
        fragments=tuple(old),
    )
    data = encode_manifest(bare)
    assert b"last_us" not in data
    assert decode_manifest(data) == bare
    await store.put("manifest/MANIFEST", data)
    again = await opened(store, "next")
    assert await again.position_at(2) == 3
    await again.open_stream(b"a")
    await again.append([b"x"], stream=b"a")
    assert [row["body"] for row in await read(again, stream=b"a")] == [b"x"]
    await again.close()
    assert len(await rows_of(SLOTS, store)) == 5
    assert (await slot_reader(store).bounds()).next == 7
    await opener_on(store).seal()
