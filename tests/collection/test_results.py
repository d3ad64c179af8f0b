"""Results: rows that are read on demand, as objects of other libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import tidelog
from tidelog.errors import UsageError
from tidelog.http.api.messages import ScanAnswer, ScanValue
from tidelog.http.client import HttpScan
from tidelog.keyed.values import KeyedQuery, Keys
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore
from tidelog.testing import RecordedStore


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("lake")
    (folder / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(3)))
    with tidelog.connect(folder / "lake", create=True) as lake:
        lake.sources.create(tidelog.SourceSpec(name="c", files=str(folder / "a.jsonl")))
        lake.sources.ingest("c")
        shard = lake.shard("s", schema=pa.schema([("n", pa.int64())]))
        shard.append(pa.table({"n": range(3), "_time": [0] * 3, "_diff": [1] * 3}), 0, 1)
        keyed = lake.keyed.create("k")
        keyed.append([(b"a", b"%d" % n) for n in range(3)])
        yield lake
        keyed.close()


RESULTS: dict[str, Callable[[Any], Any]] = {
    "contents": lambda lake: lake.collection("c").snapshot(),
    "sql": lambda lake: lake.sql("FROM c"),
    "shard": lambda lake: lake.shard("s").snapshot(0),
    "keyed": lambda lake: lake.keyed.open("k").scan(b"a"),
    "http": lambda lake: HttpScan(page, KeyedQuery(keys=Keys.one(b"a")), 2),
}


def page(start: int, limit: int | None, rows: int) -> ScanAnswer:
    """Answer a request for three records, as a server does."""
    values = [ScanValue(sequence=n, timestamp_us=n, value="x") for n in range(3) if n >= start]
    more = len(values) > rows
    return ScanAnswer(key="a", values=values[:rows], next_sequence=start + rows, more=more)


@pytest.fixture(params=list(RESULTS))
def result(request: pytest.FixtureRequest, lake: Any) -> Callable[[], Any]:
    """A function that returns a result which is not read yet."""
    read = RESULTS[request.param]
    return lambda: read(lake)


def test_all_results_have_the_same_methods(
    result: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow, batches, pandas, Polars and DuckDB have the same rows."""
    polars = SimpleNamespace(from_arrow=lambda table: table)
    monkeypatch.setitem(sys.modules, "polars", polars)
    table = result().to_arrow()

    assert table.num_rows == 3
    batches = list(result().to_batches())
    assert {type(batch) for batch in batches} == {pa.RecordBatch}
    assert pa.Table.from_batches(batches).to_pydict() == table.to_pydict()
    assert result().to_pandas().to_dict("list") == table.to_pydict()
    assert result().to_polars() == table


def test_a_duckdb_relation_outlives_its_result(result: Callable[[], Any]) -> None:
    """The relation keeps the rows. On the default connection, SQL finds it by its name."""
    relation = result().to_duckdb()
    assert relation.count("*").fetchall() == [(3,)]
    by_name: Any = duckdb.sql("SELECT count(*) FROM relation")
    assert by_name.fetchall() == [(3,)]
    with duckdb.connect() as connection:
        assert result().to_duckdb(connection).count("*").fetchall() == [(3,)]
    with pytest.raises(UsageError, match="connection must be"):
        result().to_duckdb("db")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named_with_its_command(
    library: str, result: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is not an ImportError of a module that the caller never named."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=f"{library} is not installed: pip install {library}"):
        getattr(result(), f"to_{library}")()


async def test_contents_are_read_on_demand_and_once(tmp_path: Path) -> None:
    """A snapshot reads no part. The first table is kept; batches are read as they are used."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(3_000)))
    store = RecordedStore(MemoryStore())
    made = await open_location("memory://", create=True, store=store)
    await made.sources.create(tidelog.SourceSpec(name="c", files=str(tmp_path / "a.jsonl")))
    ingester = await made.sources.ingester("c", bytes_max=10_000)
    head = await ingester.source.head()
    while (tick := await ingester.tick(head)) is not None and tick.left_bytes:
        pass

    def parts_read() -> int:
        found = [r for r in store.records if r.op == "get" and "/part/" in r.key]
        store.records.clear()
        return len(found)

    contents = await (await made.collection("c")).snapshot()
    assert parts_read() == 0
    batches = contents.to_batches()
    await anext(batches)
    await batches.aclose()
    some = parts_read()
    table = await contents.to_arrow()
    every = parts_read()
    assert await contents.to_arrow() is table
    assert [some > 0, some < every, parts_read()] == [True, True, 0]
    rows: list[Any] = table["n"].to_pylist()
    assert sorted(rows) == list(range(3_000))


async def test_contents_stay_the_same_after_commits_and_merges(tmp_path: Path) -> None:
    """Rows that are read later are those of the snapshot's time."""
    (tmp_path / "0.jsonl").write_text('{"n": 0, "at": 0}\n')
    lake = await open_location(str(tmp_path / "lake"), create=True)
    spec = tidelog.SourceSpec(name="c", files=str(tmp_path / "*.jsonl"), time_column="at")
    await lake.sources.create(spec)
    await lake.sources.ingest("c")
    contents = await (await lake.collection("c")).snapshot()
    for n in range(1, 4):
        (tmp_path / f"{n}.jsonl").write_text(f'{{"n": {n}, "at": {n}}}\n')
        await lake.sources.ingest("c")
    for shard in (await lake.collection("c")).shards:
        await shard.compact(full=True)
        await shard.collect(after_us=0)

    assert (await contents.to_arrow())["n"].to_pylist() == [0]
