"""Inferred columns of parquet: a file whose column has only nulls gives it no type."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.sources import contents, lake_of, run_once
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.infer import typed_remarks
from tidelog.errors import UsageError
from tidelog.location import Location

NULLS = pa.nulls(1)
# As pandas writes columns without any value, and lists without any item.
FIRST = pa.table({"a": [1], "b": NULLS, "c": [{"x": None, "y": 1}], "d": [[]], "e": NULLS})
SECOND = pa.table({"a": [2], "b": [7], "c": [{"x": 1.5, "y": 2}], "d": [["q"]], "e": NULLS})


async def columns_of(lake: Location) -> dict[str, pa.DataType]:
    schema = (await lake.collection("c")).schema.data
    return dict(zip(schema.names, schema.types, strict=True))


async def remarks_of(lake: Location) -> list[str]:
    source = (await lake.sources.ingester("c")).source
    assert isinstance(source, FilesSource)
    return await typed_remarks(list((await source.head()).entries), source.store, format="parquet")


async def test_a_later_file_gives_a_column_of_nulls_its_type(tmp_path: Path) -> None:
    """Only a column that no file has values for is left out, and a notice names it."""
    (tmp_path / "in").mkdir()
    pq.write_table(FIRST, tmp_path / "in" / "1.parquet")
    (tmp_path / "in" / "2.parquet").write_bytes(b"no parquet")
    pq.write_table(SECOND, tmp_path / "in" / "3.parquet")
    lake = await lake_of(tmp_path, format="parquet", schema=None)

    assert await columns_of(lake) == {
        "a": pa.int64(),
        "b": pa.int64(),
        "c": pa.struct([("x", pa.float64()), ("y", pa.int64())]),
        "d": pa.list_(pa.string()),
    }
    (remark,) = await remarks_of(lake)
    assert remark.startswith("column 'e' or a field of it has no value")
    (tmp_path / "in" / "2.parquet").unlink()
    assert (await run_once(await lake.sources.ingester("c"))).bad == 0
    assert await contents(lake) == [
        repr({"a": 1, "b": None, "c": {"x": None, "y": 1}, "d": []}),
        repr({"a": 2, "b": 7, "c": {"x": 1.5, "y": 2}, "d": ["q"]}),
    ]


async def test_columns_and_fields_without_a_type_are_left_out(tmp_path: Path) -> None:
    """Later values of them are counted as those of unknown fields, and the rows are ingested."""
    (tmp_path / "in").mkdir()
    pq.write_table(FIRST, tmp_path / "in" / "1.parquet")
    lake = await lake_of(tmp_path, format="parquet", schema=None)

    assert await columns_of(lake) == {"a": pa.int64(), "c": pa.struct([("y", pa.int64())])}
    assert [one.split()[1] for one in await remarks_of(lake)] == ["'b'", "'c'", "'d'", "'e'"]
    pq.write_table(SECOND, tmp_path / "in" / "2.parquet")
    done = await run_once(await lake.sources.ingester("c"))
    assert (done.rows, done.bad) == (2, 0)
    assert {"b", "c.x", "d"} <= set(done.dropped)
    assert await contents(lake) == [
        repr({"a": 1, "c": {"y": 1}}),
        repr({"a": 2, "c": {"y": 2}}),
    ]


async def test_a_file_of_nulls_only_needs_a_schema(tmp_path: Path) -> None:
    """The error names the option, instead of a type that the user did not write."""
    (tmp_path / "in").mkdir()
    pq.write_table(FIRST.select(["b", "d"]), tmp_path / "in" / "1.parquet")

    with pytest.raises(UsageError, match=r"no column of '1\.parquet' has a value.*pass schema="):
        await lake_of(tmp_path, format="parquet", schema=None)
