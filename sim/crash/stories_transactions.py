"""The story of transactions: shards are registered, written, read, swept, and forgotten again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard
from sim.crash.points import VICTIM
from sim.crash.stories import TRIES, MarkedStory, T
from sim.kernel.world import Client, World
from sim.workloads.ingest import demand_same
from sim.workloads.shard import shard_of, table_of
from tidelog.errors import ContentionError, LocationError, ReadOvertaken
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import AppendResult, Verdict
from tidelog.persist.transactions.transactions import Transactions
from tidelog.testing.models import Update, accumulate, contents_of

FIRST: Final = {name: [Update((name, 1, None), 0, 1)] for name in "ab"}
SECOND: Final = {
    "a": [Update(("a", 1, None), 2, -1), Update(("a", 2, 0.5), 2, 1)],
    "b": [Update(("b", 2, None), 1, 1)],
}
THIRD: Final = {name: [Update((name, 4, None), 3, 1)] for name in "ab"}
FOURTH: Final = {"a": [Update(("a", 5, None), 4, 1)]}
ALL: Final = {
    name: [update for one in (FIRST, SECOND, THIRD, FOURTH) for update in one.get(name, [])]
    for name in "ab"
}
ALONE: Final = [Update(("b", 3, None), 5, 1)]


async def persist(client: Client, call: Callable[[], Awaitable[T]]) -> T:
    """Retry a call while the store fails or other clients win, as any caller would."""
    for _ in range(TRIES):
        try:
            return await call()
        except (LocationError, ContentionError, ReadOvertaken):
            await client.clock.sleep(10_000)
    raise AssertionError("the store fails for ever")


@dataclass(slots=True)
class TransactionStory(MarkedStory):
    """Transactions that an heir can repeat; another client reads, merges and sweeps at once."""

    name: str = "transactions"

    async def _play(self, world: World) -> None:
        beside = asyncio.create_task(self._beside(world.client("other")), name="other")
        await self._lived(world)
        await beside

    def _transactions(self, client: Client) -> Transactions:
        return Transactions(
            name="t", store=client.store, consensus=client.consensus, clock=client.clock
        )

    def _shard(self, client: Client, name: str) -> Shard:
        return shard_of(client, name)

    async def _live(self, client: Client) -> None:
        found, mark = self._transactions(client), partial(self.marks.begin, client=client)
        mark("registration")
        for name in "ab":
            await persist(client, partial(found.register, self._shard(client, name)))
        mark("transaction")
        for number, (updates, lower, upper) in enumerate(((FIRST, 0, 1), (SECOND, 1, 3))):
            tables = {name: table_of(rows) for name, rows in updates.items()}
            token = (VICTIM, number)
            commit = partial(found.try_compare_and_append, tables, lower, upper, token=token)
            done = await persist(client, commit)
            demand(done.verdict is not Verdict.MISMATCH, "a transaction was refused", done=done)
        await self._at_next_times(client, found)
        mark("read of what is not applied")
        await self._read(client, found, 4)
        mark("sweep")
        await persist(client, self._shard(client, "a").sweep)
        mark("forgetting")
        await persist(client, partial(found.forget, "b"))
        shard = self._shard(client, "b")
        write = partial(shard.try_compare_and_append, table_of(ALONE), 5, 6, token=(VICTIM, 9))
        done = await persist(client, write)
        demand(done.verdict is not Verdict.MISMATCH, "a shard was not its own again", done=done)
        await persist(client, found.tidy)

    async def _at_next_times(self, client: Client, found: Transactions) -> None:
        """Insert rows, and commit parts that were written before; a repetition changes nothing."""
        rows = {name: table_of(some).drop_columns(["_time"]) for name, some in THIRD.items()}
        insert = partial(found.insert, rows, at=3, token=(f"{VICTIM}-rows", 0))
        done = await persist(client, insert)
        demand(done.upper.time == 4, "a commit has another time", done=done)
        table = table_of(FOURTH["a"]).drop_columns(["_time"])

        async def commit() -> AppendResult:
            parts = {"a": [await found.write_parts("a", table)]}
            return await found.commit_parts(parts, at=4, token=(f"{VICTIM}-parts", 0))

        done = await persist(client, commit)
        demand(done.upper.time == 5, "a commit has another time", done=done)

    async def _read(self, client: Client, found: Transactions, as_of: int) -> None:
        for name in "ab":
            snapshot = await persist(client, partial(found.snapshot, name, as_of))
            rows = contents_of(await persist(client, partial(snapshot.to_arrow, consolidated=True)))
            was = accumulate(ALL[name], as_of)
            demand(rows == was, "a reader saw what never was", name=name, as_of=as_of, saw=rows)

    async def _beside(self, client: Client) -> None:
        found = self._transactions(client)
        for as_of in (0, 2, 4):
            while (await persist(client, found.upper)).time <= as_of:
                await client.clock.sleep(20_000)
            await self._read(client, found, as_of)
            for name in "ab":
                shard = self._shard(client, name)
                await persist(client, shard.sweep)
                await persist(client, partial(shard.compact, full=True))

    def _check(self, shards: dict[str, ObservedShard]) -> None:
        demand_same(shards["a"].updates, ALL["a"], "a holds something else")
        whole = [*ALL["b"], *ALONE]
        demand_same(shards["b"].updates, whole, "b holds something else")
        demand(shards["a"].state.registered.name == "t", "a is not registered any more")
        demand(not shards["b"].state.registered.name, "b is still registered")
        demand(shards["b"].upper is not None and shards["b"].upper >= 6, "b ends early")
