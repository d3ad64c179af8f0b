"""Threads that blocking connections share, and rows that come from reads of the same process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

import tidelog
from tidelog.blocking import portal

WRITES = 5  # More than the threads of the pool.
COLUMNS: dict[str, pa.DataType] = {"k": pa.int64(), "v": pa.string()}
SCHEMA = pa.schema(COLUMNS)
UPDATES = SCHEMA.append(pa.field("_time", pa.int64())).append(pa.field("_diff", pa.int64()))
ROWS = 100
Connections: TypeAlias = Sequence[tidelog.Location]
Rows: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


class Stream:
    """An object with the Arrow stream interface, which reads its rows when it is asked for them."""

    def __init__(self, rows: Rows, schema: pa.Schema = SCHEMA) -> None:
        self.rows = rows
        self.schema = schema

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.rows())
        return reader.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


class Sized(Stream):
    """The same with a length."""

    def __len__(self) -> int:
        return ROWS


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tidelog.Location]:
    """A location with a table of rows; two threads do the work of all connections."""
    monkeypatch.setattr(portal, "THREADS_MAX", 2)
    portal.Workers.begin()
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        source = lake.tables.create("source", SCHEMA, key=["k"])
        source.insert([{"k": n, "v": "a"} for n in range(ROWS)])
        source.upsert([{"k": 0, "v": "b"}])
        yield lake
    monkeypatch.undo()
    portal.Workers.begin()


def insert(table: tidelog.Table, rows: Rows) -> None:
    table.insert(rows())


def merge(table: tidelog.Table, rows: Rows) -> None:
    table.merge(Stream(rows))


def delete(table: tidelog.Table, rows: Rows) -> None:
    table.insert([{"k": n} for n in range(ROWS + 7)])
    table.delete(keys=(batch.select(["k"]) for batch in rows()))


@pytest.fixture(params=["one connection", "many connections"])
def connections(lake: tidelog.Location, request: pytest.FixtureRequest) -> Iterator[Connections]:
    """The connection of each write."""
    if request.param == "one connection":
        yield [lake] * WRITES
        return
    with ExitStack() as stack:
        yield [stack.enter_context(tidelog.connect(lake.url)) for _ in range(WRITES)]


def run_all_at_once(connections: Connections, write: Callable[[int, Rows], None]) -> None:
    """Run a write for each connection; all of them wait for their rows at one time."""
    # Without threads for the reads, the barrier breaks after this time, and the writes fail.
    all_wait = threading.Barrier(WRITES, timeout=30)

    def rows_of(connection: tidelog.Location) -> Iterator[pa.RecordBatch]:
        all_wait.wait()
        yield from connection.table("source").snapshot().to_batches()

    def write_one(number: int) -> None:
        write(number, partial(rows_of, connections[number]))

    with ThreadPoolExecutor(WRITES) as threads:
        list(threads.map(write_one, range(WRITES)))


@pytest.mark.parametrize(("write", "left"), [(insert, ROWS), (merge, ROWS), (delete, 7)])
def test_writes_whose_rows_are_reads_do_not_wait_for_each_other(
    connections: Connections, write: Callable[[tidelog.Table, Rows], None], left: int
) -> None:
    """A read of these rows needs threads, too."""
    tables = [
        connection.tables.create(f"t{number}", SCHEMA, key=["k"])
        for number, connection in enumerate(connections)
    ]
    run_all_at_once(connections, lambda number, rows: write(tables[number], rows))
    assert [table.snapshot().to_arrow().num_rows for table in tables] == [left] * WRITES


def test_transactions_whose_rows_are_reads_do_not_wait_for_each_other(
    connections: Connections,
) -> None:
    """A transaction reads its rows in one step, before it looks up their keys."""
    for number in range(WRITES):
        connections[0].tables.create(f"t{number}", SCHEMA, key=["k"])

    def write(number: int, rows: Rows) -> None:
        with connections[number].transaction() as transaction:
            transaction.insert(f"t{number}", Stream(rows))

    run_all_at_once(connections, write)
    tables = [connections[0].table(f"t{number}") for number in range(WRITES)]
    assert [table.snapshot().to_arrow().num_rows for table in tables] == [ROWS] * WRITES


@pytest.mark.parametrize("kind", [Stream, Sized])
def test_appends_whose_rows_are_reads_do_not_wait_for_each_other(
    connections: Connections, kind: type[Stream]
) -> None:
    """A shard reads rows with a length in one step."""
    shards = [
        connection.shard(f"s{number}", schema=SCHEMA)
        for number, connection in enumerate(connections)
    ]

    def write(number: int, rows: Rows) -> None:
        def updates() -> Iterator[pa.RecordBatch]:
            for batch in rows():
                ones = pa.array([1] * batch.num_rows)
                yield batch.append_column("_time", ones).append_column("_diff", ones)

        given = kind(updates, UPDATES)
        shards[number].compare_and_append(given, 0, 10)

    run_all_at_once(connections, write)
    assert [shard.snapshot(9).to_arrow().num_rows for shard in shards] == [ROWS] * WRITES


def test_threads_at_work_outlive_their_connection() -> None:
    """A thread keeps its memory, and the next connection reads into it."""

    async def one() -> threading.Thread:
        return await asyncio.to_thread(threading.current_thread)

    begun = portal.Portal()
    found = begun.run(one())
    begun.close()
    assert found.is_alive()


def test_the_end_of_a_connection_waits_for_its_own_work_alone() -> None:
    """Its work has ended when `close` returns; the work of another connection goes on."""
    is_begun, is_done = threading.Event(), threading.Event()
    ended = list[str]()
    portals = {"own": portal.Portal(), "other": portal.Portal()}

    def work(name: str) -> None:
        is_begun.set()
        assert is_done.wait(10)
        ended.append(name)

    async def begin(name: str) -> None:
        task = asyncio.ensure_future(asyncio.to_thread(work, name))
        await asyncio.to_thread(is_begun.wait, 10)
        task.cancel()

    portals["own"].run(begin("own"))

    def close() -> None:
        portals["own"].close()
        ended.append("closed")

    closing = threading.Thread(target=close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive(), "the work has not ended"
    is_done.set()
    closing.join(10)
    assert ended == ["own", "closed"]

    is_begun.clear()
    is_done.clear()
    portals["other"].run(begin("other"))
    third = portal.Portal()
    third.close()
    assert ended == ["own", "closed"], "it did not wait for the work of another"
    is_done.set()
    portals["other"].close()
    assert ended == ["own", "closed", "other"]
