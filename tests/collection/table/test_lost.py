"""Lost states of tables: no read is wrong, and no write begins the table again without its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from kit.clocks import OneThread
from kit.stores import keys_in
from kit.tables import SCHEMA, lake_of, numbers_in, some_rows
from tidelog.collection.table_handle import Table
from tidelog.errors import CorruptionError, UsageError
from tidelog.location import Location
from tidelog.store.memory import MemoryStore

MANY = 4_000  # So many rows are not stored inline in a state.
Act = Callable[[Location, Table], Awaitable[object]]


async def read(_: Location, table: Table) -> None:
    await numbers_in(table)


async def insert(_: Location, table: Table) -> None:
    await table.insert(some_rows(-1, -2, -3, -4))


async def insert_pieces(_: Location, table: Table) -> None:
    await table.insert(iter([some_rows(-1, -2), some_rows(-3, -4)]))


async def delete(_: Location, table: Table) -> None:
    await table.delete(where="a < 5")


async def create(lake: Location, table: Table) -> None:
    mode, key = table.info.mode, table.info.key
    await lake.tables.create("t", SCHEMA, key=key, shards=len(table.shards), mode=mode)


async def alter(lake: Location, table: Table) -> None:
    await lake.tables.alter("t", add="c double")


async def transact(lake: Location, _: Table) -> None:
    await lake.transact(lambda tx: tx.insert("t", some_rows(-1, -2, -3, -4)))


async def advance(lake: Location, table: Table) -> None:
    await lake.tables.advance()
    await numbers_in(table)


ACTS = [read, insert, insert_pieces, delete, create, alter, transact, advance]


async def filled(key: list[str], mode: str, *, applied: bool, rows: int = MANY) -> MemoryStore:
    """Return a store with a table; with ``applied``, its shards have all commits."""
    store = MemoryStore()
    lake = await lake_of(store, OneThread())
    shards = 1 if mode == "direct" else 2
    table = await lake.tables.create("t", SCHEMA, key=key, shards=shards, mode=mode)
    await table.insert(some_rows(*range(rows)))
    if applied:
        await lake.table_transactions.tidy()
    return store


async def states_of_tables(store: MemoryStore) -> list[str]:
    keys = await keys_in(store, "consensus/")
    return [key for key in keys if not key.endswith("/catalog")]


STORED = [(MANY, False), (MANY, True), (9, True)]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("rows", "applied"), STORED, ids=["pending", "applied", "inline"])
@pytest.mark.parametrize("key", [["a"], []], ids=["keyed", "loose"])
async def test_a_lost_state_is_reported_until_it_is_restored(
    key: list[str], rows: int, applied: bool, act: Act
) -> None:
    """A write would otherwise register the shard again, and the table would lose its rows.

    Rows that are stored inline have no parts. They are in the states of the shards.
    """
    store = await filled(key, "wal", applied=applied, rows=rows)
    for lost in await states_of_tables(store):
        kept = store.objects.pop(lost)
        for _ in range(2):  # The first call must not hide the loss.
            lake = await lake_of(store, OneThread())
            # A table whose creation was finished is not created again.
            with pytest.raises((CorruptionError, UsageError)) as caught:
                await act(lake, await lake.table("t"))
            is_known = isinstance(caught.value, CorruptionError)
            assert is_known or (act is create and "already exists" in str(caught.value))
        with pytest.raises(CorruptionError, match=r"is missing|differs from that"):
            await numbers_in(await (await lake_of(store, OneThread())).table("t"))

        store.objects[lost] = kept
        found = await numbers_in(await (await lake_of(store, OneThread())).table("t"))
        assert found == Counter(range(rows))


@pytest.mark.parametrize("act", [read, insert, insert_pieces, delete, create, advance])
async def test_a_lost_state_of_a_direct_table_is_reported(act: Act) -> None:
    """Its parts show that it was written, so it is not a table whose creation was interrupted."""
    store = await filled(["a"], "direct", applied=False)
    (lost,) = await states_of_tables(store)
    kept = store.objects.pop(lost)
    for _ in range(2):
        lake = await lake_of(store, OneThread())
        with pytest.raises(CorruptionError, match="is missing, though it was written"):
            await act(lake, await lake.table("t"))
    store.objects[lost] = kept
    found = await numbers_in(await (await lake_of(store, OneThread())).table("t"))
    assert found == Counter(range(MANY))


@pytest.mark.parametrize("act", [read, delete])
async def test_a_shard_that_was_set_back_is_reported(act: Act) -> None:
    """The transactions have applied and forgotten the newest commit, and the shard lost it."""
    store = MemoryStore()
    lake = await lake_of(store, OneThread())
    table = await lake.tables.create("t", SCHEMA, key=["a"])
    for number in range(3):
        await table.insert(some_rows(number))
        await lake.table_transactions.tidy()
        (shard,) = [key for key in await states_of_tables(store) if "txn" not in key]
        if number == 1:
            before = store.objects[shard]
    newest, store.objects[shard] = store.objects[shard], before
    lake = await lake_of(store, OneThread())
    with pytest.raises(CorruptionError, match="is older than a later write"):
        await act(lake, await lake.table("t"))
    store.objects[shard] = newest
    assert await numbers_in(await lake.table("t")) == Counter(range(3))
