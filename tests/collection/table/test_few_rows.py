"""A few incoming rows are prepared in the event loop, and all others in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest

from tidelog.collection.table.incoming import SMALL_ROWS, stream_of
from tidelog.core.clock import SystemClock
from tidelog.persist.format.schema import ShardSchema

T = TypeVar("T")
COLUMNS: list[pa.Field[Any]] = [
    pa.field("k", pa.int64()),
    pa.field("v", pa.int32()),
    pa.field("text", pa.string()),
]
SCHEMA = ShardSchema(pa.schema(COLUMNS), 0)
MANY = 10 * SMALL_ROWS


class CountedClock(SystemClock):
    """A clock that counts trips to threads."""

    def __init__(self) -> None:
        self.trips = 0

    async def offload(self, work: Callable[[], T]) -> T:
        self.trips += 1
        return await super().offload(work)


async def pieces_and_trips(rows: object) -> tuple[pa.Table, int]:
    clock = CountedClock()
    pieces = [piece async for piece in stream_of(rows, SCHEMA, clock)]
    return pa.concat_tables(pieces), clock.trips


@pytest.mark.parametrize(
    "rows",
    [
        {"k": [1, 2], "v": pa.array([3, 4], pa.int64()), "text": ["a", None]},
        {"k": pa.array(np.arange(SMALL_ROWS // 2))},
    ],
)
async def test_a_few_rows_start_no_thread(rows: dict[str, Any]) -> None:
    """A thread is woken in more time than it takes to prepare them."""
    table = pa.table(rows)

    found, trips = await pieces_and_trips(table)

    assert (found.num_rows, trips) == (table.num_rows, 0)


@pytest.mark.parametrize(
    "column",
    [
        pa.nulls(MANY),
        pa.array(["x" * 50_000] * 100).dictionary_encode(),
    ],
)
async def test_rows_that_take_more_space_in_the_table_are_prepared_in_a_thread(
    column: pa.Array[Any],
) -> None:
    """The event loop stays free, although the bytes of such rows are few."""
    table = pa.table({"text": column})

    found, trips = await pieces_and_trips(table)

    assert table.nbytes < 64 * 1024
    assert found.column("text").equals(pa.chunked_array([column.cast(pa.string())]))
    assert trips > 0
