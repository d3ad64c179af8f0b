"""Kinds of sources: one file implements a kind, and the recipe uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from kit.shelf_kind import Row, Shelf, empty_shelves
from kit.shelf_kind import shelf_row as row
from kit.sources import ingest, rows_of, table_of
from tidelog.collection.formats.csv.guess import CsvOptions
from tidelog.collection.ingest.status import source_status
from tidelog.collection.ingest.tick import Tick
from tidelog.collection.source import addressed
from tidelog.collection.source.decode_messages import one_line
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import GoneError, LocationError, SourceRewritten, UsageError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore

DATA = "k bigint, at bigint, gone boolean"


@pytest.fixture(autouse=True)
def _empty_shelves() -> Iterator[None]:
    with empty_shelves():
        yield


async def rows_in(location: Location, name: str = "s") -> list[dict[str, Any]]:
    return (await table_of(location, name)).to_pylist()


async def location_with(**asked: Any) -> Location:
    store = MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=SwiftClock(), store=store)
    await location.sources.create(SourceSpec(**{"name": "s", "kind": "shelf", **asked}))
    return location


async def test_rows_are_taken_once_from_all_paths() -> None:
    """Ticks of any size take each row of each path once. Gaps are not rows."""
    Shelf.rows |= {
        "a": [row(n, n) for n in range(7)],
        "b": [row(70, 1), None, row(71, 2)],
    }
    location = await location_with(schema=DATA)

    ticks = await ingest(location, "s", bytes_max=40)
    Shelf.rows["b"].append(row(72, 9))
    Shelf.rows["c"] = [row(80, 1)]
    later = await ingest(location, "s", bytes_max=40)

    assert len(ticks) > 2
    assert sum(tick.rows for tick in later) == 2
    assert sorted(r["k"] for r in await rows_in(location)) == [*range(7), 70, 71, 72, 80]


async def test_a_source_is_told_what_is_in() -> None:
    """The kind may release the rows before the reported progress, and must keep the others."""
    Shelf.rows["a"] = [row(n, n) for n in range(6)]
    location = await location_with(schema=DATA)

    await ingest(location, "s", bytes_max=30)
    assert Shelf.held == [({}, True), ({}, True), ({"a": 3}, False), ({"a": 6}, False)]


async def test_what_is_not_what_was_bound_is_an_error(tmp_path: Path) -> None:
    """A binding promises that its messages never change: changed or missing ones raise."""
    Shelf.rows["a"] = [row(1, 1)]
    location = await location_with(schema=DATA)
    await ingest(location, "s")
    Shelf.rows["a"] = [row(2, 1), row(3, 1)]

    with pytest.raises(SourceRewritten, match="'a' has changed in the range 0 to 0"):
        await ingest(location, "s")
    Shelf.rows["b"] = Shelf.rows.pop("a")
    with pytest.raises(GoneError, match="'a' is gone"):
        await ingest(location, "s")


async def test_values_of_columns_that_the_schema_lacks_are_counted() -> None:
    """Dropped columns are counted. The generator has fixed columns, so it counts none."""
    Shelf.rows["a"] = [row(1, 1, body=b"x"), row(2, 2), row(3, 3, body=b"y")]
    location = await location_with(schema="k bigint")
    await location.sources.create(
        SourceSpec(name="g", kind="generator", settings={"shape": "counter", "rows": "3"},
                   schema="n bigint")
    )  # fmt: skip

    (tick,) = await ingest(location, "s")
    (made,) = await ingest(location, "g")
    assert tick.dropped == {"at": 3, "gone": 3, "body": 2}
    assert (made.rows, made.dropped) == (3, {})


async def test_rows_that_do_not_fit_are_told_by_path_and_address() -> None:
    """The error names the path and the address, and the other rows are in."""
    Shelf.rows["a"] = [row(1, 1), row(300, 2), row(3, 3)]
    location = await location_with(schema="k utinyint, at bigint")

    (tick,) = await ingest(location, "s")
    (error,) = await rows_in(location, "s_errors")
    assert (tick.rows, tick.bad) == (2, 1)
    assert (error["file"], error["offset"]) == ("a", 1)
    assert error["reason"] == "column 'k' does not fit its type UTINYINT"
    assert "'k': 300" in error["text"]


async def test_bytes_of_a_bad_row_are_told_as_text() -> None:
    """The text of a bad row shows bytes as UTF-8, not in Python's notation."""
    Shelf.rows["a"] = [row(300, 1, body=b"eu"), row(301, 2, body=b"\xff")]
    location = await location_with(schema="k utinyint, body blob")

    await ingest(location, "s")
    texts = sorted(error["text"] for error in await rows_in(location, "s_errors"))
    assert texts == ["{'k': 300, 'body': 'eu'}", "{'k': 301, 'body': '\N{REPLACEMENT CHARACTER}'}"]


async def test_texts_are_decoded_as_lines_of_files_are() -> None:
    """Each text is one record. A text with no record or several records is a bad row."""
    bodies = [
        b'{"id": 1}',
        b"",
        b'{"id":\n  2}\n',
        b'{"id": 3}\n{"id": 4}',
        b"\xff",
        b'{"id": "\n5"}',
        b'{"id": 6, "more": 1}',
        b"null",
    ]
    Shelf.rows["a"] = [*(row(0, 0, body=body) for body in bodies), row(0, 0)]
    location = await location_with(format="json", schema="id bigint")

    (tick,) = await ingest(location, "s")
    assert sorted(r["id"] for r in await rows_in(location)) == [1, 2, 6]
    errors = await rows_in(location, "s_errors")
    assert sorted(error["offset"] for error in errors) == [1, 3, 4, 5, 7, 8]
    assert tick.dropped == {"more": 1}


@pytest.mark.parametrize("step", ["columns", "settle", "head", "plan", "proof", "read", "hold"])
async def test_what_a_kind_did_not_foresee_is_told_as_its_own(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A kind's unexpected error may be temporary, so it becomes a LocationError."""

    def failing(*_: object, **__: object) -> None:
        raise ValueError("the shelf fell over\nonto me")

    Shelf.rows["a"] = [row(1, 1)]
    monkeypatch.setattr(Shelf, step, failing)
    said = "'s' cannot be read: its kind 'shelf' failed with ValueError: the shelf fell over$"
    with pytest.raises(LocationError, match=said):
        await ingest(await location_with(schema=DATA), "s")


async def test_texts_may_be_lines_of_csv() -> None:
    """Each text of csv is one line without a header. The first ones give the dialect."""
    bodies = [b"1;2,5;x", b'2;3,5;"y;z"\r\n', b"3;4", b"4;5,5;a\n5;6,5;b", b" ", b"6;7,5;"]
    Shelf.rows["a"] = [row(0, 0, body=body) for body in bodies]
    location = await location_with(format="csv", schema="k bigint, n varchar, t varchar")

    (tick,) = await ingest(location, "s")
    found = sorted((one["k"], one["n"], one["t"]) for one in await rows_in(location))
    assert found == [(1, "2,5", "x"), (2, "3,5", "y;z"), (6, "7,5", None)]
    assert sorted(one["offset"] for one in await rows_in(location, "s_errors")) == [2, 3, 4]
    assert tick.bad == 3


async def test_columns_are_inferred_from_texts() -> None:
    """Inference reads a sample of texts, as it does with files."""
    Shelf.rows["a"] = [row(0, 0, body=b'{"id": 1,\n "at": "2020-01-01"}'), row(0, 0)]
    location = await location_with(format="json")

    _, rendition = await location.sources.find("s")
    assert rendition.data_schema.names == ["id", "at"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"kind": "shelves"},
            "no kind of source named 'shelves'; existing kinds: collection, files, generator",
        ),
        ({"settings": {"deep": "1"}}, r"settings\['deep'\] is not a setting .* its settings: wide"),
        ({"schema": "k bigint, x int"}, "has 'x', which is not a column .* k, at, gone, body"),
        ({"format": "parquet"}, "must be one of rows, json, csv, avro, text, bytes, not 'parquet'"),
        ({"format": "csv", "csv": CsvOptions(header=True)}, "have no header"),
        ({"format": "csv"}, "pass schema="),
        ({"files": "x/*.jsonl"}, "pass files= or kind=, not both"),
        ({"format": "json"}, "pass schema="),
        ({"kind": "files"}, "the source has no data to read"),
        (
            {"kind": "files", "files": "x", "settings": {"a": "b"}},
            "a source of files has no settings",
        ),
    ],
)
async def test_what_cannot_be_is_refused(asked: dict[str, Any], said: str) -> None:
    """A wrong setting raises UsageError, which states what to correct."""
    with pytest.raises(UsageError, match=said):
        await location_with(**asked)


async def test_a_source_of_a_kind_that_is_not_here_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error states the remedy, and the source can still be dropped."""
    location = await location_with(schema=DATA)
    monkeypatch.setattr("tidelog.collection.source.kinds._registered", {})

    with pytest.raises(UsageError, match="Install the package that has it"):
        await location.sources.ingester("s")
    await location.sources.drop("s")


async def test_the_status_says_how_far_each_path_was_read() -> None:
    """The status of such a source shows positions per path instead of a number of files."""
    Shelf.rows["a"] = [row(1, 1), row(2, 2)]
    location = await location_with(schema=DATA)
    await ingest(location, "s")
    Shelf.rows["a"].append(row(3, 3))

    status = await source_status(await location.sources.ingester("s"))
    assert (status.files, status.reached, status.left_bytes) == (None, {"a": 2}, 10)


changes = st.lists(
    st.builds(row, st.integers(0, 3), st.integers(0, 12), gone=st.booleans()), max_size=14
)


def newest(shelves: dict[str, list[Row]]) -> dict[int, int]:
    """Return the newest time of each key; at equal times, that of the last row."""
    found: dict[int, Row] = {}
    for shelf in sorted(shelves):
        for one in shelves[shelf]:
            if one["k"] not in found or found[one["k"]]["at"] <= one["at"]:
                found[one["k"]] = one
    return {k: one["at"] for k, one in found.items() if not one["gone"]}


@given(shelf=changes, bytes_max=st.integers(1, 200), piece_bytes=st.sampled_from([10, 10**6]))
@example(shelf=[row(0, 0), row(0, 1), row(0, 0)], bytes_max=1, piece_bytes=10**6)
@example(
    shelf=[row(0, 0), row(1, 1), row(0, 0), row(1, 5)],
    bytes_max=25,
    piece_bytes=10,
)
@settings(max_examples=8, deadline=None)
async def test_contents_do_not_depend_on_how_a_source_is_cut(
    shelf: list[Row], bytes_max: int, piece_bytes: int
) -> None:
    """The contents are those of a plain dictionary, for any size of ticks and pieces."""
    Shelf.rows["a"] = list(shelf)
    location = await location_with(
        envelope="upsert", key=("k",), time_column="at", delete_when="gone"
    )

    with patch.object(addressed, "PIECE_BYTES", piece_bytes):
        ticks = await ingest(location, "s", bytes_max=bytes_max)
    found = {r["k"]: r["at"] for r in await rows_in(location)} if ticks else {}
    assert found == newest({"a": shelf})
    assert sum(tick.rows for tick in ticks) == len(shelf)
    check_late(ticks, shelf)


def check_late(ticks: list[Tick], shelf: list[Row]) -> None:
    """Check the number of late rows, which arrived after their time was complete."""
    left, late = list(shelf), 0
    for tick in ticks:
        taken, left = left[: tick.rows], left[tick.rows :]
        late += sum(1 for one in taken if one["at"] < tick.lower)
        assert tick.upper == max([tick.lower, *(one["at"] for one in taken)]) + 1
    assert sum(tick.late for tick in ticks) == late


async def test_a_row_that_does_not_fit_moves_no_upper() -> None:
    """A bad row must not make later rows late, even if its own time is valid."""
    Shelf.rows["a"] = [row(1, 5), row(300, 90), row(2, 7)]
    location = await location_with(schema="k utinyint, at bigint", time_column="at")

    (tick,) = await ingest(location, "s")
    assert (tick.upper, tick.rows, tick.bad, tick.late) == (8, 2, 1, 0)


async def test_a_time_far_ahead_is_a_bad_row() -> None:
    """A row with a time far ahead is a bad row. Otherwise all rows until then would be late."""
    day_ms = 86_400_000
    Shelf.rows["a"] = [row(1, 5), row(2, 10**15), row(3, 9)]
    location = await location_with(schema=DATA, time_column="at")

    (tick,) = await ingest(location, "s")
    (error,) = await rows_in(location, "s_errors")
    assert tick.upper < 10**15 - day_ms
    assert "max_ahead" in error["reason"]
    assert rows_of((await table_of(location, "s")).select(["k"])) == [
        "{'k': 1}",
        "{'k': 3}",
    ]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b' {"a":\r\n 1} \n', b'{"a":   1}'),
        (b'{"a": "x\\"\\n"}', b'{"a": "x\\"\\n"}'),
        (b'{"a": "x\\"y",\n"b": 2}', b'{"a": "x\\"y", "b": 2}'),
        (b'{"a": "x\ny"}', None),
        (b" \n", None),
    ],
)
def test_json_becomes_one_line(body: bytes, line: bytes | None) -> None:
    """Line ends between values become spaces. One within a string makes a bad record."""
    assert one_line(body) == line
    if line is not None:
        assert json.loads(line) == json.loads(body)
