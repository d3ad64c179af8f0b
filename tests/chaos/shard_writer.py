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

import pyarrow as pa

from tidelog.consensus.kinds import open_consensus, parse_consensus
from tidelog.consensus.port import Consensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import ShardId
from tidelog.errors import HoldExpired, LocationError, Outcome, ReadOvertaken
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


class Worker:
    """The work of one process, with its own dice."""

    def __init__(self, store_url: str, consensus_url: str, location: str, name: str) -> None:
        self.name = name
        self.dice = random.Random(name)
        self.clock = WrongClock()
        store, consensus = opened(store_url, consensus_url, location, self.clock)
        self.shard = Shard(
            id=ShardId("s"), store=store, consensus=consensus, clock=self.clock, schema=SCHEMA
        )
        self.shard.machine.rollup_every = 8
        self.upper = 0
        self.leased: LeasedReader | None = None

    async def work(self) -> None:
        for number in range(1_000_000):
            self.clock.off_us = self.dice.choice([-HOUR_US, 0, HOUR_US])
            toss = self.dice.random()
            try:
                if toss < 0.75:
                    await self.write(number)
                elif toss < 0.87:
                    await self.read()
                else:
                    await self.keep(self.dice.choice(["compact", "collect", "sweep", "leases"]))
            except (LocationError, ReadOvertaken):
                await asyncio.sleep(0.05)

    async def write(self, number: int) -> None:
        """Append one row at the last seen upper.

        In half of the cases, retry until the result is known.
        """
        shard, lower = self.shard, self.upper
        value = f"{self.name} {number}"
        # Some rows are parts of their own, and most are stored in the state.
        padded = value + " " * self.dice.choice([0, 0, 0, 5_000])
        row = {"c0": padded, "c1": lower, "_time": lower, "_diff": 1}
        table = pa.Table.from_pylist([row], schema=SCHEMA.updates)
        insists = self.dice.random() < 0.5
        say("begins", value, lower)
        while True:
            try:
                done = await shard.try_compare_and_append(
                    table, lower, lower + 1, token=(self.name, number)
                )
            except LocationError as error:
                if insists:
                    await asyncio.sleep(0.05)
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
        found = [
            [at + 1, text.rstrip()]
            for text, at, diff in zip(
                *(table.column(name).to_pylist() for name in ("c0", "c1", "_diff")), strict=True
            )
            for _ in range(diff)
        ]
        say("read", begun, sorted(found))

    async def keep(self, what: str) -> None:
        if what == "compact":
            await self.shard.compact(full=self.dice.random() < 0.3)
        elif what == "collect":
            await self.shard.collect(after_us=0)
        elif what == "sweep":
            await self.shard.sweep()
        else:
            await self.shard.end_leases()


if __name__ == "__main__":
    asyncio.run(Worker(*sys.argv[1:5]).work())
