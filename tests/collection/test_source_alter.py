"""Alterations of sources: each binding keeps its columns, whichever ingester computes it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.clocks import OneThread
from kit.shelf_kind import Row, Shelf, empty_shelves, shelf_row
from kit.sources import bind, compact, ingest, ingested, lake_of, reopened, run_once, table_of
from kit.stores import copy_of, deaths
from tidelog.collection.formats.csv.guess import CsvOptions
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.frontier import Frontier
from tidelog.errors import (
    SchemaEvolved,
    SourceRowsRefused,
    UsageError,
)
from tidelog.location import Location, open_location
from tidelog.persist.format import part
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store

UPSERT: dict[str, Any] = {"envelope": "upsert", "key": ("n",)}
ENVELOPES = pytest.mark.parametrize("keyed", [False, True], ids=["append", "upsert"])


@pytest.fixture(autouse=True)
def _empty_shelves() -> Iterator[None]:
    with empty_shelves():
        yield


def body(n: int, at: int, **more: object) -> Row:
    return shelf_row(n, at, body=json.dumps({"n": n, "at": at, **more}).encode())


async def lake_on(store: Store, *, create: bool = False) -> Location:
    return await open_location("memory://", create=create, clock=OneThread(), store=store)


async def shelf_lake(store: Store | None = None, **asked: Any) -> Location:
    """Return a location with the source ``c`` of the shelves' json texts, in three shards."""
    lake = await lake_on(store or MemoryStore(name="memory://"), create=True)
    given = {"schema": "n bigint, at bigint", "shards": 3, **asked}
    await lake.sources.create(SourceSpec(name="c", kind="shelf", format="json", **given))
    return lake


def put(*rows: Row) -> None:
    Shelf.rows.setdefault("a", []).extend(rows)


async def rows_of(lake: Location, as_of: int | None = None) -> Counter[tuple[Any, ...]]:
    found = await table_of(lake, "c", as_of)
    counted: Counter[tuple[Any, ...]] = Counter()
    for row in found.to_pylist():
        count = row.pop("_diff")
        assert count > 0, row
        counted[tuple(row.values())] += count
    return counted


def old(*numbers: int) -> list[tuple[Any, ...]]:
    return [(n, n, None) for n in numbers]


def new(*numbers: int) -> list[tuple[Any, ...]]:
    return [(n, n, f"x{n}") for n in numbers]


def with_x(*numbers: int) -> list[Row]:
    return [body(n, n, x=f"x{n}") for n in numbers]


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a file in the format of its ending."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".csv":
        lines = [",".join(map(str, row.values())) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines, ""]))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@ENVELOPES
async def test_a_new_column_has_values_in_new_files_and_nulls_in_old_rows(
    format: str, keyed: bool, tmp_path: Path
) -> None:
    """A file that was ingested before keeps its nulls, also when it grows or is merged."""
    name = "jsonl" if format == "json" else format

    def write(number: int, rows: Sequence[dict[str, Any]]) -> None:
        write_rows(tmp_path / "in" / f"{number}.{name}", rows)

    asked: dict[str, Any] = UPSERT if keyed else {}
    lake = await lake_of(tmp_path, f"in/*.{name}", format=format, shards=2, **asked)
    write(0, [{"n": n, "at": n, "x": f"x{n}"} for n in range(5)])
    assert (await ingested(tmp_path)).dropped == {"x": 5}
    _, rendition = await lake.sources.alter("c", add="x varchar")
    assert rendition.data_schema.names == ["n", "at", "x"]
    assert await rows_of(lake) == Counter(old(*range(5)))

    write(1, [{"n": n, "at": n, "x": f"x{n}"} for n in range(3, 8)])
    assert (await ingested(tmp_path)).dropped == {}
    kept = range(3) if keyed else range(5)
    wanted = Counter([*old(*kept), *new(*range(3, 8))])
    assert await rows_of(lake) == wanted
    await compact(lake)
    assert await rows_of(await reopened(tmp_path)) == wanted
    found = await lake.sql("SELECT count(x) AS xs FROM c")
    assert found.to_arrow().to_pylist() == [{"xs": 5}]


@ENVELOPES
async def test_a_running_ingester_goes_on_with_the_new_columns(keyed: bool) -> None:
    """The next tick after the call decodes them, also if another process made the call."""
    store = MemoryStore(name="memory://")
    lake = await shelf_lake(store, **(UPSERT if keyed else {}))
    ingester = await lake.sources.ingester("c")
    for number in range(4):
        put(*(body(n, n, **{f"c{k}": n for k in range(4)}) for n in range(3)))
        await run_once(ingester)
        await (await lake_on(store)).sources.alter("c", add=f"c{number} bigint")
    put(*(body(n, n, c0=n, c3=n) for n in range(3)))
    summary = await run_once(ingester)

    assert (summary.rows, summary.dropped) == (3, {})
    newest = Counter((n, n, n, None, None, n) for n in range(3))
    filled = [
        Counter((n, n, *(n if k < number else None for k in range(4))) for n in range(3))
        for number in range(4)
    ]
    assert await rows_of(lake) == (newest if keyed else sum(filled, newest))


@pytest.mark.parametrize("timed", [False, True], ids=["clock", "data"])
async def test_csv_without_the_new_columns_goes_on(timed: bool, tmp_path: Path) -> None:
    """An older program may still write files next to a newer one."""
    asked = {"time_column": "at"} if timed else {}
    lake = await lake_of(tmp_path, format="csv", schema="n bigint, at bigint", **asked)
    await lake.sources.alter("c", add=", ".join(f"c{number} bigint" for number in range(5)))
    (tmp_path / "in" / "1.csv").write_text("n,at\n1,1\n")
    (tmp_path / "in" / "2.csv").write_text("at,n,c0,c1,c2,c3,c4\n2,2,0,1,2,3,4\n")
    (tmp_path / "in" / "3.csv").write_text("other,c0\n3,0\n")
    summary = await ingested(tmp_path, final=True)
    assert "lacks most of the source's columns (n, at, c1" in summary.waiting["3.csv"]
    assert await rows_of(lake) == Counter([(1, 1, *[None] * 5), (2, 2, *range(5))])


async def test_a_file_waits_for_its_column_only_until_the_alteration(tmp_path: Path) -> None:
    """A running ingester looks at the file again."""
    lake = await lake_of(tmp_path, format="parquet", schema="n bigint, at bigint")
    pq.write_table(pa.table({"x": [5]}), tmp_path / "in" / "1.parquet")
    ingester = await lake.sources.ingester("c")
    await run_once(ingester)
    why = ingester.source.waiting()["1.parquet"]
    assert "has none of the source's columns" in why
    assert "its columns are x: add one by 'tidelog source alter'" in why
    await lake.sources.alter("c", add="x bigint")
    assert (await run_once(ingester)).waiting == {}
    assert await rows_of(lake) == Counter([(None, None, 5)])


async def bind_and_die(lake: Location, *, commits: int) -> None:
    """Bind the new rows, and commit them to some of the shards, like an ingester that then dies."""
    ingester = await lake.sources.ingester("c")
    binding = await bind(ingester)
    assert binding is not None
    parts = ingester.parts_of(await ingester._compute(binding))
    lower, upper = Frontier.at(binding.lower), Frontier.at(binding.upper)
    for shard, some in list(zip(ingester.written, parts, strict=True))[:commits]:
        await shard.commit_parts(list(some), lower, upper)


@pytest.mark.parametrize("commits", [0, 1], ids=["bound", "committed"])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "reopened"])
@ENVELOPES
async def test_rows_bound_before_an_alteration_keep_its_columns(
    keyed: bool, is_open: bool, commits: int
) -> None:
    """Else one shard would have a row by its old columns, and another one by its new columns."""
    lake = await shelf_lake(**(UPSERT if keyed else {}))
    put(*with_x(*range(20)))
    other = await lake.sources.ingester("c")
    await bind_and_die(lake, commits=commits)
    await lake.sources.alter("c", add="x varchar")
    put(*with_x(*range(20, 30)))
    await run_once(other if is_open else await lake.sources.ingester("c"))

    assert await rows_of(lake) == Counter([*old(*range(20)), *new(*range(20, 30))])


async def test_a_binding_of_a_column_that_is_gone_loses_only_that_column() -> None:
    """It was bound with the column, which the catalog no longer lists. The loss is no error."""
    lake = await shelf_lake(schema="n bigint, at bigint, x varchar")
    put(*with_x(*range(9)))
    await bind_and_die(lake, commits=1)
    await lake.sources.alter("c", drop=["x"])
    put(*with_x(9))
    summary = await run_once(await lake.sources.ingester("c"))

    assert await rows_of(lake) == Counter((n, n) for n in range(10))
    assert summary.dropped == {}


async def test_a_sleeper_binds_no_earlier_columns_after_later_ones() -> None:
    """The outputs cannot go back to the columns of its binding."""
    lake = await shelf_lake()
    await lake.sources.alter("c", add="x varchar")
    sleeper = await lake.sources.ingester("c")
    plan = await sleeper.plan(await sleeper.source.head(), 0)
    await lake.sources.alter("c", add="y varchar")
    put(*(body(n, n, x="x", y="y") for n in range(5)))
    await run_once(await lake.sources.ingester("c"))
    assert plan is not None

    put(*(body(n, n, x="x", y="y") for n in range(5, 9)))
    await sleeper.refresh()
    with pytest.raises(SchemaEvolved, match="'c' was altered during its ingestion"):
        await sleeper.plan(await sleeper.source.head(), sleeper.upper.time)
    await run_once(sleeper)
    assert await rows_of(lake) == Counter((n, n, "x", "y") for n in range(9))


async def test_rows_held_back_keep_the_columns_of_their_binding() -> None:
    """A value that does not fit a column added later makes no row bad that was good."""
    lake = await shelf_lake(time_column="at", lateness="1s", **UPSERT)
    put(body(1, 5_000, x="no number"), body(2, 9_000, x="no number"))
    await run_once(await lake.sources.ingester("c"))
    await lake.sources.alter("c", add="x bigint")
    put(body(3, 12_000, x=3))
    summary = await run_once(await lake.sources.ingester("c", final=True))

    assert summary.bad == 0
    wanted = Counter([(1, 5_000, None), (2, 9_000, None), (3, 12_000, 3)])
    assert await rows_of(lake) == wanted


async def test_rows_decoded_for_a_plan_are_not_used_for_other_columns(tmp_path: Path) -> None:
    """An ingester keeps the rows of its own plan, and another one binds them after the call."""
    lake = await lake_of(tmp_path, time_column="at")
    (tmp_path / "in" / "a.jsonl").write_text('{"n": 1, "at": 1, "x": 5}\n')
    planner = await lake.sources.ingester("c")
    assert await planner.plan(await planner.source.head(), 0) is not None
    await lake.sources.alter("c", add="x bigint")
    assert await bind(await lake.sources.ingester("c")) is not None
    await planner.refresh()  # It finds the binding, so it makes no plan of its own.
    await run_once(planner)

    assert await rows_of(lake) == Counter([(1, 1, 5)])


async def test_readers_of_before_go_on_until_their_column_is_dropped() -> None:
    """Their rows have the columns with which they were opened, at all times."""
    lake = await shelf_lake(**UPSERT)
    put(*with_x(1, 2))
    await run_once(await lake.sources.ingester("c"))
    reader = await lake.collection("c")
    begin = await reader.resolve_as_of(None)
    async with aclosing(reader.listen(begin)) as steps:
        await lake.sources.alter("c", add="x varchar")
        put(*with_x(2, 3))
        await run_once(await lake.sources.ingester("c"))
        seen: Counter[tuple[Any, ...]] = Counter()
        while not seen:
            step = await anext(steps)
            assert step.updates.column_names == ["n", "at", "_time", "_diff"]
            for row in step.updates.to_pylist():
                seen[row["n"], row["at"]] += row["_diff"]
        assert seen == Counter({(2, 2): 0, (3, 3): 1})
        found = await (await reader.snapshot()).to_arrow()
        assert found.column_names == ["n", "at"]
        assert await rows_of(lake, begin) == Counter(old(1, 2))

        await lake.sources.alter("c", drop=["at"], discard_values=True)
        assert (await (await reader.snapshot()).to_arrow()).num_rows == 3
        put(*with_x(4))
        await run_once(await lake.sources.ingester("c"))
        with pytest.raises(SchemaEvolved, match="'at' was dropped"):
            await (await reader.snapshot()).to_arrow()
    assert await rows_of(lake) == Counter([(1, None), (2, "x2"), (3, "x3"), (4, "x4")])


@ENVELOPES
async def test_an_altered_source_is_read_before_its_next_rows(keyed: bool) -> None:
    """Its shards get the columns only with the next rows, and a reader does not wait for these."""
    lake = await shelf_lake(**(UPSERT if keyed else {}))
    await lake.sources.alter("c", add="early bigint")
    put(*with_x(*range(5)))
    await run_once(await lake.sources.ingester("c"))
    await lake.sources.alter("c", add="x varchar", drop=["early"])

    assert await rows_of(lake) == Counter(old(*range(5)))
    reader = await lake.collection("c")
    for snapshot in await reader.snapshots():
        assert (await snapshot.to_arrow()).column_names == ["n", "at", "x", "_diff"]
    await reader.hold("h")
    await compact(lake)
    assert await rows_of(lake) == Counter(old(*range(5)))
    assert (await lake.sql("SELECT x FROM c")).to_arrow().num_rows == 5
    assert (await reader.describe()).rows == 5
    errors = await lake.collection("c_errors")
    assert (await (await errors.snapshot()).to_arrow()).num_rows == 0


async def test_a_restart_reads_the_checkpoints_of_an_altered_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A checkpoint from before the alteration has no ids of schemas, so it is left out."""
    monkeypatch.setattr(part, "INLINE_BYTES", -1)
    lake = await lake_of(tmp_path)
    for number in range(12):
        if number == 6:
            await lake.sources.alter("c", add="x bigint")
        file = tmp_path / "in" / f"{number % 5}.jsonl"
        with file.open("a") as sink:
            sink.write(json.dumps({"n": number, "at": number, "x": number}) + "\n")
        ingester = await lake.sources.ingester("c")
        ingester.checkpoints.every = 2
        await run_once(ingester)
        known = await ingester.progress(ingester.upper.time)
        for every in (2, 10**9):
            again = await lake.sources.ingester("c")
            again.checkpoints.every = every
            assert await again.progress(again.upper.time) == known

    rows = [(n, n, None if n < 6 else n) for n in range(12)]
    assert await rows_of(lake) == Counter(rows)


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({}, "nothing to alter"),
        ({"add": "n varchar"}, "the source 'c' has a column 'n' already"),
        (
            {"add": "N varchar"},
            "has a column 'n' already, of the type BIGINT: remove 'N' from add=",
        ),
        ({"add": "was bigint"}, "'was' of the source 'c' was dropped, and old rows"),
        ({"add": "x nothing"}, "nothing"),
        ({"add": "x varchar", "drop": ["x"]}, "both name the column 'x'"),
        ({"add": "_time bigint"}, "reserved"),
        ({"drop": ["z"]}, "the source 'c' has no column 'z'; the columns are"),
        ({"drop": ["n"]}, "'n' cannot be dropped, because it is in the key of the source 'c'"),
        ({"drop": ["n"]}, "read the other columns instead"),
        ({"drop": ["at"]}, "'at' cannot be dropped, because it has the times of the source 'c'"),
        ({"drop": ["gone"]}, "needs the column to find the rows that delete: keep it"),
        ({"drop": ["v"]}, "columns to drop have values in the source 'c': pass discard_values"),
        ({"drop": "v"}, "drop must be"),
        ({"add": 7}, "add= must be"),
    ],
)
async def test_a_wrong_alteration_changes_nothing(asked: dict[str, Any], match: str) -> None:
    """The message names the column and the reason."""
    lake = await shelf_lake(
        schema="n bigint, at bigint, gone boolean, v varchar, was bigint",
        time_column="at",
        delete_when="gone",
        **UPSERT,
    )
    await lake.sources.alter("c", drop=["was"])
    put(body(1, 1, v="one"))
    await run_once(await lake.sources.ingester("c"))
    _, before = await lake.sources.find("c")
    with pytest.raises(UsageError, match=match):
        await lake.sources.alter("c", **asked)
    assert (await lake.sources.find("c"))[1] == before


async def test_a_column_that_the_data_cannot_have_is_refused(tmp_path: Path) -> None:
    """It would stay null, without an error."""
    bare = CsvOptions(header=False)
    lake = await lake_of(tmp_path, format="csv", schema="n bigint, at bigint", csv=bare)
    with pytest.raises(UsageError, match="has no header, so a new column has no place"):
        await lake.sources.alter("c", add="x varchar")
    await lake.sources.alter("c", drop=["at"])
    (tmp_path / "in" / "1.csv").write_text("1,2\n")
    await ingested(tmp_path)
    assert await rows_of(lake) == Counter([(1,)])

    lake = await lake_on(MemoryStore(name="memory://"), create=True)
    await lake.sources.create(SourceSpec(name="s", kind="shelf", schema="k bigint"))
    with pytest.raises(UsageError, match="reads no column 'x': its columns are"):
        await lake.sources.alter("s", add="x varchar")
    await lake.sources.alter("s", add="body blob")
    put(body(1, 2))
    await run_once(await lake.sources.ingester("s"))
    assert (await table_of(lake, "s")).column("body").to_pylist() == [b'{"n": 1, "at": 2}']


async def test_the_same_alteration_twice_is_one() -> None:
    """A caller whose answer was lost repeats the call."""
    lake = await shelf_lake()
    for _ in range(2):
        _, rendition = await lake.sources.alter("c", add="x varchar")
    assert len(rendition.schemas) == 2
    await lake.sources.alter("c", add="y varchar")
    _, rendition = await lake.sources.alter("c", add="x varchar")
    assert rendition.data_schema.names == ["n", "at", "x", "y"]


async def test_a_strict_ingester_refuses_only_columns_that_are_still_unknown() -> None:
    """It computes a binding before it records it, so the shards have no new column yet."""
    lake = await shelf_lake(**UPSERT)
    put(*with_x(1))
    await run_once(await lake.sources.ingester("c"))
    put(*with_x(2))
    with pytest.raises(SourceRowsRefused, match="'tidelog source alter' can add them"):
        await run_once(await lake.sources.ingester("c", strict=True))
    await lake.sources.alter("c", add="x varchar")
    await run_once(await lake.sources.ingester("c", strict=True))
    assert await rows_of(lake) == Counter([*old(1), *new(2)])


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("ignore_case", [False, True])
async def test_a_column_that_was_dropped_is_ignored_in_later_files(
    format: str, ignore_case: bool, tmp_path: Path
) -> None:
    """A strict ingester accepts it, too, and the other unknown fields still count."""
    name, spelled = "jsonl" if format == "json" else format, "X" if ignore_case else "x"
    asked = {"schema": "n bigint, at bigint, x varchar", "ignore_case": ignore_case}
    lake = await lake_of(tmp_path, f"in/*.{name}", format=format, **asked)
    write_rows(tmp_path / "in" / f"0.{name}", [{"n": 0, "at": 0, "x": "x0"}])
    await ingested(tmp_path)
    await lake.sources.alter("c", drop=["x"], discard_values=True)

    write_rows(tmp_path / "in" / f"1.{name}", [{"n": 1, "at": 1, spelled: "x1"}])
    summary = await run_once(await lake.sources.ingester("c", strict=True))
    assert (summary.rows, summary.dropped) == (1, {})
    write_rows(tmp_path / "in" / f"2.{name}", [{"n": 2, "at": 2, spelled: "x2", "y": "y"}])
    with pytest.raises(SourceRowsRefused, match=r"y \(1\)"):
        await run_once(await lake.sources.ingester("c", strict=True))
    assert (await ingested(tmp_path)).dropped == {"y": 1}


@ENVELOPES
@pytest.mark.parametrize("happened", [False, True], ids=["lost", "landed"])
async def test_a_death_at_any_request_loses_no_row_and_no_column(
    keyed: bool, happened: bool
) -> None:
    """The same call and the next run do the rest."""
    start = MemoryStore(name="memory://")
    lake = await shelf_lake(start, shards=2, **(UPSERT if keyed else {}))
    put(*with_x(1, 2, 3))
    await run_once(await lake.sources.ingester("c"))
    await bind_more(lake, 4, 5)
    Shelf.rows["b"] = [*with_x(6, 7, 8)]

    async def alter_and_ingest(store: Store) -> None:
        lake = await lake_on(store)
        await lake.sources.alter("c", add="x varchar")
        await run_once(await lake.sources.ingester("c"))

    count = 0
    async for store in deaths(start, alter_and_ingest, happened=happened, reports=True):
        count += 1
        await rows_of(await lake_on(copy_of(store)))
        await alter_and_ingest(store)
        lake = await lake_on(store)
        assert await rows_of(lake) == Counter([*old(1, 2, 3, 4, 5), *new(6, 7, 8)])
    assert count > 15


async def bind_more(lake: Location, *numbers: int) -> None:
    """Bind rows like an ingester that then dies."""
    put(*with_x(*numbers))
    assert await bind(await lake.sources.ingester("c")) is not None


STEP = st.one_of(
    st.tuples(st.just("rows"), st.integers(1, 4)),
    st.tuples(st.just("add"), st.integers(0, 3)),
    st.tuples(st.just("drop"), st.integers(0, 3)),
    st.tuples(st.just("bind"), st.integers(0, 2)),
    st.tuples(st.just("tick"), st.integers(0, 2)),
    st.tuples(st.just("open"), st.integers(0, 2)),
    st.tuples(st.just("merge"), st.just(0)),
)


@given(steps=st.lists(STEP, max_size=18), keyed=st.booleans())
@example(  # A column came and went, so the first and the last schema are equal.
    steps=[("add", 0), ("drop", 0), ("open", 1), ("tick", 1), ("tick", 0)], keyed=False
)
@settings(max_examples=60, deadline=None)
def test_each_row_has_the_columns_of_its_binding(steps: list[tuple[str, int]], keyed: bool) -> None:
    """Three ingesters of any age bind and commit in any order; the model is a list of rows.

    A row has a value in a column if its binding, as recorded, names a schema that has the column.
    """
    Shelf.rows.clear()
    asyncio.run(play(steps, keyed=keyed))


async def play(steps: list[tuple[str, int]], *, keyed: bool) -> None:
    lake = await shelf_lake(shards=2, **(UPSERT if keyed else {}))
    ingesters = [await lake.sources.ingester("c") for _ in range(3)]
    added: dict[str, int] = {}  # The id of the schema that added each column.
    dropped: set[str] = set()
    written = 0
    ids: list[int] = []  # The schema of the binding, for each row.
    for what, number in steps:
        name = f"c{number}"
        if what == "rows":
            fresh = range(written, written + number)
            put(*(body(n, n, **{f"c{k}": n for k in range(4)}) for n in fresh))
            written += number
        elif what == "add" and name not in added:
            _, rendition = await lake.sources.alter("c", add=f"{name} bigint")
            added[name] = len(rendition.schemas) - 1
        elif what == "drop" and name in added and name not in dropped:
            await lake.sources.alter("c", drop=[name], discard_values=True)
            dropped.add(name)
        elif what == "open":
            ingesters[number] = await lake.sources.ingester("c")
        elif what == "merge":
            await compact(lake)
        elif what == "bind":
            one = await lake.sources.ingester("c")
            if await one.pending() is None:
                await bind(one)
        elif what == "tick":
            await ingesters[number].tick(await ingesters[number].source.head())
        await note_ids(lake, ids)
    await ingest(lake, "c")
    await note_ids(lake, ids)

    _, rendition = await lake.sources.find("c")
    names = rendition.data_schema.names[2:]
    wanted = [
        (n, n, *(n if ids[n] >= added[name] else None for name in names)) for n in range(written)
    ]
    assert await rows_of(lake) == Counter(wanted)


async def note_ids(lake: Location, ids: list[int]) -> None:
    """Add the ids of the rows that were bound since the last call."""
    ingester = await lake.sources.ingester("c")
    pending = await ingester.pending()
    taken = await ingester.taken(ingester.upper.time)
    ranges = [*taken.values(), *(pending.ranges if pending else ())]
    for one in sorted(ranges, key=lambda one: one.limit):
        ids += [one.schema_id] * (one.limit - len(ids))
