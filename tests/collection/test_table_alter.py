"""Alterations of tables: new columns, dropped columns, old handles, and deaths at any request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from kit.stores import InterposedStore, copy_of, deaths
from kit.tables import lake_of
from tidelog.collection.collection import Collection
from tidelog.collection.staged import commit_staged, stage_rows, staging_area
from tidelog.collection.table.inputs import tables_of
from tidelog.collection.table_handle import Table
from tidelog.errors import (
    ContentionError,
    NameTaken,
    NoSuchCollection,
    SchemaEvolved,
    TidelogError,
    UsageError,
)
from tidelog.location import Location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import RecordedStore

SCHEMA = "id bigint, v varchar"
Row = tuple[Any, ...]


def dicts(*rows: Row, names: str = "id v w") -> list[dict[str, Any]]:
    return [dict(zip(names.split(), row, strict=False)) for row in rows]


async def rows_of(table: Collection, as_of: int | None = None) -> Counter[Row]:
    found = await (await table.snapshot(as_of)).to_arrow()
    return Counter(tuple(row.values()) for row in found.to_pylist())


async def lake_with(store: Store, *, shards: int = 2) -> tuple[Location, Table, Table]:
    """Return a location with the table ``k``, which has a key, and ``l``, which has none."""
    lake = await lake_of(store)
    keyed = await lake.tables.create("k", SCHEMA, key=["id"], shards=shards)
    loose = await lake.tables.create("l", SCHEMA, shards=shards)
    for table in (keyed, loose):
        await table.insert(dicts(*((n, f"{n}") for n in range(6))))
    return lake, keyed, loose


async def compacted(table: Table) -> None:
    for shard in table.shards:
        await shard.refresh()
        await shard.compact(full=True)


@pytest.mark.parametrize("name", ["k", "l"])
@pytest.mark.parametrize("is_merged", [False, True], ids=["unmerged", "merged"])
async def test_a_new_column_is_null_in_old_rows(name: str, is_merged: bool) -> None:
    """All times have the new column, and each later write can change the old rows."""
    lake, *_ = await lake_with(MemoryStore(), shards=3)
    before = await lake.tables.advance()
    table = await lake.tables.alter(name, add="w double")
    assert table.schema.names == ["id", "v", "w"]
    await table.insert(dicts((7, "7", 0.5)))
    await table.delete(where="id < 3 AND w IS NULL")
    await table.update(set={"w": "id / 2"}, where="id = 4")
    if is_merged:
        await compacted(table)

    old = [(n, f"{n}", None) for n in range(6)]
    new = [(3, "3", None), (4, "4", 2.0), (5, "5", None), (7, "7", 0.5)]
    assert await rows_of(table) == Counter(new)
    assert await rows_of(table, before) == Counter(old)
    assert await rows_of(await lake.collection(name)) == Counter(new)
    for shard in await table.snapshots():  # An old row is taken back in the shard that has it.
        counts = (await shard.to_arrow(consolidated=True)).column("_diff").to_pylist()
        assert set(counts) <= {1}
    found = await lake.sql(f"SELECT sum(w) AS s FROM {name}")
    assert found.to_arrow().to_pylist() == [{"s": 2.5}]


async def test_a_handle_of_before_reads_but_does_not_write() -> None:
    """Its rows would lose a column, or have no value for a new one, without an error."""
    store = MemoryStore()
    lake, keyed, loose = await lake_with(store)
    others = await lake_of(store)
    elsewhere = await others.table("k"), await others.table("l")
    for name in "kl":
        await lake.tables.alter(name, add="w double")

    for table in (keyed, loose, *elsewhere):
        with pytest.raises(SchemaEvolved, match=r"was altered after .*: open it again"):
            await table.insert(dicts((9, "9"), names="id v"))
        with pytest.raises(SchemaEvolved):
            await table.delete(where="id = 1")
        assert await rows_of(table) == Counter((n, f"{n}") for n in range(6))
    rows = pa.table({"id": [8], "v": ["8"]})
    for table in (loose, elsewhere[1]):
        with pytest.raises(SchemaEvolved):
            await table.insert(rows.to_reader())


async def test_a_handle_of_a_dropped_column_neither_reads_nor_writes() -> None:
    """Without the check, the values of the dropped column would be lost in silence."""
    store = MemoryStore()
    lake, *_ = await lake_with(store)
    old = [await lake.tables.alter(name, add="w double") for name in "kl"]
    old += [await (await lake_of(store)).table(name) for name in "kl"]
    for name in "kl":
        await lake.tables.alter(name, drop=["w"])

    for table in old:
        with pytest.raises(SchemaEvolved):
            await table.insert(dicts((9, "9", 0.5)))
        with pytest.raises(SchemaEvolved, match="column 'w' was dropped"):
            await rows_of(table)
    for name in "kl":
        assert await rows_of(await lake.table(name)) == Counter((n, f"{n}") for n in range(6))


async def test_a_column_with_values_needs_an_argument() -> None:
    """Also a value that only an earlier time has is data, which the drop makes unreadable."""
    lake, *_ = await lake_with(MemoryStore())
    table = await lake.tables.alter("k", add="w double, x double")
    await table.upsert(dicts((1, "1", 0.5)))
    await table.upsert(dicts((1, "1", None)))
    for names in (["w"], ["x", "w"]):
        with pytest.raises(UsageError, match=r"have values .*: pass discard_values=True"):
            await lake.tables.alter("k", drop=names)
    table = await lake.tables.alter("k", drop=["x"])
    assert table.schema.names == ["id", "v", "w"]
    table = await lake.tables.alter("k", drop=["w"], discard_values=True)

    assert table.schema.names == ["id", "v"]
    assert await rows_of(table) == Counter((n, f"{n}") for n in range(6))
    assert [(one.added, one.removed) for one in await table.history()] == [(6, 0)]


@pytest.mark.parametrize(
    ("name", "asked", "match"),
    [
        ("k", {}, "nothing to alter: pass add="),
        ("k", {"add": 3}, "add= must be a pyarrow.Schema or a text"),
        ("k", {"add": "w"}, "'w'"),
        (
            "k",
            {"add": "V bigint"},
            "a column 'v' already, of the type VARCHAR: remove 'V' from add=",
        ),
        ("k", {"add": "_time bigint"}, "reserved"),
        ("k", {"add": "gone bigint"}, "'gone' of the table 'k' was dropped.* choose another name"),
        ("k", {"add": pa.schema([pa.field("w", pa.int64(), nullable=False)])}, "not nullable"),
        ("k", {"add": "w double", "drop": ["w"]}, r"add= and drop= both name the column 'w'"),
        ("k", {"drop": "v"}, "drop must be a list of names"),
        ("k", {"drop": [3]}, "drop= must be names of columns"),
        ("k", {"drop": ["v", "v"]}, "drop= names the column 'v' twice"),
        ("k", {"drop": ["w"]}, "no column 'w'; the columns are id, v"),
        (
            "k",
            {"drop": ["id"]},
            "'id' cannot be dropped, because it is in the key of the table 'k'",
        ),
        (
            "l",
            {"drop": ["v"]},
            "'v' cannot be dropped, because it orders the rows of the table 'l', which has no key",
        ),
        ("k", {"add": "w double", "discard_values": 1}, "discard_values"),
    ],
)
async def test_a_wrong_alteration_changes_nothing(
    name: str, asked: dict[str, Any], match: str
) -> None:
    """The message names the argument or the column."""
    store = RecordedStore(MemoryStore())
    lake, *_ = await lake_with(store)
    await lake.tables.alter("k", add="gone double")
    await lake.tables.alter("k", drop=["gone"])
    store.records.clear()
    with pytest.raises(UsageError, match=match):
        await lake.tables.alter(name, **asked)

    assert not any(record.op == "put" for record in store.records)


async def test_a_table_that_does_not_exist_is_not_altered() -> None:
    """The message lists the tables that exist."""
    lake, *_ = await lake_with(MemoryStore())
    with pytest.raises(NoSuchCollection, match="no table named 'x'; existing tables: k, l"):
        await lake.tables.alter("x", add="w double")


async def test_a_direct_table_keeps_its_columns() -> None:
    """Its shard has no registration that could end before its schema changes."""
    lake = await lake_of(MemoryStore())
    table = await lake.tables.create("d", SCHEMA, key=["id"], mode="direct")
    with pytest.raises(UsageError, match="'d' has the mode 'direct', so it keeps its columns"):
        await lake.tables.alter("d", add="w double")
    await table.insert(dicts((1, "1"), names="id v"))
    assert await rows_of(table) == Counter([(1, "1")])


async def test_the_same_alteration_twice_is_one() -> None:
    """A caller whose answer was lost repeats the call."""
    lake, *_ = await lake_with(MemoryStore())
    await lake.tables.alter("k", add="w double")
    again = await lake.tables.alter("k", add="w double")
    assert len(again.rendition.schemas) == 2

    await lake.tables.alter("k", add="x double", drop=["v"], discard_values=True)
    again = await lake.tables.alter("k", add="x double", drop=["v"])
    assert again.schema.names == ["id", "w", "x"]
    with pytest.raises(UsageError, match="has a column 'w' already"):
        await lake.tables.alter("k", add="w bigint")


async def test_a_repeat_is_recognized_after_other_alterations() -> None:
    """The answer was lost, and another process has altered the table before the caller repeats."""
    start = MemoryStore()
    await lake_with(start)

    async def alter(store: Store) -> None:
        tables = (await lake_of(store)).tables
        await tables.alter("k", add="w double", drop=["v"], discard_values=True)

    listed = 0
    async for store in deaths(start, alter, happened=True):
        lake = await lake_of(store)
        listed += "w" in (await lake.table("k")).schema.names
        await lake.tables.alter("k", add="x double")
        await alter(store)
        table = await lake.table("k")
        assert {*table.schema.names} == {"id", "w", "x"}
        assert len(table.rendition.schemas) == 3
    assert listed >= 4


async def test_a_repeat_is_refused_after_its_column_was_dropped() -> None:
    """The caller would otherwise write to a column that the table does not have."""
    lake, *_ = await lake_with(MemoryStore())
    await lake.tables.alter("k", add="w double, x double")
    await lake.tables.alter("k", drop=["w"])
    with pytest.raises(UsageError, match="has a column 'x' already"):
        await lake.tables.alter("k", add="x double, w double")
    for _ in range(2):
        table = await lake.tables.alter("k", drop=["w"])
        assert table.schema.names == ["id", "v", "x"]
    with pytest.raises(UsageError, match="'w' of the table 'k' was dropped"):
        await lake.tables.alter("k", add="w double")


@pytest.mark.parametrize("is_first", [True, False])
async def test_an_alteration_finishes_an_interrupted_creation(is_first: bool) -> None:
    """Its result can be read, because no other call could finish a creation of other columns."""
    start = MemoryStore()
    if not is_first:
        await (await lake_of(start)).tables.create("other", SCHEMA)

    async def create(store: Store) -> None:
        await (await lake_of(store)).tables.create("k", SCHEMA, key=["id"], shards=2)

    unfinished = 0
    async for store in deaths(start, create, happened=True):
        for change, names in (({"add": "w double"}, "id v w"), ({"drop": ["v"]}, "id")):
            lake = await lake_of(copy_of(store))
            if "k" not in await lake.tables.list():
                continue
            unfinished += not await is_settled(lake, await lake.table("k"))
            table = await lake.tables.alter("k", **change)
            assert table.schema.names == names.split()
            assert await rows_of(table) == Counter()
            await table.insert([{"id": 1}])
            assert sum((await rows_of(table)).values()) == 1
    assert unfinished >= 8


async def test_an_altered_table_is_not_created_again() -> None:
    """A creation finishes only a creation."""
    lake, *_ = await lake_with(MemoryStore())
    await lake.tables.alter("k", add="w double")
    for schema in (SCHEMA, SCHEMA + ", w double"):
        with pytest.raises(NameTaken):
            await lake.tables.create("k", schema, key=["id"], shards=2)


@pytest.mark.parametrize("name", ["k", "l"])
async def test_a_retry_after_an_alteration_writes_nothing_twice(name: str) -> None:
    """The rows of a retry cannot be compared then, since they have other columns."""
    lake, *_ = await lake_with(MemoryStore())
    first = await (await lake.table(name)).insert(dicts((7, "7"), names="id v"), token=("w", 1))
    table = await lake.tables.alter(name, add="w double")
    again = await table.insert(dicts((7, "7"), names="id v"), token=("w", 1))

    assert again == first
    assert (await rows_of(table))[7, "7", None] == 1


async def test_an_open_transaction_gets_a_typed_error() -> None:
    """It read rows of the old columns, and would write such rows."""
    store = MemoryStore()
    lake, *_ = await lake_with(store)
    other = await lake_of(store)
    reads, writes = other.transaction(), other.transaction()
    await reads.snapshot("k")
    for one in (reads, writes):
        await one.upsert("k", dicts((1, "x"), names="id v"))
    await lake.tables.alter("k", add="w double")
    for one in (reads, writes):
        with pytest.raises(SchemaEvolved, match="'k' was altered"):
            await one.commit()

    assert (await rows_of(await lake.table("k")))[1, "1", None] == 1


async def test_a_follower_goes_on_with_its_columns() -> None:
    """Each change comes once, in the columns with which the follower began."""
    lake, keyed, _ = await lake_with(MemoryStore())
    seen: Counter[Row] = Counter()
    begin = await lake.tables.advance()
    async with aclosing(keyed.listen(begin)) as steps:
        for number in range(3):
            table = await lake.tables.alter("k", add=f"w{number} double")
            time = await table.upsert([{"id": 1, "v": f"new {number}", f"w{number}": 0.5}])
            async for step in steps:
                for row in step.updates.to_pylist():
                    seen[row["id"], row["v"]] += row["_diff"]
                if step.upper.passed(time):
                    break
        await lake.tables.alter("k", drop=["v"], discard_values=True)
        await lake.tables.advance()
        with pytest.raises(SchemaEvolved, match="column 'v' was dropped"):
            await anext(steps)

    assert +seen == Counter([(1, "new 2")])


async def test_rows_staged_before_are_refused_after() -> None:
    """The process that staged them must write them again, with the new columns."""
    store = MemoryStore()
    lake, keyed, loose = await lake_with(store)
    for table in (keyed, loose):
        area = await staging_area(table)
        rows = tables_of(dicts((9, "9"), names="id v"), area.schema)
        staged = await stage_rows(area, store, lake.clock, rows)
        altered = await lake.tables.alter(table.name, add="w double")
        with pytest.raises(SchemaEvolved, match="was altered after this process opened it"):
            await commit_staged(table, [staged], "insert")
        with pytest.raises(SchemaEvolved, match=r"altered the table '.' while these rows"):
            await commit_staged(altered, [staged], "insert")
        assert await rows_of(altered) == Counter((n, f"{n}", None) for n in range(6))


@pytest.mark.parametrize("name", ["k", "l"])
@pytest.mark.parametrize("happened", [False, True], ids=["lost", "landed"])
async def test_an_alteration_is_finished_after_a_death_at_any_request(
    name: str, happened: bool
) -> None:
    """Readers read all rows at once, and the next write or the same call does the rest."""
    start = MemoryStore()
    await lake_with(start)

    async def alter(store: Store) -> None:
        await (await lake_of(store)).tables.alter(name, add="w double")

    unfinished = 0
    async for store in deaths(start, alter, happened=happened):
        for repeats in (True, False):
            lake = await lake_of(copy_of(store))
            table = await lake.table(name)
            is_listed = "w" in table.schema.names
            old: Row = (None,) * is_listed
            newest = await lake.tables.advance()
            assert (await table.snapshot()).as_of == newest
            await table.hold("h", newest)
            await table.move_hold("h", newest)
            await table.drop_hold("h")
            assert await rows_of(table) == Counter((n, f"{n}", *old) for n in range(6))
            unfinished += is_listed and not await is_settled(lake, table)
            if repeats or not is_listed:
                table = await lake.tables.alter(name, add="w double")
            await table.insert(dicts((7, "7", 0.5), (8, "8", None)))
            await table.delete(where="id = 2")
            assert await is_settled(lake, table)
            await compacted(table)
            left = [*((n, f"{n}", None) for n in (0, 1, 3, 4, 5, 8)), (7, "7", 0.5)]
            assert await rows_of(await lake.table(name)) == Counter(left)
    assert unfinished >= 8


async def is_settled(lake: Location, table: Table) -> bool:
    """Return True if all shards are registered with the newest schema."""
    registered = (await lake.table_transactions.refresh()).tables
    states = [await shard.refresh() for shard in table.shards]
    newest = len(table.rendition.schemas) - 1
    return all(shard.id in registered for shard in table.shards) and all(
        state.registered.name and state.schema_id == newest for state in states
    )


async def test_a_later_alteration_follows_an_interrupted_one() -> None:
    """All shards get the same schemas, so the id of a schema means the same in all of them."""
    start = MemoryStore()
    await lake_with(start, shards=3)

    async def alter(store: Store) -> None:
        await (await lake_of(store)).tables.alter("k", add="w double")

    skipped = 0
    async for store in deaths(start, alter, happened=True):
        lake = await lake_of(store)
        if "w" in (await lake.table("k")).schema.names:
            skipped += 1  # The next alteration must give this one's schema to the shards, too.
        else:
            await lake.tables.alter("k", add="w double")
        table = await lake.tables.alter("k", add="x bigint")
        await table.upsert([{"id": n, "v": "new", "w": 0.5, "x": n} for n in range(3)])
        schemas = [await shard.schemas() for shard in table.shards]
        names = [[*one.names] for one in schemas[0]]
        assert names == [["id", "v"], ["id", "v", "w"], ["id", "v", "w", "x"]]
        assert schemas == schemas[:1] * 3
        new = [(n, "new", 0.5, n) for n in range(3)]
        old = [(n, f"{n}", None, None) for n in range(3, 6)]
        assert await rows_of(table) == Counter([*new, *old])
    assert skipped >= 4


class Before:
    """A hook of an `InterposedStore` that runs ``act`` before one of the next requests."""

    def __init__(self, number: int, act: Callable[[], Awaitable[None]]) -> None:
        self.left = number
        self.act = act
        self.is_armed = False

    async def __call__(self, op: str, key: str) -> None:
        if self.is_armed:
            self.left -= 1
            if self.left == -1:
                await self.act()


async def altering_with(
    act: Callable[[Location], Awaitable[None]], *names: str
) -> AsyncIterator[tuple[Location, TidelogError | None]]:
    """Alter tables, each time with ``act`` of another process before another one of the requests.

    Yield the location of that process, and the error of the alteration.
    """
    start = MemoryStore()
    await lake_with(start)
    for number in count():
        store, error = copy_of(start), None
        other = await lake_of(store)
        hook = Before(number, partial(act, other))
        lake = await lake_of(InterposedStore(store, before=hook))
        hook.is_armed = True
        try:
            for name in names:
                await lake.tables.alter(name, add="w double")
        except TidelogError as found:
            error = found
        if hook.left >= 0:
            return
        yield other, error


async def test_acknowledged_rows_survive_an_alteration_at_any_request() -> None:
    """A write of an old or a new handle lands whole, or is refused with a typed error."""
    refused, landed = Counter[str](), Counter[str]()
    written: dict[str, int] = {}

    async def act(other: Location) -> None:
        written.clear()
        for name in "kl":
            table = await other.table(name)
            names = table.schema.names
            try:
                await table.insert(dicts((9, "9", 0.5), names=" ".join(names)))
                written[name] = len(names)
                landed[name] += 1
            except SchemaEvolved:
                refused[name] += 1

    requests = 0
    async for other, error in altering_with(act, "k", "l"):
        requests += 1
        assert error is None
        for name in "kl":
            table = await other.table(name)
            wide = (9, "9", 0.5) if written.get(name) == 3 else (9, "9", None)
            for _ in range(2):
                found = await rows_of(table)
                assert found[wide] == (name in written)
                assert sum(found.values()) == 6 + (name in written)
                await compacted(table)
    assert requests >= 20
    assert sum(landed.values()) >= requests


@pytest.mark.parametrize("name", ["k", "l"])
async def test_a_transaction_runs_again_during_an_alteration(name: str) -> None:
    """At each request of the alteration, its shards may have no registration for a moment."""

    async def act(other: Location) -> None:
        await other.transact(lambda tx: tx.insert(name, [{"id": 9, "v": "9"}]))

    requests = 0
    async for other, error in altering_with(act, name):
        requests += 1
        assert error is None
        table = await other.table(name)
        assert (await rows_of(table))[9, "9", None] == 1
    assert requests >= 10


async def test_processes_that_finish_an_alteration_do_not_undo_each_other() -> None:
    """Each waits for the others after each request, so their steps come between one another's."""
    store = MemoryStore()
    await lake_with(store)
    counted = RecordedStore(InterposedStore(store, before=_let_others_run))
    lakes = [await lake_of(counted) for _ in range(4)]
    await asyncio.gather(*(lake.tables.alter("k", add="w double") for lake in lakes))
    tables = await asyncio.gather(
        *(lake.tables.alter("k", add=f"x{number} double") for number, lake in enumerate(lakes))
    )

    table = await lakes[0].table("k")
    assert sorted(table.schema.names[3:]) == [f"x{number}" for number in range(4)]
    assert all(f"x{number}" in one.schema.names for number, one in enumerate(tables))
    assert await is_settled(lakes[0], table)
    assert await rows_of(table) == Counter((n, f"{n}", *[None] * 5) for n in range(6))
    assert len(counted.records) < 1_000


async def _let_others_run(_op: str, _key: str) -> None:
    await asyncio.sleep(0)


async def test_a_write_goes_on_if_a_slow_process_ends_registrations_again() -> None:
    """The process began to finish the alteration before the others, and takes its steps later."""
    store = MemoryStore()
    lake, *_ = await lake_with(store)
    table = await lake.tables.alter("k", add="w double")
    slow = (await lake_of(store)).table_transactions
    left = 3

    async def write() -> int:
        nonlocal left
        if left:
            left -= 1
            await slow.forget(table.shards[left % 2].id)
        view = await table.reader.view(table.reader.shards, fresh=True)
        return view.upper

    assert await table.registered(write) > 0
    assert left == 0
    assert await is_settled(lake, table)


async def test_writers_of_old_handles_cannot_undo_an_alteration() -> None:
    """Many of them write all the time, and each gets its row in, or a typed error."""
    store = MemoryStore()
    lake, *_ = await lake_with(store)
    acknowledged: list[int] = []

    async def write(first: int) -> None:
        table = await (await lake_of(store)).table("l")
        with suppress(SchemaEvolved, ContentionError):
            for number in range(first, first + 40):
                await table.insert(dicts((number, "x"), names="id v"))
                acknowledged.append(number)

    async with asyncio.TaskGroup() as group:
        for first in range(100, 700, 100):
            group.create_task(write(first))
        altering = group.create_task(lake.tables.alter("l", add="w double"))
    table = altering.result()

    found = await rows_of(table)
    assert Counter(n for n, *_ in found.elements()) == Counter([*range(6), *acknowledged])


async def test_a_dropped_table_is_not_altered() -> None:
    """An alteration that is overtaken by a drop does not bring the table back."""
    overtaken = 0
    async for other, error in altering_with(lambda other: other.tables.drop("k"), "k"):
        assert error is None or isinstance(error, NoSuchCollection)
        overtaken += error is not None
        assert await other.tables.list() == ["l"]
        await other.tables.create("k", SCHEMA, key=["id"])
        assert await rows_of(await other.table("k")) == Counter()
    assert overtaken >= 5
