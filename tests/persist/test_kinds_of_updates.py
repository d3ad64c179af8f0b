"""Kinds of updates: a shard takes the rows that tables take, with their times and diffs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from kit.shards import ALREADY, COMMITTED, SCHEMA, contents, in_memory, rows
from tidelog.errors import UsageError
from tidelog.persist.handle.shard import Shard

TABLE = rows(("a", 1, 0, 1), ("b", 2, 1, 1), ("c", 3, 2, 2))
DICTS = TABLE.to_pylist()
EXPECTED = {("a", 1): 1, ("b", 2): 1, ("c", 3): 2}


class Stream:
    """An object of another library, with Arrow's interface of streams; each call reads it again."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


class Frame(Stream):
    """A frame, which has a length, such as one of Polars."""

    def __len__(self) -> int:
        return TABLE.num_rows


class Batch:
    """An object of another library, with Arrow's interface of arrays."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return TABLE.combine_chunks().to_batches()[0].__arrow_c_array__(requested_schema)  # type: ignore[no-untyped-call]


async def arriving() -> AsyncIterator[pa.Table]:
    for place in range(TABLE.num_rows):
        await asyncio.sleep(0)
        yield TABLE.slice(place, 1)


KINDS: dict[str, Any] = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.combine_chunks().to_batches()[0],
    "reader": lambda: TABLE.to_reader(max_chunksize=1),
    "stream": Stream,
    "frame": Frame,
    "array": Batch,
    "pandas": TABLE.to_pandas,
    "dicts": lambda: DICTS,
    "tuple of dicts": lambda: tuple(DICTS),
    "list of tables": lambda: [TABLE.slice(0, 2), TABLE.slice(2)],
    "iterator": lambda: iter([TABLE.slice(0, 2), TABLE.slice(2)]),
    "async iterator": arriving,
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_each_kind_becomes_the_same_updates(kind: Any) -> None:
    """All ways to append take all kinds, and a shard that has the updates accepts them again."""
    for way in ("compare_and_append", "append", "appender"):
        shard = in_memory().shard()
        if way == "appender":
            async with await shard.appender("w") as writer:
                await writer.append(kind(), 3)
        else:
            assert (await getattr(shard, way)(kind(), 0, 3)).verdict is COMMITTED
        assert await contents(shard, 2) == EXPECTED
        assert (await shard.append(kind(), 0, 3)).verdict is ALREADY


@pytest.mark.parametrize("kind", ["pandas", "dicts", "frame", "table", "batch", "reader"])
async def test_a_retry_with_a_token_lands_once(kind: str) -> None:
    """A retry of the same rows is the earlier write."""
    shard = in_memory().shard()
    first = await shard.compare_and_append(KINDS[kind](), 0, 3, token=("w", 1))
    again = await shard.compare_and_append(KINDS[kind](), 0, 3, token=("w", 1))

    assert (first.verdict, again.verdict) == (COMMITTED, ALREADY)
    assert await contents(shard, 2) == EXPECTED


@pytest.mark.parametrize("kind", ["pandas", "dicts", "frame"])
async def test_a_retry_is_recognized_after_a_column_was_added(kind: str) -> None:
    """The rows lack the new column, so they are compared in the schema of the first call."""
    place = in_memory()
    given = KINDS[kind]()
    shard = place.shard()
    await shard.compare_and_append(given, 0, 3, token=("w", 1), named=True)
    wider = pa.schema([*SCHEMA.data, pa.field("more", pa.string())])
    await shard.evolve_schema(wider)

    newer = Shard(id=shard.id, store=place.store, consensus=place.consensus(), clock=shard.clock)
    again = await newer.compare_and_append(given, 0, 3, token=("w", 1), named=True)
    assert again.verdict is ALREADY


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"c0": "a", "c1": "x", "_time": 0, "_diff": 1}], "'c1' of row 0 cannot hold .*'x'"),
        ([{"c0": "a", "c1": 1, "_time": 0, "_diff": 1, "z": 2}], "unknown columns: z; the columns"),
        ([{"c0": "a", "c1": 1, "_time": 0}], "a column is missing: _diff"),
        ([{"c0": "a", "c1": 1, "_time": 0, "_diff": 1}, {}], "null"),
        ([{}], "null"),
        ([7], "row 0 is a value of type int"),
        (pd.Series([1]), "rows must be an Arrow table.*, not Series"),
        ([TABLE, 7], "row 0 is a value of type Table"),
        (pa.array([1]), "rows must be an Arrow table.*, not Int64Array"),
        (
            type("DataFrame", (Stream,), {"__module__": "pyspark.sql.classic.dataframe"})(),
            r"Spark DataFrame: pass rows\.toArrow\(\)",
        ),
    ],
)
async def test_rows_that_do_not_fit_are_refused(given: Any, message: str) -> None:
    """The error names the value and its column; nothing is written."""
    shard = in_memory().shard()
    for way in ("compare_and_append", "append"):
        with pytest.raises(UsageError, match=message):
            await getattr(shard, way)(given, 0, 3)
    assert (await shard.refresh()).upper == 0


async def test_no_rows_move_the_upper() -> None:
    """A list without rows, and a reader without batches, are writes without updates."""
    shard = in_memory().shard()
    await shard.compare_and_append([], 0, 1)
    await shard.compare_and_append(TABLE.schema.empty_table().to_reader(), 1, 2)
    await shard.append(iter([]), 2, 3)

    assert await contents(shard, 2) == {}
