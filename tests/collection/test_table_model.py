"""All writes of tables, alterations and transactions, judged by dicts of rows, with faults between.

The model has the rows of each table at each time. Calls come from several locations, each like a
process. Requests of the store fail, or lose their answer. A call that fails is repeated with its
token, and a transaction is committed again. Merges run between the calls.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kit.clocks import OneThread
from kit.table_writers import CountedStore
from kit.tables import lake_of
from tidelog.collection.table_handle import Table
from tidelog.collection.transaction import TableTransaction
from tidelog.core.ids import ShardId
from tidelog.errors import KeyExists, LocationError, SchemaEvolved, UpperMismatch, UsageError
from tidelog.location import Location
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.sweeper import sweep
from tidelog.store.memory import MemoryStore
from tidelog.testing import Fault

NAMES = ["id", "place", "n"]
SCHEMA = "id bigint, place varchar, n bigint"
KEYS = {"one": ("id",), "pair": ("id", "place"), "loose": ()}
Row = tuple[Any, ...]
Rows = Counter[Row]
Call = Callable[[], Awaitable[Any]]
LOST, FAILED = Fault(told=False), Fault(happened=False)
FAULTS = [Fault(), Fault(), LOST, FAILED, Fault(happened=False, told=False)]


def dicts(rows: list[Row]) -> list[dict[str, Any]]:
    return [dict(zip(NAMES, row, strict=True)) for row in rows]


class Refused(Exception):
    """The model refuses a write: a key would occur twice."""


class Model:
    """One table as counted rows, with plain definitions of each write."""

    def __init__(self, key: tuple[str, ...], rows: Rows | None = None) -> None:
        self.key = key
        self.rows: Rows = Counter(rows or {})

    def key_of(self, row: Row) -> Row:
        return tuple(row[NAMES.index(name)] for name in self.key)

    def set_to(self, rows: list[Row]) -> None:
        if self.key and max(Counter(map(self.key_of, rows)).values(), default=0) > 1:
            raise Refused
        self.rows = Counter(rows)

    def insert(self, rows: list[Row]) -> None:
        self.set_to([*self.rows.elements(), *rows])

    def upsert(self, rows: list[Row]) -> None:
        new = {self.key_of(row) for row in rows}
        kept = [row for row in self.rows.elements() if self.key_of(row) not in new]
        self.set_to([*kept, *rows])

    def delete(self, keys: set[Row]) -> None:
        self.set_to([row for row in self.rows.elements() if self.key_of(row) not in keys])

    def delete_over(self, least: int) -> None:
        """Delete where n >= least; a null is not deleted."""
        self.set_to([r for r in self.rows.elements() if r[2] is None or r[2] < least])

    def update(self, place: str, shift: int) -> None:
        """Set id = id + shift and n = n * 2 where the place is this one."""
        moved = [
            (row[0] + shift, row[1], None if row[2] is None else row[2] * 2)
            if row[1] == place
            else row
            for row in self.rows.elements()
        ]
        self.set_to(moved)

    def merge(self, rows: list[Row], matched: str, not_matched: str) -> None:
        """Merge on the column id."""
        given = {row[0]: row for row in rows}
        found: list[Row] = []
        known = {row[0] for row in self.rows}
        for row in self.rows.elements():
            if row[0] not in given or matched == "ignore":
                found.append(row)
            elif matched == "update":
                found.append(given[row[0]])
        if not_matched == "insert":
            found += [row for row in rows if row[0] not in known]
        self.set_to(found)


class World:
    """Tables in a store with faults, and their models at each time."""

    def __init__(self, seed: int, keys: dict[str, tuple[str, ...]], mode: str = "wal") -> None:
        self.pick = random.Random(seed)
        self.keys, self.mode = keys, mode
        self.inner = MemoryStore()
        self.bad = CountedStore(self.inner)
        self.models = {name: Model(key) for name, key in keys.items()}
        self.history: list[tuple[int, dict[str, Rows]]] = []
        self.lakes: list[Location] = []
        self.handles: dict[tuple[int, str], Table] = {}
        self.extra: dict[str, list[str]] = {name: [] for name in KEYS}
        self.number = 0

    async def begin(self) -> None:
        lake = await lake_of(self.inner, OneThread())
        for name, key in self.keys.items():
            shards = 1 if name == "pair" or self.mode == "direct" else 3
            await lake.tables.create(name, SCHEMA, key=key, shards=shards, mode=self.mode)
        self.lakes = [await lake_of(self.bad, OneThread()) for _ in range(2)]

    async def handle(self, name: str) -> Table:
        """Return a handle of one of the processes, which may know an old state."""
        self.bad.faults.clear()
        at = self.pick.randrange(len(self.lakes))
        if self.pick.random() < 0.1:  # The process starts again.
            self.lakes[at] = await lake_of(self.bad, OneThread())
            self.handles = {key: one for key, one in self.handles.items() if key[0] != at}
        if (at, name) not in self.handles:
            self.handles[(at, name)] = await self.lakes[at].table(name)
        return self.handles[(at, name)]

    async def tried(self, call: Call) -> Any:
        """Call under faults until the store does not fail."""
        count = self.pick.choice([0, 0, 2, 4, 8])
        self.bad.faults = [self.pick.choice(FAULTS) for _ in range(count)]
        while True:
            try:
                return await call()
            except LocationError:
                continue
            finally:
                if not self.bad.faults:
                    self.bad.faults.clear()

    def rows(self, name: str, *, most: int = 6) -> list[Row]:
        """Return rows whose keys are distinct in each table, and whose ids are, too."""
        ids = self.pick.sample(range(24), self.pick.randrange(1, most))
        return [(one, self.pick.choice("abc"), self.pick.choice([None, 1, 5, 9])) for one in ids]

    def write(
        self, name: str
    ) -> tuple[str, tuple[Any, ...], dict[str, Any], Callable[[Model], None]]:
        """Choose a write: its method, its arguments, and its effect on a model."""
        rows, keyed = self.rows(name), bool(KEYS[name])
        kinds = ["insert", "where", "update", "merge", *(["upsert", "upsert", "keys"] * keyed)]
        kind = self.pick.choice(kinds)
        if kind == "insert":
            return "insert", (dicts(rows),), {}, lambda model: model.insert(rows)
        if kind == "upsert":
            return "upsert", (dicts(rows),), {}, lambda model: model.upsert(rows)
        if kind == "keys":
            keys = {self.models[name].key_of(row) for row in rows}
            given = [dict(zip(KEYS[name], key, strict=True)) for key in keys]
            return "delete", (), {"keys": given}, lambda model: model.delete(keys)
        if kind == "where":
            least = self.pick.choice([5, 9, 40])
            where = {"where": f"n >= {least}"}
            return "delete", (), where, lambda model: model.delete_over(least)
        if kind == "update":
            place, shift = self.pick.choice("abc"), self.pick.choice([0, 0, 1, 24])
            change = {"set": {"id": f"id + {shift}", "n": "n * 2"}, "where": f"place = '{place}'"}
            return "update", (), change, lambda model: model.update(place, shift)
        matched, other = (
            self.pick.choice(["update", "delete", "ignore"]),
            self.pick.choice(["insert", "ignore"]),
        )
        rules = {"on": ["id"], "when_matched": matched, "when_not_matched": other}
        return "merge", (dicts(rows),), rules, lambda model: model.merge(rows, matched, other)

    async def change(self) -> None:
        """Write one table, from a handle of any process."""
        name = self.pick.choice(list(self.keys))
        method, given, options, apply = self.write(name)
        table, token = await self.handle(name), ("model", self.number)
        self.number += 1
        expected = Model(KEYS[name], self.models[name].rows)
        try:
            apply(expected)
        except Refused:
            with pytest.raises((KeyExists, UsageError)):
                await self.written(table, method, *given, token=token, **options)
            return
        time = await self.written(table, method, *given, token=token, **options)
        self.models[name] = expected
        self.record(time)

    async def written(self, table: Table, method: str, *given: Any, **options: Any) -> int:
        """Write a table; a handle older than an alteration is refused, so open a new one."""
        is_old = table.schema.names != [*NAMES, *self.extra[table.name]]
        try:
            time: int = await self.tried(lambda: getattr(table, method)(*given, **options))
        except SchemaEvolved:
            assert is_old
            self.bad.faults.clear()
            table = await self.lakes[0].table(table.name)
            return await self.written(table, method, *given, **options)
        assert not is_old
        return time

    async def alter(self) -> None:
        """Add a column without values, or drop one; the model's rows stay the same."""
        name = self.pick.choice(list(KEYS))
        extra, self.number = self.extra[name], self.number + 1
        new = f"x{self.number}"
        gone = self.pick.sample(extra, self.pick.randrange(len(extra) + 1))
        lake = self.pick.choice(self.lakes)
        await self.tried(lambda: lake.tables.alter(name, add=f"{new} varchar", drop=gone))
        self.extra[name] = [*(one for one in extra if one not in gone), new]

    async def transaction(self) -> None:
        """Write some tables at once, and read the own writes; sometimes raise at the end."""
        self.bad.faults.clear()
        lake = self.pick.choice(self.lakes)
        drafts = {n: Model(KEYS[n], model.rows) for n, model in self.models.items()}
        tx = lake.transaction()
        if not await self.filled(tx, drafts):
            return
        writes = any(drafts[n].rows != model.rows for n, model in self.models.items())
        if writes and self.pick.random() < 0.3:
            await self.conflicting(tx)
            return
        time = await self.tried(tx.commit)
        if writes:
            self.models = drafts
            self.record(time)

    async def filled(self, tx: TableTransaction, drafts: dict[str, Model]) -> bool:
        """Make the writes of a transaction; return False if one is refused."""
        for _ in range(self.pick.randrange(1, 5)):
            name = self.pick.choice(list(self.keys))
            method, given, options, apply = self.write(name)
            draft = Model(KEYS[name], drafts[name].rows)
            call = getattr(tx, method)
            try:
                apply(draft)
            except Refused:
                with pytest.raises((KeyExists, UsageError)):
                    await call(name, *given, **options)
                return False
            await call(name, *given, **options)
            drafts[name] = draft
            found = await (await tx.snapshot(name)).to_arrow()
            assert counted(found) == draft.rows
        return True

    async def conflicting(self, tx: TableTransaction) -> None:
        """Change all tables before the commit, which must then write nothing."""
        other = self.pick.choice(self.lakes)
        for name in KEYS:
            rows: list[Row] = [(1_000 + self.number, "z", 0)]
            self.number += 1
            time = await (await other.table(name)).insert(dicts(rows))
            self.models[name].insert(rows)
            self.record(time)
        with pytest.raises(UpperMismatch, match="has changed the table"):
            await tx.commit()

    def record(self, time: int) -> None:
        assert not self.history or self.history[-1][0] < time
        self.history.append((time, {n: Counter(model.rows) for n, model in self.models.items()}))

    async def tend(self) -> None:
        """Merge, collect and sweep the shards of one table, and apply all commits."""
        lake = await lake_of(self.inner, OneThread())
        table = await lake.table(self.pick.choice(list(self.keys)))
        for one in table.shards:
            shard = Shard(
                id=ShardId(one.id),
                store=self.inner,
                consensus=lake.consensus,
                clock=OneThread(),
            )
            await shard.refresh()
            await shard.compact(full=self.pick.random() < 0.5)
            await shard.collect(after_us=0)
            await sweep(shard)
        if self.pick.random() < 0.5:
            await lake.table_transactions.tidy()

    async def check(self, count: int) -> None:
        """Compare the newest contents, and those of some earlier times, with the models."""
        lake = await lake_of(self.inner, OneThread())
        for time, rows in [self.history[-1], *self.pick.choices(self.history, k=count)]:
            for name in self.keys:
                found = await (await (await lake.table(name)).snapshot(time)).to_arrow()
                assert found.column_names == [*NAMES, *self.extra[name]]
                assert counted(found) == rows[name], (name, time)


def counted(found: Any) -> Rows:
    return Counter(tuple(row[name] for name in NAMES) for row in found.to_pylist())


@pytest.mark.parametrize("seed", range(4))
async def test_tables_equal_dicts_of_rows(seed: int) -> None:
    """Contents as of each time are those of the model, whatever fails or merges between."""
    world = World(seed, KEYS)
    await world.begin()
    for _ in range(18):
        kinds = [world.change] * 5 + [world.transaction] * 3 + [world.alter, world.tend]
        await world.pick.choice(kinds)()
    await world.check(6)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", KEYS)
async def test_direct_tables_equal_dicts_of_rows(name: str, seed: int) -> None:
    """A direct table has the same contents, without transactions; its times are its own."""
    world = World(seed, {name: KEYS[name]}, mode="direct")
    await world.begin()
    for _ in range(14):
        await world.pick.choice([world.change] * 5 + [world.tend])()
    await world.check(6)
