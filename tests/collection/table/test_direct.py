"""Direct tables: one shard, written by compare-and-append, without transactions."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress

import pyarrow as pa
import pytest

from kit.clocks import StuckClock, SwiftClock
from kit.dying import DiesWriting
from kit.stores import keys_in
from kit.tables import SCHEMA, lake_of, new_lake, numbers_in, some_rows
from tidelog.collection.staged import commit_staged, stage_rows, staging_area
from tidelog.collection.table.inputs import tables_of
from tidelog.collection.table_handle import Table
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    KeyExists,
    NameTaken,
    NoSuchCollection,
    OutcomeUnknown,
    TidelogError,
    UsageError,
)
from tidelog.location import Location
from tidelog.store.memory import MemoryStore
from tidelog.testing import FaultyStore


async def direct(lake: Location, name: str = "d", *, key: str = "a") -> Table:
    return await lake.tables.create(name, SCHEMA, key=[key] if key else [], mode="direct")


def named(text: str, *numbers: int) -> pa.Table:
    return pa.table({"a": pa.array(numbers, pa.int64()), "b": [f"{text} {n}" for n in numbers]})


async def texts(table: Table) -> list[str]:
    found = await (await table.snapshot()).to_arrow()
    return sorted(str(text) for text in found.column("b").to_pylist())


async def test_all_writes_and_reads() -> None:
    """Each write is visible as of its time; earlier times, history and changes stay readable."""
    lake = await new_lake()
    table = await direct(lake)
    first = await table.insert(named("old", 1, 2, 3))
    with pytest.raises(KeyExists, match="the key a=2 exists"):
        await table.insert(named("new", 2))
    await table.upsert(named("new", 2, 4))
    await table.update(set={"b": "b || '!'"}, where="a = 1")
    await table.merge(named("merged", 3, 5), when_matched="delete")
    last = await table.delete(keys=[4])

    assert await texts(table) == ["merged 5", "new 2", "old 1!"]
    assert await numbers_in(table, first) == Counter([1, 2, 3])
    history = [(one.added, one.removed) for one in await table.history()]
    assert history == [(3, 0), (2, 1), (1, 1), (1, 1), (0, 1)]
    changes = await (await lake.collection("d")).changes(first, last)
    assert Counter(changes.column("_diff").to_pylist()) == {1: 4, -1: 4}
    followed = 0
    async with aclosing((await lake.collection("d")).listen(first)) as steps:
        async for step in steps:
            followed += step.updates.num_rows
            if step.upper.time == last + 1:
                break
    assert followed == 8
    assert await lake.tables.list() == ["d"]
    assert (await table.describe()).key == ("a",)


async def test_it_is_in_no_transaction() -> None:
    """Its shard is not registered, and a transaction refuses it by its mode."""
    lake = await new_lake()
    table = await direct(lake)
    other = await lake.tables.create("w", SCHEMA)
    await table.insert(named("old", 1))

    assert table.shards[0].id not in (await lake.table_transactions.refresh()).tables
    for verb in ("insert", "snapshot"):
        tx = lake.transaction()
        with pytest.raises(UsageError, match="'d' has the mode 'direct', so no transaction"):
            await (tx.snapshot("d") if verb == "snapshot" else tx.insert("d", named("new", 2)))
    async with lake.transaction() as tx:
        await tx.insert("w", some_rows(1))
    assert await numbers_in(other) == Counter([1])
    assert await texts(table) == ["old 1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "direct", "shards": 2}, "'direct' has one shard"),
        ({"mode": "yolo"}, "mode= must be wal or direct, not 'yolo'"),
        ({"mode": None}, "mode= must be wal or direct, not None"),
    ],
)
async def test_a_wrong_mode_is_refused(options: dict[str, object], message: str) -> None:
    """Nothing is created."""
    lake = await new_lake()
    with pytest.raises(UsageError, match=message):
        await lake.tables.create("d", SCHEMA, **options)  # type: ignore[arg-type]
    assert await lake.tables.list() == []


async def test_its_times_are_its_own_and_never_go_back() -> None:
    """A write of another table does not move its upper; a clock that goes back changes nothing."""
    clock = StuckClock()
    lake = await new_lake(clock)
    table, wal = await direct(lake), await lake.tables.create("w", SCHEMA)
    clock.wall_us += 60_000_000
    later = await wal.insert(some_rows(1))
    await table.refresh()
    assert table.upper.time <= later

    first = await table.insert(named("old", 1))
    assert first == clock.wall_us // 1_000
    clock.wall_us -= 365 * 86_400_000_000
    times = [await table.insert(named("new", n)) for n in (2, 3)]
    assert times == [first + 1, first + 2]
    assert await table.insert(named("new", 4), at=first + 100) == first + 100


async def test_a_query_over_all_modes_needs_an_advance() -> None:
    """SQL reads all collections at one common time; `advance` moves direct tables, too."""
    clock = StuckClock()
    lake = await new_lake(clock)
    table, wal = await direct(lake), await lake.tables.create("w", SCHEMA)
    await table.insert(named("old", 1))
    clock.wall_us += 60_000_000
    await wal.insert(some_rows(1))
    query = "SELECT (SELECT count(*) FROM d) AS d, (SELECT count(*) FROM w) AS w"
    with pytest.raises(AsOfNotComplete, match=r"'d' is complete up to .*tidelog table advance"):
        await lake.sql(query)

    clock.wall_us += 60_000_000
    time = await lake.tables.advance()
    assert time == clock.wall_us // 1_000
    assert (await lake.sql(query)).to_arrow().to_pylist() == [{"d": 1, "w": 1}]


@pytest.mark.parametrize("key", ["a", ""])
async def test_writers_at_the_same_time_lose_nothing(key: str) -> None:
    """Each of four processes inserts and upserts its own keys, and one common key."""
    store = MemoryStore()
    await direct(await lake_of(store), key=key)
    handles = [await (await lake_of(store)).tables.open("d") for _ in range(4)]

    async def write(number: int, table: Table) -> None:
        for turn in range(4):
            await table.insert(named("own", 100 * number + turn))
            if key:
                await table.upsert(named(f"common of {number} in turn {turn}:", 999))

    await asyncio.gather(*(write(*one) for one in enumerate(handles)))
    own = [100 * number + turn for number in range(4) for turn in range(4)]
    found = await numbers_in(handles[0])
    assert found == Counter([*own, 999] if key else own)
    times = [one.time for one in await handles[0].history()]
    assert len(times) == len(set(times)) == (32 if key else 16)


@pytest.mark.parametrize("key", ["a", ""])
async def test_a_token_is_written_once(key: str) -> None:
    """A retry returns the same time, also by another process; a smaller number is an error."""
    store = MemoryStore()
    table = await direct(await lake_of(store), key=key)
    first = await table.insert(named("old", 1), token=("w", 1))
    other = await (await lake_of(store)).tables.open("d")
    assert await other.insert(named("old", 1), token=("w", 1)) == first
    await other.insert(named("old", 2), token=("w", 2))
    with pytest.raises(OutcomeUnknown):
        await table.insert(named("old", 1), token=("w", 1))
    assert await texts(table) == ["old 1", "old 2"]


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("verb", ["insert", "upsert", "insert pieces", "delete"])
async def test_a_write_is_there_once_whenever_its_writer_was_killed(
    verb: str, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill at each write, a retry with the token leaves the contents of a clean run."""
    monkeypatch.setattr("tidelog.collection.table.incoming.STREAM_BYTES", 10)

    async def write(table: Table) -> None:
        rows = named("new", 2, 3) if verb == "upsert" else named("new", 3, 4)
        token = ("w", 1)
        if verb == "delete":
            await table.delete(where="a = 2", token=token)
        elif verb == "upsert":
            await table.upsert(rows, token=token)
        else:
            given = rows.to_reader(max_chunksize=1) if verb == "insert pieces" else rows
            await table.insert(given, token=token)

    kills = 0
    while True:
        store = MemoryStore()
        table = await direct(await lake_of(store))
        await table.insert(named("old", 1, 2))
        faults = DiesWriting(kills, landed)
        process = await lake_of(FaultyStore(store, toss=faults.toss), SwiftClock())
        with suppress(TidelogError, asyncio.TimeoutError):
            await write(await process.tables.open("d"))
        later = await (await lake_of(store)).tables.open("d")
        await write(later)
        expected = {
            "upsert": ["new 2", "new 3", "old 1"],
            "delete": ["old 1"],
        }.get(verb, ["new 3", "new 4", "old 1", "old 2"])
        assert await texts(later) == expected, kills
        if not faults.died:
            break
        kills += 1
    assert kills >= 1


@pytest.mark.parametrize("operation", ["insert", "upsert", "overwrite", "delete"])
async def test_staged_rows_of_spark_are_one_commit(operation: str) -> None:
    """Parts of other processes get the time of the commit; a replayed batch changes nothing."""
    table = await direct(await new_lake())
    await table.insert(named("old", 1, 2))
    area = await staging_area(table, operation)
    rows = named("new", 2, 3) if operation != "insert" else named("new", 3, 4)
    if operation == "delete":
        rows = rows.select(["a"])
    staged = [await stage_rows(area, table.store, table.clock, tables_of(rows, area.schema))]

    time = await commit_staged(table, staged, operation, token=("query:q", 0))
    assert time is not None
    assert await commit_staged(table, staged, operation, token=("query:q", 0)) is None
    expected = {
        "insert": ["new 3", "new 4", "old 1", "old 2"],
        "upsert": ["new 2", "new 3", "old 1"],
        "overwrite": ["new 2", "new 3"],
        "delete": ["old 1"],
    }
    assert await texts(table) == expected[operation]
    assert (await table.history())[-1].time == time


async def test_compaction_enforces_a_retention_in_its_own_times() -> None:
    """Later writes of other tables move neither its upper nor its retention."""
    clock = StuckClock()
    lake = await new_lake(clock)
    table = await lake.tables.create("d", SCHEMA, mode="direct", retain_ms=60_000)
    other = await lake.tables.create("other", SCHEMA)
    times = []
    for n in range(3):
        clock.wall_us += 60_000_000
        times.append(await table.insert(named("old", n)))
    clock.wall_us += 3_600_000_000
    await other.insert(named("late", 1))
    async for _ in lake.maintenance.compact(await lake.maintenance.groups(), full=True):
        pass

    assert await numbers_in(table, times[1]) == Counter([0, 1])
    with pytest.raises(AsOfBeforeSince):
        await table.snapshot(times[0])


async def test_a_creation_that_was_interrupted_is_finished() -> None:
    """A process dies at each write of the creation; the same call finishes it."""
    kills = 0
    while True:
        store = MemoryStore()
        faults = DiesWriting(kills, landed=False)
        await lake_of(store)
        with suppress(TidelogError, asyncio.TimeoutError):
            process = await lake_of(FaultyStore(store, toss=faults.toss), SwiftClock())
            await direct(process)
        lake = await lake_of(store)
        if not faults.died:
            break
        if kills % 2:  # The first write finishes a creation, too.
            with suppress(NameTaken):  # The process died after the last write of the creation.
                await direct(lake)
        if await lake.tables.list():
            table = await lake.tables.open("d")
        else:
            table = await direct(lake)
        await table.insert(named("old", 1))
        assert await texts(table) == ["old 1"]
        kills += 1
    assert kills >= 2
    with pytest.raises(NameTaken):
        await lake.tables.create("d", SCHEMA, key=["a"])


async def test_an_old_handle_of_a_dropped_table_writes_nothing() -> None:
    """The drop deletes the rows, and a write of an old handle names the drop."""
    store = MemoryStore()
    lake = await lake_of(store)
    table = await direct(lake)
    await table.insert(named("old", 1))
    await (await lake_of(store)).tables.drop("d")

    for write in (table.insert(named("new", 2)), table.upsert(named("new", 2))):
        with pytest.raises(NoSuchCollection, match="'d' was dropped"):
            await write
    again = await direct(lake)
    assert await texts(again) == []


async def test_merges_holds_and_sweeps_keep_the_rows() -> None:
    """The history stays readable through compaction and collection; leaks are deleted."""
    clock = StuckClock()
    lake = await new_lake(clock)
    table = await direct(lake)
    first = await table.insert(named("old", *range(50)))
    for number in range(12):
        await table.upsert(named(f"turn {number}", number, 40))
    leaked = await staging_area(table)
    await stage_rows(leaked, table.store, clock, tables_of(named("leak", 1), table.columns))
    (leak,) = [key for key in await keys_in(lake.store, "shard/") if "/part/" in key]
    for _ in range(3):
        clock.wall_us += 7_200_000_000
        for shard in table.shards:
            await shard.compact(full=True)
        groups = await lake.maintenance.groups(["d"])
        async for _ in lake.maintenance.collect(groups, after_us=0, sweeps=True):
            pass

    assert leak not in await keys_in(lake.store, "shard/")
    assert await numbers_in(table, first) == Counter(range(50))
    assert len(await table.history()) == 13
    await table.insert(named("more", 99))
    assert await numbers_in(table) == Counter([*range(50), 99])
