"""Sources of avro files: their columns, files that grow, and files that cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kit.avro import avro_blocks, avro_bytes, record, write_avro
from kit.sources import ingest, lake_of, make_source, run_once, table_of
from tidelog.collection.ingest.checking import check_source
from tidelog.collection.ingest.summary import Summary
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import UsageError
from tidelog.location import Location

NUMBERED = record(n="long", at="long")


def numbers(*given: int) -> list[dict[str, int]]:
    return [{"n": n, "at": 1_000 * n} for n in given]


async def lake_with(folder: Path, **files: bytes) -> Location:
    """Make a lake of some files, with the columns of the first one."""
    (folder / "in").mkdir()
    for name, data in files.items():
        (folder / "in" / f"{name}.avro").write_bytes(data)
    files_of = str(folder / "in" / "*.avro")
    return await make_source(folder / "lake", SourceSpec(name="c", files=files_of, format="avro"))


async def ingested(lake: Location) -> Summary:
    return await run_once(await lake.sources.ingester("c"))


async def checked_rows(lake: Location) -> int:
    """Compute all bindings again, check that no row differs, and return the number of rows."""
    checked = await check_source(await lake.sources.ingester("c"))
    assert (checked.first, checked.unchecked) == (None, ())
    assert checked.differing_errors.num_rows == 0
    return checked.rows


async def rows(lake: Location) -> list[dict[str, Any]]:
    table = (await table_of(lake)).drop_columns(["_diff"])
    return sorted(table.to_pylist(), key=str)


async def test_a_source_has_the_columns_of_its_first_file(tmp_path: Path) -> None:
    """A field of the type null takes its type from a later file."""
    first = avro_bytes(record(n="long", x="null"), [{"n": 1, "x": None}])
    later = avro_bytes(record(n="int", x="string"), [{"n": 2, "x": "y"}])
    lake = await lake_with(tmp_path, a=first, b=later)
    summary = await ingested(lake)

    assert (summary.rows, summary.bad, dict(summary.dropped)) == (2, 0, {})
    assert await rows(lake) == [{"n": 1, "x": None}, {"n": 2, "x": "y"}]


async def test_a_new_field_becomes_a_column_of_its_type(tmp_path: Path) -> None:
    """With `--evolve`. A union of several types becomes json, as at the creation of a source."""
    lake = await lake_of(tmp_path, format="avro", evolve=True)
    schema = record(n="long", at="long", u=["long", "string"])
    values = [{"n": 1, "at": 1, "u": 5}, {"n": 2, "at": 2, "u": "x"}]
    write_avro(tmp_path / "in" / "a.avro", schema, values)
    summary = await ingested(lake)

    assert (summary.rows, summary.bad, dict(summary.dropped)) == (2, 0, {})
    assert [row["u"] for row in await rows(lake)] == ["5", '"x"']


async def test_a_file_that_grows_is_continued_and_its_torn_block_waits(tmp_path: Path) -> None:
    """A writer appends blocks. The rows of a block come when it is whole, and none is repeated."""
    lake = await lake_with(tmp_path, a=avro_bytes(NUMBERED, numbers(1, 2, 3), rows_a_block=2))
    path = tmp_path / "in" / "a.avro"
    assert (await ingested(lake)).rows == 3
    more = avro_blocks(NUMBERED, numbers(4, 5), 1)
    path.write_bytes(path.read_bytes() + more[:-1])
    torn = await ingested(lake)
    assert (torn.rows, dict(torn.waiting)) == (1, {"a.avro": "its last block is not complete yet"})

    path.write_bytes(path.read_bytes() + more[-1:])
    done = await ingested(lake)
    assert (done.rows, dict(done.waiting)) == (1, {})
    assert [row["n"] for row in await rows(lake)] == [1, 2, 3, 4, 5]
    assert await checked_rows(lake) == 5


async def test_a_replay_of_a_source_with_bad_blocks_is_the_same(tmp_path: Path) -> None:
    """`source check` computes all bindings again, and compares rows and bad rows."""
    data = bytearray(avro_bytes(NUMBERED, numbers(*range(50)), rows_a_block=5))
    data[-60] ^= 255
    lake = await lake_with(tmp_path, a=bytes(data), b=bytes(data))
    summary = await ingested(lake)

    assert (summary.rows, summary.bad) == (90, 2)
    assert await checked_rows(lake) == 92  # With the bad ones.


async def test_a_later_change_of_a_key_in_one_block_wins(tmp_path: Path) -> None:
    """Rows of one block have addresses in their order."""
    keyed = {"envelope": "upsert", "key": ("n",), "time_column": "at", "format": "avro"}
    lake = await lake_of(tmp_path, schema="n bigint, at bigint, x text", **keyed)
    schema = record(n="long", at="long", x="string")
    changes = [{"n": n % 3, "at": 1_000, "x": f"{n}"} for n in range(30)]
    write_avro(tmp_path / "in" / "a.avro", schema, changes, rows_a_block=30, codec="deflate")
    await ingest(lake, "c")

    assert {(row["n"], row["x"]) for row in await rows(lake)} == {(0, "27"), (1, "28"), (2, "29")}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PAR1 and more", "is not avro"),
        (avro_bytes(record(n="long"), []).replace(b'"long"', b'"row"' + b" "), "contains itself"),
        (avro_bytes(NUMBERED, [])[:-1], "header of the avro file is not complete"),
        (avro_bytes(record(m="long"), [{"m": 1}]), "none of the source's columns"),
    ],
)
async def test_a_file_that_cannot_be_read_waits_and_the_others_are_ingested(
    tmp_path: Path, data: bytes, why: str
) -> None:
    """Its reason is reported. At creation, it is an error that names the file."""
    lake = await lake_with(tmp_path, a=avro_bytes(NUMBERED, numbers(1)), b=data)
    (tmp_path / "in" / "c.avro").write_bytes(avro_bytes(NUMBERED, numbers(2)))
    summary = await ingested(lake)

    assert summary.rows == 2
    assert why in summary.waiting["b.avro"]
    if "none of" not in why:
        spec = SourceSpec(name="d", files=str(tmp_path / "in" / "b.avro"), format="avro")
        with pytest.raises(UsageError, match=why) as raised:
            await lake.sources.create(spec)
        assert "'b.avro'" in str(raised.value)


async def test_avro_files_of_a_source_of_json_name_the_format(tmp_path: Path) -> None:
    """The error names the format to add."""
    lake = await lake_with(tmp_path, a=avro_bytes(NUMBERED, numbers(1)))

    with pytest.raises(UsageError, match=r"is an avro file: add format='avro'"):
        await lake.sources.create(SourceSpec(name="d", files=str(tmp_path / "in")))


async def test_without_fastavro_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is optional. The source is not created, because nothing could ingest it."""
    monkeypatch.setitem(sys.modules, "fastavro", None)

    with pytest.raises(UsageError, match=r"pip install 'tidelog\[avro\]'"):
        await lake_of(tmp_path, format="avro")
