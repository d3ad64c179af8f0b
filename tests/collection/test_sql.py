"""SQL over collections: DuckDB's answers, as of one time, without access to anything else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pytest

import tidelog
from kit.sources import run_once
from tidelog.collection import sql
from tidelog.collection.catalog.catalog import Catalog
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.reading import Reading
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    CorruptionError,
    NoSuchCollection,
    UsageError,
)
from tidelog.location import Location, open_location

ORDERS = [
    {"id": n, "item": f"i{n % 5}", "qty": n % 7 or None, "day": f"2024-01-{n % 28 + 1:02}"}
    for n in range(300)
]
PRICES = [{"item": f"i{n}", "price": n + 0.5} for n in range(4)]


async def feed(
    lake: Location, folder: Path, name: str, rows: list[dict[str, Any]], **spec: Any
) -> None:
    """Ingest rows into a new or an existing collection."""
    place = folder / name
    place.mkdir(exist_ok=True)
    file = place / f"{len(list(place.iterdir()))}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if name not in await lake.sources.list():
        await lake.sources.create(SourceSpec(name=name, files=f"{place}/*.jsonl", **spec))
    await run_once(await lake.sources.ingester(name))


async def filled(folder: Path) -> Location:
    """Make two collections with a common time at which both have rows."""
    made = await open_location(str(folder / "lake"), create=True)
    await feed(made, folder, "orders", ORDERS, envelope="upsert", key=("id",))
    await feed(made, folder, "prices", PRICES, envelope="upsert", key=("item",))
    await feed(made, folder, "orders", ORDERS[:1])
    return made


@pytest.fixture
async def lake(tmp_path: Path) -> Location:
    return await filled(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a location that tests only read."""
    folder = tmp_path_factory.mktemp("shared")
    asyncio.run(filled(folder))
    return folder


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


QUERIES = [
    "SELECT * FROM orders",
    "SELECT count(*) FROM orders",
    "FROM orders WHERE id = 77",
    "SELECT item FROM orders WHERE id BETWEEN 10 AND 20 AND qty > 3",
    "SELECT id FROM orders WHERE item = 'i3' AND qty IS NULL",
    "SELECT id FROM orders WHERE item IN ('i1', 'i2') OR day >= DATE '2024-01-20'",
    "SELECT item, sum(qty) FROM orders GROUP BY item HAVING sum(qty) > 100",
    "SELECT * FROM orders JOIN prices USING (item) WHERE price > 1",
    "SELECT o.id FROM orders o LEFT JOIN prices p USING (item) WHERE p.price IS NULL",
    "WITH prices AS (SELECT 1 AS x) SELECT * FROM prices",
    "SELECT id FROM orders WHERE EXISTS (FROM prices p WHERE p.item = orders.item)",
    'SELECT "ID" FROM Orders ORDER BY id DESC LIMIT 3',
    "SELECT item FROM orders UNION SELECT item FROM prices",
    "SELECT id, rank() OVER (PARTITION BY item ORDER BY id) AS r FROM orders QUALIFY r < 3",
    "SELECT (WITH orders AS (SELECT 1 AS x) SELECT x FROM orders) AS y, id FROM orders",
    "FROM main.orders WHERE id = 3",
    "SELECT 42 AS x",
    "DESCRIBE orders",
]


@pytest.mark.parametrize("query", QUERIES)
async def test_the_answer_is_that_of_duckdb_on_the_snapshots(shared: Path, query: str) -> None:
    """Columns, filters and bounds that the read applies change no answer."""
    lake = await open_location(str(shared / "lake"))
    time = (await lake.sql("FROM orders, prices LIMIT 0")).as_of
    with duckdb.connect() as plain:
        for name in ("orders", "prices"):
            snapshot = await (await lake.collection(name)).snapshot(time)
            plain.register(name, await snapshot.to_arrow())
        expected = plain.sql(query).to_arrow_table()

    found = await lake.sql(query, as_of=time)

    def in_order(rows: pa.Table) -> list[str]:
        return sorted(map(repr, rows.to_pylist()))

    assert in_order(found.table) == in_order(expected)
    assert found.table.schema.names == expected.schema.names


async def test_all_collections_are_read_as_of_one_time(lake: Location, tmp_path: Path) -> None:
    """The time is the newest at which all are complete; the answer names later collections."""
    before = await lake.sql("SELECT count(*) AS n FROM orders, prices")
    assert before.table.to_pylist() == [{"n": 300 * 4}]
    await feed(
        lake, tmp_path, "orders", [{"id": 1_000, "item": "i0", "qty": 1, "day": "2024-02-01"}]
    )
    orders = await lake.sql("SELECT count(*) AS n FROM orders")

    both = await lake.sql("SELECT count(*) AS n FROM orders, prices")
    earlier = await lake.sql("SELECT count(*) AS n FROM orders", as_of=before.as_of)

    assert orders.table.to_pylist() == [{"n": 301}]
    assert orders.later == {}
    assert both.table.equals(before.table)
    assert both.as_of == before.as_of
    assert both.later == {"orders": orders.as_of}
    assert earlier.table.to_pylist() == [{"n": 300}]
    assert repr(earlier).endswith(f"as of {repr(before).rpartition(' ')[2]}")


async def test_a_time_that_is_not_readable_is_refused(lake: Location, tmp_path: Path) -> None:
    """A query never gets the contents of another time, also if only one collection lacks it."""
    with pytest.raises(AsOfNotComplete):
        await lake.sql("FROM orders", as_of="2999-01-01")
    await lake.collections.retain("orders", 0)
    await feed(lake, tmp_path, "orders", ORDERS[:1])
    with pytest.raises(AsOfBeforeSince):
        await lake.sql("FROM orders", as_of="2000-01-01")
    with pytest.raises(AsOfBeforeSince):
        await lake.sql("FROM orders, prices")
    assert (await lake.sql("FROM orders")).table.num_rows == 300


@pytest.mark.parametrize(
    ("query", "error", "text"),
    [
        ("INSERT INTO orders VALUES (1)", UsageError, "only reads"),
        ("CREATE TABLE x AS FROM orders", UsageError, "only reads"),
        ("COPY orders TO 'x.csv'", UsageError, "only reads"),
        ("DROP VIEW orders", UsageError, "only reads"),
        ("ATTACH 'x.db'", UsageError, "only reads"),
        ("SET threads = 1", UsageError, "only reads"),
        ("INSTALL httpfs", UsageError, "only reads"),
        ("SELECT 1; SELECT 2", UsageError, "one query"),
        ("", UsageError, "query is empty"),
        ("-- nothing", UsageError, "query is empty"),
        ("SELECT at FROM orders", UsageError, "in double quotes"),
        ("SELECT 1::UHUGEINT AS x", UsageError, "no type for the column 'x'"),
        ("SELECT {'a': TIMETZ '01:02:03+05'} AS x", UsageError, "no type for the column 'x'"),
        ("SELEC 1", UsageError, "invalid"),
        ("SELECT nope FROM orders", UsageError, "nope"),
        ("SELECT item::INT FROM orders", UsageError, "i0"),
        ("FROM read_csv('{file}')", UsageError, "opens no file"),
        ("FROM read_text('{file}')", UsageError, "opens no file"),
        ("FROM '{file}'", NoSuchCollection, "no collection named"),
        ("FROM glob('/*')", UsageError, "opens no file"),
        ("FROM ordrs", NoSuchCollection, "orders, prices"),
        ("FROM variable", NoSuchCollection, "no collection named"),
        ("FROM query_table('orders')", UsageError, "name it in FROM"),
        ("SELECT set_config('threads', '1')", UsageError, "set_config"),
    ],
)
async def test_a_query_that_writes_or_reads_anything_else_is_refused(
    shared: Path, query: str, error: type[Exception], text: str
) -> None:
    """Nothing but the collections is readable, and nothing is written."""
    lake = await open_location(str(shared / "lake"))
    file = shared / "secret.csv"
    file.write_text("a,b\n1,2\n")
    before = entries(shared)
    variable = pa.table({"x": [1]})  # DuckDB finds Python's variables by default.

    with pytest.raises(error, match=text):
        await lake.sql(query.replace("{file}", str(file)))

    assert variable.num_rows == 1
    assert entries(shared) == before


async def test_only_needed_columns_and_key_ranges_are_read(shared: Path) -> None:
    """The filter on the key becomes bounds, and other columns stay unread."""
    lake = await open_location(str(shared / "lake"))
    asked: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    real = Reading.contents

    def watched(self: Reading, *args: Any) -> Any:
        asked.append((self.wanted.needed, dict(self.wanted.box)))
        return real(self, *args)

    with patch.object(Reading, "contents", watched):
        await lake.sql("SELECT item FROM orders WHERE id = 77")
        await lake.sql("SELECT sum(price) FROM prices")

    assert asked == [(("id", "item"), {"id": (77, 77)}), (("price",), {})]


async def test_collections_without_a_common_time_are_refused(
    lake: Location, tmp_path: Path
) -> None:
    """A collection that begins after another one ended would look empty."""
    await feed(lake, tmp_path, "late", [{"item": "i1", "stock": 3}])

    with pytest.raises(AsOfNotComplete, match=r"'prices' is complete .* ingest 'prices' again"):
        await lake.sql("FROM prices JOIN late USING (item)")
    await feed(lake, tmp_path, "prices", PRICES[:1])
    found = await lake.sql("FROM prices JOIN late USING (item)")
    assert found.table.num_rows == 1


@pytest.mark.parametrize("name", ["नाम", "e\u0301tat", "a, b", "a.b", "order"])
async def test_a_condition_on_a_column_with_an_odd_name_is_pushed_down(
    lake: Location, tmp_path: Path, name: str
) -> None:
    """The columns of a condition are found by name, also with combining marks and signs."""
    await feed(lake, tmp_path, "odd", [{name: n, "b": n, "order by": n} for n in range(5)])

    found = await lake.sql(f'SELECT b FROM odd WHERE "{name}" = 3 AND "order by" > 1')

    assert found.table.to_pylist() == [{"b": 3}]


async def test_a_query_reads_the_catalog_once(shared: Path) -> None:
    """The number of collections in a query does not change the number of reads."""
    lake = await open_location(str(shared / "lake"))
    real, reads = Controller.catalog, 0

    async def counted(self: Controller) -> Catalog:
        nonlocal reads
        reads += 1
        return await real(self)

    with patch.object(Controller, "catalog", counted):
        await lake.sql("SELECT count(*) FROM orders, prices")

    assert reads == 1


async def test_each_copy_of_a_row_counts(lake: Location, tmp_path: Path) -> None:
    """A row that occurs three times gives three rows of an answer."""
    await feed(lake, tmp_path, "events", [{"x": 1}] * 3 + [{"x": 2}], envelope="none")

    found = await lake.sql("SELECT x, count(*) AS n FROM events GROUP BY x ORDER BY x")

    assert found.table.to_pylist() == [{"x": 1, "n": 3}, {"x": 2, "n": 1}]


async def test_more_queries_than_threads_run_at_once(shared: Path) -> None:
    """A query that waits for rows takes no thread that decodes them."""
    lake = await open_location(str(shared / "lake"))
    found = await asyncio.gather(*(lake.sql(f"FROM orders WHERE id < {n}") for n in range(40)))

    assert [each.table.num_rows for each in found] == list(range(40))


async def test_the_bad_rows_of_a_source_are_a_table(lake: Location, tmp_path: Path) -> None:
    """NAME_errors is readable, as in the other commands."""
    await feed(lake, tmp_path, "prices", [{"item": None, "price": 3}])

    found = await lake.sql("SELECT count(*) AS n FROM prices_errors")

    assert found.table.to_pylist() == [{"n": 1}]


async def test_a_damaged_part_is_the_error_of_the_query(lake: Location, tmp_path: Path) -> None:
    """DuckDB's own error would hide the object to restore."""
    await feed(lake, tmp_path, "big", [{"id": n, "text": f"{n:032}"} for n in range(9_000)])
    for part in entries(tmp_path):
        if part.suffix == ".parquet":
            part.write_bytes(b"x" * part.stat().st_size)

    with pytest.raises(CorruptionError):
        await lake.sql("SELECT max(text) FROM big")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM range(10000000000) a, range(10000000000) b WHERE a.range = b.range",
        "SELECT * FROM orders, range(10000000000)",
    ],
)
async def test_a_cancelled_query_ends_and_leaves_nothing(shared: Path, query: str) -> None:
    """The caller's cancellation interrupts DuckDB, and its folder is deleted."""
    lake = await open_location(str(shared / "lake"))
    folders: list[str] = []
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    opened, execute = sql._opened_database, sql._execute

    def watched(folder: str) -> duckdb.DuckDBPyConnection:
        folders.append(folder)
        return opened(folder)

    def executed(*given: Any) -> pa.RecordBatchReader:
        loop.call_soon_threadsafe(begun.set)
        return execute(*given)

    with (
        patch.object(sql, "_opened_database", watched),
        patch.object(sql, "_execute", executed),
    ):
        task = asyncio.create_task(lake.sql(query))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert len(folders) == 1
    assert entries(Path(folders[0])) == []


async def test_an_answer_that_is_left_early_ends_its_reads(shared: Path) -> None:
    """A caller that needs no more rows leaves no task and no thread at work."""
    lake = await open_location(str(shared / "lake"))
    before = asyncio.all_tasks()

    async with sql.answer(lake.collections, "FROM orders, prices") as found:
        first = await anext(found.batches)

    assert first.num_rows
    assert asyncio.all_tasks() == before


def test_the_blocking_call_gives_the_same(shared: Path) -> None:
    """pandas, Polars and DuckDB read the result directly."""
    with tidelog.connect(str(shared / "lake")) as connection:
        found = connection.sql("SELECT max(id) AS m FROM orders")

    assert found.to_pandas().to_dict("list") == {"m": [299]}
    assert pa.table(found).to_pylist() == [{"m": 299}]


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
async def test_a_query_that_is_no_text_is_refused(lake: Location, engine: str) -> None:
    """The error names the type, before anything is read or started."""
    for query in (None, 7, b"SELECT 1"):
        with pytest.raises(UsageError, match="the query must be a SQL text, as a str, not"):
            await lake.sql(query, engine=engine)  # type: ignore[arg-type]
