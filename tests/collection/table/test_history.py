"""The history of a table: the commits of its readable times, with their rows and bytes."""

from __future__ import annotations

import pytest

from kit.tables import SCHEMA, new_lake, some_rows
from tidelog.collection.table_handle import Table
from tidelog.errors import AsOfBeforeSince, AsOfNotComplete, UsageError
from tidelog.location.location import user_name, writer_name


async def counts(table: Table, since: int | None = None) -> list[tuple[int, int, int]]:
    return [(one.time, one.added, one.removed) for one in await table.history(since)]


async def test_each_commit_has_its_rows_and_bytes() -> None:
    """Commits that no shard has yet are among them; the rows of all shards count."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, key=["a"], shards=3)
    times = [
        await table.insert(some_rows(*range(20))),
        await table.upsert([{"a": 3, "b": "new"}, {"a": 4, "b": "row 4"}, {"a": 90}]),
        await table.delete(keys=[1, 2, 77]),
    ]
    await table.delete(keys=[77])  # No row changes.

    found = await table.history()
    assert [(one.added, one.removed) for one in found] == [(20, 0), (2, 1), (0, 2)]
    assert [one.time for one in found] == times
    states = table.states
    assert sum(one.bytes or 0 for one in found) == sum(s.totals.size_bytes for s in states)
    assert all(one.bytes for one in found)
    assert await table.history(times[0], times[1]) == found[1:2]
    assert await table.history(times[2]) == []


async def test_a_transaction_is_a_commit_of_each_of_its_tables() -> None:
    """Both have it at one time, with their own rows."""
    lake = await new_lake()
    one, two = [await lake.tables.create(name, SCHEMA) for name in ("one", "two")]
    async with lake.transaction() as tx:
        await tx.insert("one", some_rows(1, 2))
        await tx.insert("two", some_rows(3))
    await two.insert(some_rows(3, 3))

    assert tx.time is not None
    assert await counts(one) == [(tx.time, 2, 0)]
    assert [rows[1:] for rows in await counts(two)] == [(1, 0), (2, 0)]


async def test_merges_and_retention_leave_exact_counts() -> None:
    """Times that were given up are not listed, and asking for them is an error."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, retain_ms=0)
    times = [await table.insert(some_rows(number)) for number in range(12)]
    times.append(await table.update(set={"b": "'x'"}, where="a < 5"))
    before = await counts(table, times[0])
    hold = await table.hold("audit", at=times[6])
    assert hold.time == times[6]
    async for _ in lake.maintenance.compact(await lake.maintenance.groups(["t"]), full=True):
        pass

    assert before == [(time, 1, 0) for time in times[1:12]] + [(times[12], 5, 5)]
    table = await lake.table("t")
    found = await table.history()
    assert [(one.time, one.added, one.removed) for one in found] == before[6:]
    assert {one.bytes for one in found} == {None}
    with pytest.raises(AsOfBeforeSince):
        await table.history(times[2])


async def test_a_range_that_is_wrong_is_refused() -> None:
    """As it is for changes."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA)
    time = await table.insert(some_rows(1))

    with pytest.raises(UsageError, match="until"):
        await table.history(time, time - 1)
    with pytest.raises(AsOfNotComplete):
        await table.history(time, time + 10**9)


@pytest.mark.parametrize("mode", ["wal", "direct"])
async def test_each_commit_names_its_writer_until_a_merge(mode: str) -> None:
    """The name in the token, or user@host:pid of the process; the call of a transaction has it."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, key=["a"], mode=mode)
    process = f"{user_name()}@{writer_name()}"
    await table.insert(some_rows(1, 2))
    await table.upsert(some_rows(3), token=("night job", 7))
    await table.delete(keys=[1], token=("a/b", 0))
    await table.insert(some_rows(*range(10, 20)).to_reader(max_chunksize=2))

    assert [one.by for one in await table.history()] == [process, "night job", "a/b", process]
    await lake.tables.advance()
    reopened = await lake.tables.open("t")
    assert [one.by for one in await reopened.history()] == [process, "night job", "a/b", process]
    async for _ in lake.maintenance.compact(await lake.maintenance.groups(["t"]), full=True):
        pass
    merged = await table.history()
    assert [(one.by, one.bytes) for one in merged] == [(None, None)] * 4
    assert [(one.added, one.removed) for one in merged] == [(2, 0), (1, 0), (0, 1), (10, 0)]


async def test_a_transaction_names_its_writer_in_each_table() -> None:
    """All of its tables have the same writer."""
    lake = await new_lake()
    one, two = [await lake.tables.create(name, SCHEMA) for name in ("one", "two")]
    async with lake.transaction() as tx:
        await tx.insert("one", some_rows(1, 2))
        await tx.insert("two", some_rows(3))

    process = f"{user_name()}@{writer_name()}"
    for table in (one, two):
        assert [commit.by for commit in await table.history()] == [process]
