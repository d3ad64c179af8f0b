"""Tables that move under a write or stay unfinished: drops, alterations, killed creations."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from kit.stores import deaths
from kit.tables import SCHEMA, lake_of, numbers_in, some_rows
from tidelog.collection.table_handle import Table
from tidelog.errors import KeyExists, NoSuchCollection, SchemaEvolved, UsageError
from tidelog.location import Location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store

Act = Callable[[Location, Table], Awaitable[object]]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch of a reader is a piece, which is written before the next one is read."""
    monkeypatch.setattr("tidelog.collection.table.incoming.STREAM_BYTES", 100)


async def drop(lake: Location, _: Table) -> None:
    await lake.tables.drop("t")


async def drop_and_create(lake: Location, table: Table) -> None:
    await lake.tables.drop("t")
    await lake.tables.create("t", SCHEMA, key=list(table.info.key))


async def alter(lake: Location, _: Table) -> None:
    await lake.tables.alter("t", add="c bigint")


async def register_again(lake: Location, table: Table) -> None:
    """Do the last steps of a slow process that finishes an earlier alteration."""
    await lake.table_transactions.forget(table.shards[0].id)
    await table.finish()


@pytest.mark.parametrize("key", [[], ["a"]], ids=["plain", "keyed"])
@pytest.mark.parametrize("verb", ["insert", "upsert", "merge"])
@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (drop, NoSuchCollection, "was dropped"),
        (drop_and_create, NoSuchCollection, "was dropped"),
        (alter, SchemaEvolved, "was altered"),
        (register_again, SchemaEvolved, "write the rows again"),
    ],
)
async def test_a_table_that_moves_while_rows_arrive_gives_a_typed_error(
    key: list[str], verb: str, act: Act, error: type[Exception], message: str
) -> None:
    """Parts that were written before the move are refused, and nothing is written."""
    if verb != "insert" and not key:
        return
    store = MemoryStore()
    table = await (await lake_of(store)).tables.create("t", SCHEMA, key=key)
    await table.insert(some_rows(0))

    async def rows() -> AsyncIterator[pa.Table]:
        for number in range(1, 5):
            yield some_rows(*range(100 * number, 100 * number + 50))
        await act(await lake_of(store), table)
        yield some_rows(1_000)

    with pytest.raises(error, match=message):
        await getattr(table, verb)(rows())
    lake = await lake_of(store)
    if "t" in await lake.tables.list():
        assert set(await numbers_in(await lake.table("t"))) <= {0}


FAR = pa.array([12_000 * 365], pa.int32()).cast(pa.date32())
FAR_KEYS = [
    ("date", FAR, "'13962-01-13'"),
    ("timestamp", FAR.cast(pa.timestamp("us")), "'13962-01-13 00:00:00.000000'"),
    ("date[]", pa.ListArray.from_arrays([0, 1], FAR), r"\['13962-01-13'\]"),
]


@pytest.mark.parametrize(("kind", "values", "shown"), FAR_KEYS, ids=["date", "timestamp", "list"])
async def test_messages_show_times_that_python_cannot_represent(
    kind: str, values: pa.Array[Any], shown: str
) -> None:
    """A key past the year 9999 gives the error of any other key."""
    lake = await lake_of(MemoryStore())
    if kind != "date[]":
        table = await lake.tables.create("t", f"k {kind}", key=["k"])
        rows = pa.table({"k": values})
        await table.insert(rows)
        with pytest.raises(KeyExists, match=f"the key k={shown} exists"):
            await table.insert(rows)
        with pytest.raises(UsageError, match=f"have k={shown}"):
            await table.upsert(pa.concat_tables([rows, rows]))
    other = await lake.tables.create("other", "k bigint")
    with pytest.raises(UsageError, match=f"cannot hold the value {shown}"):
        await other.insert(pa.table({"k": values}))


@pytest.mark.parametrize("happened", [False, True], ids=["lost", "landed"])
async def test_an_advance_finishes_interrupted_creations(happened: bool) -> None:
    """After it, all tables can be read at the time that it returns."""

    async def create(store: Store) -> None:
        await (await lake_of(store)).tables.create("t", SCHEMA, shards=2)

    start = MemoryStore()
    await (await (await lake_of(start)).tables.create("first", SCHEMA)).insert(some_rows(1))
    unfinished = 0
    async for store in deaths(start, create, happened=happened):
        lake = await lake_of(store)
        names = await lake.tables.list()
        known = (await lake.table_transactions.refresh()).tables
        for name in names:
            shards = (await lake.table(name)).shards
            unfinished += not all(shard.id in known for shard in shards)
        time = await lake.tables.advance()
        for name in names:
            assert sum((await numbers_in(await lake.table(name), time)).values()) == (
                name == "first"
            )
    assert unfinished >= 2


async def test_an_advance_passes_a_table_that_is_dropped_concurrently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table is in the catalog that the advance has read, and no longer in the next one."""
    store = MemoryStore()
    lake = await lake_of(store)
    await (await lake.tables.create("first", SCHEMA)).insert(some_rows(1))
    table = await lake.tables.create("t", SCHEMA)
    other = await lake_of(store)
    await other.table_transactions.forget(table.shards[0].id)
    finish = type(lake.tables).finished

    async def dropped_first(self: object, name: str) -> Table:
        await other.tables.drop(name)
        return await finish(lake.tables, name)

    monkeypatch.setattr(type(lake.tables), "finished", dropped_first)
    time = await lake.tables.advance()
    assert await numbers_in(await lake.table("first"), time) == Counter([1])
    assert await lake.tables.list() == ["first"]
