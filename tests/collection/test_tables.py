"""Tables: creation, reads, inserts and drops; each of them also after a death at any request."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pyarrow as pa
import pytest

from kit.clocks import StuckClock
from kit.sources import run_once
from kit.stores import InterposedStore, Once, deaths, keys_in
from kit.tables import SCHEMA, lake_of, new_lake, numbers_in, some_rows
from tidelog.collection.catalog.catalog import (
    Catalog,
    Change,
    CollectionInfo,
    RenditionInfo,
    SourceInfo,
    TableInfo,
    plan_create,
    plan_create_table,
    plan_drop,
    plan_drop_table,
    plan_retain,
    read_catalog,
)
from tidelog.collection.spec_types import SourceSpec
from tidelog.collection.table_definition import table_schema
from tidelog.collection.table_handle import Table
from tidelog.errors import (
    AsOfNotComplete,
    CorruptionError,
    NameTaken,
    NoSuchCollection,
    ShardRegistered,
    UsageError,
)
from tidelog.location import Location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import RecordedStore

YEAR_US = 365 * 86_400_000_000
PAIR = table_schema(SCHEMA, [])


def items(name: str) -> tuple[CollectionInfo, RenditionInfo, TableInfo]:
    rendition = RenditionInfo(
        id=f"r-{name}", collection=name, schema=PAIR.encoded, shards=(f"s-{name}",)
    )
    collection = CollectionInfo(
        name=name, active=rendition.id, renditions=(rendition.id,), created_us=0
    )
    return collection, rendition, TableInfo(name=name, rendition=rendition.id)


def source_items(name: str) -> tuple[CollectionInfo, RenditionInfo, SourceInfo]:
    collection, rendition, _ = items(name)
    source = SourceInfo(
        id=f"o-{name}", name=name, rendition=rendition.id, url="", patterns=(), format="json"
    )
    return collection, rendition, source


def changed(
    catalog: Catalog, changes: list[Change], rows: Counter[tuple[str, str, str]]
) -> Catalog:
    for row, diff in changes:
        rows[row] += diff
    assert set(rows.values()) <= {0, 1}
    return read_catalog(row for row, count in rows.items() if count)


def test_a_table_is_created_and_dropped_as_a_whole() -> None:
    """The catalog has a table's collection and rendition, and lists its shards after the drop."""
    rows: Counter[tuple[str, str, str]] = Counter()
    catalog = changed(Catalog(), plan_create_table(Catalog(), *items("t")), rows)
    assert catalog.table("t").key == ()
    assert catalog.active("t").shards == ("s-t",)

    catalog = changed(catalog, plan_retain(catalog, "t", 60_000), rows)
    assert catalog.table("t").retain_ms == 60_000
    assert plan_retain(catalog, "t", 60_000) == []

    catalog = changed(catalog, plan_drop_table(catalog, "t"), rows)
    assert (catalog.tables, catalog.collections, catalog.renditions) == ({}, {}, {})
    assert catalog.dropped == {"s-t"}


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        ("t", "t", True),
        ("t", "t_errors", False),  # A table has no bad rows, so the name means nothing else.
        ("t_errors", "t", False),
    ],
)
def test_names_of_tables_are_unique(first: str, second: str, taken: bool) -> None:
    """Two tables cannot have one name."""
    catalog = changed(Catalog(), plan_create_table(Catalog(), *items(first)), Counter())

    if taken:
        with pytest.raises(NameTaken, match="tidelog table drop t"):
            plan_create_table(catalog, *items(second))
    else:
        assert plan_create_table(catalog, *items(second))


@pytest.mark.parametrize(
    ("table", "source"), [("t", "t"), ("t_errors", "t")], ids=["name", "bad rows"]
)
def test_a_table_and_a_source_cannot_share_a_name(table: str, source: str) -> None:
    """A table and a collection of one name conflict, and so do a table and bad rows."""
    with_table = changed(Catalog(), plan_create_table(Catalog(), *items(table)), Counter())
    with pytest.raises(NameTaken):
        plan_create(with_table, *source_items(source))
    with_source = changed(Catalog(), plan_create(Catalog(), *source_items(source)), Counter())
    with pytest.raises(NameTaken):
        plan_create_table(with_source, *items(table))


def test_a_table_is_no_source_and_a_source_is_no_table() -> None:
    """Commands of sources refuse a table, and writers of tables refuse a source."""
    rows: Counter[tuple[str, str, str]] = Counter()
    catalog = changed(Catalog(), plan_create_table(Catalog(), *items("t")), rows)
    catalog = changed(catalog, plan_create(catalog, *source_items("c")), rows)

    with pytest.raises(NoSuchCollection, match="'t' is a table"):
        plan_drop(catalog, "t")
    with pytest.raises(NoSuchCollection, match="its source writes it"):
        plan_drop_table(catalog, "c")
    with pytest.raises(NoSuchCollection, match="existing tables: t"):
        catalog.table("x")


async def test_a_table_takes_rows_and_gives_them_back() -> None:
    """Each insert is visible as of the time that it returns, and not before."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, shards=3)
    assert await lake.tables.list() == await lake.collections.list() == ["t"]
    assert await numbers_in(table) == Counter()

    times = [await table.insert(some_rows(*range(n, 20 + n))) for n in range(4)]

    reader = await lake.collection("t")
    for n, time in enumerate(times):
        expected = Counter(k for m in range(n + 1) for k in range(m, 20 + m))
        assert await numbers_in(reader, time) == expected
        assert await numbers_in(reader, time - 1) == expected - Counter(range(n, 20 + n))
    assert times == sorted(set(times))
    described = await reader.describe()
    assert (described.rows, described.key, described.upper) == (80, (), times[-1] + 1)
    assert all(state.totals.rows for state in reader.states)


async def test_readers_see_unapplied_commits_and_write_nothing() -> None:
    """A snapshot, changes, a listener and SQL have commits that the shards do not have yet."""
    writer = await new_lake()
    table = await writer.tables.create("t", SCHEMA, shards=2)
    first = await table.insert(some_rows(1, 2, 3))
    second = await table.insert(some_rows(4))
    store = RecordedStore(writer.store)
    reader = await (await lake_of(store)).collection("t")
    await reader.refresh()
    assert [len(shard.state.batches) for shard in reader.shards] == [0, 0]

    assert await numbers_in(reader) == Counter([1, 2, 3, 4])
    changes = await reader.changes(first)
    assert changes.select(["a", "_time"]).to_pylist() == [{"a": 4, "_time": second}]
    async with aclosing(reader.listen(first - 1)) as steps:
        step = await anext(steps)
        assert step.upper.time <= second + 1
        assert step.updates.column("a").to_pylist()[:3] == [1, 2, 3]
    found = await (await lake_of(store)).sql("SELECT sum(a) AS total FROM t")
    assert found.to_arrow().to_pylist() == [{"total": 10}]
    assert {record.op for record in store.records} <= {"get", "refresh", "list"}


async def test_reads_stay_the_same_when_commits_are_applied() -> None:
    """An applied commit counts once, for a reader that read the states before or after."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA, shards=2)
    time = await table.insert(some_rows(1, 2, 3))
    early = await lake.collection("t")
    await early.refresh()
    await lake.table_transactions.tidy()

    assert await numbers_in(early, time) == Counter([1, 2, 3])
    late = await lake.collection("t")
    assert await numbers_in(late) == Counter([1, 2, 3])
    assert sum(len(shard.state.batches) for shard in late.shards) == 2
    await table.insert(some_rows(4))
    assert await numbers_in(late) == Counter([1, 2, 3, 4])


async def test_times_of_a_table_never_go_back() -> None:
    """If the clock goes back a year, the next insert has the next time."""
    clock = StuckClock()
    lake = await new_lake(clock)
    table = await lake.tables.create("t", SCHEMA)
    first = await table.insert(some_rows(1))
    clock.wall_us -= YEAR_US
    second = await (await (await lake_of(lake.store, clock)).table("t")).insert(some_rows(2))
    clock.wall_us += 3 * YEAR_US
    third = await table.insert(some_rows(3))

    assert second == first + 1
    assert third == clock.wall_us // 1_000
    assert await numbers_in(table, first) == Counter([1])
    assert await numbers_in(table, second) == Counter([1, 2])


async def test_handles_insert_concurrently_without_conflicts() -> None:
    """Inserts of several processes all succeed, each at a time of its own."""
    lake = await new_lake()
    await lake.tables.create("t", SCHEMA, shards=2)
    handles = [await (await lake_of(lake.store)).table("t") for _ in range(3)]

    calls = [handles[n % 3].insert(some_rows(n)) for n in range(12)]
    times = await asyncio.gather(*calls)

    assert len(set(times)) == 12
    assert await numbers_in(handles[0]) == Counter(range(12))
    for n, time in enumerate(times):
        assert (await numbers_in(handles[0], time))[n] == 1
        assert (await numbers_in(handles[0], time - 1))[n] == 0


async def test_a_retry_with_a_token_adds_the_rows_once() -> None:
    """A caller that lost the answer repeats the call, and gets the same time."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA)
    first = await table.insert(some_rows(1), token=("job", 1))
    again = await (await lake_of(lake.store)).table("t")

    assert await again.insert(some_rows(1), token=("job", 1)) == first
    assert await numbers_in(table) == Counter([1])


@pytest.mark.parametrize("key", [[], ["a"]])
async def test_a_token_belongs_to_one_table(key: list[str]) -> None:
    """A writer may use one token for two tables, and for a table of the same name later."""
    lake = await new_lake()
    for name in ("one", "two"):
        table = await lake.tables.create(name, SCHEMA, key=key)
        await table.insert(some_rows(1), token=("import", 1))
        assert await numbers_in(table) == Counter([1])
    await lake.tables.drop("one")
    again = await lake.tables.create("one", SCHEMA, key=key)
    await again.insert(some_rows(2), token=("import", 1))
    assert await numbers_in(again) == Counter([2])


async def test_a_time_of_microseconds_is_refused() -> None:
    """Otherwise each later write of all tables gets a time after the year 9999."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA)
    keyed = await lake.tables.create("k", SCHEMA, key=["a"])
    for write in (table.insert, keyed.insert, keyed.upsert):
        with pytest.raises(UsageError, match="after the year 9999"):
            await write(some_rows(1), at=1_790_000_000_000_000)
    with pytest.raises(UsageError, match="after the year 9999"):
        lake.transaction(at=2**63 - 1)
    with pytest.raises(UsageError, match="at=, in milliseconds since 1970, must be a whole number"):
        await table.insert(some_rows(1), at="2026-01-01")  # type: ignore[arg-type]


async def test_missing_columns_are_null_and_equal_rows_count() -> None:
    """A table without a key has nulls in each column, and a row as often as it was inserted."""
    table = await (await new_lake()).tables.create("t", SCHEMA, shards=2)
    for _ in range(2):
        await table.insert([{"a": 1}, {"b": "x"}, {"a": 1}])

    found = await (await table.snapshot()).to_arrow()
    rows = Counter((row["a"], row["b"]) for row in found.to_pylist())
    assert rows == {(1, None): 4, (None, "x"): 2}


async def test_an_insert_of_no_rows_moves_the_upper() -> None:
    """A stream with an empty batch must still move the upper of its table."""
    table = await (await new_lake()).tables.create("t", SCHEMA)
    await table.refresh()
    before = table.upper.time

    time = await table.insert(some_rows())

    assert time >= before
    assert await numbers_in(table, time) == Counter()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pa.table({"a": [1], "b": ["x"], "c": [1]}), "c"),
        (pa.table({"a": [1], "b": ["x"], "_diff": [-1]}), "_diff"),
        (pa.table({"a": ["x"], "b": ["x"]}), "cannot hold the value 'x'"),
        ({"a": [1]}, "rows must be an Arrow table"),
    ],
)
async def test_rows_that_do_not_fit_are_refused(rows: pa.Table, message: str) -> None:
    """Rows of other columns or types are refused, and nothing is written."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA)
    state = await lake.table_transactions.refresh()

    with pytest.raises(UsageError, match=message):
        await table.insert(rows)
    assert await lake.table_transactions.refresh() == state


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a/b"}, "cannot be the name of a table"),
        ({"schema": 7}, "schema must be"),
        ({"schema": "a bigin"}, "schema= cannot be read"),
        ({"schema": pa.schema([pa.field("a", pa.int64(), nullable=False)])}, "not nullable"),
        ({"key": ["x"]}, "no column named 'x' for the key"),
        ({"key": "a"}, "key"),
        ({"key": [1]}, "key= must be names of columns"),
        ({"shards": 0}, r"shards= must be .* from 1 to"),
        ({"shards": -1}, r"shards= must be .* from 1 to"),
        ({"retain_ms": -1}, "retain_ms"),
    ],
)
async def test_a_bad_definition_fails_before_any_request(
    arguments: dict[str, object], message: str
) -> None:
    """A definition that is not valid costs no request."""
    store = RecordedStore(MemoryStore())
    lake = await lake_of(store)
    store.records.clear()

    with pytest.raises(UsageError, match=message):
        await lake.tables.create(**{"name": "t", "schema": SCHEMA, **arguments})  # type: ignore[arg-type]
    assert not store.records


async def test_a_finished_table_is_not_created_again() -> None:
    """A second creation of a finished table finds the name taken, also with equal arguments."""
    lake = await new_lake()
    await lake.tables.create("t", SCHEMA)

    with pytest.raises(NameTaken, match="'t' already exists"):
        await lake.tables.create("t", SCHEMA)


@pytest.mark.parametrize("happened", [False, True], ids=["lost", "landed"])
async def test_a_creation_is_finished_after_a_death_at_any_request(happened: bool) -> None:
    """The same call finishes a creation, and no registration is left without a table."""

    async def create(store: Store) -> None:
        await (await lake_of(store)).tables.create("t", SCHEMA, shards=2)

    unfinished = 0
    start = MemoryStore()
    await lake_of(start)
    async for store in deaths(start, create, happened=happened):
        lake = await lake_of(store)
        if "t" in await lake.tables.list():
            state = await lake.table_transactions.refresh()
            shards = (await lake.controller.catalog()).active("t").shards
            if set(state.tables) != set(shards) or not state.upper:
                unfinished += 1
                with pytest.raises(NameTaken):
                    await lake.tables.create("t", SCHEMA, shards=3)
                table = await lake.tables.create("t", SCHEMA, shards=2)
            else:
                table = await lake.table("t")
        else:
            table = await lake.tables.create("t", SCHEMA, shards=2)
        state = await lake.table_transactions.refresh()
        assert set(state.tables) == {shard.id for shard in table.shards}
        assert await numbers_in(table) == Counter()
        await table.insert(some_rows(*range(9)))
        assert await numbers_in(await lake.collection("t")) == Counter(range(9))
    assert unfinished >= 4


async def test_the_first_writer_finishes_an_interrupted_creation() -> None:
    """A reader reports an unfinished table, and an insert registers its shards."""

    async def create(store: Store) -> None:
        await (await lake_of(store)).tables.create("t", SCHEMA, shards=2)

    start = MemoryStore()
    await lake_of(start)
    seen = 0
    async for store in deaths(start, create, happened=True):
        lake = await lake_of(store)
        if "t" not in await lake.tables.list():
            continue
        table = await lake.table("t")
        if not (await lake.table_transactions.refresh()).upper:
            seen += 1
            with pytest.raises(AsOfNotComplete, match="its creation was interrupted"):
                await table.snapshot()
        await table.insert(some_rows(*range(9)))
        assert await numbers_in(table) == Counter(range(9))
    assert seen


async def drop_with_rows() -> MemoryStore:
    store = MemoryStore()
    table = await (await lake_of(store)).tables.create("t", SCHEMA, shards=2)
    await table.insert(some_rows(*range(400)))
    await table.insert(some_rows(*range(9)))
    return store


@pytest.mark.parametrize("happened", [False, True], ids=["lost", "landed"])
async def test_a_drop_is_finished_after_a_death_at_any_request(happened: bool) -> None:
    """The collector ends what a killed drop left: registrations, shards and their objects."""

    async def drop(store: Store) -> None:
        await (await lake_of(store)).tables.drop("t")

    async for store in deaths(await drop_with_rows(), drop, happened=happened):
        lake = await lake_of(store)
        if "t" in await lake.tables.list():
            await lake.tables.drop("t")
        with pytest.raises(
            NoSuchCollection, match=r"no table named 't'.*'tidelog collect' deletes"
        ):
            await lake.tables.drop("t")
        await collected(lake)
        with pytest.raises(NoSuchCollection, match=r"no table named 't'.*no table exists yet$"):
            await lake.tables.drop("t")
        assert (await lake.table_transactions.refresh()).tables == {}
        assert (await lake.controller.catalog()).dropped == frozenset()
        left = [key for key in await keys_in(store, "shard/s") if "/rollup/" not in key]
        assert left == []


async def collected(lake: Location) -> None:
    maintenance = lake.maintenance
    groups = await maintenance.groups(dropped=True)
    async for _ in maintenance.collect(groups, after_us=0, sweeps=True):
        pass
    async for _ in maintenance.tidy(sweeps=True):
        pass


async def test_handles_of_a_dropped_table_get_a_typed_error() -> None:
    """Reads and writes of a dropped table fail, also if a new table has its name."""
    lake = await new_lake()
    old = await lake.tables.create("t", SCHEMA)
    await old.insert(some_rows(1))
    reader = await lake.collection("t")
    await lake.tables.drop("t")
    new = await lake.tables.create("t", SCHEMA)

    for call in (lambda: old.insert(some_rows(2)), reader.snapshot, lambda: reader.changes(0)):
        with pytest.raises(NoSuchCollection, match="'t' was dropped after this process opened it"):
            await call()
    assert await numbers_in(new) == Counter()


async def test_shards_of_collections_are_not_registered_by_hand() -> None:
    """Users' transactions refuse the shards of tables, of sources and of the catalog."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA)
    bank = lake.shards.transactions("bank")

    for shard in (table.shards[0], lake.controller.shard):
        with pytest.raises(UsageError, match="a shard of a collection cannot be registered"):
            await bank.register(shard)
    with pytest.raises(ShardRegistered, match="belongs to a table"):
        await table.shards[0].compare_and_append(None, 0, 10)
    assert (await bank.refresh()).tables == {}


async def test_users_cannot_name_the_transactions_of_tables() -> None:
    """The transaction shard of the tables has a name that users cannot choose."""
    lake = await new_lake()
    await lake.tables.create("t", SCHEMA)

    with pytest.raises(UsageError, match="name of a transaction shard"):
        lake.shards.transactions(".tables")
    assert await lake.shards.list() == []


async def test_lost_transactions_are_reported() -> None:
    """If the state of the transactions is missing or old, a read fails instead of losing rows."""
    store = MemoryStore()
    lake = await lake_of(store)
    table = await lake.tables.create("t", SCHEMA)
    (key,) = [key for key in await keys_in(store, "consensus/") if key.endswith("txn..tables")]
    old = store.objects[key]
    await table.insert(some_rows(1))
    await lake.table_transactions.tidy()
    await table.insert(some_rows(2))

    for stored, message in ((old, "is older than a later write"), (None, "is missing")):
        if stored is None:
            del store.objects[key]
        else:
            store.objects[key] = stored
        reader = await (await lake_of(store)).collection("t")
        with pytest.raises(CorruptionError, match=message):
            await reader.snapshot()


async def test_a_writer_with_an_old_handle_does_not_revive_a_dropped_table() -> None:
    """A registration that arrives between the steps of a drop is undone by the collector."""
    lake = await new_lake()
    table = await lake.tables.create("t", SCHEMA)
    await table.insert(some_rows(1))
    await lake.controller.drop_table("t")
    for shard in table.shards:
        await lake.table_transactions.forget(shard.id)
        await lake.table_transactions.register(shard)
    await collected(lake)

    assert (await lake.table_transactions.refresh()).tables == {}
    assert (await lake.controller.catalog()).dropped == frozenset()
    with pytest.raises(NoSuchCollection, match="was dropped"):
        await table.insert(some_rows(2))


@pytest.mark.parametrize("happened", [False, True], ids=["lost", "landed"])
async def test_an_insert_lands_once_after_a_death_at_any_request(happened: bool) -> None:
    """A retry with the same token adds the rows once, to all shards or to none before it."""

    async def insert(store: Store) -> None:
        table = await (await lake_of(store)).table("t")
        await table.insert(some_rows(*range(9)), token=("job", 1))

    start = MemoryStore()
    await (await lake_of(start)).tables.create("t", SCHEMA, shards=2)
    landed = 0
    async for store in deaths(start, insert, happened=happened):
        found = await numbers_in(await (await lake_of(store)).collection("t"))
        assert found in (Counter(), Counter(range(9)))
        landed += bool(found)
        await insert(store)
        assert await numbers_in(await (await lake_of(store)).collection("t")) == Counter(range(9))
    assert bool(landed) == happened


async def test_a_query_without_a_common_time_needs_an_advance_of_the_tables(tmp_path: Path) -> None:
    """A table that nothing wrote since a collection began has no time in common with it."""
    (tmp_path / "1.json").write_text('{"k": 1}')
    clock = StuckClock()
    lake = await new_lake(clock)
    with pytest.raises(UsageError, match="no table yet"):
        await lake.tables.advance()
    await (await lake.tables.create("t", SCHEMA)).insert(some_rows(1))
    clock.wall_us += YEAR_US
    await lake.sources.create(SourceSpec(name="c", files=str(tmp_path), schema="k bigint"))
    await run_once(await lake.sources.ingester("c"))

    with pytest.raises(AsOfNotComplete, match="'tidelog table advance'"):
        await lake.sql("SELECT * FROM t, c")
    clock.wall_us += YEAR_US
    advanced = await lake.tables.advance()
    await run_once(await lake.sources.ingester("c"))
    answer = await lake.sql("SELECT a FROM t, c")
    assert (answer.as_of, answer.to_arrow().column("a").to_pylist()) == (advanced, [1])


async def test_concurrent_creations_agree_on_one_table() -> None:
    """Creators of one table get a handle of the same table, or find its name taken."""
    store = MemoryStore()
    lakes = [await lake_of(store) for _ in range(3)]
    calls = [lake.tables.create("t", SCHEMA, shards=2) for lake in lakes]
    done = await asyncio.gather(*calls, return_exceptions=True)

    made = [one for one in done if isinstance(one, Table)]
    assert made
    assert all(isinstance(one, Table | NameTaken) for one in done)
    assert len({table.rendition.id for table in made}) == 1
    for table in made:
        await table.insert(some_rows(1))
    assert await numbers_in(made[0]) == Counter({1: len(made)})
    state = await lakes[0].table_transactions.refresh()
    assert set(state.tables) == {shard.id for shard in made[0].shards}


@pytest.mark.parametrize("where", ["consensus/s", "consensus/txn"])
async def test_a_drop_during_a_creation_ends_both(where: str) -> None:
    """The creator of a table that is dropped before its registration gets a typed error."""
    inner = MemoryStore()
    other = await lake_of(inner)
    hook = Once("put", where, lambda: other.tables.drop("t"))
    lake = await lake_of(InterposedStore(inner, before=hook))

    with pytest.raises(NoSuchCollection, match="was dropped"):
        await lake.tables.create("t", SCHEMA)
    assert hook.met
    await collected(other)
    assert (await other.table_transactions.refresh()).tables == {}
    assert (await other.controller.catalog()).dropped == frozenset()
    await other.tables.create("t", SCHEMA)
