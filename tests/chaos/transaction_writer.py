"""One of many workers that commit to several shards at once, as a separate process.

A transaction covers one time, and writes its name to each of its shards. One shard is forgotten and
registered repeatedly. For the printed lines see `chaos.shard_writer`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

import pyarrow as pa

from chaos.shard_writer import HOUR_US, SCHEMA, WrongClock, opened, say
from tidelog.core.ids import ShardId
from tidelog.errors import (
    ContentionError,
    DeadlineExceeded,
    LocationError,
    NotRegistered,
    Outcome,
    OutcomeUnknown,
    ReadOvertaken,
)
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import Verdict
from tidelog.persist.transactions.transactions import Transactions

ALWAYS = ("a", "b")
LOOSE = "loose"
NAME = "t"
PAUSE_S = 0.05


class Committer:
    """The work of one process, with its own dice."""

    def __init__(self, store_url: str, consensus_url: str, location: str, name: str) -> None:
        self.name = name
        self.dice = random.Random(name)
        self.clock = WrongClock()
        self.store, self.consensus = opened(store_url, consensus_url, location, self.clock)
        self.transactions = Transactions(
            name=NAME, store=self.store, consensus=self.consensus, clock=self.clock
        )
        self.transactions.machine.rollup_every = 8
        self.upper = 0

    def shard(self, name: str) -> Shard:
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
            toss = self.dice.random()
            try:
                if toss < 0.7:
                    await self.commit(number)
                elif toss < 0.85:
                    await self.look()
                else:
                    await self.keep(self.dice.choice(["compact", "collect", "sweep", "loose"]))
            except (LocationError, ContentionError, ReadOvertaken, OutcomeUnknown):
                await asyncio.sleep(PAUSE_S)

    async def commit(self, number: int) -> None:
        """Commit a row to some shards. In half of the cases, retry until the result is known."""
        lower, value = self.upper, f"{self.name} {number}"
        shards = {*self.dice.sample(ALWAYS, self.dice.choice([1, 2]))}
        shards.update(self.dice.choice([(), (LOOSE,)]))
        # Some rows are parts of their own, and most are stored in the state.
        padded = value + " " * self.dice.choice([0, 0, 5_000])
        row = {"c0": padded, "c1": lower, "_time": lower, "_diff": 1}
        table = pa.Table.from_pylist([row], schema=SCHEMA.updates)
        insists, in_doubt = self.dice.random() < 0.5, False
        say("begins", value, lower, sorted(shards))
        while True:
            try:
                done = await self.transactions.try_compare_and_append(
                    dict.fromkeys(sorted(shards), table), lower, lower + 1, token=(value, 0)
                )
            except NotRegistered:
                say("never", value, lower)
                await self.transactions.refresh()
                self.upper = self.transactions.state.upper
                return
            except (LocationError, ContentionError) as error:
                in_doubt |= error.outcome is not Outcome.NOT_APPLIED
                if insists and not isinstance(error, OutcomeUnknown):
                    await asyncio.sleep(PAUSE_S)
                    continue
                say("unsure" if in_doubt else "never", value, lower)
                return
            break
        say("lost" if done.verdict is Verdict.MISMATCH else "landed", value, lower)
        self.upper = done.upper.time

    async def look(self) -> None:
        """Read all shards as of the newest complete time, directly or through the transactions."""
        begun = time.monotonic()
        upper = (await self.transactions.upper()).time
        self.upper = upper
        seen: dict[str, list[list[object]]] = {}
        for name in (*ALWAYS, LOOSE) if upper else ():
            by_itself = self.dice.random() < 0.3
            source = self.shard(name) if by_itself else None
            try:
                if source is not None:
                    snapshot = await source.snapshot(upper - 1, timeout_us=2_000_000)
                else:
                    snapshot = await self.transactions.snapshot(
                        name, upper - 1, timeout_us=2_000_000
                    )
            except (DeadlineExceeded, NotRegistered):
                if name in ALWAYS:
                    raise
                continue
            seen[name] = rows_of(await snapshot.to_arrow())
        say("read", begun, seen)

    async def keep(self, what: str) -> None:
        shard = self.shard(self.dice.choice([*ALWAYS, LOOSE]))
        if what == "compact":
            await shard.compact(full=self.dice.random() < 0.3)
        elif what == "collect":
            await shard.collect(after_us=0)
        elif what == "sweep":
            await shard.sweep()
        elif self.dice.random() < 0.3:
            await self.transactions.forget(LOOSE)
        else:
            await self.transactions.register(self.shard(LOOSE))


def rows_of(table: pa.Table) -> list[list[object]]:
    """Return each row of a snapshot as often as it counts: its time and its writer."""
    columns = [table.column(name).to_pylist() for name in ("c1", "c0", "_diff")]
    return [
        [at, text.rstrip()] for at, text, diff in zip(*columns, strict=True) for _ in range(diff)
    ]


if __name__ == "__main__":
    asyncio.run(Committer(*sys.argv[1:5]).work())
