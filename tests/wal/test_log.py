"""Logs of both protocols: an acknowledged record exists once, at its reported position."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from kit.protocols import CLOCK, KINDS, Kind, Writer, contents
from tidelog.errors import BusyError, HandleError, LocationError, NoSuchLog, Outcome, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.testing import Fault, FaultyStore
from tidelog.testing.faulty import Request

pytestmark = pytest.mark.parametrize("kind", KINDS, ids=str)


async def opened(kind: Kind, store: Store, **options: Any) -> Writer:
    await kind.make(store)
    writer: Writer = kind.writer(store, **options)
    return writer


async def test_records_stand_where_they_were_said_to(kind: Kind) -> None:
    """Records are at their reported positions after rollovers, empty bodies and reopens."""
    store = MemoryStore()
    wanted: dict[int, bytes] = {}
    for life in range(3):
        async with await opened(kind, store) as writer:
            for number in range(12):
                bodies = [b"%d-%d-%d" % (life, number, n) for n in range(number % 4)] + [b""]
                first = await writer.append(bodies)
                wanted |= dict(enumerate(bodies, first))
    assert await contents(kind, store) == wanted
    assert min(wanted) == 1
    assert max(wanted) == len(wanted)


async def test_appends_at_once_share_fragments(kind: Kind) -> None:
    """Concurrent appends share fragments: one request for each costs a hundred times more."""
    store = MeteringStore(MemoryStore(), clock=CLOCK)
    async with await opened(kind, store) as writer:
        before = store.usage().put_count
        firsts = await asyncio.gather(*(writer.append([b"%d" % n]) for n in range(300)))
        assert store.usage().put_count - before < 20
    found = await contents(kind, store)
    assert {first: found[first] for first in firsts} == {
        first: b"%d" % n for n, first in enumerate(firsts)
    }
    assert sorted(firsts) == list(range(1, 301))


@pytest.mark.parametrize("seed", range(12))
async def test_lost_answers_neither_lose_nor_double_a_record(kind: Kind, seed: int) -> None:
    """A record is stored once if acknowledged, never if refused, at most once if in doubt."""
    dice = random.Random(seed)
    inner = MemoryStore()

    def toss(request: Request) -> Fault:
        if not request.changes or dice.random() > 0.3:
            return Fault()
        return Fault(happened=dice.random() < 0.5, told=dice.random() < 0.3)

    async with await opened(kind, inner):
        pass
    writer = kind.writer(FaultyStore(inner, toss=toss))
    said: dict[bytes, int | Outcome] = {}
    for number in range(20):
        body = b"%d" % number
        try:
            said[body] = await writer.append([body])
        except LocationError as error:
            said[body] = error.outcome
    await writer.close()
    await kind.settle(inner)
    found = await contents(kind, inner)
    bodies = list(found.values())
    assert len(set(bodies)) == len(bodies), "a record is there twice"
    for body, answer in said.items():
        if isinstance(answer, int):
            assert found[answer] == body
        elif answer is Outcome.NOT_APPLIED:
            assert body not in bodies


async def test_to_stop_waiting_is_not_to_stop_writing(kind: Kind) -> None:
    """A cancelled caller does not stop its write, which runs in a task of the log."""
    store = MemoryStore()
    async with await opened(kind, store) as writer:
        waiting = asyncio.create_task(writer.append([b"one"]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        assert await writer.append([b"two"]) == 2
    assert await contents(kind, store) == {1: b"one", 2: b"two"}


async def test_a_closing_writer_answers_pending_appends_first(kind: Kind) -> None:
    """A closing writer answers all pending appends first, and refuses later ones."""
    store = MemoryStore()
    writer = await opened(kind, store)
    waiting = [asyncio.create_task(writer.append([b"x"])) for _ in range(50)]
    await asyncio.sleep(0)
    await writer.close()
    assert sorted(await asyncio.gather(*waiting)) == list(range(1, 51))
    with pytest.raises(HandleError):
        await writer.append([b"late"])


async def test_memory_is_bounded(kind: Kind) -> None:
    """Pending appends have bounded memory: further appends wait or raise BusyError."""
    store = MemoryStore()
    async with await opened(kind, store, pending_bytes=4_000, batch_bytes=1_000) as writer:
        waiting = [asyncio.create_task(writer.append([b"x" * 900])) for _ in range(40)]
        for _ in range(3):
            await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await writer.append([b"x" * 900], wait=False)
        await asyncio.gather(*waiting)
    assert len(await contents(kind, store)) == 40


async def test_a_burst_and_then_silence_is_all_acknowledged(kind: Kind) -> None:
    """A burst before a silence is acknowledged whole; wal3's own writer delays a part."""
    store = MemoryStore()
    async with await opened(kind, store, batch_bytes=100) as writer:
        for _ in range(250):
            burst = (writer.append([b"x" * 60]) for _ in range(4))
            async with asyncio.timeout(5):
                await asyncio.gather(*burst)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda w: w.append([]), UsageError),
        (lambda w: w.append_arrow(pa.array([b"x", None], pa.binary())), UsageError),
        (lambda w: w.append([b"x" * (64 * 1024 * 1024 + 1)]), UsageError),
    ],
    ids=["empty", "null", "large"],
)
async def test_what_is_no_append_is_refused(
    kind: Kind, call: Callable[[Writer], Awaitable[int]], error: type[Exception]
) -> None:
    """A wrong append raises UsageError before any request."""
    store = MeteringStore(MemoryStore(), clock=CLOCK)
    writer = kind.writer(store)
    with pytest.raises(error):
        await call(writer)
    assert store.usage().requests_count == 0


async def test_to_open_makes_no_log_unless_asked(kind: Kind) -> None:
    """A read or an append creates no log, because a mistyped name must not become one."""
    store = MemoryStore()
    with pytest.raises(NoSuchLog):
        await kind.settle(store)
    with pytest.raises(NoSuchLog):
        await kind.writer(store).append([b"x"])
    assert [entry async for entry in store.list("")] == []


async def test_a_log_is_not_opened_by_the_other_protocol(kind: Kind) -> None:
    """A log refuses the other protocol before any write."""
    other = KINDS[1 - KINDS.index(kind)]
    store = MemoryStore()
    async with await opened(kind, store) as writer:
        await writer.append([b"one"])
    before = {key: found.data for key, found in store.objects.items()}
    with pytest.raises(UsageError, match=f"this log uses the {kind.name} protocol"):
        await other.writer(store).append([b"two"])
    with pytest.raises(UsageError, match=f"this log uses the {kind.name} protocol"):
        await other.settle(store)
    with pytest.raises(UsageError, match=f"this log uses the {kind.name} protocol"):
        await other.scrub(store)
    with pytest.raises(UsageError, match=f"this log uses the {kind.name} protocol"):
        _ = [table async for table in other.reader(store).scan()]
    assert {key: found.data for key, found in store.objects.items()} == before
