"""Rows that memory may not hold: they are read and written in pieces, and are one commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kit.clocks import SwiftClock
from kit.dying import DiesWriting
from kit.tables import SCHEMA, lake_of, new_lake, numbers_in, some_rows
from tidelog.collection.table_handle import Table
from tidelog.errors import KeyExists, TidelogError, UsageError
from tidelog.persist.transactions.committing import commit_written
from tidelog.store.local.store import LocalStore
from tidelog.store.memory import MemoryStore
from tidelog.testing import FaultyStore

Write = Callable[[Table, object], Awaitable[int]]
BATCHES, BATCH_ROWS, TEXT = 40, 200, 4_000
WRITES: dict[str, tuple[list[str], Write]] = {
    "insert": ([], lambda table, rows: table.insert(rows)),
    "insert by key": (["a"], lambda table, rows: table.insert(rows)),
    "upsert": (["a"], lambda table, rows: table.upsert(rows)),
    "merge": (["a"], lambda table, rows: table.merge(rows)),
    "merge, new rows only": (
        ["a"],
        lambda table, rows: table.merge(rows, when_matched="ignore"),
    ),
    "merge, no new rows": (
        ["a"],
        lambda table, rows: table.merge(rows, when_matched="delete", when_not_matched="ignore"),
    ),
}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has a few rows, or one batch of a megabyte."""
    monkeypatch.setattr("tidelog.persist.format.inputs.PIECE_ROWS", 5)
    monkeypatch.setattr("tidelog.collection.table.incoming.STREAM_BYTES", 100)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("is_async", [False, True], ids=["reader", "async"])
async def test_memory_does_not_grow_with_the_rows(
    tmp_path: Path, write: tuple[list[str], Write], is_async: bool
) -> None:
    """At each batch, Arrow has allocated a few batches, and not all earlier ones."""
    key, put = write
    lake = await lake_of(LocalStore(tmp_path, clock=SwiftClock()))
    table = await lake.tables.create("t", SCHEMA, key=key, shards=2)
    before = pa.total_allocated_bytes()
    seen: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        random = np.random.default_rng(7)
        for number in range(BATCHES):
            seen.append(pa.total_allocated_bytes() - before)
            ids = np.arange(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
            texts = [random.bytes(TEXT // 2).hex() for _ in ids]
            yield pa.record_batch({"a": pa.array(ids, pa.int64()), "b": texts})

    async def arriving() -> AsyncIterator[pa.RecordBatch]:
        for batch in batches():
            yield batch

    reader = pa.RecordBatchReader.from_batches(some_rows(0).schema, batches())
    await put(table, arriving() if is_async else reader)

    assert len(seen) == BATCHES
    assert max(seen) < 10 * BATCH_ROWS * TEXT  # All batches are 40 of these.
    found = await table.describe()
    assert found.rows == (0 if put is WRITES["merge, no new rows"][1] else BATCHES * BATCH_ROWS)


async def test_each_piece_is_written_before_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One commit names all pieces; a retry with its token writes nothing."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, shards=2)
    before = table.writer.state.upper
    unwritten: list[int] = []
    ahead: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(9):
            unwritten.append(number)
            yield some_rows(*range(5 * number, 5 * number + 5)).to_batches()[0]

    put = MemoryStore.put

    async def recorded(self: MemoryStore, key: str, *more: Any, **options: Any) -> Any:
        if "/part/" in key:
            ahead.append(len(unwritten))
            unwritten.clear()
        return await put(self, key, *more, **options)

    monkeypatch.setattr(MemoryStore, "put", recorded)
    reader = pa.RecordBatchReader.from_batches(some_rows(0).schema, batches())
    time = await table.insert(reader, token=("import", 1))
    again = await table.insert(
        some_rows(*range(45)).to_reader(max_chunksize=5), token=("import", 1)
    )

    assert again == time
    assert max(ahead) <= 4  # Two pieces are read before the first one is written.
    assert sum(ahead) == 9
    assert await numbers_in(table, before - 1) == {}
    assert await numbers_in(table, time) == Counter(range(45))


def rows_of(*pairs: tuple[int | None, str | None]) -> pa.Table:
    numbers = pa.array([a for a, _ in pairs], pa.int64())
    return pa.table({"a": numbers, "b": pa.array([b for _, b in pairs], pa.string())})


OLD = rows_of(*((n, f"old {n}") for n in range(20)))
NEW = rows_of(*((n, f"old {n}" if n == 12 else f"new {n}") for n in range(10, 30)))
SAME_TEXTS = rows_of(*((n + 100, f"old {n}") for n in range(15, 25)))
ACTIONS = [
    {"when_matched": matched, "when_not_matched": other}
    for matched in ("update", "delete", "ignore")
    for other in ("insert", "ignore")
]
CALLS: list[tuple[str, pa.Table, dict[str, Any], list[str]]] = [
    ("upsert", NEW, {}, ["a"]),
    ("insert", NEW.slice(10), {}, ["a"]),
    *(("merge", NEW, actions, ["a"]) for actions in ACTIONS),
    *(
        ("merge", SAME_TEXTS, {"on": ["b"], **actions}, key)
        for actions in ACTIONS
        for key in ([], ["a"])
    ),
]


@pytest.mark.parametrize(("verb", "rows", "options", "key"), CALLS)
async def test_many_pieces_have_the_effect_of_one(
    verb: str,
    rows: pa.Table,
    options: dict[str, Any],
    key: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Contents, and the rows added and removed, are those of a write of a whole table."""
    found = []
    for piece_bytes in (100, 1 << 30):
        monkeypatch.setattr("tidelog.collection.table.incoming.STREAM_BYTES", piece_bytes)
        lake = await new_lake()
        table = await lake.tables.create("t", SCHEMA, key=key, shards=3)
        await table.insert(pa.concat_tables([OLD, OLD.slice(17)]) if not key else OLD)
        time = await getattr(table, verb)(rows.to_reader(max_chunksize=3), **options)
        counts = [(one.added, one.removed) for one in await table.history() if one.time == time]
        contents = (await (await table.snapshot(time)).to_arrow()).sort_by("a").sort_by("b")
        found.append((contents, counts))

    assert found[0] == found[1]


@pytest.mark.parametrize("piece_bytes", [100, 1 << 30])
@pytest.mark.parametrize(
    ("verb", "rows", "options", "error", "message"),
    [
        ("insert", NEW, {}, KeyExists, "the key a=10 exists"),
        ("insert", rows_of(*((n % 27, "x") for n in range(20, 50))), {}, UsageError, "have a="),
        ("upsert", rows_of(*((n % 27, "x") for n in range(50))), {}, UsageError, "have a=0"),
        ("insert", rows_of(*((n, "x") for n in range(50, 70)), (None, "y")), {}, UsageError, "20"),
        ("merge", rows_of(*((n % 27, "x") for n in range(50))), ACTIONS[2], UsageError, "a=0"),
        ("merge", NEW, {"on": ["b"]}, KeyExists, r"the key a=1\d exists"),
    ],
)
async def test_refusals_of_pieces_are_those_of_one(
    verb: str,
    rows: pa.Table,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    piece_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key twice in two pieces, a key that exists or a null key: nothing is written."""
    monkeypatch.setattr("tidelog.collection.table.incoming.STREAM_BYTES", piece_bytes)
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, key=["a"], shards=3)
    await table.insert(OLD)

    with pytest.raises(error, match=message):
        await getattr(table, verb)(rows.to_reader(max_chunksize=3), **options)
    assert (await (await table.snapshot()).to_arrow()).sort_by("a") == OLD


@pytest.mark.parametrize("verb", ["upsert", "merge"])
async def test_a_commit_that_comes_first_is_seen(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer changes keys of the write before its commit, so it is planned again."""
    store = MemoryStore()
    table = await (await lake_of(store)).tables.create("t", SCHEMA, key=["a"], shards=3)
    await table.insert(OLD)
    other = await (await lake_of(store)).tables.open("t")
    commit, tries = commit_written, 0

    async def late(*given: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            await other.delete(keys=[10])
            await other.insert(rows_of((25, "between"), (99, "between")))
        return await commit(*given)

    monkeypatch.setattr("tidelog.collection.table.writes.commit_written", late)
    options = {} if verb == "upsert" else {"when_matched": "ignore"}
    await getattr(table, verb)(NEW.to_reader(max_chunksize=3), **options)

    contents = (await (await table.snapshot()).to_arrow()).to_pylist()
    found = {row["a"]: row["b"] for row in contents}
    assert len(found) == len(contents) == 31
    assert found[99] == "between"
    assert found[10] == "new 10"
    assert found[25] == ("new 25" if verb == "upsert" else "between")
    assert tries > 1


async def test_rows_of_other_pieces_may_have_other_columns() -> None:
    """A piece is fitted alone: values of Python, and tables that lack columns."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, key=["a"])
    await table.insert([{"a": 1}, *({"a": n, "b": str(n)} for n in range(2, 9)), {"a": 9.0}])
    await table.upsert([some_rows(20), some_rows(21).to_batches()[0], pa.table({"a": [22]})])

    found = {row["a"]: row["b"] for row in (await (await table.snapshot()).to_arrow()).to_pylist()}
    assert found == {
        1: None,
        9: None,
        20: "row 20",
        21: "row 21",
        22: None,
        **{n: str(n) for n in range(2, 9)},
    }


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize(
    ("verb", "options"),
    [("insert", {}), ("upsert", {}), ("merge", {"when_matched": "delete"})],
)
async def test_pieces_are_there_once_whenever_their_writer_was_killed(
    verb: str, options: dict[str, Any], landed: bool
) -> None:
    """After a kill at each write, a retry with the token leaves the contents of a clean run."""
    numbers = range(20, 35) if verb == "insert" else range(12, 27)
    rows = rows_of(*((n, f"new {n}") for n in numbers))
    old = {n: f"old {n}" for n in range(20)}
    new = {row["a"]: row["b"] for row in rows.to_pylist()}
    expected = {**old, **new}
    if verb == "merge":
        expected = {n: text for n, text in expected.items() if not (n in old and n in new)}

    async def write(table: Table) -> None:
        given = rows.to_reader(max_chunksize=4)
        await getattr(table, verb)(given, token=("w", 1), **options)

    kills = 0
    while True:
        store = MemoryStore()
        table = await (await lake_of(store)).tables.create("t", SCHEMA, key=["a"], shards=2)
        await table.insert(OLD)
        faults = DiesWriting(kills, landed)
        process = await lake_of(FaultyStore(store, toss=faults.toss), SwiftClock())
        with suppress(TidelogError, asyncio.TimeoutError):
            await write(await process.tables.open("t"))
        later = await (await lake_of(store)).tables.open("t")
        await write(later)
        contents = (await (await later.snapshot()).to_arrow()).to_pylist()
        assert {row["a"]: row["b"] for row in contents} == expected, kills
        assert len(contents) == len(expected)
        if not faults.died:
            break
        kills += 1
    assert kills >= 3


@pytest.mark.parametrize("is_async", [False, True], ids=["rows", "async"])
async def test_a_merge_refuses_rows_without_a_column_that_it_compares(is_async: bool) -> None:
    """A misspelled column would otherwise match nothing, without an error."""
    table = await (await new_lake()).tables.create("t", SCHEMA)
    await table.insert([{"a": 1, "b": "old"}])

    async def arriving() -> AsyncIterator[pa.Table]:
        yield pa.table({"a": [1]})

    async def merge(rows: object) -> int:
        return await table.merge(rows, on=["b"], when_matched="delete", when_not_matched="ignore")

    given: list[object] = [[{"a": 1}], pa.table({"a": [1]}), arriving() if is_async else [{"a": 2}]]
    for rows in given:
        with pytest.raises(UsageError, match="the rows have no column 'b'"):
            await merge(rows)
    await merge([])
    await merge(pa.table({"a": pa.array([], pa.int64())}))
    await merge([{"a": 1}, {"a": 9, "b": "old"}])

    assert (await (await table.snapshot()).to_arrow()).num_rows == 0
