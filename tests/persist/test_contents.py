"""Reads of a snapshot: the same rows for any layout of parts and any skipping."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.shard_tables import TIMES, schema_of, shard_updates, table_of
from kit.shards import Place, append_cut, counts_in, in_memory, projected
from tidelog.errors import CorruptionError, UsageError
from tidelog.persist.format import parquet, part
from tidelog.persist.format.part import Part, int64_of
from tidelog.persist.format.schema import DIFF, ShardSchema, shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read import contents, pieces, spilled_rows
from tidelog.persist.read.contents import Way, choose_way
from tidelog.store.memory import MemoryStore
from tidelog.testing import RecordedStore
from tidelog.testing.models import Row, accumulate, contents_of, updates_of

WAYS = st.sampled_from(Way)


async def written(schema: ShardSchema, table: pa.Table, cuts: Sequence[int]) -> Shard:
    """Write updates to a shard in several batches by time, with row groups of two rows."""
    shard = in_memory().shard(schema=schema)
    with patch.object(parquet, "ROW_GROUP_ROWS", 2), patch.object(part, "INLINE_BYTES", 0):
        await append_cut(shard, table, [*cuts, 6])
    return shard


def fitting(way: Way, parts: Sequence[Part], schema: ShardSchema) -> Way:
    """Return ``way`` if it is correct for these parts, else the way that the reader chooses."""
    is_plain = all(part.plain for part in parts)
    is_wrong = way is Way.AS_WRITTEN and not (is_plain and not schema.key_columns)
    return choose_way(parts, schema) if is_wrong else way


CUTS = st.lists(st.integers(1, 5), unique=True, max_size=3).map(sorted)


@settings(max_examples=40)
@given(
    drawn=shard_updates(max_size=16),
    cuts=CUTS,
    as_of=TIMES,
    way=WAYS,
    row_bytes=st.sampled_from([1, 1 << 25]),  # With the large value, few rows share a file.
    picked=st.permutations(range(3)).flatmap(lambda p: st.integers(1, 3).map(lambda n: p[:n])),
)
async def test_every_way_of_reading_gives_what_the_model_has(
    drawn: tuple[ShardSchema, pa.Table],
    cuts: list[int],
    as_of: int,
    way: Way,
    row_bytes: int,
    picked: list[int],
) -> None:
    """T29: rows come in any order, and ungrouped ones add up to the model's counts."""
    schema, table = drawn
    shard = await written(schema, table, cuts)
    columns = [schema.names[n] for n in picked if n < len(schema.names)] or schema.names[:1]
    expected = accumulate(updates_of(table), as_of)
    expected_some = projected(expected, schema.names, columns)

    with (
        patch.object(contents, "choose_way", lambda parts, s: fitting(way, parts, s)),
        patch.object(pieces, "PIECE_ROWS", 2),
        patch.object(spilled_rows, "ROW_BYTES", row_bytes),
    ):
        whole = await shard.snapshot(as_of)
        some = await shard.snapshot(as_of, columns=columns)
        batches = [batch async for batch in whole.to_batches()]
        of_some = [batch async for batch in some.to_batches()]
        narrow = await some.to_arrow(consolidated=True)
    assert contents_of(await whole.to_arrow(consolidated=True)) == expected
    assert contents_of(narrow) == expected_some
    assert narrow.schema.names == [*columns, DIFF]
    for found, names, wanted in (
        (batches, schema.names, expected),
        (of_some, columns, expected_some),
    ):
        tables = [pa.Table.from_batches([batch]) for batch in found]
        assert not any(0 in table.column(DIFF).to_pylist() for table in tables)
        assert counts_in(tables, names) == wanted
    each = await whole.to_arrow()
    assert 0 not in each.column(DIFF).to_pylist()
    assert counts_in([each], schema.names) == expected
    assert each.num_rows == sum(max(n, 1) for n in expected.values())
    assert int64_of(each, DIFF).max(initial=1) == 1


# T30. Values with error-prone bounds: without an order, truncated, or at the ends of a type.
LONG = "z" * 70
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "id": (pa.int64(), [None, -(2**63), -1, 0, 1, 2, 2**63 - 1]),
    "name": (pa.string(), [None, "", "a", "ab", LONG, LONG + "a", LONG + "b", "é", "\U0001f600"]),
    "amount": (pa.float64(), [None, 0.0, -0.0, float("nan"), float("inf"), -1.5]),
    "day": (pa.date32(), [None, dt.date(1, 1, 1), dt.date(2020, 1, 2), dt.date(9999, 12, 31)]),
    "price": (pa.decimal128(9, 2), [None, 0, 1, -2]),
    "raw": (pa.binary(), [None, b"", b"\xff", b"a"]),
}
LITERALS = {
    "id": ["-9223372036854775808", "-1", "0", "1", "1.5", "9223372036854775807", "NULL"],
    "name": ["''", "'a'", f"'{LONG}'", f"'{LONG}a'", "'é'", "NULL"],
    "amount": ["0", "-0.0::DOUBLE", "'nan'::DOUBLE", "'inf'::DOUBLE", "1"],
    "day": ["DATE '2020-01-02'", "'2020-01-02'", "DATE '0001-01-01'", "NULL"],
    "price": ["0", "1.00", "-2.5"],
    "raw": ["''::BLOB", "'a'::BLOB"],
}


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> str:
    if depth and draw(st.integers(0, 2)) == 0:
        left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        joined = draw(st.sampled_from(["AND", "AND", "OR"]))
        return f"{draw(st.sampled_from(['', 'NOT ']))}({left} {joined} {right})"
    name = draw(st.sampled_from(sorted(COLUMNS)))
    literal = st.sampled_from(LITERALS[name])
    match draw(st.sampled_from(["compared", "between", "in", "null", "mirrored"])):
        case "between":
            return f"{name} BETWEEN {draw(literal)} AND {draw(literal)}"
        case "in":
            return f"{name} IN ({draw(literal)}, {draw(literal)})"
        case "null":
            return f"{name} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
        case "mirrored":
            return f"{draw(literal)} {draw(st.sampled_from(['=', '<', '>=']))} {name}"
    return f"{name} {draw(st.sampled_from(['=', '<', '<=', '>', '>=', '<>']))} {draw(literal)}"


@st.composite
def rows(draw: st.DrawFn) -> tuple[ShardSchema, pa.Table]:
    first = draw(st.permutations(sorted(COLUMNS)))
    keys = draw(st.integers(0, 2))
    fields = [pa.field(name, COLUMNS[name][0]) for name in first]
    schema = shard_schema(pa.schema(fields), key=list(first[:keys]))
    values = st.tuples(*[st.sampled_from(COLUMNS[name][1]) for name in schema.names])
    drawn = draw(st.lists(st.tuples(values, TIMES, st.sampled_from([1, 1, 1, -1])), max_size=20))
    return schema, table_of(schema, [(*row, time, diff) for row, time, diff in drawn])


def chosen_by_duckdb(found: Counter[Row], schema: ShardSchema, where: str) -> dict[Row, int]:
    """Filter all rows with DuckDB, which knows nothing of parts."""
    kept = list(found)
    columns = {
        name: pa.array([unmodelled(row[n]) for row in kept], schema.data.field(name).type)
        for n, name in enumerate(schema.names)
    }
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register(
            "t", pa.table({**columns, "_n": pa.array(range(len(kept)), pa.int64())})
        )
        hits = connection.sql(f"SELECT _n FROM t WHERE ({where})").fetchall()
    return {kept[n]: found[kept[n]] for (n,) in hits}


def unmodelled(value: Any) -> Any:
    return float("nan") if value == "NaN, which equals itself here" else value


@pytest.mark.parametrize("way", Way)
@settings(max_examples=40)
@given(drawn=rows(), cuts=CUTS, as_of=TIMES, where=conditions())
async def test_what_is_skipped_is_nothing_that_was_asked_for(
    way: Way, drawn: tuple[ShardSchema, pa.Table], cuts: list[int], as_of: int, where: str
) -> None:
    """T30: a filter that skips parts and row groups returns the rows of a full filter."""
    schema, table = drawn
    shard = await written(schema, table, cuts)
    expected = chosen_by_duckdb(accumulate(updates_of(table), as_of), schema, where)

    with patch.object(contents, "choose_way", lambda parts, s: fitting(way, parts, s)):
        found = await (await shard.snapshot(as_of, where=where)).to_arrow(consolidated=True)

    assert contents_of(found) == expected


def numbered(start: int, count: int, time: int) -> pa.Table:
    schema = schema_of(["int64", "string"], keys=1)
    return table_of(schema, [(n, f"row {n}", time, 1) for n in range(start, start + count)])


async def test_parts_and_row_groups_are_skipped_by_key_and_by_time() -> None:
    """A reader sends no request for a part that its bounds exclude."""
    schema, store = schema_of(["int64", "string"], keys=1), RecordedStore(MemoryStore())
    shard = Place(store, in_memory()._consensus).shard(schema=schema)
    with patch.object(part, "INLINE_BYTES", 0):
        for n in range(6):
            await shard.compare_and_append(numbered(100 * n, 100, n), n, n + 1)
    store.records.clear()

    one = await (await shard.snapshot(5, columns=["c1"], where="c0 = 250")).to_arrow()
    early = await (await shard.snapshot(1, where="c0 >= 100")).to_arrow()

    assert one.to_pylist() == [{"c1": "row 250", DIFF: 1}]
    assert early.num_rows == 100
    assert sum(record.op == "get" and "/part/" in record.key for record in store.records) == 2


async def test_a_condition_is_computed_on_rows_that_are_there() -> None:
    """A condition is not computed on a retracted row, so such a row cannot make it fail."""
    schema = schema_of(["int64", "string"], keys=0)
    shard = in_memory().shard(schema=schema)
    await shard.compare_and_append(table_of(schema, [(1, "x", 0, 1), (2, "9", 0, 1)]), 0, 1)
    await shard.compare_and_append(table_of(schema, [(1, "x", 1, -1)]), 1, 2)

    found = await (await shard.snapshot(1, where="CAST(c1 AS INT) = 9")).to_arrow()
    before = await shard.snapshot(0, where="CAST(c1 AS INT) = 9")

    assert found.column("c0").to_pylist() == [2]
    with pytest.raises(UsageError, match="where fails on a row"):
        await before.to_arrow()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"columns": ["nix"]}, "no column named 'nix'"),
        ({"columns": "c0"}, "a list of names"),
        ({"columns": []}, "names a column twice"),
        ({"where": "nix = 1"}, "nix"),
        ({"where": "c0"}, "condition|boolean"),
        ({"where": 5}, "a condition in SQL"),
    ],
)
async def test_what_cannot_be_asked_is_told_before_anything_is_read(
    asked: dict[str, Any], told: str
) -> None:
    """A wrong column or condition raises before any request, without waiting for the time."""
    store = RecordedStore(MemoryStore())
    shard = Place(store, in_memory()._consensus).shard(schema=schema_of(["int64"], keys=1))

    with pytest.raises(UsageError, match=told):
        await shard.snapshot(7, **asked)

    assert store.records == []


@pytest.mark.parametrize("way", Way)
async def test_a_damaged_part_is_told_whichever_way_it_is_read(way: Way) -> None:
    """A damaged part raises CorruptionError in each way of reading."""
    schema = schema_of([*["int64"] * 2], keys=0 if way is Way.AS_WRITTEN else 1)
    place = in_memory()
    shard = place.shard(schema=schema)
    with patch.object(part, "INLINE_BYTES", 0):
        await shard.compare_and_append(table_of(schema, [(1, 2, 0, 1)]), 0, 1)
    (path,) = [p.path or "" for batch in shard.state.batches for p in batch.parts]
    data = (await place.store.get(path)).data
    await place.store.put(path, data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])

    found = (await shard.snapshot(0)).to_batches()
    with (
        patch.object(contents, "choose_way", lambda parts, s: way),
        pytest.raises(CorruptionError, match="do not match its checksum"),
    ):
        await anext(found)


def test_the_way_is_chosen_by_what_is_known_of_the_parts() -> None:
    """Grouping is skipped only if it provably changes nothing."""
    keyed, keyless = schema_of(["int64", "string"], keys=1), schema_of(["int64"], keys=0)
    nested = schema_of(["list"], keys=1)

    def parts(count: int, **told: Any) -> list[Part]:
        made: dict[str, Any] = {
            "size_bytes": 6 << 20, "xxh3": b"", "rows": 1, "diffs": 1, "time_min": 0,
            "time_max": 0, "sum_v": b"", "sum_t": b"", "path": "p", "is_sorted": True,
            "key_bounds": part._encode_bounds(numbered(0, 2, 0), keyed),
        }  # fmt: skip
        return [Part(**{**made, **told}) for _ in range(count)]

    assert choose_way(parts(9, plain=True), keyless) is Way.AS_WRITTEN
    assert choose_way(parts(9, plain=False), keyless) is Way.SPILLED
    assert choose_way(parts(1, plain=False), keyless) is Way.AT_ONCE
    assert choose_way(parts(9), keyed) is Way.BY_KEY
    assert choose_way(parts(9, is_sorted=False), keyed) is Way.SPILLED
    assert choose_way(parts(9), nested) is Way.SPILLED
    one_value = part._encode_bounds(numbered(0, 1, 0), keyed)
    assert choose_way(parts(9, key_bounds=one_value), keyed) is Way.SPILLED
    assert choose_way(parts(9, key_bounds=one_value, size_bytes=10), keyed) is Way.BY_KEY


BOUND = 8 << 20


@pytest.mark.parametrize("way", [Way.AS_WRITTEN, Way.BY_KEY, Way.SPILLED])
async def test_a_snapshot_of_twenty_times_the_bound_is_read_within_it(way: Way) -> None:
    """A read holds a bounded number of rows in memory, and spills the rest to disk.

    By key, it holds one row group of each part with overlapping keys, whatever the bound. As
    written, it holds about three row groups of 17 MB: one read and two decoded.
    """
    schema = schema_of(["int64", "string"], keys=0 if way is Way.AS_WRITTEN else 1)
    shard = in_memory().shard(schema=schema)
    each, batches = 160_000, 4
    for n in range(batches):
        numbers = np.arange(n, each * batches, batches)  # Each batch spans all keys.
        text = pa.array(["x" * 250]).take(np.zeros(each, np.int64))
        ones = pa.array(np.ones(each, np.int64))
        columns = [pa.array(numbers), text, pa.array(np.full(each, n)), ones]
        table = pa.table(columns, schema.updates.names)
        await shard.compare_and_append(table, n, n + 1)
    snapshot = await shard.snapshot(batches - 1)
    del table, text, columns
    before, most, rows, size = pa.total_allocated_bytes(), 0, 0, 0

    with patch.object(contents, "choose_way", lambda parts, s: way):
        async for batch in snapshot.to_batches(memory_bytes=BOUND):
            rows, size = rows + batch.num_rows, size + batch.nbytes
            most = max(most, pa.total_allocated_bytes() - before)

    assert rows == each * batches
    assert size > 20 * BOUND
    assert most < {Way.AS_WRITTEN: 7, Way.BY_KEY: 12, Way.SPILLED: 4}[way] * BOUND
