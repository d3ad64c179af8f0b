"""Keyed writes: their reads, their races with other processes, and lost answers."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from kit.shards import in_memory, on_store
from kit.table_writers import (
    KEYED,
    LOOSE,
    CountedStore,
    contents,
    created,
    dicts,
    transactions_of,
    writer,
)
from kit.tables import new_lake
from tidelog.collection.table.changes import (
    TableChange,
    delete_of,
    insert_of,
    merge_of,
    update_of,
    upsert_of,
)
from tidelog.collection.table.reader import TableReader
from tidelog.collection.table.writes import TableWriter
from tidelog.errors import (
    ContentionError,
    KeyExists,
    LocationError,
    OutcomeUnknown,
    SchemaEvolved,
    UsageError,
)
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.maintenance.sweeper import sweep
from tidelog.persist.read.opened import Decoders
from tidelog.store.memory import MemoryStore
from tidelog.testing import Fault

MANY = 200_000


def upsert(*rows: Any) -> TableChange:
    return upsert_of(dicts(*rows), KEYED)


def insert(*rows: Any) -> TableChange:
    return insert_of(dicts(*rows), KEYED)


def many_rows(count: int = MANY) -> pa.Table:
    ids = np.arange(count) * 10
    return pa.table({"id": ids, "n": ids % 7}).append_column("place", pa.array(["x"] * count))


@pytest.mark.parametrize("shards", [1, 3])
async def test_each_write_is_visible_as_of_its_time(shards: int) -> None:
    """A reader of another process sees each write as of the time that the call returned."""
    place = in_memory()
    table = await created(place, shards=shards)
    names = table.reader.shards
    steps: list[tuple[TableChange, set[Any]]] = [
        (insert((1, "a", 1), (2, "b", 2), (3, "c", 3)), {(1, "a", 1), (2, "b", 2), (3, "c", 3)}),
        (upsert((2, "z", 0), (4, "d", 4)), {(1, "a", 1), (2, "z", 0), (3, "c", 3), (4, "d", 4)}),
        (delete_of([1, 9], None, KEYED), {(2, "z", 0), (3, "c", 3), (4, "d", 4)}),
        (delete_of(None, "n = 3", KEYED), {(2, "z", 0), (4, "d", 4)}),
        (update_of({"id": "id + 10"}, "true", KEYED), {(12, "z", 0), (14, "d", 4)}),
        (upsert((12, "z", 0)), {(12, "z", 0), (14, "d", 4)}),
    ]
    times = [await table.write(change) for change, _ in steps]

    assert times == sorted(set(times))
    for time, (_, wanted) in zip(times, steps, strict=True):
        assert await contents(place, names, time) == dict.fromkeys(wanted, 1)


async def test_a_table_without_a_key_is_changed_by_conditions() -> None:
    """Equal rows keep their counts; a merge compares the columns that the caller names."""
    place = in_memory()
    table = await created(place, shards=2, schema=LOOSE)
    await table.write(insert_of(dicts((1, "a", 1), (1, "a", 1), (2, "b", 2)), LOOSE))
    await table.write(update_of({"n": "n + 1"}, "place = 'a'", LOOSE))
    rows = dicts((7, "b", 7), (8, "c", 8))
    merge = merge_of(rows, ["place"], LOOSE, when_matched="update", when_not_matched="insert")
    await table.write(merge)

    assert await contents(place, table.reader.shards) == {
        (1, "a", 2): 2,
        (7, "b", 7): 1,
        (8, "c", 8): 1,
    }


async def test_a_small_upsert_of_a_warm_handle_costs_one_request() -> None:
    """The handle knows the states and keeps parts open, so only the commit is sent."""
    store = CountedStore(MemoryStore())
    place = on_store(store)
    table = await created(place)
    await table.write(insert_of(many_rows(), KEYED))
    await table.write(upsert((70, "first", 0)))
    store.taken()
    costs = []
    for number in range(8):
        await table.write(upsert((10 * number, "new", number), (3, "other", number)))
        costs.append(store.taken())

    assert costs == [["put"]] * 8


async def test_a_cold_upsert_reads_only_row_groups_of_its_keys() -> None:
    """A handle of a new process reads the part, and decodes one of its row groups."""
    place = in_memory()
    table = await created(place)
    await table.write(insert_of(many_rows(), KEYED))
    decoded: list[int] = []
    read = Decoders.read

    def recorded(self: Decoders, groups: Any, *args: Any, **more: Any) -> pa.Table:
        decoded.extend(groups)
        return read(self, groups, *args, **more)

    with patch.object(Decoders, "read", recorded):
        await writer(place).write(upsert((1_000_000, "new", 0)))

    assert len(decoded) == 2  # Its keys, then its other columns.
    assert len(set(decoded)) == 1


async def test_another_commit_of_other_keys_costs_no_second_plan() -> None:
    """The loser of the race compares keys, and commits the same parts at the newer upper."""
    store = CountedStore(MemoryStore())
    place = on_store(store)
    one = await created(place)
    await one.write(insert((1, "a", 1), (2, "b", 2)))
    other = writer(place)
    await other.write(upsert((1, "other", 0)))
    with patch.object(TableReader, "rows", autospec=True, side_effect=TableReader.rows) as rows:
        await one.write(upsert((2, "one", 0)))

    assert rows.call_count == 1
    assert await contents(place, one.reader.shards) == {(1, "other", 0): 1, (2, "one", 0): 1}


async def test_another_commit_of_the_same_key_is_read_again() -> None:
    """The old row of the plan is no longer there, so its removal would leave two rows."""
    place = in_memory()
    one, other = await created(place), writer(place)
    await one.write(insert((1, "a", 1), (2, "b", 2)))
    await other.write(upsert((1, "other", 0)))
    await one.write(upsert((1, "one", 0)))
    await other.write(update_of({"n": "n + 1"}, "id = 1", KEYED))
    await one.write(update_of({"n": "n + 1"}, "id = 1", KEYED))

    assert await contents(place, one.reader.shards) == {(1, "one", 2): 1, (2, "b", 2): 1}


async def test_a_condition_is_read_again_if_a_changed_row_fulfils_it() -> None:
    """A row may come into a condition, or leave it, by the commit of another process."""
    place = in_memory()
    one, other = await created(place), writer(place)
    await one.write(insert((1, "a", 1), (2, "b", 2), (3, "c", 3)))
    await other.write(upsert((4, "a", 9)))
    await one.write(delete_of(None, "place = 'a'", KEYED))
    await other.write(upsert((2, "a", 2)))
    await one.write(update_of({"n": "0"}, "place = 'b'", KEYED))

    assert await contents(place, one.reader.shards) == {(2, "a", 2): 1, (3, "c", 3): 1}


async def test_a_moved_key_is_checked_in_the_race() -> None:
    """The new key of an update may be inserted by another process after it was found free."""
    place = in_memory()
    one, other = await created(place, shards=3), writer(place, shards=3)
    await one.write(insert((1, "a", 1)))
    await other.write(insert((2, "b", 2)))

    with pytest.raises(KeyExists, match="id=2"):
        await one.write(update_of({"id": "2"}, "id = 1", KEYED))


async def test_a_refusal_is_decided_on_the_newest_state() -> None:
    """A handle that knows an old state must not refuse a key that was deleted since."""
    place = in_memory()
    one, other = await created(place), writer(place)
    await one.write(insert((1, "a", 1)))
    await other.write(delete_of([1], None, KEYED))
    await one.write(insert((1, "b", 2)))

    assert await contents(place, one.reader.shards) == {(1, "b", 2): 1}
    with pytest.raises(KeyExists):
        await other.write(insert((1, "c", 3)))


@pytest.mark.parametrize("fault", [Fault(told=False), Fault(happened=False, told=False)])
@pytest.mark.parametrize("at", range(5))
async def test_a_lost_answer_changes_the_table_once(at: int, fault: Fault) -> None:
    """Whichever request loses its answer, the token shows whether the commit is stored."""
    store = CountedStore(MemoryStore())
    place = on_store(store)
    await created(place)
    table = writer(place, store=store)
    await table.write(insert((1, "a", 1)))
    add = update_of({"n": "n + 1"}, "true", KEYED)
    store.faults = [Fault()] * at + [fault]
    try:
        await table.write(add)
    except LocationError:
        store.faults.clear()
        await table.write(add)
    store.faults.clear()

    assert await contents(place, table.reader.shards) == {(1, "a", 2): 1}


async def test_a_token_writes_once() -> None:
    """A retry returns the time of the first commit, whatever was written since."""
    place = in_memory()
    table = await created(place)
    time = await table.write(insert((1, "a", 1)), token=("till", 7))
    await writer(place).write(upsert((1, "b", 2)))
    again = await table.write(insert((1, "a", 1)), token=("till", 7))
    elsewhere = await writer(place).write(upsert((5, "x", 5)), token=("till", 7))
    await table.write(upsert((2, "c", 3)), token=("till", 8))

    assert again == elsewhere == time
    assert await contents(place, table.reader.shards) == {(1, "b", 2): 1, (2, "c", 3): 1}
    with pytest.raises(OutcomeUnknown):
        await table.write(upsert((9, "z", 9)), token=("till", 7))
    with pytest.raises(UsageError, match="token= must be a pair"):
        await table.write(upsert((9, "z", 9)), token="till")  # type: ignore[arg-type]


async def test_replicas_with_one_token_write_once() -> None:
    """Both processes may pass the check of the token, and plan other updates of the same rows."""
    place = in_memory()
    one, other = await created(place), writer(place)
    times: list[int] = []
    committed = TableWriter._written

    async def overtaken(self: TableWriter, plan: Any) -> Any:
        done = await committed(self, plan)
        if self is one:
            await other.write(upsert((1, "old", 0)))
            times.append(await other.write(upsert((1, "a", 1)), token=("till", 7)))
        return done

    with patch.object(TableWriter, "_written", overtaken):
        time = await one.write(upsert((1, "a", 1)), token=("till", 7))

    assert [time] == times
    assert await contents(place, one.reader.shards) == {(1, "a", 1): 1}


async def test_commits_that_were_applied_and_dropped_are_read_from_the_shard() -> None:
    """The transactions drop what a shard has, so a stale state of the shard lacks these commits."""
    place = in_memory()
    one, other = await created(place), writer(place)
    await one.write(insert((1, "a", 1), (2, "b", 2)))
    for number in range(3):
        await other.write(upsert((1, "other", number)))
        await transactions_of(other).tidy()
        await one.write(update_of({"n": "n + 10"}, "id = 1", KEYED))

    assert await contents(place, one.reader.shards) == {(1, "other", 12): 1, (2, "b", 2): 1}


@pytest.mark.parametrize("shards", [1, 2])
async def test_concurrent_writers_lose_nothing(shards: int) -> None:
    """Writers of several processes add to one row and to rows of their own."""
    place = on_store(MemoryStore())
    first = await created(place, shards=shards)
    await first.write(insert((0, "shared", 0)))

    async def work(number: int) -> None:
        table = writer(place, shards=shards)
        for step in range(4):
            await table.write(update_of({"n": "n + 1"}, "id = 0", KEYED))
            await table.write(upsert((number, "own", step)))

    await asyncio.gather(*(work(number) for number in range(1, 5)))
    own = {(number, "own", 3): 1 for number in range(1, 5)}

    assert await contents(place, first.reader.shards) == {(0, "shared", 16): 1, **own}


async def test_writes_of_one_handle_are_not_refused() -> None:
    """Concurrent writes of one handle wait for each other, and need one try each."""
    store = CountedStore(MemoryStore())
    place = on_store(store)
    table = await created(place)
    await table.write(upsert((0, "a", 0)))
    store.taken()
    await asyncio.gather(*(table.write(upsert((number, "b", 0))) for number in range(8)))

    assert store.taken() == ["put"] * 8


async def test_merges_and_sweeps_between_writes() -> None:
    """Handles with old states find the rows after merges, and their parts are never swept."""
    place = on_store(MemoryStore())
    one, other = await created(place), writer(place)
    model: dict[int, Any] = {}
    for number in range(12):
        rows = [(key, f"{number} {'x' * 2_000}", number) for key in range(number, number + 3)]
        table = one if number % 2 else other
        await table.write(upsert(*rows))
        model |= {row[0]: row for row in rows}
        if number % 3 == 2:
            shard = transactions_of(writer(place)).shard("k0")
            await shard.refresh()
            await shard.compact(full=True)
            await shard.collect(after_us=0)
            await sweep(shard)

    assert await contents(place, one.reader.shards) == Counter(model.values())


async def test_a_stream_of_conflicts_ends_with_an_error() -> None:
    """The number of tries is bounded, so a writer never hangs."""
    place = in_memory()
    table, other = await created(place), writer(place)
    await table.write(insert((1, "a", 1)))
    committed = TableWriter._written

    async def overtaken(self: TableWriter, plan: Any) -> Any:
        done = await committed(self, plan)
        if self is table:
            await other.write(update_of({"n": "n + 1"}, "true", KEYED))
        return done

    with (
        patch.object(TableWriter, "_written", overtaken),
        patch("tidelog.collection.table.writes.PLANS_MAX", 3),
        pytest.raises(ContentionError, match=r"gave up after 3 tries: .* try again"),
    ):
        await table.write(upsert((1, "b", 2)))

    assert await contents(place, table.reader.shards) == {(1, "a", 4): 1}


async def test_the_earliest_time_of_the_caller() -> None:
    """A caller may name a later time than that of the clock."""
    place = in_memory()
    table = await created(place)
    time = await table.write(upsert((1, "a", 1)), at=9_000_000_000_000)

    assert time == 9_000_000_000_000
    assert await table.write(upsert((1, "b", 1)), at=5) == time + 1


async def test_an_altered_table_is_refused() -> None:
    """Rows of the old columns would be stored with nulls in the new ones."""
    place = in_memory()
    table = await created(place)
    await table.write(insert((1, "a", 1)))
    transactions = transactions_of(writer(place))
    await transactions.forget("k0")
    shard = place.shard(name="k0", schema=None)
    await shard.evolve_schema(KEYED.data.append(pa.field("new", pa.string())))
    await transactions.register(shard)

    with pytest.raises(SchemaEvolved, match="the table 't' was altered"):
        await table.write(upsert((1, "b", 1)))


DAY = datetime.date(2026, 1, 2)
NOON = datetime.datetime(2026, 1, 2, 12, 30, tzinfo=datetime.UTC).replace(tzinfo=None)


@pytest.mark.parametrize(
    ("dtype", "keys"),
    [
        (pa.int8(), [-7, 0, 7]),
        (pa.uint64(), [0, 2**63, 2**64 - 1]),
        (pa.bool_(), [True, False]),
        (pa.float64(), [-1.5, 0.0, float("inf"), float("nan")]),
        (pa.decimal128(20, 4), [Decimal("-1.5"), Decimal("0.0001"), Decimal(7)]),
        (pa.string(), ["", "a", "\u00e4" * 100, "z\x00"]),
        (pa.binary(), [b"", b"\xff", b"a\x00"]),
        (pa.date32(), [DAY, DAY + datetime.timedelta(days=1)]),
        (pa.time64("us"), [NOON.time(), datetime.time(0, 0)]),
        (pa.timestamp("us"), [NOON, NOON + datetime.timedelta(microseconds=1)]),
        (pa.timestamp("us", tz="UTC"), [NOON.replace(tzinfo=datetime.UTC)]),
        (pa.list_(pa.int64()), [[], [1, 2], [1, None]]),
        (pa.struct([pa.field("x", pa.int64())]), [{"x": 1}, {"x": 2}]),
    ],
    ids=str,
)
async def test_keys_of_each_type(dtype: pa.DataType, keys: list[Any]) -> None:
    """Each type has its own bounds and equality; a key must be found again, and no other."""
    schema = shard_schema(pa.schema([pa.field("k", dtype), pa.field("n", pa.int64())]), key=["k"])
    place = in_memory()
    await created(place, shards=2, schema=schema)

    def rows(n: int, some: list[Any]) -> pa.Table:
        return pa.table([pa.array(some, dtype), pa.array([n] * len(some))], names=["k", "n"])

    async def stored() -> Counter[tuple[str, int]]:
        view = await table.reader.view(table.reader.shards, fresh=True)
        found = await table.reader.rows(upsert_of(rows(0, keys), schema).lookup, view)
        return Counter((repr(row["k"]), row["n"]) for row in found.to_pylist())

    table = writer(place, shards=2, schema=schema)
    await table.write(insert_of(rows(1, keys), schema))
    with pytest.raises(KeyExists):
        await table.write(insert_of(rows(2, keys[-1:]), schema))
    table = writer(place, shards=2, schema=schema)
    await table.write(upsert_of(rows(3, keys[:1]), schema))
    known = [repr(row["k"]) for row in rows(0, keys).to_pylist()]
    wanted = Counter((key, 3 if number == 0 else 1) for number, key in enumerate(known))
    after_upsert = await stored()
    await table.write(delete_of(rows(0, keys[:1]).select(["k"]), None, schema))

    assert after_upsert == wanted
    assert await stored() == wanted - Counter({(known[0], 3): 1})


async def test_rows_without_a_key_come_in_the_order_of_their_columns() -> None:
    """The guide promises the order, which does not depend on the writes."""
    table = await (await new_lake()).tables.create("t", "b varchar, a bigint", shards=3)
    await table.insert([{"b": None, "a": 1}, {"b": "y", "a": 1}, {"b": "x", "a": 2}])
    await table.insert([{"b": "x", "a": 1}, {"b": "y"}])

    found = (await (await table.snapshot()).to_arrow()).to_pylist()
    assert [(row["b"], row["a"]) for row in found] == [
        ("x", 1),
        ("x", 2),
        ("y", 1),
        ("y", None),
        (None, 1),
    ]
