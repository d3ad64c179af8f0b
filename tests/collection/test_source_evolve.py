"""``evolve``: ingesters add columns for new fields, and all of them decode a binding alike."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collection.test_source_alter import body, lake_on, put, rows_of, shelf_lake
from kit.avro import record, write_avro
from kit.shelf_kind import Shelf, empty_shelves
from kit.sources import ingested, lake_of, reopened, run_once, table_of
from kit.stores import deaths
from tidelog.collection.formats.csv.guess import CsvOptions
from tidelog.collection.ingest import evolving
from tidelog.collection.ingest.summary import NAMED_MAX, column_warnings
from tidelog.errors import SourceRowsRefused, UsageError
from tidelog.location import Location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store


@pytest.fixture(autouse=True)
def _empty_shelves() -> Iterator[None]:
    with empty_shelves():
        yield


async def columns_of(lake: Location) -> dict[str, str]:
    collection = await lake.collection("c")
    return {one.name: one.type for one in (await collection.describe()).schema}


def lines(path: Path, *rows: object) -> None:
    texts = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(text + "\n" for text in texts))


MORE: dict[str, Any] = {
    "text": "Oslo",
    "whole": 5,
    "part": 0.5,
    "flag": True,
    "day": "2024-02-29",
    "list": [1, 2],
    "struct": {"a": 1, "b": "x"},
    "mixed": [1, "x", {"y": 2}],
}


async def test_json_fields_become_columns_of_fitting_types(tmp_path: Path) -> None:
    """Rows of the tick that meets a field have its values already."""
    lake = await lake_of(tmp_path, evolve=True)
    lines(tmp_path / "in" / "1.jsonl", {"n": 1, "at": 1})
    await ingested(tmp_path)
    lines(tmp_path / "in" / "2.jsonl", {"n": 2, "at": 2}, {"n": 3, "at": 3, **MORE}, {"n": 4})
    summary = await ingested(tmp_path)

    assert (summary.rows, summary.bad, summary.dropped) == (3, 0, {})
    found = await columns_of(lake)
    assert list(found)[2:] == list(MORE)
    assert [found[name] for name in list(MORE)[:5]] == [
        *("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "DATE")
    ]
    (row,) = [row for row in (await table_of(lake)).to_pylist() if row["n"] == 3]
    assert row["day"] == dt.date(2024, 2, 29)
    assert json.loads(row["mixed"]) == MORE["mixed"]
    assert {name: row[name] for name in list(MORE)[5:7]} == {
        name: MORE[name] for name in list(MORE)[5:7]
    }


@pytest.mark.parametrize("format", ["csv", "parquet", "avro"])
async def test_files_with_more_columns_add_them(format: str, tmp_path: Path) -> None:
    """Types come from the values of csv, and from the schema of parquet and avro."""
    lake = await lake_of(tmp_path, format=format, evolve=True, shards=2)
    for number in range(3):
        rows: dict[str, list[Any]] = {"n": [number], "at": [number]}
        if number:
            rows |= {"x": [1.5], f"y{number}": ["text"], "none": [None]}
        path = tmp_path / "in" / f"{number}.{format}"
        if format == "parquet":
            pq.write_table(pa.table(rows), path)
        elif format == "avro":
            kinds = {int: "long", float: "double", str: "string"}
            found = {name: kinds.get(type(one[0]), "null") for name, one in rows.items()}
            write_avro(path, record(**found), [{name: one[0] for name, one in rows.items()}])
        else:
            texts = ["" if one[0] is None else str(one[0]) for one in rows.values()]
            path.write_text(",".join(rows) + "\n" + ",".join(texts) + "\n")
        assert (await ingested(tmp_path)).dropped.keys() <= {"none"}

    assert await columns_of(lake) == {
        "n": "BIGINT",
        "at": "BIGINT",
        "x": "DOUBLE",
        "y1": "VARCHAR",
        "y2": "VARCHAR",
    }
    assert await rows_of(lake) == Counter(
        [(0, 0, None, None, None), (1, 1, 1.5, "text", None), (2, 2, 1.5, None, "text")]
    )


async def test_a_required_column_of_parquet_becomes_a_nullable_one(tmp_path: Path) -> None:
    """Rows that were ingested before have no value, and neither have other files."""
    lake = await lake_of(tmp_path, format="parquet", evolve=True)
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    fields = [("n", pa.int64()), ("x", pa.int64()), ("s", inner), ("l", pa.list_(inner))]
    needed = pa.schema(
        [pa.field(name, kind, nullable=False, metadata={"k": "v"}) for name, kind in fields]
    )
    row = {"n": 1, "x": 5, "s": {"a": 6}, "l": [{"a": 7}]}
    pq.write_table(pa.Table.from_pylist([row], schema=needed), tmp_path / "in" / "1.parquet")
    pq.write_table(pa.table({"n": [2]}), tmp_path / "in" / "2.parquet")
    summary = await ingested(tmp_path)
    assert (summary.rows, summary.bad, summary.dropped) == (2, 0, {})
    found = (await table_of(lake)).drop_columns(["_diff"]).to_pylist()
    empty = dict.fromkeys(row)
    assert sorted(found, key=lambda one: one["n"]) == [
        {"at": None, **row},
        {"at": None, **empty, "n": 2},
    ]


async def test_fields_that_few_rows_have_become_columns(tmp_path: Path) -> None:
    """Else a tick with many kinds of events would lose all their fields, for good."""
    lake = await lake_of(tmp_path, evolve=True)
    rows = [{f"k{n}_{j}": n for j in range(3)} for n in range(40)]
    every = [{"n": n, "at": n, "all": n, **row} for n, row in enumerate(rows)]
    lines(tmp_path / "in" / "1.jsonl", *every)
    assert (await ingested(tmp_path)).dropped == {}
    found = (await table_of(lake)).drop_columns(["_diff"])
    assert found.column_names == ["n", "at", "all", *(name for row in rows for name in row)]
    filled = [{name: x for name, x in row.items() if x is not None} for row in found.to_pylist()]
    assert sorted(filled, key=lambda row: row["n"]) == every


@pytest.mark.parametrize(
    "odd", [{"a\0b": 1}, json.loads("[" * 600 + "]" * 600)], ids=["nul", "deep"]
)
async def test_a_field_without_a_type_costs_the_others_nothing(odd: Any, tmp_path: Path) -> None:
    """A value that no column can have is dropped alone."""
    lake = await lake_of(tmp_path, evolve=True)
    more = {f"x{n}": n for n in range(5)}
    lines(tmp_path / "in" / "1.jsonl", {"n": 1, "at": 1, "a": 2, "odd": odd, **more})
    assert (await ingested(tmp_path)).dropped == {"odd": 1}
    assert await rows_of(lake) == Counter([(1, 1, 2, *range(5))])


async def test_a_name_with_a_dot_is_within_a_column_only_if_that_one_has_fields(
    tmp_path: Path,
) -> None:
    """A flattened export has such names."""
    lake = await lake_of(tmp_path, evolve=True, schema="n bigint, s struct(a bigint)")
    lines(tmp_path / "in" / "1.jsonl", {"n": 1, "n.unit": "m", "s": {"a": 1, "b": 2}})
    assert (await ingested(tmp_path)).dropped == {"s.b": 1}
    (row,) = (await table_of(lake)).drop_columns(["_diff"]).to_pylist()
    assert row == {"n": 1, "s": {"a": 1}, "n.unit": "m"}


async def test_the_values_of_all_csv_files_of_a_tick_decide_a_type(tmp_path: Path) -> None:
    """As at the creation of a source, where the first file alone decides nothing."""
    lake = await lake_of(tmp_path, format="csv", evolve=True)
    for number, text in enumerate(["1,,", "0.5,,7", "2,a,8"]):
        (tmp_path / "in" / f"{number}.csv").write_text(f"n,at,x,y,z\n{number},0,{text}\n")
    (tmp_path / "in" / "3.csv").write_text("n,at\n3,0\n")
    assert (await ingested(tmp_path)).bad == 0
    found = await columns_of(lake)
    assert [found[name] for name in "xyz"] == ["DOUBLE", "VARCHAR", "BIGINT"]


async def test_names_that_cannot_be_columns_are_dropped_and_counted(tmp_path: Path) -> None:
    """None of them stops the source, or makes a row bad."""
    lake = await lake_of(tmp_path, evolve=True, schema="n bigint, s struct(a bigint)")
    await lake.sources.alter("c", add="was bigint")
    await lake.sources.alter("c", drop=["was"])
    odd = {"_time": 1, "_TideLog_x": 1, "N": 1, "WAS": 1, "": 1, "a\0b": 1, "s": {"a": 1, "b": 2}}
    lines(tmp_path / "in" / "1.jsonl", *({"n": n, **odd, "null": None} for n in range(3)))
    summary = await ingested(tmp_path)
    assert (summary.rows, summary.bad) == (3, 0)
    assert {*summary.dropped} >= {"_time", "N", "WAS", "s.b"}

    lines(tmp_path / "in" / "2.jsonl", {"n": 4, "_time": 1, "x": 1, "X": 2, "null": 5})
    summary = await ingested(tmp_path)
    assert summary.rows == 1
    assert [name.lower() for name in await columns_of(lake)] == ["n", "s", "x", "null"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("N", "the source has 'n', which differs only in case"),
        ("s.b", "the type of the column 's' lacks: its values are dropped; to ingest them, create"),
        ("was", "was dropped from the source: its values are dropped; to ingest them again"),
        ("_time", "no column can have this name: its values are dropped; to ingest them, rename"),
        ("new", "the source lacks: its values are dropped; to ingest them from now on, add the"),
    ],
)
async def test_a_warning_about_dropped_values_has_a_remedy_that_works(
    name: str, said: str, tmp_path: Path
) -> None:
    """An alteration of the source could not add some of these fields."""
    lake = await lake_of(tmp_path, schema="n bigint, s struct(a bigint), was bigint")
    _, rendition = await lake.sources.alter("c", drop=["was"])
    (text,) = column_warnings([], [name], rendition.data_schema)
    assert f"{name!r}" in text
    assert said in text


async def test_a_run_names_a_few_of_very_many_columns(tmp_path: Path) -> None:
    """The others are counted, so that the output of a run stays readable."""
    lake = await lake_of(tmp_path, evolve=True)
    more = {f"c{n}": n for n in range(1_100)}
    lines(tmp_path / "in" / "1.jsonl", {"n": 1, "at": 1, **more})
    said: list[str] = []
    summary = await lake.sources.ingest("c", on_tick=lambda one: said.extend(one.warnings))
    assert (summary.rows, len(summary.dropped)) == (1, 102)
    assert said[0] == "the source took the new column 'c0'"
    assert said[NAMED_MAX].startswith("990 more new columns were taken: ")
    assert said[-1].startswith("94 more columns of files are dropped: ")
    assert len(said) == 2 * (NAMED_MAX + 1)
    first = {*sorted(more)[:998]}
    assert list(await columns_of(lake)) == ["n", "at", *(name for name in more if name in first)]


async def test_a_value_that_does_not_fit_later_is_a_bad_row(tmp_path: Path) -> None:
    """The first values decide the type, as at the creation of a source."""
    lake = await lake_of(tmp_path, evolve=True)
    lines(tmp_path / "in" / "1.jsonl", {"n": 1, "at": 1, "x": 5})
    await ingested(tmp_path)
    lines(tmp_path / "in" / "2.jsonl", {"n": 2, "at": 2, "x": "five"}, {"n": 3, "at": 3, "x": 6})
    assert (await ingested(tmp_path)).bad == 1
    assert await rows_of(lake) == Counter([(1, 1, 5), (3, 3, 6)])


async def test_fields_without_end_stop_at_a_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Data with values in place of names would make each later read slower."""
    monkeypatch.setattr(evolving, "COLUMNS_MAX", 20)
    lake = await lake_of(tmp_path, evolve=True)
    for number in range(4):
        rows = [{"n": n, "at": n, f"id{10 * number + n}": n} for n in range(10)]
        lines(tmp_path / "in" / f"{number}.jsonl", *rows)
        assert (await ingested(tmp_path)).rows == 10
    assert len(await columns_of(lake)) == 20


async def test_a_strict_ingester_refuses_what_no_column_can_take(tmp_path: Path) -> None:
    """It takes the other fields, and the refused data stay unbound."""
    lake = await lake_of(tmp_path, evolve=True)
    lines(tmp_path / "in" / "1.jsonl", {"n": 1, "at": 1, "x": 5, "_time": 1})
    ingester = await lake.sources.ingester("c", strict=True)
    with pytest.raises(SourceRowsRefused, match="_time"):
        await run_once(ingester)
    lines(tmp_path / "in" / "1.jsonl", {"n": 1, "at": 1, "x": 5})
    assert (await run_once(ingester)).rows == 1
    assert await rows_of(lake) == Counter([(1, 1, 5)])


async def test_a_field_without_values_is_neither_counted_nor_sampled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The driver would read up to 8 MiB again in each tick. A value makes the field a column."""
    samples: list[list[str]] = []

    async def counted(*given: Any) -> pa.Schema:
        samples.append(given[-1])
        return await evolving.new_columns(*given)

    monkeypatch.setattr("tidelog.collection.ingest.ingest.new_columns", counted)
    lake = await lake_of(tmp_path, evolve=True, schema="n bigint, s struct(a bigint)")
    for number in range(3):
        row = {"n": number, "x": None, "a/b~": None, "s": {"a": 1, "b": None}}
        lines(tmp_path / "in" / f"{number}.jsonl", row)
        summary = await run_once(await lake.sources.ingester("c", strict=True))
        assert (summary.rows, summary.dropped) == (1, {})
    assert samples == []

    lines(tmp_path / "in" / "3.jsonl", {"n": 3, "x": None, "a/b~": 5}, {"n": 4, "x": 1})
    assert (await ingested(tmp_path)).dropped == {}
    assert [sorted(names) for names in samples] == [["a/b~", "x"]]
    assert {*(await columns_of(lake))} == {"n", "s", "x", "a/b~"}


async def test_a_parquet_column_of_the_type_null_is_not_counted(tmp_path: Path) -> None:
    """It has no values, at any depth."""
    lake = await lake_of(
        tmp_path, "in/*.parquet", format="parquet", schema="n bigint, s struct(a bigint)"
    )
    rows = {"n": [1], "x": [None], "s": [{"a": 1, "b": None}]}
    pq.write_table(pa.table(rows), tmp_path / "in" / "1.parquet")
    summary = await run_once(await lake.sources.ingester("c", strict=True))
    assert (summary.rows, summary.dropped) == (1, {})


async def test_csv_without_a_header_is_refused(tmp_path: Path) -> None:
    """A further value in a record has no name."""
    with pytest.raises(UsageError, match="evolve= needs csv with a header"):
        await lake_of(tmp_path, format="csv", evolve=True, csv=CsvOptions(header=False))


async def test_a_source_without_the_option_keeps_its_entry_and_drops(tmp_path: Path) -> None:
    """An earlier version can read and change the entry of the catalog."""
    lake = await lake_of(tmp_path)
    info, _ = await lake.sources.find("c")
    assert info.evolve is not True
    lines(tmp_path / "in" / "1.jsonl", {"n": 1, "at": 1, "x": 5})
    assert (await ingested(tmp_path)).dropped == {"x": 1}


def grown(first: int, count: int) -> list[dict[str, Any]]:
    """Return rows, each with a field of its own."""
    return [{"n": n, "at": n, f"c{n}": n} for n in range(first, first + count)]


def filled(count: int, names: list[str]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (n, n, *(n if name == f"c{n}" else None for name in names[2:])) for n in range(count)
    )


async def test_ingesters_at_once_take_each_column_once() -> None:
    """They meet the same fields, and race for the catalog and for the bindings."""
    store = MemoryStore(name="memory://")
    lake = await shelf_lake(store, evolve=True, envelope="upsert", key=("n",))
    put(*(body(**row) for row in grown(0, 8)))
    others = [await lake_on(store) for _ in range(3)]
    ingesters = [
        await one.sources.ingester("c", bytes_max=20 + 10 * n) for n, one in enumerate(others)
    ]
    await asyncio.gather(*map(run_once, ingesters))

    names = list(await columns_of(lake))
    assert sorted(names) == sorted(["n", "at", *(f"c{n}" for n in range(8))])
    assert await rows_of(lake) == filled(8, names)


@pytest.mark.parametrize("happened", [False, True], ids=["lost", "landed"])
async def test_a_death_at_any_request_loses_no_row_and_no_value(happened: bool) -> None:
    """A column may be there before its rows, but no row without its column."""
    start = MemoryStore(name="memory://")
    await shelf_lake(start, evolve=True, shards=2)
    put(*(body(**row) for row in grown(0, 4)))

    async def ingest_all(store: Store) -> None:
        await run_once(await (await lake_on(store)).sources.ingester("c", bytes_max=20))

    count = 0
    async for store in deaths(start, ingest_all, happened=happened, reports=True):
        count += 1
        await ingest_all(store)
        lake = await lake_on(store)
        assert await rows_of(lake) == filled(4, list(await columns_of(lake)))
    assert count > 40
    assert len(Shelf.rows["a"]) == 4


async def test_a_tick_names_the_columns_that_it_added(tmp_path: Path) -> None:
    """Users see it in the output of the run."""
    lake = await lake_of(tmp_path, evolve=True)
    lines(tmp_path / "in" / "1.jsonl", {"n": 1, "at": 1, "x": 5, "y": 6})
    ingester = await lake.sources.ingester("c")
    tick = await ingester.tick(await ingester.source.head())
    assert tick is not None
    assert (tick.added, tick.rows) == (("x", "y"), 1)
    assert await rows_of(await reopened(tmp_path)) == Counter([(1, 1, 5, 6)])
