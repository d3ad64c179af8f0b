"""The story of tables: one is created, written, read and merged; another one is dropped."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard
from sim.crash.points import VICTIM
from sim.crash.stories import MarkedStory
from sim.crash.stories_transactions import persist
from sim.kernel.world import Client, World
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.maintenance import Maintenance
from tidelog.collection.table_handle import Table
from tidelog.collection.tables import Tables, table_transactions
from tidelog.core.ids import TABLES
from tidelog.errors import NameTaken, NoSuchCollection

SHARDS: Final = 2
BATCHES: Final = (range(5), range(5, 12))


@dataclass(slots=True)
class TableStory(MarkedStory):
    """Tables whose work an heir can repeat; another client creates, inserts and merges at once."""

    name: str = "tables"
    columns: str = "a bigint"
    key: tuple[str, ...] = ()

    async def _play(self, world: World) -> None:
        other = asyncio.create_task(self._beside(world.client("other")), name="other")
        await self._lived(world)
        await other
        await self._end(world.client("last"))

    def _tables(self, client: Client) -> Tables:
        controller = Controller(store=client.store, consensus=client.consensus, clock=client.clock)
        return Tables(
            store=client.store,
            consensus=client.consensus,
            clock=client.clock,
            controller=controller,
            transactions=table_transactions(client.store, client.consensus, client.clock),
        )

    async def _made(self, client: Client, name: str) -> Table:
        """Create a table, or open it if an earlier life or another client has created it."""
        tables = self._tables(client)

        async def make() -> Table:
            try:
                return await tables.create(name, self.columns, key=self.key, shards=SHARDS)
            except NameTaken:
                return await tables.open(name)

        return await persist(client, make)

    async def _live(self, client: Client) -> None:
        mark = partial(self.marks.begin, client=client)
        mark("creation of a table")
        table = await self._made(client, "t")
        mark("insert")
        for number, rows in enumerate(BATCHES):
            insert = partial(table.insert, _rows(rows), token=(f"{VICTIM}-{number}", 0))
            time = await persist(client, insert)
            await self._read(client, table, time, at_least=rows)
        mark("merge of a table")
        for shard in table.shards:
            await persist(client, partial(shard.compact, full=True))
        mark("drop of a table")
        gone = await self._made(client, "gone")
        # A client that died in the drop has a successor, so the table may be dropped here.
        with suppress(NoSuchCollection):
            await persist(client, partial(gone.insert, _rows(range(3))))
            await persist(client, partial(self._tables(client).drop, "gone"))

    async def _read(self, client: Client, table: Table, time: int, *, at_least: range) -> None:
        found = await self._counts(client, table, time)
        demand(found.keys() >= set(at_least), "an acknowledged row is missing", saw=found)
        whole = [rows for rows in BATCHES if found.keys() & set(rows)]
        expected = Counter(a for rows in whole for a in rows)
        own = Counter({a: count for a, count in found.items() if a < 100})
        demand(own == expected, "a reader saw a part of an insert", saw=found)

    async def _counts(self, client: Client, table: Table, time: int | None) -> Counter[int]:
        async def read() -> pa.Table:
            return await (await table.snapshot(time)).to_arrow()

        rows = await persist(client, read)
        return Counter(rows.column("a").to_numpy().tolist())

    async def _beside(self, client: Client) -> None:
        table = await self._made(client, "t")
        for number in range(2):
            rows = _rows(range(100 + number, 101 + number))
            time = await persist(client, partial(table.insert, rows, token=(f"other-{number}", 0)))
            await self._read(client, table, time, at_least=range(100, 101 + number))
            for shard in table.shards:
                await persist(client, shard.sweep)
                await persist(client, partial(shard.compact, full=True))
                await persist(client, partial(shard.collect, after_us=0))

    async def _end(self, client: Client) -> None:
        """Collect, as the collector of the location does, and check the result."""
        tables = self._tables(client)
        with suppress(NoSuchCollection):
            await persist(client, partial(tables.drop, "gone"))
        maintenance = Maintenance(
            store=client.store,
            fresh=client.store,
            consensus=client.consensus,
            clock=client.clock,
            controller=tables.controller,
            tables=tables.transactions,
        )

        async def collect() -> None:
            groups = await maintenance.groups(dropped=True)
            async for _ in maintenance.collect(groups, after_us=0, sweeps=True):
                pass
            async for _ in maintenance.tidy(sweeps=True):
                pass

        await persist(client, collect)
        table = await persist(client, partial(tables.open, "t"))
        found = await self._counts(client, table, None)
        expected = Counter([*range(12), 100, 101])
        demand(found == expected, "the table has other rows", saw=found)
        catalog = await persist(client, tables.controller.catalog)
        demand(set(catalog.tables) == {"t"}, "other tables are listed", saw=set(catalog.tables))
        demand(not catalog.dropped, "dropped shards are left", saw=catalog.dropped)
        registered = set((await persist(client, tables.transactions.refresh)).tables)
        own = {shard.id for shard in table.shards}
        demand(registered == own, "shards of no table are registered", saw=registered)

    def _check(self, shards: dict[str, ObservedShard]) -> None:
        living = [one for one in shards.values() if one.state.registered.name == TABLES]
        demand(len(living) == SHARDS, "other shards are registered", saw=len(living))


def _rows(numbers: range) -> pa.Table:
    return pa.table({"a": pa.array(numbers, pa.int64())})
