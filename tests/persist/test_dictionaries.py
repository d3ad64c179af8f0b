"""Text that repeats: a reader decodes its dictionary, and returns text."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from tidelog.core.clock import SystemClock
from tidelog.core.ids import ShardId
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, shard_schema
from tidelog.persist.read import opened as opened_parts
from tidelog.persist.read.opened import OpenPart, PartOpener
from tidelog.persist.write.writer import PartWriter
from tidelog.store.memory import MemoryStore

CLOCK = SystemClock()
COLUMNS: list[pa.Field[Any]] = [
    pa.field("k", pa.int64()),
    pa.field("word", pa.string()),
    pa.field("maybe", pa.string()),
]
SCHEMA = shard_schema(pa.schema(COLUMNS), key=["k"])
ROWS = 70_000


def updates(words: list[str | None]) -> pa.Table:
    """Return updates whose columns of text repeat some words."""
    places = np.arange(ROWS) % len(words)
    text = pa.array([word or "" for word in words]).take(places)
    maybe = pa.array(words, pa.string()).take(places)
    same = pa.array(np.zeros(ROWS, np.int64))
    columns = [pa.array(np.arange(ROWS)), text, maybe, same, pa.array(np.ones(ROWS, np.int64))]
    return pa.table(columns, schema=SCHEMA.updates)


async def opened(
    rows: pa.Table, *, packed: frozenset[str] = frozenset(), schema: ShardSchema = SCHEMA
) -> OpenPart:
    store = MemoryStore()
    writer = PartWriter(store=store, clock=CLOCK, shard=ShardId("s"), schema=schema)
    parts = await writer.write(rows)
    opener = PartOpener(store=store, clock=CLOCK, schema=schema, packed=packed)
    (one,) = await opener.open(parts)
    return one


def read(part: OpenPart, names: list[str], *, as_of: int = 0) -> pa.Table:
    return part.read(range(len(part.groups)), names, as_of=as_of)


@pytest.mark.parametrize("bytes_max", [1, 5_000, 1 << 30])
async def test_repeated_text_is_returned_as_text(bytes_max: int) -> None:
    """However long the words are, each array has at most the bytes that an array can hold."""
    rows = updates([None, "", "a", "ä" * 1_000, "z" * 3])
    part = await opened(rows)

    with patch.object(opened_parts, "ARRAY_BYTES_MAX", bytes_max):
        found = read(part, ["word", "maybe"])

    assert found.schema.types == [pa.string(), pa.string()]
    assert found.equals(rows.select(["word", "maybe"]))


async def test_text_that_is_null_everywhere_is_read() -> None:
    """Its dictionary is empty."""
    rows = updates([None])
    part = await opened(rows)

    assert read(part, ["maybe"]).equals(rows.select(["maybe"]))


async def test_only_the_columns_asked_for_keep_a_dictionary() -> None:
    """A writer of Parquet uses the dictionary of a part again, and other readers want text."""
    rows = updates(["a", "b"])
    part = await opened(rows, packed=frozenset(["word"]))

    found = read(part, ["word", "maybe", DIFF])

    assert [pa.types.is_dictionary(one) for one in found.schema.types] == [True, False, False]
    assert found.column("word").cast(pa.string()).equals(rows.column("word"))


async def test_updates_of_later_times_are_left_out() -> None:
    """A condition on times applies to text from a dictionary, too."""
    rows = updates(["a", "b", None])
    times: Any = pa.array(np.arange(ROWS) % 2)
    rows = rows.set_column(3, rows.schema.field(TIME), times)
    part = await opened(rows)

    found = read(part, ["k", "maybe"], as_of=0)

    assert found.equals(rows.filter(pa.array(np.arange(ROWS) % 2 == 0)).select(["k", "maybe"]))


async def test_a_list_of_texts_is_read_beside_a_column_with_its_path() -> None:
    """Arrow cannot decode a nested field to a dictionary, if its part has two row groups."""
    words: Any = pa.array(["a", "b"] * (ROWS // 2))
    lists: Any = pa.ListArray.from_arrays(pa.array(np.arange(ROWS + 1), pa.int32()), words)
    columns = {"k": pa.array(np.arange(ROWS)), "l.list.element": words, "l": lists}
    schema = shard_schema(pa.table(columns).schema, key=["k"])
    zeros, ones = pa.array(np.zeros(ROWS, np.int64)), pa.array(np.ones(ROWS, np.int64))
    rows = pa.table({**columns, TIME: zeros, DIFF: ones}).select(schema.updates.names)
    part = await opened(rows.cast(schema.updates), schema=schema)

    found = read(part, ["l.list.element", "l"])

    assert found.equals(rows.select(["l.list.element", "l"]))
