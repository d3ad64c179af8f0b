"""Undurable appends: visibility before they are durable, and loss in a takeover."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kit.keyed_engine import FAST, keyed_logs, rows_of
from kit.stores import Hold, InterposedStore
from tidelog.consensus.memory import MemoryConsensus
from tidelog.errors import Fenced, HandleError, TidelogError
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store


@pytest.fixture
def shared() -> tuple[Store, MemoryConsensus]:
    return MemoryStore(), MemoryConsensus()


def logs_by(shared: tuple[Store, MemoryConsensus], before: Hold | None = None) -> KeyedLogs:
    """Return the keyed logs as another process opens them."""
    store, consensus = shared
    logs = keyed_logs(store if before is None else InterposedStore(store, before=before))
    return KeyedLogs(store=logs.store, consensus=consensus, clock=logs.clock, writer="one of many")


async def writer_behind_a_gate(shared: tuple[Store, MemoryConsensus]) -> tuple[KeyedLog, Hold]:
    """Return a writer of one record, and a closed gate that holds its later puts of records."""
    gate = Hold("put", "/epoch/", is_open=True)
    await logs_by(shared).create("log")
    log = await logs_by(shared, gate).open("log", batching=FAST)
    assert await log.append([(b"k", b"sure")]) == 1
    gate.go_on.clear()
    gate.met.clear()
    return log, gate


async def test_a_sequence_that_was_not_durable_is_given_again(
    shared: tuple[Store, MemoryConsensus],
) -> None:
    """After a takeover, a lost sequence is assigned again; the old flush raises Fenced."""
    old, gate = await writer_behind_a_gate(shared)
    told = await old.append([(b"k", b"not sure")], durable=False)
    assert (await rows_of(old.scan(b"k")))[-1][1:][0] == told == 2
    new = await logs_by(shared).open("log", batching=FAST)
    assert await new.append([(b"k", b"another")]) == 2
    gate.go_on.set()

    with pytest.raises(Fenced):
        await old.flush()
    for log in (old, new):
        assert [row[3] for row in await rows_of(log.scan(b"k"))] == [b"sure", b"another"]
    assert await old.flush() == 3  # The loss was reported by the first flush.
    await new.close()


async def test_nothing_that_was_only_ordered_outlives_its_process(
    shared: tuple[Store, MemoryConsensus],
) -> None:
    """Only the handle that appended a record reads it before it is durable."""
    log, _ = await writer_behind_a_gate(shared)
    await log.append([(b"k", b"lost")], durable=False)
    reader = await logs_by(shared).reader("log", refresh_us=0)

    assert len(await rows_of(log.scan(b"k"))) == 2
    assert await log.next_sequence() == 3
    assert await log.durable_sequence() == 2
    assert len(await rows_of(reader.scan(b"k"))) == 1
    assert await reader.next_sequence() == 2


async def test_a_durable_append_that_is_taken_over_is_told_so(
    shared: tuple[Store, MemoryConsensus],
) -> None:
    """A durable append lost in a takeover raises Fenced with NOT_APPLIED."""
    old, gate = await writer_behind_a_gate(shared)
    late = asyncio.create_task(old.append([(b"k", b"never")]))
    await gate.met.wait()
    new = await logs_by(shared).open("log", batching=FAST)
    await new.append([(b"k", b"2")])
    gate.go_on.set()

    with pytest.raises(Fenced) as told:
        await late
    assert told.value.outcome.value == "not_applied"
    assert [row[3] for row in await rows_of(new.scan(b"k"))] == [b"sure", b"2"]
    await new.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.append([(b"k", b"v")]),
        lambda log: log.scan(b"k").to_arrow(),
        lambda log: log.count(b"k"),
        lambda log: log.compact(),
        lambda log: log.seal(),
        lambda log: log.create_checkpoint("c"),
    ],
)
async def test_a_handle_that_was_closed_says_so(
    shared: tuple[Store, MemoryConsensus], call: Callable[..., Awaitable[object]]
) -> None:
    """Every call of a closed handle raises HandleError."""
    log = await logs_by(shared).create("log")
    await log.append([(b"k", b"v")])
    await log.close()
    await log.close()

    with pytest.raises(HandleError):
        await call(log)


async def test_what_was_ordered_is_durable_once_the_handle_is_closed(
    shared: tuple[Store, MemoryConsensus],
) -> None:
    """Closing a handle waits until all its appends are durable."""
    log = await logs_by(shared).create("log")
    for number in range(5):
        await log.append([(b"k", b"%d" % number)], durable=False)
    await log.close()

    reader = await logs_by(shared).reader("log")
    assert [row[3] for row in await rows_of(reader.scan(b"k"))] == [b"0", b"1", b"2", b"3", b"4"]


async def test_appends_continue_if_maintenance_fails(
    shared: tuple[Store, MemoryConsensus],
) -> None:
    """Appends continue while maintenance fails. A later attempt succeeds, and no record is lost."""
    failing = [True]

    class Down(TidelogError):
        pass

    async def before(op: str, key: str) -> None:
        if failing[0] and op == "put" and key.startswith("keyed/log/run/"):
            raise Down("no run can be written")

    store, consensus = shared
    logs = KeyedLogs(
        store=InterposedStore(store, before=before),
        consensus=consensus,
        clock=keyed_logs().clock,
        writer="w",
    )
    log = await logs.create("log")
    for number in range(40):
        await log.append([(b"k", b"%d" % number)])
    assert (await log.describe()).runs == 0
    failing[0] = False
    for number in range(40, 80):
        await log.append([(b"k", b"%d" % number)])
    await log.close()

    reader = await logs_by(shared).reader("log")
    assert (await reader.describe()).runs >= 1
    assert [row[3] for row in await rows_of(reader.scan(b"k"))] == [b"%d" % n for n in range(80)]
