"""Followers share their requests to the store, whatever their number and keys."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from kit.keyed_engine import keyed_logs, opened_log, until
from tidelog.core.clock import SystemClock
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.reader import KeyedReader
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import DelayedStore
from tidelog.testing.recorded import RecordedStore

FOLLOWERS = 300


async def _asked(keys: int) -> tuple[int, int]:
    """Return the number of requests to start following, and of objects that an append costs."""
    seen = RecordedStore(MemoryStore())
    logs = keyed_logs(seen)
    log = await opened_log(logs)
    names = [b"%06d" % number for number in range(keys)]
    for at in range(0, keys, 500):
        await log.append([(name, b"old") for name in names[at : at + 500]])
    theirs = RecordedStore(seen._store)
    reader = await KeyedLogs(
        store=theirs, consensus=logs.consensus, clock=logs.clock, writer="reader"
    ).reader("log")
    got: Counter[int] = Counter()
    followed = [names[n * keys // FOLLOWERS] for n in range(FOLLOWERS)]
    tasks = [asyncio.create_task(_follow(reader, followed[n], n, got)) for n in range(FOLLOWERS)]
    await until(lambda: len(got) == FOLLOWERS)
    begun = len(theirs.records)
    await log.append([(name, b"new") for name in followed])
    await until(lambda: min(got.values()) == 2)
    found = [one for one in theirs.records if one.result != "ObjectNotFound"]
    before = {one.key for one in theirs.records[:begun] if one in found}
    # The follower that began last may still read old objects. The append does not cause these
    # reads.
    objects = {one.key for one in theirs.records[begun:] if one in found} - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await reader.close()
    await log.close()
    return begun, len([key for key in objects if key.endswith(".parquet")])


async def _follow(reader: KeyedReader, key: bytes, number: int, got: Counter[int]) -> None:
    async for table in reader.follow(key, start=0):
        values: list[Any] = table.column("value").to_pylist()
        got[number] += len(values)


async def test_what_followers_ask_for_does_not_depend_on_how_many_keys_there_are() -> None:
    """The number of keys increases only the fragments read at the start, and no later request."""
    few, costs_few = await _asked(500)
    many, costs_many = await _asked(5_000)

    assert many <= few + 5 * 10 < FOLLOWERS
    assert costs_few == costs_many == 1


async def test_concurrent_refreshes_share_one_look() -> None:
    """Concurrent refreshes share one look at the store, which begins after their calls."""
    clock = SystemClock()
    seen = RecordedStore(DelayedStore(MemoryStore(), clock=clock, delay_us=lambda *_: 2_000))
    logs = keyed_logs(seen)
    log = await opened_log(logs)
    await log.append([(b"k", b"1")])
    await log.close()
    reader = await logs.reader("log", refresh_us=0)
    before = len(seen.records)
    await reader.refresh()
    alone = len(seen.records) - before

    before = len(seen.records)
    found = await asyncio.gather(*(reader.refresh() for _ in range(100)))
    assert {*found} == {2}
    assert len(seen.records) - before <= 2 * alone
