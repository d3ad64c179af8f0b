"""One of many workers on a shard, as a separate process: it writes, reads, merges and sweeps.

Each printed line is a JSON list: the call that begins, its result, and the time. Times are of the
machine's monotonic clock, which all processes share. The wall clock of the process is wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from tidelog.consensus.kinds import open_consensus, parse_consensus
from tidelog.consensus.port import Consensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import ShardId
from tidelog.errors import HoldExpired, LocationError, Outcome, ReadOvertaken, TidelogError
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.handle.leasing import LeasedReader
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import Verdict
from tidelog.store.port import Store
from tidelog.store.urls import open_store

COLUMNS: list[tuple[str, pa.DataType]] = [("c0", pa.string()), ("c1", pa.int64())]
SCHEMA = shard_schema(pa.schema(COLUMNS), key=["c0"])
LEASE_US = 400_000
HOUR_US = 3_600_000_000
PAUSE_S = 0.05


class WrongClock(SystemClock):
    """A host's clock that is wrong, and changes from time to time."""

    off_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.off_us


def say(*what: object) -> None:
    print(json.dumps([*what, time.monotonic()]), flush=True)


def opened(
    store_url: str, consensus_url: str, location: str, clock: SystemClock
) -> tuple[Store, Consensus]:
    store = open_store(store_url, clock=clock, create=True)
    place = parse_consensus(consensus_url)
    return store, open_consensus(place, location=location, store=store, clock=clock)


class Actor(ABC):
    """A process with its own dice and a wrong wall clock, which works until it is killed."""

    retried: tuple[type[TidelogError], ...] = (LocationError, ReadOvertaken)

    def __init__(self, store_url: str, consensus_url: str, location: str, name: str) -> None:
        self.name = name
        self.dice = random.Random(name)
        self.clock = WrongClock()
        self.store, self.consensus = opened(store_url, consensus_url, location, self.clock)
        self.upper = 0

    def shard_named(self, name: str) -> Shard:
        return Shard(
            id=ShardId(name),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            schema=SCHEMA,
        )

    async def work(self) -> None:
        for number in range(1_000_000):
            self.clock.off_us = self.dice.choice([-HOUR_US, 0, HOUR_US])
            try:
                await self.step(number, self.dice.random())
            except self.retried:
                await asyncio.sleep(PAUSE_S)

    @abstractmethod
    async def step(self, number: int, toss: float) -> None:
        """Do the step that the toss of a coin selects; ``number`` counts the steps."""

    def row(self, value: str, lower: int, paddings: list[int]) -> pa.Table:
        """Return a row as a table. Some rows are parts of their own, most are in the state."""
        padded = value + " " * self.dice.choice(paddings)
        row = {"c0": padded, "c1": lower, "_time": lower, "_diff": 1}
        return pa.Table.from_pylist([row], schema=SCHEMA.updates)

    async def keep(self, shard: Shard, what: str) -> None:
        """Compact, collect or sweep a shard."""
        if what == "compact":
            await shard.compact(full=self.dice.random() < 0.3)
        elif what == "collect":
            await shard.collect(after_us=0)
        else:
            await shard.sweep()


class Worker(Actor):
    """An actor on one shard."""

    def __init__(self, *addresses: str) -> None:
        super().__init__(*addresses)
        self.shard = self.shard_named("s")
        self.shard.machine.rollup_every = 8
        self.leased: LeasedReader | None = None

    async def step(self, number: int, toss: float) -> None:
        if toss < 0.75:
            await self.write(number)
        elif toss < 0.87:
            await self.read()
        elif (what := self.dice.choice(["compact", "collect", "sweep", "leases"])) == "leases":
            await self.shard.end_leases()
        else:
            await self.keep(self.shard, what)

    async def write(self, number: int) -> None:
        """Append one row at the last seen upper; retry half of the appends until the result."""
        shard, lower = self.shard, self.upper
        value = f"{self.name} {number}"
        table = self.row(value, lower, [0, 0, 0, 5_000])
        insists = self.dice.random() < 0.5
        say("begins", value, lower)
        while True:
            try:
                done = await shard.try_compare_and_append(
                    table, lower, lower + 1, token=(self.name, number)
                )
            except LocationError as error:
                if insists:
                    await asyncio.sleep(PAUSE_S)
                    continue
                never = error.outcome is Outcome.NOT_APPLIED
                say("never" if never else "unsure", value, lower)
                return
            break
        say("lost" if done.verdict is Verdict.MISMATCH else "landed", value, lower)
        self.upper = done.upper.time

    async def read(self) -> None:
        """Read all rows under a lease, and take a new lease if the old one is over."""
        begun = time.monotonic()
        try:
            if self.leased is None:
                self.leased = await self.shard.lease(lease_us=LEASE_US)
            upper = (await self.shard.upper()).time
            if not upper:
                return
            table = await (await self.leased.snapshot(upper - 1)).to_arrow()
        except HoldExpired:
            self.leased = None
            say("expired", self.name)
            return
        self.upper = upper
        say("read", begun, sorted([at + 1, text] for at, text in rows_of(table)))


def rows_of(table: pa.Table) -> list[tuple[int, str]]:
    """Return each row of a snapshot as often as it counts: its time and its writer."""
    columns: Any = [table.column(name).to_pylist() for name in ("c1", "c0", "_diff")]
    return [
        (at, text.rstrip()) for at, text, diff in zip(*columns, strict=True) for _ in range(diff)
    ]


if __name__ == "__main__":
    asyncio.run(Worker(*sys.argv[1:5]).work())
