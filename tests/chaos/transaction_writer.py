"""One of many workers that commit to several shards at once, as a separate process.

A transaction covers one time, and writes its name to each of its shards. One shard is forgotten and
registered repeatedly. For the printed lines see `chaos.shard_writer`.
"""

from __future__ import annotations

import asyncio
import sys
import time

from chaos.shard_writer import PAUSE_S, Actor, rows_of, say
from tidelog.errors import (
    ContentionError,
    DeadlineExceeded,
    LocationError,
    NotRegistered,
    Outcome,
    OutcomeUnknown,
    ReadOvertaken,
)
from tidelog.persist.states.transition import Verdict
from tidelog.persist.transactions.transactions import Transactions

ALWAYS = ("a", "b")
LOOSE = "loose"
NAME = "t"


class Committer(Actor):
    """An actor that commits to several shards."""

    retried = (LocationError, ContentionError, ReadOvertaken, OutcomeUnknown)

    def __init__(self, *addresses: str) -> None:
        super().__init__(*addresses)
        self.transactions = Transactions(
            name=NAME, store=self.store, consensus=self.consensus, clock=self.clock
        )
        self.transactions.machine.rollup_every = 8

    async def step(self, number: int, toss: float) -> None:
        if toss < 0.7:
            await self.commit(number)
        elif toss < 0.85:
            await self.look()
        elif (what := self.dice.choice(["compact", "collect", "sweep", "loose"])) != "loose":
            await self.keep(self.shard_named(self.dice.choice([*ALWAYS, LOOSE])), what)
        elif self.dice.random() < 0.3:
            await self.transactions.forget(LOOSE)
        else:
            await self.transactions.register(self.shard_named(LOOSE))

    async def commit(self, number: int) -> None:
        """Commit a row to some shards. In half of the cases, retry until the result is known."""
        lower, value = self.upper, f"{self.name} {number}"
        shards = {*self.dice.sample(ALWAYS, self.dice.choice([1, 2]))}
        shards.update(self.dice.choice([(), (LOOSE,)]))
        table = self.row(value, lower, [0, 0, 5_000])
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
        seen: dict[str, list[tuple[int, str]]] = {}
        for name in (*ALWAYS, LOOSE) if upper else ():
            by_itself = self.dice.random() < 0.3
            source = self.shard_named(name) if by_itself else None
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


if __name__ == "__main__":
    asyncio.run(Committer(*sys.argv[1:5]).work())
