"""The guard of deletes: it holds for the rows that the table has when the delete is committed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kit.tables import SCHEMA, lake_of, new_lake, numbers_in, some_rows
from tidelog.errors import DeletesAllRows, UsageError
from tidelog.persist.transactions.committing import commit_written
from tidelog.store.memory import MemoryStore

MODES = [("wal", 3), ("wal", 1), ("direct", 1)]


@pytest.mark.parametrize(("mode", "shards"), MODES)
async def test_a_delete_of_all_rows_is_refused(mode: str, shards: int) -> None:
    """The error has the number of rows; a delete of fewer rows, and of none, is not refused."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, key=["a"], mode=mode, shards=shards)
    await table.delete(where="true", all_rows_max=0)
    await table.insert(some_rows(*range(20)))
    for choice in ({"where": "a >= 0"}, {"keys": list(range(30))}):
        for most in (0, 19):
            with pytest.raises(DeletesAllRows) as refused:
                await table.delete(**choice, all_rows_max=most)
            assert refused.value.facts["rows"] == 20
    assert await numbers_in(table) == Counter(range(20))

    await table.delete(where="a > 0", all_rows_max=0)
    await table.delete(keys=[7], all_rows_max=0)
    assert await numbers_in(table) == Counter([0])
    await table.delete(keys=[0], all_rows_max=1)
    assert await numbers_in(table) == Counter()


async def test_a_table_without_a_key_counts_each_copy() -> None:
    """Equal rows are several rows; updates before do not disturb the count."""
    table = await (await new_lake()).tables.create("t", SCHEMA, shards=3)
    await table.insert(some_rows(1, 1, 1, 2))
    await table.update(set={"b": "'x'"}, where="a = 1")
    with pytest.raises(DeletesAllRows) as refused:
        await table.delete(where="true", all_rows_max=3)
    assert refused.value.facts["rows"] == 4
    await table.delete(where="a = 1", all_rows_max=0)
    assert await numbers_in(table) == Counter([2])


@pytest.mark.parametrize(("mode", "shards"), MODES)
@pytest.mark.parametrize("by_key", [False, True])
async def test_the_guard_holds_if_another_writer_comes_first(
    mode: str, shards: int, by_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process deletes the other rows just before the commit: now all rows would go."""
    store = MemoryStore()
    lake = await lake_of(store)
    table = await lake.tables.create("t", SCHEMA, key=["a"], mode=mode, shards=shards)
    await table.insert(some_rows(*range(20)))
    other = await (await lake_of(store)).tables.open("t")
    commit, tries = commit_written, iter(range(9))

    async def late(*given: Any) -> Any:
        if next(tries) == 0:
            await other.delete(where="a >= 5")
        return await commit(*given)

    monkeypatch.setattr("tidelog.collection.table.writes.commit_written", late)
    choice: dict[str, Any] = {"keys": [0, 1, 2, 3, 4]} if by_key else {"where": "a < 5"}
    with pytest.raises(DeletesAllRows) as refused:
        await table.delete(**choice, all_rows_max=0)
    assert refused.value.facts["rows"] == 5
    assert await numbers_in(table) == Counter(range(5))


async def test_rows_that_come_first_are_no_reason_to_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process adds a row that stays, so the delete no longer deletes all rows."""
    store = MemoryStore()
    table = await (await lake_of(store)).tables.create("t", SCHEMA, key=["a"])
    await table.insert(some_rows(1, 2))
    other = await (await lake_of(store)).tables.open("t")
    await other.insert(some_rows(3))

    await table.delete(where="a < 3", all_rows_max=0)
    assert await numbers_in(table) == Counter([3])


@pytest.mark.parametrize("most", [-1, "7", 1.5, True])
async def test_a_limit_that_is_no_number_is_refused(most: Any) -> None:
    """The error names the argument."""
    table = await (await new_lake()).tables.create("t", SCHEMA)
    with pytest.raises(UsageError, match="all_rows_max must be a whole number"):
        await table.delete(where="true", all_rows_max=most)
