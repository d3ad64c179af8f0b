"""Scenarios T57 to T59: paused processes, contention, and backends that are away for a while."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import pytest

from kit.places import Addresses
from kit.shards import COMMITTED, Place, contents, in_memory, rows
from kit.stores import InterposedStore
from tidelog.consensus.port import Consensus, KeyRecord
from tidelog.core.ids import SeqNo
from tidelog.errors import LocationError, Outcome
from tidelog.store.port import Store

WRITER = """
import asyncio, os, signal, sys
from contextlib import nullcontext
import pyarrow as pa
from tidelog.core.clock import SystemClock
from tidelog.consensus.kinds import open_consensus, parse_consensus
from tidelog.errors import HoldExpired
from tidelog.core.ids import ShardId
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.store.urls import open_store

SCHEMA = shard_schema(pa.schema([("c0", pa.string()), ("c1", pa.int64())]), key=["c0"])

async def main():
    clock, name = SystemClock(), sys.argv[4]
    store = open_store(sys.argv[1], clock=clock, create=True)
    place = parse_consensus(sys.argv[2])
    consensus = open_consensus(place, location=sys.argv[3], store=store, clock=clock)

    def pause(*told):
        # Between statements: who stops within one holds the lock of SQLite's file, and all writers.
        database = getattr(consensus, "database", None)
        with nullcontext() if database is None else database._lock:
            os.kill(os.getpid(), signal.SIGSTOP)

    signal.signal(signal.SIGUSR1, pause)
    shard = Shard(id=ShardId("s"), store=store, consensus=consensus, clock=clock, schema=SCHEMA)
    upper = (await shard.upper()).time
    reader = await shard.lease(lease_us=int(sys.argv[5]))
    for number in range(10_000):
        row = {"c0": name, "c1": number, "_time": upper, "_diff": 1}
        while True:
            table = pa.Table.from_pylist([{**row, "_time": upper}], schema=SCHEMA.updates)
            done = await shard.try_compare_and_append(table, upper, upper + 1)
            upper = done.upper.time
            if done.verdict.value == "committed":
                break
        print("wrote", number, flush=True)
        try:
            await reader.renew()
        except HoldExpired:
            print("expired", number, flush=True)
            reader = await shard.lease(lease_us=int(sys.argv[5]))

asyncio.run(main())
"""


def started(where: Addresses, name: str, *, lease_us: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *where.arguments, name, str(lease_us)],
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str], what: str, *, count: int = 1) -> list[int]:
    """Return the numbers of the next ``count`` lines that start with ``what``."""
    found: list[int] = []
    assert process.stdout is not None
    for line in process.stdout:
        word, number = line.split()
        if word == what:
            found.append(int(number))
        if len(found) == count:
            return found
    raise AssertionError("a writer ended by itself")


def test_t57_a_paused_writer_delays_no_other(
    shared: tuple[Place, Addresses],
) -> None:
    """Other writers end its lease. It then gets HoldExpired and loses nothing."""
    place, where = shared
    asyncio.run(place.shard().hold("history", 0))
    sleeper, other = (started(where, name, lease_us=300_000) for name in ("sleeper", "other"))
    try:
        said(sleeper, "wrote", count=2)
        said(other, "wrote", count=2)
        os.kill(sleeper.pid, signal.SIGUSR1)
        os.waitpid(sleeper.pid, os.WUNTRACED)
        said(other, "wrote", count=3)

        async def watch() -> int:
            watcher, ended = place.shard(), 0
            until = time.monotonic() + 20
            while not ended and time.monotonic() < until:
                ended += await watcher.end_leases()
                # The watcher's clock does not really sleep, so the test repeats the look itself.
                await asyncio.sleep(0.1)
            return ended

        assert asyncio.run(watch()) >= 1
        os.kill(sleeper.pid, signal.SIGCONT)
        said(sleeper, "expired")
        said(sleeper, "wrote", count=2)
    finally:
        for process in (sleeper, other):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    async def read() -> Counter[tuple[object, ...]]:
        reader = place.shard()
        upper = await reader.upper()
        return Counter(await contents(reader, upper.time - 1))

    found = asyncio.run(read())
    assert set(found.values()) == {1}
    for name in ("sleeper", "other"):
        numbers = sorted(int(str(row[1])) for row in found if row[0] == name)
        assert numbers == [*range(len(numbers))], "one is missing, or is there twice"
        assert len(numbers) >= 4


async def test_t58_of_contenders_one_wins_each_round(place: Place) -> None:
    """Each round has exactly one winner, so no contender waits for another."""
    contenders, each = 5, 4
    wins: Counter[int] = Counter()
    shards = [place.shard() for _ in range(contenders)]
    upper = 0
    while sum(wins.values()) < contenders * each:
        waiting = [n for n in range(contenders) if wins[n] < each]
        told = await asyncio.gather(
            *(
                shards[n].try_compare_and_append(
                    rows((f"w{n}", wins[n], upper, 1)), upper, upper + 1
                )
                for n in waiting
            )
        )
        won = [n for n, done in zip(waiting, told, strict=True) if done.verdict is COMMITTED]
        assert len(won) == 1, "at least one, and no two"
        wins[won[0]] += 1
        upper += 1
    found = await contents(place.shard(), upper - 1)
    assert found == {(f"w{n}", i): 1 for n in range(contenders) for i in range(each)}


class Outage:
    """A switch for backends: while it is on, requests fail with an unknown outcome."""

    def __init__(self) -> None:
        self.store = self.consensus = False
        self.failed = 0

    def check(self, is_away: bool) -> None:
        if is_away:
            self.failed += 1
            raise LocationError("it is away", outcome=Outcome.UNKNOWN)

    def over(self, store: Store) -> InterposedStore:
        async def before(_op: str, key: str) -> None:
            self.check(self.consensus if key.startswith("consensus") else self.store)

        return InterposedStore(store, before=before)

    def around(self, inner: Consensus) -> Consensus:
        outage = self

        class SwitchedConsensus:
            """A consensus that fails while the switch is on."""

            truncate, list_keys = staticmethod(inner.truncate), staticmethod(inner.list_keys)
            head = staticmethod(inner.head)

            async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> object:
                outage.check(outage.consensus)
                return await inner.scan(key, start, limit)

            async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
                outage.check(outage.consensus)
                return await inner.compare_and_set_all(records)

        return SwitchedConsensus()  # type: ignore[return-value]


@pytest.mark.parametrize("away", ["store", "consensus", "both"])
async def test_t59_backends_come_back_and_all_handles_go_on(place: Place, away: str) -> None:
    """Calls fail only with an error of the store, and all handles work afterwards."""
    outage = Outage()
    shard = place.shard(
        store=outage.over(place.store), consensus=outage.around(place.consensus(place.store))
    )
    await shard.hold("history", 0)
    many = [(f"k{n}", n, 0, 1) for n in range(700)]
    assert (await shard.compare_and_append(rows(*many), 0, 1)).verdict is COMMITTED
    reader = await shard.lease(lease_us=2**50)
    for number in range(1, 4):
        later = rows(*[(f"{number} {n}", n, number, 1) for n in range(700)])
        append = partial(shard.compare_and_append, later, number, number + 1, token=("w", number))
        reads = partial(shard.snapshot, number - 1)
        outage.store, outage.consensus = away != "consensus", away != "store"
        calls: list[Callable[[], Awaitable[object]]] = [reads, shard.compact, reader.renew]
        with pytest.raises(LocationError):
            await append()
        for call in calls:
            with suppress(LocationError):  # Only a store error is expected.
                await call()
        outage.store = outage.consensus = False
        assert (await append()).verdict is COMMITTED
        await reader.renew()
    assert outage.failed >= 3
    await shard.compact(full=True)
    assert sum((await contents(place.shard(), 3)).values()) == 4 * 700
    await reader.close()


async def test_t59_a_listener_goes_on_after_an_outage() -> None:
    """A listener from the last position misses nothing: the error is that of one call."""
    outage, place = Outage(), in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1), ("b", 1, 1, 1)), 0, 2)
    listening = place.shard(consensus=outage.around(place.consensus()))
    heard, reached = [], 0
    for upper in (2, 4, 6):
        outage.consensus = True
        with pytest.raises(LocationError):
            await anext(aiter(listening.listen(reached)))
        outage.consensus = False
        async for progress in listening.listen(reached):
            heard.extend(progress.updates.column("_time").to_pylist())
            reached = progress.upper.time - 1
            break
        await shard.compare_and_append(rows(("c", upper, upper, 1)), upper, upper + 2)
    assert heard == [1, 2, 4]
