"""Transactions over tables: all or none, reads of own writes, conflicts, and their end."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tidelog
from kit.clocks import OneThread
from kit.stores import deaths
from kit.table_writers import CountedStore
from kit.tables import lake_of
from tidelog.collection.transaction import TableTransaction
from tidelog.errors import (
    ContentionError,
    HandleError,
    KeyExists,
    LocationError,
    NoSuchCollection,
    SchemaEvolved,
    UpperMismatch,
    UsageError,
)
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault

SCHEMA = "id bigint, n bigint"
Row = tuple[Any, ...]


async def bank(store: MemoryStore | CountedStore | None = None) -> Location:
    """Return a location with two keyed tables, and one without a key."""
    lake = await lake_of(store or MemoryStore(), OneThread())
    for name in ("giro", "savings"):
        table = await lake.tables.create(name, SCHEMA, key=["id"], shards=2)
        await table.insert(dicts((1, 100), (2, 200)))
    await lake.tables.create("notes", SCHEMA)
    return lake


def dicts(*rows: Row) -> list[dict[str, Any]]:
    return [{"id": row[0], "n": row[1]} for row in rows]


async def rows_of(lake: Location, name: str, as_of: int | None = None) -> Counter[Row]:
    found = await (await (await lake.table(name)).snapshot(as_of)).to_arrow()
    return Counter((row["id"], row["n"]) for row in found.to_pylist())


async def seen(tx: TableTransaction, name: str, **options: Any) -> Counter[Row]:
    found = await (await tx.snapshot(name, **options)).to_arrow()
    return Counter(tuple(row.values()) for row in found.to_pylist())


async def test_several_tables_change_at_one_time() -> None:
    """No reader sees one of the changes without the others."""
    lake = await bank()
    async with lake.transaction() as tx:
        await tx.update("giro", set={"n": "n - 30"}, where="id = 1")
        await tx.upsert("savings", dicts((1, 130)))
        await tx.insert("notes", dicts((1, 30), (1, 30)))
    assert tx.time is not None

    for time, moved in ((tx.time - 1, False), (tx.time, True)):
        assert (await rows_of(lake, "giro", time))[(1, 70)] == moved
        assert (await rows_of(lake, "savings", time))[(1, 130)] == moved
        assert (await rows_of(lake, "notes", time))[(1, 30)] == 2 * moved


async def test_a_block_that_raises_writes_nothing() -> None:
    """The error of the block reaches the caller."""
    lake = await bank()
    before, tx = await rows_of(lake, "giro"), lake.transaction()

    async def failing() -> None:
        async with tx:
            await tx.delete("giro", keys=[1])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert await rows_of(lake, "giro") == before
    with pytest.raises(HandleError, match="has ended"):
        await tx.commit()


async def test_a_transaction_sees_its_own_writes() -> None:
    """Reads, conditions and key checks see them, and selections apply to them."""
    lake = await bank()
    async with lake.transaction() as tx:
        await tx.insert("giro", dicts((3, 300)))
        await tx.update("giro", set={"n": "n + 1"}, where="n >= 200")
        await tx.delete("giro", keys=[1])
        assert await seen(tx, "giro") == {(2, 201): 1, (3, 301): 1}
        assert await seen(tx, "giro", columns=["n"], where="id > 2") == {(301,): 1}
        assert (await seen(tx, "giro", limit=1)).total() == 1
        with pytest.raises(KeyExists, match="id=3"):
            await tx.insert("giro", dicts((3, 0)))
        await tx.insert("giro", dicts((1, 7)))

    assert await rows_of(lake, "giro") == {(1, 7): 1, (2, 201): 1, (3, 301): 1}


async def test_reads_are_as_of_one_time() -> None:
    """Later commits of other writers are not seen, also in tables that are read later."""
    lake = await bank()
    tx = lake.transaction()
    assert await seen(tx, "giro") == {(1, 100): 1, (2, 200): 1}
    await (await lake.table("savings")).upsert(dicts((1, 0)))

    assert await seen(tx, "savings") == {(1, 100): 1, (2, 200): 1}
    await tx.commit()


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_conflict_names_the_table(read_only: bool) -> None:
    """A table that was only read conflicts, too: the writes were decided by its rows."""
    lake = await bank()
    tx = lake.transaction()

    async def overtaken() -> None:
        async with tx:
            if read_only:
                await seen(tx, "savings")
            else:
                await tx.delete("savings", keys=[1])
            await tx.upsert("giro", dicts((9, 9)))
            await (await lake.table("savings")).upsert(dicts((1, 5)))

    with pytest.raises(UpperMismatch, match=r"has changed the table 'savings' .*: begin again"):
        await overtaken()

    assert (9, 9) not in await rows_of(lake, "giro")
    assert (1, 5) in await rows_of(lake, "savings")
    with pytest.raises(HandleError):
        await tx.commit()


async def test_other_tables_and_other_shards_do_not_conflict() -> None:
    """Only the tables that a transaction read or wrote matter."""
    lake = await bank()
    async with lake.transaction() as tx:
        await tx.upsert("giro", dicts((1, 5)))
        await (await lake.table("savings")).upsert(dicts((1, 6)))
        await (await lake.table("notes")).insert(dicts((1, 6)))

    assert (1, 5) in await rows_of(lake, "giro")


async def test_a_transaction_without_writes_costs_no_put() -> None:
    """Its reads are of one time, so no other commit matters."""
    store = CountedStore(MemoryStore())
    lake = await bank(store)
    store.taken()
    async with lake.transaction() as tx:
        await seen(tx, "giro")
        await tx.upsert("savings", dicts((1, 100)))
        await (await lake_of(store, OneThread())).tables.list()

    assert "put" not in store.taken()
    assert tx.time is not None


async def test_the_end_of_a_transaction_is_final() -> None:
    """A transaction cannot be used again, whatever ended it."""
    lake = await bank()
    async with lake.transaction() as tx:
        await tx.upsert("giro", dicts((1, 5)))
    for call in (
        lambda: tx.snapshot("giro"),
        lambda: tx.insert("giro", []),
        lambda: tx.upsert("giro", []),
        lambda: tx.delete("giro", keys=[1]),
        lambda: tx.update("giro", set={"n": "1"}, where="true"),
        lambda: tx.merge("giro", []),
        tx.commit,
        tx.__aenter__,
    ):
        with pytest.raises(
            HandleError, match=r"has ended: begin another one with lake\.transaction"
        ):
            await call()


async def test_an_early_commit_ends_the_block() -> None:
    """A caller may commit within the block, to handle the conflict itself."""
    lake = await bank()
    async with lake.transaction(at=9_000_000_000_000) as tx:
        await tx.upsert("giro", dicts((1, 5)))
        time = await tx.commit()

    assert time == tx.time == 9_000_000_000_000


async def test_a_dropped_table_gives_a_typed_error() -> None:
    """The rows of the other tables are not written either."""
    lake = await bank()
    tx = lake.transaction()
    await tx.upsert("giro", dicts((1, 5)))
    await tx.upsert("savings", dicts((1, 5)))
    await (await lake_of(lake.store, OneThread())).tables.drop("savings")
    with pytest.raises(NoSuchCollection, match="the table 'savings' was dropped"):
        await tx.commit()
    with pytest.raises(NoSuchCollection, match="no table named 'savings'"):
        await lake.transaction().upsert("savings", [])

    assert (1, 5) not in await rows_of(lake, "giro")


async def test_a_table_created_again_is_another_table() -> None:
    """The writes were for the dropped table, and must not reach its successor."""
    lake = await bank()
    tx = lake.transaction()
    await tx.upsert("savings", dicts((1, 5)))
    await lake.tables.drop("savings")
    await lake.tables.create("savings", SCHEMA, key=["id"], shards=2)
    with pytest.raises(NoSuchCollection, match="the table 'savings' was dropped"):
        await tx.commit()

    assert await rows_of(lake, "savings") == {}


async def test_an_altered_table_gives_a_typed_error() -> None:
    """Rows of the old columns are not written with nulls in the new ones."""
    import pyarrow as pa

    lake = await bank()
    table = await lake.table("savings")
    tx = lake.transaction()
    await tx.upsert("savings", dicts((1, 5)))
    for shard in table.shards:
        await lake.table_transactions.forget(shard.id)
        await shard.evolve_schema(table.schema.data.append(pa.field("new", pa.string())))
        await lake.table_transactions.register(shard)

    with pytest.raises(SchemaEvolved, match="the table 'savings' was altered"):
        await tx.commit()


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("fault", [Fault(told=False), Fault(happened=False)])
async def test_a_commit_is_repeated_after_a_failure(at: int, fault: Fault) -> None:
    """The same transaction commits its writes once, whichever request failed."""
    store = CountedStore(MemoryStore())
    lake = await bank(store)
    tx = lake.transaction()
    await tx.update("giro", set={"n": "n + 1"}, where="true")
    store.faults = [Fault()] * at + [fault] * 9
    with suppress(LocationError):
        await tx.commit()
    store.faults.clear()
    if tx.time is None:
        with pytest.raises(HandleError):
            await tx.upsert("giro", dicts((1, 1)))
        await tx.commit()

    assert await rows_of(lake, "giro") == {(1, 101): 1, (2, 201): 1}


@pytest.mark.parametrize("fault", [Fault(told=False), Fault(happened=False)])
async def test_a_commit_inside_its_block_is_repeated_after_the_block(fault: Fault) -> None:
    """The error of the commit leaves the block, and its outcome must become known."""
    store = CountedStore(MemoryStore())
    lake = await bank(store)
    tx = lake.transaction()

    async def fail() -> None:
        async with tx:
            await tx.update("giro", set={"n": "n + 1"}, where="true")
            store.faults = [fault] * 99
            await tx.commit()

    with pytest.raises(LocationError):
        await fail()
    store.faults.clear()
    with pytest.raises(HandleError):
        await tx.upsert("giro", dicts((1, 1)))
    assert await tx.commit() == tx.time
    with pytest.raises(HandleError):
        await tx.commit()

    assert await rows_of(lake, "giro") == {(1, 101): 1, (2, 201): 1}


async def test_transact_runs_again_after_a_conflict() -> None:
    """Concurrent transfers lose no cent."""
    lake = await bank()
    others = [await lake_of(lake.store, OneThread()) for _ in range(3)]
    runs = 0

    async def move(tx: TableTransaction) -> int:
        nonlocal runs
        runs += 1
        await tx.update("giro", set={"n": "n - 1"}, where="id = 1")
        await tx.update("savings", set={"n": "n + 1"}, where="id = 1")
        return 7

    results = await asyncio.gather(*(one.transact(move) for one in others))

    assert results == [7] * 3
    assert runs > 3
    assert (1, 97) in await rows_of(lake, "giro")
    assert (1, 103) in await rows_of(lake, "savings")


@pytest.mark.parametrize("reads", [False, True])
async def test_a_transaction_finishes_an_interrupted_creation(reads: bool) -> None:
    """Its table may be the first one of the location, so that no time is complete yet."""

    async def work(tx: TableTransaction) -> None:
        if reads:
            assert await seen(tx, "first") == Counter()
        await tx.insert("first", dicts((1, 1)))

    async def create(store: Store) -> None:
        await (await lake_of(store, OneThread())).tables.create("first", SCHEMA, key=["id"])

    listed = 0
    async for store in deaths(MemoryStore(), create, happened=True):
        lake = await lake_of(store, OneThread())
        if "first" in await lake.tables.list():
            listed += 1
            await lake.transact(work)
            assert await rows_of(lake, "first") == Counter([(1, 1)])
    assert listed >= 4


async def test_transact_runs_again_if_the_retention_passes_its_time() -> None:
    """Only a commit after the beginning can move the retention, so this is a conflict."""
    lake = await lake_of(MemoryStore(), OneThread())
    for name in ("t", "u"):
        await (await lake.tables.create(name, SCHEMA, key=["id"], retain_ms=0)).insert(
            dicts((1, 0))
        )
    other, runs = await lake_of(lake.store, OneThread()), 0

    async def add(tx: TableTransaction) -> None:
        nonlocal runs
        runs += 1
        await tx.snapshot("t")
        if runs == 1:
            await (await other.table("u")).upsert(dicts((2, 2)))
            groups = await other.maintenance.groups()
            _ = [report async for report in other.maintenance.compact(groups, full=True)]
        await tx.update("u", set={"n": "n + 1"}, where="id = 1")

    await lake.transact(add)

    assert runs == 2
    assert await rows_of(lake, "u") == Counter([(1, 1), (2, 2)])


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("columns", ["id, n", "id, n, new"])
async def test_transact_runs_again_if_a_table_is_altered(reads: bool, columns: str) -> None:
    """The next transaction opens the table with its columns, whichever call met the alteration."""
    lake = await bank()
    other, runs = await lake_of(lake.store, OneThread()), 0
    row = dict.fromkeys(columns.split(", "), 5)

    async def work(tx: TableTransaction) -> None:
        nonlocal runs
        runs += 1
        await tx.upsert("savings", dicts((1, 5)))
        if reads:
            await tx.snapshot("giro")
        else:
            await tx.upsert("giro", dicts((1, 5)))
        if runs == 1:
            await other.tables.alter("giro", add="new bigint")
        await tx.upsert("giro", [row])

    await lake.transact(work)
    assert runs == 2
    found = await (await (await lake.table("giro")).snapshot()).to_arrow()
    assert {"id": 5, "n": 5, "new": None} | row in found.to_pylist()
    assert (1, 5) in await rows_of(lake, "savings")


async def test_a_wrong_row_after_an_alteration_is_an_error_of_the_work() -> None:
    """It would be wrong in each transaction, so the work runs only once more."""
    lake, runs = await bank(), 0

    async def wrong(tx: TableTransaction) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await tx.snapshot("giro")
            await lake.tables.alter("giro", add="new bigint")
        await tx.upsert("giro", [{"id": 5, "typo": 1}])

    with pytest.raises(UsageError, match="unknown columns: typo; the columns are id, n, new"):
        await lake.transact(wrong)
    assert runs == 2


async def test_transact_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tries is bounded, and an error of the work is not repeated."""
    monkeypatch.setattr("tidelog.collection.transaction.TRIES_MAX", 3)
    lake = await bank()
    giro = await lake.table("giro")

    async def overtaken(tx: TableTransaction) -> None:
        await tx.upsert("giro", dicts((1, 5)))
        await giro.update(set={"n": "n + 1"}, where="true")

    async def wrong(tx: TableTransaction) -> None:
        await tx.upsert("giro", dicts((1, 5)))
        raise UpperMismatch("an error of the caller's own")

    with pytest.raises(ContentionError, match="gave up after 3 tries"):
        await lake.transact(overtaken)
    with pytest.raises(UpperMismatch, match="the caller's own"):
        await lake.transact(wrong)
    assert (1, 103) in await rows_of(lake, "giro")


async def test_wrong_writes_leave_the_transaction_open() -> None:
    """A refused call changes nothing, and the caller may go on."""
    lake = await bank()
    async with lake.transaction() as tx:
        with pytest.raises(UsageError, match="unknown columns: x"):
            await tx.upsert("giro", [{"id": 1, "x": 2}])
        with pytest.raises(UsageError, match="has no key"):
            await tx.upsert("notes", dicts((1, 5)))
        with pytest.raises(NoSuchCollection):
            await tx.upsert("nope", [])
        await tx.merge("giro", dicts((1, 5)), when_not_matched="ignore")

    assert (1, 5) in await rows_of(lake, "giro")


def test_the_blocking_classes_write_and_transact() -> None:
    """The blocking API has the same calls, in ``with`` and with a plain function."""
    with tidelog.connect("memory://", create=True) as lake:
        giro = lake.tables.create("giro", SCHEMA, key=["id"])
        savings = lake.tables.create("savings", SCHEMA, key=["id"])
        giro.insert(dicts((1, 100), (2, 200)))
        time = giro.upsert(dicts((2, 250)))
        giro.delete(where="n > 200")
        giro.merge(dicts((1, 90)), when_not_matched="ignore")
        giro.update(set={"n": "n + 10"}, where="true")
        with lake.transaction() as tx:
            tx.upsert("giro", dicts((1, 60)))
            tx.insert("savings", dicts((1, 40)))
            own = tx.snapshot("giro").to_arrow().to_pylist()

        def move(tx: tidelog.TableTransaction) -> str:
            tx.update("giro", set={"n": "n - 5"}, where="id = 1")
            tx.update("savings", set={"n": "n + 5"}, where="id = 1")
            return "moved"

        assert own == dicts((1, 60))
        assert lake.transact(move) == "moved"
        assert giro.snapshot(time).to_arrow().to_pylist() == dicts((1, 100), (2, 250))
        assert giro.snapshot().to_arrow().to_pylist() == dicts((1, 55))
        assert savings.snapshot().to_arrow().to_pylist() == dicts((1, 45))


async def merge_all(place: str) -> None:
    """Merge all shards of a location fully, as another process does."""
    maintenance = (await open_location(place)).maintenance
    _ = [one async for one in maintenance.compact(await maintenance.groups(), full=True)]


def test_the_blocking_transact_runs_again_as_the_awaited_one(tmp_path: Path) -> None:
    """A table was altered, and then the retention passed the transaction's time."""
    place = str(tmp_path)
    with tidelog.connect(place, create=True) as lake:
        for name in ("t", "u"):
            lake.tables.create(name, SCHEMA, key=["id"], retain_ms=0).insert(dicts((1, 0)))
        runs = 0

        def work(tx: tidelog.TableTransaction) -> None:
            nonlocal runs
            runs += 1
            tx.snapshot("t")
            if runs == 1:
                lake.tables.alter("t", add="new bigint")
            elif runs == 2:
                lake.table("u").upsert(dicts((2, 2)))
                asyncio.run(merge_all(place))
            tx.upsert("t", dicts((1, runs)))
            tx.update("u", set={"n": "n + 1"}, where="id = 1")

        lake.transact(work)
        assert runs == 3
        assert lake.table("u").snapshot().to_arrow().to_pylist() == dicts((1, 1), (2, 2))
