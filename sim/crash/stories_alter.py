"""The story of an altered table: columns come and go between writes of old and new handles."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard
from sim.crash.points import VICTIM
from sim.crash.stories_tables import SHARDS, TableStory
from sim.crash.stories_transactions import persist
from sim.kernel.world import Client
from tidelog.collection.table_handle import Table
from tidelog.collection.transaction import TableTransaction
from tidelog.core.ids import TABLES
from tidelog.errors import SchemaEvolved, UpperMismatch

COLUMNS: Final = (["id", "v"], ["id", "v", "n"], ["id", "v", "s"])
STEPS: Final[tuple[dict[str, Any], ...]] = (
    {"add": "n bigint"},
    {"add": "s bigint", "drop": ["n"], "discard_values": True},
)
Row = dict[str, int | None]


@dataclass(slots=True)
class AlterStory(TableStory):
    """Alterations that an heir finishes; another client writes, reads and merges at once.

    Each row has its id in all columns that the table has when it is written.
    """

    name: str = "alterations"
    columns: str = "id bigint, v bigint"
    key: tuple[str, ...] = ("id",)

    async def _live(self, client: Client) -> None:
        mark = partial(self.marks.begin, client=client)
        mark("creation of a table")
        table = await self._made(client, "t")
        for number, columns in enumerate(COLUMNS):
            mark("alteration")
            # An earlier life may have made this alteration, and later ones.
            if 0 < number >= len(table.rendition.schemas) - 1:
                alter = partial(self._tables(client).alter, "t", **STEPS[number - 1])
                table = await persist(client, alter)
                demand(table.schema.names == columns, "other columns", saw=table.schema.names)
            mark("insert")
            rows = [written(table, 10 * number + one) for one in range(4)]
            insert = partial(table.insert, rows, token=(f"{VICTIM}-{number}", 0))
            await persist(client, insert)
            await self._judged(client, table, number)
        mark("merge of a table")
        for shard in table.shards:
            await persist(client, partial(shard.compact, full=True))
        await self._judged(client, table, len(COLUMNS) - 1)

    async def _judged(self, client: Client, table: Table, number: int) -> None:
        """Check that the rows of the steps up to ``number`` are in the table, with their values."""

        async def read() -> list[Row]:
            found: list[Row] = (await (await table.snapshot()).to_arrow()).to_pylist()
            return found

        rows = {row["id"]: row for row in await persist(client, read)}
        for step in range(number + 1):
            for one in range(10 * step, 10 * step + 4):
                row = rows.get(one, {})
                names = [name for name in COLUMNS[step] if name in table.schema.names]
                values = [row.get(name) for name in names]
                demand(values == [one] * len(names), "a row or its value is missing", saw=row)
        demand(
            all(set(row.values()) <= {one, None} for one, row in rows.items()),
            "a row has the value of another one",
            saw=rows,
        )

    async def _beside(self, client: Client) -> None:
        tables, table = self._tables(client), await self._made(client, "t")
        for number in range(4):
            done = False
            while not done:
                row = written(table, 100 + number)
                try:
                    insert = partial(table.insert, [row], token=(f"other-{number}", 0))
                    await persist(client, insert)
                    done = True
                except SchemaEvolved:
                    table = await persist(client, partial(tables.open, "t"))
            await self._transact(client, number)
            for shard in table.shards:
                await persist(client, shard.sweep)
                await persist(client, partial(shard.compact, full=True))
                await persist(client, partial(shard.collect, after_us=0))

    async def _transact(self, client: Client, number: int) -> None:
        """Move a row's id in a transaction; if the table was altered since, it is refused."""
        begun = TableTransaction(tables=self._tables(client))
        await persist(client, partial(begun.delete, "t", where=f"id = {100 + number}"))
        columns = begun._touched["t"].table
        await persist(client, partial(begun.insert, "t", [written(columns, 200 + number)]))

        async def commit() -> None:
            with suppress(SchemaEvolved, UpperMismatch):
                await begun.commit()

        await persist(client, commit)

    async def _end(self, client: Client) -> None:
        tables = self._tables(client)
        table = await persist(client, partial(tables.open, "t"))
        demand(table.schema.names == COLUMNS[-1], "other columns", saw=table.schema.names)
        await self._judged(client, table, len(COLUMNS) - 1)

        async def read() -> Counter[int]:
            rows = (await (await table.snapshot()).to_arrow()).to_pylist()
            return Counter(row["id"] for row in rows)

        found = await persist(client, read)
        demand(set(found.values()) == {1}, "a row is there twice", saw=found)
        others = sorted(one % 100 for one in found if one >= 100)
        demand(others == [*range(4)], "a transaction landed in part", saw=found)
        demand(len(found) == 16, "other rows", saw=found)
        registered = set((await persist(client, tables.transactions.refresh)).tables)
        own = {shard.id for shard in table.shards}
        demand(registered == own, "shards of no table are registered", saw=registered)

    def _check(self, shards: dict[str, ObservedShard]) -> None:
        living = [one for one in shards.values() if one.state.registered.name == TABLES]
        ids = [one.state.schema_id for one in living]
        demand(ids == [len(STEPS)] * SHARDS, "a shard has other schemas", saw=ids)


def written(table: Table, number: int) -> Row:
    """Return a row with a number in all columns that a handle has."""
    return dict.fromkeys(table.schema.names, number)
