"""Handles that are never closed: no task remains, and the event loop reports no error."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kit.clocks import SwiftClock
from tidelog.errors import HandleError, LogSealed
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log, open_log


def writers() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "wal writer"]


@asynccontextmanager
async def without_complaints() -> AsyncIterator[None]:
    """Fail if a writer's task remains after the body, or if the loop reported an error."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    yield
    async with asyncio.timeout(60):
        for _ in itertools.count():
            gc.collect()
            if not writers():
                break
            await asyncio.sleep(0)
    assert told == []


async def read(log: Log) -> list[Any]:
    return [body async for table in log.scan() for body in table["body"].to_pylist()]


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_a_handle_that_is_dropped_ends_its_task(protocol: str) -> None:
    """A dropped handle writes its pending appends, and then its task ends."""
    store, clock = MemoryStore(), SwiftClock()
    log = await create_log(store, name="x", clock=clock, writer="w", protocol=protocol)
    async with without_complaints():
        await log.append([b"one"])
        assert len(writers()) == 1
        call = asyncio.create_task(log.append([b"two"]))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        del log, call

    left = await open_log(store, name="x", clock=clock, writer="r")
    assert await read(left) == [b"one", b"two"]


async def test_a_log_that_is_sealed_keeps_no_task() -> None:
    """A sealed log keeps no task, with or without a close."""
    store, clock = MemoryStore(), SwiftClock()
    log = await create_log(store, name="x", clock=clock, writer="w")
    await (await open_log(store, name="x", clock=clock, writer="other")).seal()

    async with without_complaints():
        for _ in range(2):
            with pytest.raises(LogSealed):
                await log.append([b"late"])
    await log.close()


def test_a_log_that_another_loop_writes_says_so() -> None:
    """A call from another event loop raises HandleError and does not wait."""
    store, clock, ours = MemoryStore(), SwiftClock(), asyncio.new_event_loop()
    batching = Batching(patience_us=1_000_000)
    made = create_log(store, name="x", clock=clock, writer="w", batching=batching)
    log = ours.run_until_complete(made)
    ours.run_until_complete(log.append([b"one"]))

    with pytest.raises(HandleError, match="another event loop"):
        asyncio.run(asyncio.wait_for(log.append([b"two"]), 5))
    with pytest.raises(HandleError, match="another event loop"):
        asyncio.run(log.close())

    assert ours.run_until_complete(log.append([b"three"])) == 2
    ours.run_until_complete(log.close())
    ours.close()
