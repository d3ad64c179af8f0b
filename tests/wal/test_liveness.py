"""Writers on a store that refuses, hangs or is gone: every append gets an answer, and close ends.

Patience is short but real here: a test waits for hanging requests, and for nothing else.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from kit.clocks import MOMENT_S, SwiftClock
from kit.protocols import (
    CLOCK,
    KINDS,
    SLOTS,
    WAL3,
    Kind,
    Writer,
    contents,
    make_slots,
    outcome_of,
    slot_store,
    slot_writer,
)
from kit.stores import Hold, InterposedStore, keys_in
from tidelog.core.clock import SystemClock
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    HandleError,
    LocationError,
    Outcome,
    OutcomeUnknown,
    StoreRefused,
    TidelogError,
    UsageError,
)
from tidelog.store.conditional import Resend
from tidelog.store.local.store import LocalStore
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.fragment import FRAGMENTS
from tidelog.wal.format.link import EPOCHS
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.logs import Logs
from tidelog.wal.slot_protocol.writer import SlotWriter

PATIENCE_US = 160_000  # Less than users may set, so that a test takes no minute.
LONG_S = 120.0  # Far longer than any wait here, even on a busy machine.
ONCE = Resend(attempts=1)
LARGE = hashlib.sha512(b"large").digest()  # Its bytes stay visible in an object.


@pytest.fixture(autouse=True)
def _any_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.wal.append.batching.PATIENCE_LEAST_US", 1)


def impatient(store: Store) -> SlotWriter:
    writer = slot_writer(store, batch_bytes=1, patience_us=PATIENCE_US)
    writer.resend = ONCE
    return writer


class Gate:
    """A hook that, while shut, fails requests ``op`` of matching keys with ``error``, or blocks."""

    def __init__(self, prefix: str, error: TidelogError | None = None, op: str = "put") -> None:
        self.prefix, self.error, self.op = prefix, error, op
        self.is_shut = False
        self.met = 0

    async def __call__(self, op: str, key: str) -> None:
        if op != self.op or not self.is_shut or not key.startswith(self.prefix):
            return
        self.met += 1
        if self.error is not None:
            raise self.error
        await asyncio.get_running_loop().create_future()


async def cut_off(kind: Kind, error: TidelogError | None = None) -> tuple[Writer, MemoryStore]:
    """Return a writer of one record whose later puts block, or fail with ``error``."""
    gate = Gate("", error)
    await kind.make(inner := MemoryStore())
    store = InterposedStore(inner, before=gate)
    writer: Writer = kind.writer(store, batch_bytes=1, patience_us=PATIENCE_US)
    await writer.append([b"one"])
    gate.is_shut = True
    return writer, inner


@asynccontextmanager
async def within(seconds: float = LONG_S) -> AsyncIterator[None]:
    """Fail if the body takes longer."""
    async with asyncio.timeout(seconds):
        yield


async def until(predicate: Callable[[], bool]) -> None:
    """Let other tasks run until the predicate holds."""
    async with within():
        for _ in itertools.count():
            if predicate():
                return
            await asyncio.sleep(MOMENT_S)  # Threads need the interpreter too.


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "opening"])
@pytest.mark.parametrize(("protocol", "puts"), [("slot", EPOCHS), ("manifest", FRAGMENTS)])
async def test_short_patience_keeps_what_the_store_said(
    protocol: str, puts: str, is_open: bool
) -> None:
    """An append reports the store's own error, even if its patience ends before the last retry."""
    gate = Gate(f"log/a/{puts}", LocationError("the disk is full: free some space"))
    store = InterposedStore(MemoryStore(), before=gate)
    logs = Logs(store=store, clock=SystemClock(), writer="w")
    log = await logs.create("a", protocol=protocol, batching=Batching(patience_us=PATIENCE_US))
    if is_open:
        await log.append([b"1"])

    gate.is_shut = True
    async with within():
        with pytest.raises(LocationError, match="the disk is full"):
            await log.append([b"2"])
    assert gate.met > 1
    with suppress(TidelogError):
        await log.close()


@pytest.mark.parametrize(
    "error", [StoreRefused("denied"), LocationError("no answer"), ContentionError("busy")]
)
async def test_appends_behind_a_manifest_that_is_stuck_are_told_why(error: TidelogError) -> None:
    """Appends behind a stuck manifest wait for their patience, then fail with its reason."""
    gate = Gate(MANIFEST, error)
    store = InterposedStore(inner := MemoryStore(), before=gate)
    await make_slots(inner)
    writer = impatient(store)
    await writer.append([b"open"])

    gate.is_shut = True
    async with within():
        told = await asyncio.gather(
            *(writer.append([b"%d" % n]) for n in range(60)), return_exceptions=True
        )
    refused = [one for one in told if not isinstance(one, int)]
    assert 0 < len(refused) < 60
    for one in refused:
        assert isinstance(one, LocationError)
        assert one.outcome is Outcome.NOT_APPLIED
        assert error.sentence in str(one) or "at every try" in str(one)
    gate.is_shut = False
    async with within():
        last = await writer.append([b"again"])
        await writer.close()
    found = await contents(SLOTS, inner)
    assert found[last] == b"again"
    assert len(found) == 2 + len(told) - len(refused)


async def test_a_manifest_that_is_stuck_is_tried_ever_more_rarely() -> None:
    """The retries of a stuck manifest become rarer, to spare a store that refuses."""
    gate = Gate(MANIFEST, StoreRefused("denied"))
    store = InterposedStore(inner := MemoryStore(), before=gate)
    await make_slots(inner)
    writer = impatient(store)
    await writer.append([b"open"])
    clock = SwiftClock()
    writer.clock = writer._maintenance.clock = clock

    gate.is_shut = True
    for number in range(9):
        await writer.append([b"%d" % number])
    await until(lambda: clock.slept_us > 60_000_000)

    assert gate.met < 12 + clock.slept_us / 2_500_000
    await writer.close()


async def test_closing_sends_what_waits_behind_a_manifest_that_is_stuck() -> None:
    """A close writes the appends behind a stuck manifest, which readers can do without."""
    gate = Gate(MANIFEST, StoreRefused("denied"))
    store = InterposedStore(inner := MemoryStore(), before=gate)
    await make_slots(inner)
    writer = slot_writer(store, batch_bytes=1)
    writer._maintenance.clock = SystemClock()
    await writer.append([b"open"])

    gate.is_shut = True
    calls = [asyncio.create_task(writer.append([b"%d" % n])) for n in range(60)]
    await until(lambda: sum(call.done() for call in calls) >= 15)
    assert not all(call.done() for call in calls)
    async with within():
        await writer.close()
        await asyncio.gather(*calls)

    assert len(await contents(SLOTS, inner)) == 61


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_every_append_to_a_silent_store_gets_its_outcome(kind: Kind) -> None:
    """If a store never answers, sent appends report UNKNOWN, others NOT_APPLIED, and close ends."""
    writer, inner = await cut_off(kind)
    calls = [asyncio.create_task(writer.append([b"%d" % n])) for n in range(9)]
    async with within():
        outcomes = [await outcome_of(call) for call in calls]
        await writer.close()

    assert Outcome.APPLIED not in outcomes
    assert outcomes[0] is Outcome.UNKNOWN
    assert outcomes[-1] is Outcome.NOT_APPLIED
    assert outcomes.count(Outcome.UNKNOWN) <= 4
    assert list((await contents(kind, inner)).values()) == [b"one"]
    with pytest.raises(HandleError):
        await writer.append([b"late"])


@pytest.mark.parametrize(
    ("kind", "has_lost"),
    [(SLOTS, False), (WAL3, False), (WAL3, True)],
    ids=["first look at slots", "first look", "look after a lost number"],
)
async def test_what_waits_for_the_log_to_be_opened_was_not_sent(kind: Kind, has_lost: bool) -> None:
    """If the log cannot be opened, waiting appends report NOT_APPLIED. No put was sent."""
    gate = Gate(MANIFEST, op="get")
    store = InterposedStore(inner := MemoryStore(), before=gate)
    await kind.make(inner)
    writer = kind.writer(store, batch_bytes=1, patience_us=PATIENCE_US)
    if has_lost:
        await writer.append([b"one"])
        async with kind.writer(inner) as other:
            await other.append([b"two"])
    before = await keys_in(inner)

    gate.is_shut = True
    async with within():
        outcomes = {await outcome_of(writer.append([b"%d" % n])) for n in range(2)}

    assert outcomes == {Outcome.NOT_APPLIED}
    assert await keys_in(inner) == before
    with suppress(TidelogError):
        await writer.close()


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_closing_ends_and_says_what_is_unknown(kind: Kind) -> None:
    """A close ends on a silent store and reports the unknown outcome. A second close ends too."""
    writer, _ = await cut_off(kind)
    calls = [asyncio.create_task(writer.append([b"%d" % n])) for n in range(9)]
    await asyncio.sleep(0)
    async with within():
        for _ in range(2):
            with suppress(OutcomeUnknown), pytest.raises(LocationError) as closed:
                await writer.close()
    outcomes = [await outcome_of(call) for call in calls]

    assert set(outcomes) == {Outcome.UNKNOWN, Outcome.NOT_APPLIED}
    assert closed.value.outcome in (Outcome.UNKNOWN, Outcome.NOT_APPLIED)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("error", [None, LocationError("gone")])
async def test_a_close_reports_lost_appends_of_cancelled_callers(
    kind: Kind, error: TidelogError | None
) -> None:
    """A close raises LocationError if it lost an append whose caller was cancelled."""
    writer, inner = await cut_off(kind, error)
    call = asyncio.create_task(writer.append([b"two"]))
    await asyncio.sleep(0)
    call.cancel()
    async with within():
        with pytest.raises(LocationError):
            await writer.close()

    assert list((await contents(kind, inner)).values()) == [b"one"]


async def test_a_body_that_failed_is_told_before_what_closing_said() -> None:
    """An error of the body is raised, and the error of close becomes its note."""
    gate = Gate("epoch/")
    inner = await slot_store()

    calls: list[asyncio.Task[int]] = []

    async def body() -> None:
        async with impatient(InterposedStore(inner, before=gate)) as writer:
            await writer.append([b"one"])
            gate.is_shut = True
            calls.append(asyncio.create_task(writer.append([b"two"])))
            await until(lambda: gate.met > 0)
            raise UsageError("the body's")

    with pytest.raises(UsageError, match="the body's") as failed:
        await body()
    assert await outcome_of(calls[0]) is Outcome.UNKNOWN
    assert "closing the log also failed" in "".join(failed.value.__notes__)


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_to_cancel_closing_cancels_no_write(kind: Kind) -> None:
    """A cancelled close cancels no write. The append is still written and acknowledged."""
    hold = Hold("put", "", is_open=True)
    await kind.make(inner := MemoryStore())
    writer = kind.writer(InterposedStore(inner, before=hold))
    await writer.append([b"zero"])
    hold.go_on.clear()
    call = asyncio.create_task(writer.append([b"one"]))
    await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.close(), 0.02)
    assert not call.done()
    hold.go_on.set()
    async with within():
        assert await call == 2
        await writer.close()
    assert await contents(kind, inner) == {1: b"zero", 2: b"one"}


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_a_batch_that_is_refused_fails_alone(kind: Kind) -> None:
    """A batch that the store refuses fails alone: smaller batches are written."""
    inner, refused = MemoryStore(), 0

    class LimitedStore(MemoryStore):
        async def put(
            self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
        ) -> str:
            nonlocal refused
            if LARGE in data:
                refused += 1
                raise LocationError("the store rejects the request", key=key)
            return await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)

    store = LimitedStore()
    store.objects = inner.objects
    await kind.make(store)
    writer = kind.writer(store, batch_bytes=1)
    await writer.append([b"open"])

    bodies = [LARGE if n in (3, 4, 9) else b"%d" % n for n in range(12)]
    async with within():
        told = await asyncio.gather(
            *(writer.append([body]) for body in bodies), return_exceptions=True
        )
        await writer.close()

    for body, one in zip(bodies, told, strict=True):
        if body == LARGE:
            assert isinstance(one, LocationError)
            assert one.outcome is Outcome.NOT_APPLIED
            assert "rejects the request" in str(one)
        else:
            assert isinstance(one, int)
    found = await contents(kind, inner)
    assert list(found.values()) == [b"open", *(b for b in bodies if b != LARGE)]
    assert refused


async def test_refused_batches_open_few_epochs() -> None:
    """Refused batches open no new epoch if no batch was sent after them."""
    gate = Gate("epoch/", LocationError("the store rejects the request"))
    inner = await slot_store()
    writer = slot_writer(InterposedStore(inner, before=gate), batch_bytes=1)
    await writer.append([b"open"])
    before = {key.split("/")[1] for key in await keys_in(inner, "epoch/")}

    gate.is_shut = True
    for _ in range(5):
        assert await outcome_of(writer.append([b"no"])) is Outcome.NOT_APPLIED
    gate.is_shut = False
    assert await writer.append([b"yes"]) == 2
    await writer.close()

    assert {key.split("/")[1] for key in await keys_in(inner, "epoch/")} == before
    assert await contents(SLOTS, inner) == {1: b"open", 2: b"yes"}


async def test_what_lies_past_a_refused_batch_is_sent_again() -> None:
    """Batches sent after a refused one are sent again. Their appends get the new positions."""
    gate = Gate("epoch/", StoreRefused("denied for this object"))
    passed: list[str] = []

    async def before(op: str, key: str) -> None:
        if op == "put" and key.startswith("epoch/") and gate.is_shut:
            gate.is_shut = False
            await until(lambda: len(passed) >= 2)
            raise StoreRefused("denied for this object")
        if op == "put" and key.startswith("epoch/"):
            passed.append(key)

    inner = await slot_store()
    writer = slot_writer(InterposedStore(inner, before=before), batch_bytes=1)
    await writer.append([b"open"])
    passed.clear()

    gate.is_shut = True
    async with within():
        told = await asyncio.gather(
            *(writer.append([b"%d" % n]) for n in range(4)), return_exceptions=True
        )
        await writer.close()

    assert isinstance(told[0], StoreRefused)
    assert told[1:] == [2, 3, 4]
    assert await contents(SLOTS, inner) == {1: b"open", 2: b"1", 3: b"2", 4: b"3"}


async def test_a_conflict_over_a_slot_is_no_answer() -> None:
    """A conflict over a slot is retried. It ends neither the writer nor other puts in flight."""
    store = InterposedStore(inner := MemoryStore(), before=(gate := Gate("epoch/")))
    await make_slots(inner)
    writer = slot_writer(store, batch_bytes=1)
    await writer.append([b"open"])

    gate.error, gate.is_shut = ContentionError("busy"), True

    async def relent() -> None:
        await until(lambda: gate.met > 0)
        gate.is_shut = False

    async with within():
        told, _ = await asyncio.gather(
            asyncio.gather(*(writer.append([b"%d" % n]) for n in range(9))), relent()
        )
        await writer.close()

    assert told == list(range(2, 11))
    assert len(await contents(SLOTS, inner)) == 10


async def test_an_append_next_to_a_foreign_object_is_unknown() -> None:
    """An append next to a foreign object reports UNKNOWN, because its put may still land."""
    hold = asyncio.Event()

    async def after(op: str, key: str) -> None:
        if op == "put" and key.endswith("2.parquet"):
            await hold.wait()

    inner = await slot_store()
    writer = slot_writer(InterposedStore(inner, after=after), batch_bytes=1)
    await writer.append([b"one"])
    assert writer._pipeline is not None
    await inner.put(writer._pipeline.epoch.path(3), b"not ours")

    calls = [asyncio.create_task(writer.append([body])) for body in (b"two", b"three")]
    async with within():
        told = await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(CorruptionError, match="move it away"):
            await writer.close()

    assert [type(one) for one in told] == [CorruptionError, CorruptionError]
    assert isinstance(told[0], TidelogError)
    assert told[0].outcome is Outcome.UNKNOWN


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of a local object, like a process that was stopped while it held it."""
    while True:
        held = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(held, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), os.stat(path)):
                break
        os.close(held)  # The last owner deleted the file.
    try:
        yield
    finally:
        os.unlink(path)
        os.close(held)


async def test_a_stopped_process_with_a_lock_only_delays_appends(tmp_path: Path) -> None:
    """A process stopped with a lock delays appends; after its release no record is lost."""
    store = LocalStore(tmp_path, clock=CLOCK)
    await make_slots(store)
    writer = impatient(store)
    await writer.append([b"open"])

    with locked(store._disk._lock_path(MANIFEST)):
        async with within():
            told = await asyncio.gather(
                *(writer.append([b"%d" % n]) for n in range(40)), return_exceptions=True
            )
    refused = [one for one in told if not isinstance(one, int)]
    assert refused
    for one in refused:
        assert isinstance(one, LocationError)
        assert one.outcome is Outcome.NOT_APPLIED
    last = 0
    async with within():
        while not last:
            # On a busy machine this short patience may end before anything is sent.
            with suppress(LocationError):
                last = await writer.append([b"again"])
        await writer.close()
    found = await contents(SLOTS, store)
    assert found[last] == b"again"
    assert len(found) == 2 + len(told) - len(refused)


async def test_the_cost_of_an_append_does_not_depend_on_waiting_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cost of an append does not depend on the number of waiting appends."""
    counts = []
    loop = asyncio.get_running_loop()
    real, calls = loop.call_soon, 0

    def counted(*args: object, **options: object) -> asyncio.Handle:
        nonlocal calls
        calls += 1
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon", counted)
    for count in (50, 400):
        store = await slot_store()
        async with slot_writer(store, batch_bytes=200, pending_bytes=200) as writer:
            await writer.append([b"open"])
            calls = 0
            await asyncio.gather(*(writer.append([b"x" * 16]) for _ in range(count)))
            counts.append(calls / count)

    assert counts[1] < 2 * counts[0] + 10


async def test_an_append_that_waits_for_room_can_be_given_up() -> None:
    """An append that waits for room can be cancelled. It is not written, and later appends are."""
    hold = Hold("put", "2.parquet")
    inner = await slot_store()
    store = InterposedStore(inner, before=hold)
    writer = slot_writer(store, alpha=1, batch_bytes=1, pending_bytes=1)
    await writer.append([b"one"])
    calls = [asyncio.create_task(writer.append([b"%d" % n])) for n in range(4)]
    await hold.met.wait()
    calls[2].cancel()
    hold.go_on.set()
    async with within():
        told = await asyncio.gather(*calls, return_exceptions=True)
        await writer.close()

    assert told[:2] == [2, 3]
    assert told[3] == 4
    assert list((await contents(SLOTS, inner)).values()) == [b"one", b"0", b"1", b"3"]
