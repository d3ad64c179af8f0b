"""Staged writes: one commit of the parts of other processes, which takes back the replaced rows."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from kit.clocks import StuckClock, SwiftClock
from kit.dying import DiesWriting
from kit.stores import keys_in
from kit.tables import SCHEMA, lake_of, new_lake, numbers_in, some_rows
from tidelog.collection.staged import StagedRows, commit_staged, stage_rows, staging_area
from tidelog.collection.table.inputs import tables_of
from tidelog.collection.table_handle import Table
from tidelog.errors import AsOfBeforeSince, KeyExists, PartsSwept, TidelogError, UsageError
from tidelog.location import Location
from tidelog.persist.transactions.committing import commit_written
from tidelog.store.memory import MemoryStore
from tidelog.testing import FaultyStore

QUERY = "query:q"


async def staged(table: Table, *pieces: pa.Table, operation: str = "insert") -> StagedRows:
    """Stage rows as a task does, which gets and answers with pickled values."""
    area = pickle.loads(pickle.dumps(await staging_area(table, operation)))
    fitting = (one for piece in pieces for one in tables_of(piece, area.schema))
    rows = await stage_rows(area, table.store, table.clock, fitting)
    sent: StagedRows = pickle.loads(pickle.dumps(rows))
    return sent


def named(text: str, *numbers: int) -> pa.Table:
    return pa.table({"a": pa.array(numbers, pa.int64()), "b": [f"{text} {n}" for n in numbers]})


async def texts(table: Table, as_of: int | None = None) -> list[str]:
    found = await (await table.snapshot(as_of)).to_arrow()
    return sorted(str(text) for text in found.column("b").to_pylist())


async def keyed(lake: Location, shards: int = 3) -> Table:
    return await lake.tables.create("k", SCHEMA, key=["a"], shards=shards)


async def test_rows_of_several_tasks_are_one_commit() -> None:
    """All staged rows become visible at one time, in the shards of their values."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, shards=3)
    await table.insert(some_rows(1))
    tasks = [await staged(table, some_rows(2, 3), some_rows(3)), await staged(table)]
    tasks.append(await staged(table, some_rows(*range(4, 40))))
    assert await numbers_in(table) == Counter({1: 1})

    time = await commit_staged(table, tasks, "insert")

    assert await numbers_in(table, time) == Counter([1, 2, 3, 3, *range(4, 40)])
    assert [commit.time for commit in await table.history()][-1] == time
    assert len(await table.history()) == 2
    await table.delete(where="a >= 3")  # A row in a wrong shard would stay.
    assert await numbers_in(table) == Counter([1, 2])


async def test_an_insert_refuses_keys_that_exist() -> None:
    """An insert of a present key writes nothing; so does a key that two tasks have."""
    table = await keyed(await new_lake())
    await commit_staged(table, [await staged(table, named("old", 1, 2))], "insert")
    with pytest.raises(KeyExists, match="the key a=2 exists"):
        await commit_staged(table, [await staged(table, named("new", 2, 3))], "insert")
    twice = [await staged(table, named("new", 7)), await staged(table, named("new", 7, 8))]
    for operation in ("insert", "upsert", "overwrite"):
        with pytest.raises(UsageError, match="two rows of the write have a=7"):
            await commit_staged(table, twice, operation)

    assert await texts(table) == ["old 1", "old 2"]


async def test_an_upsert_replaces_and_an_overwrite_leaves_nothing() -> None:
    """Earlier times keep the replaced rows; equal rows are no change."""
    table = await keyed(await new_lake())
    await commit_staged(table, [await staged(table, named("old", *range(20)))], "insert")
    tasks = [await staged(table, named("new", 3, 30)), await staged(table, named("old", 4))]
    first = await commit_staged(table, tasks, "upsert")
    expected = sorted([*(f"old {n}" for n in range(20) if n != 3), "new 3", "new 30"])
    assert await texts(table) == expected
    newest = (await table.history())[-1]
    assert (newest.added, newest.removed) == (2, 1)

    await commit_staged(table, [await staged(table, named("last", 3, 99))], "overwrite")
    assert await texts(table) == ["last 3", "last 99"]
    await commit_staged(table, [], "overwrite")
    assert await texts(table) == []
    assert await texts(table, first) == expected


async def test_an_overwrite_of_a_table_without_a_key_keeps_counts() -> None:
    """An overwrite takes back each copy of a row."""
    table = await (await new_lake()).tables.create("t", SCHEMA, shards=2)
    await table.insert(some_rows(1, 1, 2))
    await commit_staged(table, [await staged(table, some_rows(2, 2, 3))], "overwrite")

    assert await numbers_in(table) == Counter([2, 2, 3])


@pytest.mark.parametrize("operation", ["upsert", "overwrite", "insert"])
async def test_commits_between_staging_and_commit_are_seen(operation: str) -> None:
    """The committer's handle is old, and another writer has changed the key since."""
    store, clock = MemoryStore(), SwiftClock()
    table = await keyed(await lake_of(store, clock))
    await table.insert(named("old", 1, 2))
    tasks = [await staged(table, named("new", 2, 5))]
    other = await (await lake_of(store, clock)).tables.open("k")
    await other.delete(keys=[1, 2])
    await other.insert(named("between", 1, 5) if operation != "insert" else named("between", 1))

    await commit_staged(table, tasks, operation)

    kept = [] if operation == "overwrite" else ["between 1"]
    assert await texts(table) == [*kept, "new 2", "new 5"]


@pytest.mark.parametrize(
    ("operation", "key"), [("insert", []), ("insert", ["a"]), ("upsert", ["a"])]
)
async def test_two_committers_of_one_batch_write_one_of_them(
    operation: str, key: list[str]
) -> None:
    """Two drivers of one checkpoint commit other rows at the same time; the second is skipped."""
    store, clock = MemoryStore(), SwiftClock()
    first = await (await lake_of(store, clock)).tables.create("k", SCHEMA, key=key)
    second = await (await lake_of(store, clock)).tables.open("k")
    rows = [
        (table, [await staged(table, named(text, 1, 2))])
        for table, text in ((first, "one"), (second, "two"))
    ]
    times = await asyncio.gather(
        *(commit_staged(table, some, operation, token=(QUERY, 0)) for table, some in rows)
    )

    assert any(time is not None for time in times)
    assert await texts(first) in (["one 1", "one 2"], ["two 1", "two 2"])
    assert len(await first.history()) == 1


async def test_a_delete_takes_keys_only() -> None:
    """Repeated and absent keys are no error; a row that came since the staging is deleted, too."""
    store, clock = MemoryStore(), SwiftClock()
    table = await keyed(await lake_of(store, clock))
    await table.insert(named("old", 1, 2, 3))
    objects = await keys_in(store, "")
    tasks = [
        await staged(table, pa.table({"a": keys}), operation="delete")
        for keys in ([2, 2, 9], [2, 7])
    ]
    assert await keys_in(store, "") == objects
    other = await (await lake_of(store, clock)).tables.open("k")
    await other.upsert(named("between", 2, 7, 8))

    await commit_staged(table, tasks, "delete", token=(QUERY, 0))
    assert await texts(table) == ["between 8", "old 1", "old 3"]
    assert await commit_staged(table, tasks, "delete", token=(QUERY, 0)) is None


@pytest.mark.parametrize("operation", ["insert", "upsert", "overwrite"])
async def test_a_later_batch_of_an_unknown_query_is_refused(operation: str) -> None:
    """A query continues only in the table that has its first batch, which may be empty."""
    table = await keyed(await new_lake())
    rows = [await staged(table, named("new", 1))]
    with pytest.raises(UsageError, match="'k' has no earlier batch of this query"):
        await commit_staged(table, rows, operation, token=(QUERY, 1), continues=True)
    assert await texts(table) == []

    await commit_staged(table, [], operation, token=(QUERY, 0))
    await commit_staged(table, rows, operation, token=(QUERY, 1), continues=True)
    assert await texts(table) == ["new 1"]


@pytest.mark.parametrize("races", [1, 3])
async def test_an_overwrite_takes_back_the_commits_that_come_first(
    races: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other writers insert and delete before each of its tries; no row of theirs stays."""
    store, clock = MemoryStore(), SwiftClock()
    table = await keyed(await lake_of(store, clock))
    await table.insert(named("old", *range(9)))
    other = await (await lake_of(store, clock)).tables.open("k")
    commit, tries = commit_written, iter(range(9))

    async def late(*given: Any) -> Any:
        number = next(tries)
        if number < races:
            await other.delete(keys=[number])
            await other.insert(named("between", 20 + number))
        return await commit(*given)

    monkeypatch.setattr(f"{commit_staged.__module__}.commit_written", late)
    await commit_staged(table, [await staged(table, named("new", 3, 99))], "overwrite")

    assert next(tries) == races + 1
    assert await texts(table) == ["new 3", "new 99"]
    assert [commit.removed for commit in await table.history()][-1] == 9


async def test_an_overwrite_begins_again_if_a_merge_hides_what_came_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A merge joins times before since, so the writer reads the contents again."""
    table = await keyed(await new_lake())
    await table.insert(named("old", 1, 2))
    commit, refused = commit_written, iter([True, False])

    async def late(*given: Any) -> Any:
        if next(refused):
            await table.insert(named("between", 7))
            patched.setattr(type(table), "changes_of", _gone)
        return await commit(*given)

    with monkeypatch.context() as patched:
        patched.setattr(f"{commit_staged.__module__}.commit_written", late)
        await commit_staged(table, [await staged(table, named("new", 1))], "overwrite")
    assert await texts(table) == ["new 1"]


async def _gone(*given: Any) -> AsyncGenerator[pa.Table, None]:
    if given:
        raise AsOfBeforeSince("the time is no longer readable")
    yield pa.table({})


async def test_an_old_handle_never_inserts_a_key_twice() -> None:
    """A key that another process has inserted meanwhile is found at the commit."""
    store, clock = MemoryStore(), SwiftClock()
    table = await keyed(await lake_of(store, clock))
    tasks = [await staged(table, named("new", 5))]
    await (await (await lake_of(store, clock)).tables.open("k")).insert(named("between", 5))

    with pytest.raises(KeyExists):
        await commit_staged(table, tasks, "insert")
    assert await texts(table) == ["between 5"]


@pytest.mark.parametrize("operation", ["insert", "upsert", "overwrite"])
async def test_a_batch_is_committed_once_also_with_other_rows(operation: str) -> None:
    """Spark may compute other rows when it repeats a batch; smaller numbers are repeats, too."""
    lake = await new_lake()
    table = await keyed(lake)
    first = await commit_staged(
        table, [await staged(table, named("new", 1))], operation, token=(QUERY, 7)
    )
    assert first is not None
    for number in (7, 6):
        again = [await staged(table, named("again", 2))]
        assert await commit_staged(table, again, operation, token=(QUERY, number)) is None
    assert await texts(table) == ["new 1"]
    other = await lake.tables.create("other", SCHEMA, key=["a"])
    rows = [await staged(other, named("other", 1))]
    assert await commit_staged(other, rows, operation, token=(QUERY, 7)) is not None
    assert await texts(other) == ["other 1"]


async def test_a_batch_without_rows_moves_the_upper() -> None:
    """An empty batch is committed, so that readers see its time as complete; once only."""
    clock = StuckClock()
    lake = await new_lake(clock)
    for table in (await keyed(lake), await lake.tables.create("t", SCHEMA)):
        clock.wall_us += 60_000_000
        time = await commit_staged(table, [await staged(table)], "insert", token=(QUERY, 0))
        assert time == clock.wall_us // 1_000
        assert (await table.snapshot()).as_of == time
        assert await commit_staged(table, [], "insert", token=(QUERY, 0)) is None


async def test_rows_that_were_never_committed_are_swept() -> None:
    """The parts of a dead job go; a commit after that is refused, and writes nothing."""
    clock = StuckClock()
    lake = await new_lake(clock)
    table = await keyed(lake, shards=1)
    before = set(await keys_in(lake.store, "shard/"))
    rows = await staged(table, named("new", 1))
    parts = set(await keys_in(lake.store, "shard/")) - before
    assert len(parts) == 1
    for _ in range(3):
        clock.wall_us += 7_200_000_000
        groups = await lake.maintenance.groups(["k"])
        async for _ in lake.maintenance.collect(groups, after_us=0, sweeps=True):
            pass

    assert not parts & set(await keys_in(lake.store, "shard/"))
    for operation in ("insert", "upsert", "overwrite"):
        with pytest.raises(PartsSwept):
            await commit_staged(table, [rows], operation)
    assert await texts(table) == []


async def _committed_and_killed(
    store: MemoryStore, rows: Sequence[StagedRows], operation: str, faults: DiesWriting
) -> None:
    process = await lake_of(FaultyStore(store, toss=faults.toss), SwiftClock())
    with suppress(TidelogError, asyncio.TimeoutError):
        table = await process.tables.open("k")
        await commit_staged(table, rows, operation, token=(QUERY, 1))


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("operation", ["insert", "upsert", "overwrite"])
async def test_a_batch_is_there_once_whenever_its_committer_was_killed(
    operation: str, landed: bool
) -> None:
    """After a kill at each write, another process repeats the batch: contents equal a clean run."""
    kills = 0
    while True:
        store = MemoryStore()
        table = await keyed(await lake_of(store))
        await commit_staged(table, [await staged(table, named("old", 1, 2))], "insert")
        numbers = (3, 4) if operation == "insert" else (2, 3)
        rows = [await staged(table, named("new", *numbers))]
        faults = DiesWriting(kills, landed)
        await _committed_and_killed(store, rows, operation, faults)

        later = await (await lake_of(store)).tables.open("k")
        again = [await staged(later, named("new", *numbers))]
        await commit_staged(later, again, operation, token=(QUERY, 1))
        old = {"insert": ["old 1", "old 2"], "upsert": ["old 1"], "overwrite": []}[operation]
        expected = sorted(["new 3", f"new {4 if operation == 'insert' else 2}", *old])
        assert await texts(later) == expected, kills
        if not faults.died:
            break
        kills += 1
    assert kills >= 1
