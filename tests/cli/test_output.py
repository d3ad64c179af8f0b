"""Rows on standard output: standard csv, tables that fit, and no escape sequences."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.csv as pcsv
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tidelog.cli.grid import Grid, GridRows, clean_text
from tidelog.cli.ingest import parse_size
from tidelog.cli.output import (
    bytes_text,
    choose_format,
    count_text,
    csv_line,
    open_rows,
)
from tidelog.errors import UsageError

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))


def grid(rows: list[list[str | None]], *, width: int | None = None) -> list[str]:
    out: list[str] = []
    names = [f"c{n}" for n in range(len(rows[0]))]
    Grid(names, right=[False] * len(names), width=width, out=out.append).write(rows)
    return "".join(out).splitlines()


def test_a_grid_is_as_wide_as_its_cells() -> None:
    """Wide characters take two places, null has a name, and line ends are escaped."""
    assert grid([["a", "日本"], [None, "x\ny"]]) == [
        "c0    c1",
        "----  ----",
        "a     日本",
        "NULL  x\\ny",
    ]


@given(st.lists(st.lists(TEXT, min_size=3, max_size=3), min_size=1), st.integers(30, 60))
def test_a_grid_fits_its_terminal(rows: list[list[str]], width: int) -> None:
    """No line of a table is wider than the terminal."""
    assert max(cell_len(line) for line in grid([list(row) for row in rows], width=width)) <= width


def test_a_grid_fits_later_rows_too() -> None:
    """Later rows may widen the columns, with the names repeated above them."""
    out: list[str] = []
    table = Grid(["name", "n"], right=[False, True], width=None, out=out.append)
    table.write([["abc", "1"]])
    table.write([["abcdefgh", "200"], ["b", "3"]])
    table.write([["abcdefg", "20"]])

    assert "".join(out).splitlines() == [
        *("name  n", "----  -", "abc   1"),
        *("name        n", "--------  ---", "abcdefgh  200", "b           3"),
        "abcdefg    20",
    ]


def test_later_rows_that_find_no_room_are_written_as_lines() -> None:
    """A later row without room for its time is written as lines, with its row number."""
    out: list[str] = []
    table = Grid(
        ["id", "at"], right=[False] * 2, whole=[True, True], width=30, out=out.append
    )  # fmt: skip
    table.write([["a", "1970-01-01"], ["b", "1970-01-02"]])
    table.write([["abcdefgh", "1970-01-01T00:00:00.156Z"]])

    lines = "".join(out).splitlines()
    assert lines[-3:] == ["-- 3 --", "id  abcdefgh", "at  1970-01-01T00:00:00.156Z"]
    assert max(map(cell_len, lines)) <= 30


def test_names_are_repeated_only_where_widths_change() -> None:
    """A wrapped text does not cause a repeated head for each row."""
    out: list[str] = []
    table = Grid(["n", "text"], right=[True, False], width=20, out=out.append)
    for length in (30, 40, 60):
        table.write([["1", "x" * length]])

    assert "".join(out).count("text") == 1
    assert max(map(cell_len, "".join(out).splitlines())) <= 20


def test_cells_break_between_words() -> None:
    """A cell breaks between words; only a word wider than the column is cut."""
    out: list[str] = []
    Grid(["why"], right=[False], width=12, out=out.append).write(
        [["the file disappears before it is bound"], ["a" * 30], ["one extraordinarily long"]]
    )

    lines = [line.rstrip() for line in "".join(out).splitlines()[2:]]
    assert lines[:4] == ["the file", "disappears", "before it is", "bound"]
    assert lines[4:7] == ["a" * 12, "a" * 12, "a" * 6]
    assert lines[7:] == ["one", "extraordinar", "ily long"]


def test_times_are_whole_where_text_can_give_way() -> None:
    """A time is never cut; text columns give way."""
    moment = datetime(2013, 1, 15, 14, 0, 0, 123_456, tzinfo=UTC)
    table = pa.table({"moment": [moment] * 2, "n": [10**12] * 2, "text": ["word " * 20, "x" * 500]})
    out: list[str] = []
    rows = GridRows(table.schema, out.append, width=60)
    rows.write(table)

    lines = "".join(out).splitlines()
    assert sum("2013-01-15T14:00:00.123456Z  1000000000000" in line for line in lines) == 2
    assert max(map(cell_len, lines)) <= 60
    assert sum(line.count("w") for line in lines) == 20
    assert lines[-1].endswith("…")


def test_a_time_without_room_puts_rows_on_lines_of_their_own() -> None:
    """A time without room puts each row on lines of its own, since it must not be cut."""
    out: list[str] = []
    times = ["1970-01-01T00:00:00Z", "2026-11-23T09:36:04.156Z"]
    table = Grid(
        ["name", "since", "complete to", "bytes"],
        right=[False] * 4, whole=[False, True, True, False], width=48, out=out.append,
    )  # fmt: skip
    table.write([["flights", *times, "320 bytes"]])
    table.write([["others", *times, "x" * 80]])

    lines = "".join(out).splitlines()
    assert lines[:3] == ["-- 1 --", "name         flights", f"since        {times[0]}"]
    assert sum(times[1] in line for line in lines) == 2
    assert max(map(cell_len, lines)) <= 48


@pytest.mark.parametrize("width", [40, 80, 200])
def test_six_hundred_columns_fit_a_terminal(width: int) -> None:
    """A row of 600 columns is written as lines, without loss of a value."""
    names = [f"a_rather_long_name_of_column_{n}" for n in range(600)]
    out: list[str] = []
    grid = Grid(names, right=[True] * 600, width=width, out=out.append)
    grid.write([[str(10**6 + n) for n in range(600)], [None] * 600])

    lines = "".join(out).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert [line for line in lines if line.startswith("--")] == ["-- 1 --", "-- 2 --"]
    assert all(str(10**6 + n) in "".join(out) for n in range(600))
    assert sum("NULL" in line for line in lines) == 600


def test_text_cannot_steer_the_terminal() -> None:
    """An escape sequence in a value is shown, not obeyed."""
    assert clean_text("a\x1b[31mred\n") == "a\\x1b[31mred\\n"


@given(st.lists(st.tuples(st.none() | TEXT, st.none() | TEXT), min_size=1))
def test_csv_is_read_back_by_others(rows: list[tuple[str | None, str | None]]) -> None:
    """Null is an empty field, and the empty string a quoted one, as in Arrow."""
    text = csv_line(["a", "b"]) + "".join(csv_line(row) for row in rows)

    told = [[field or "" for field in row] for row in rows]
    assert list(csv.reader(io.StringIO(text, newline="")))[1:] == told
    options = pcsv.ConvertOptions(
        column_types={"a": pa.string(), "b": pa.string()},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    parsing = pcsv.ParseOptions(newlines_in_values=True)
    table = pcsv.read_csv(io.BytesIO(text.encode()), convert_options=options, parse_options=parsing)
    assert [tuple(row.values()) for row in table.to_pylist()] == rows


def test_csv_without_rows_has_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    """Csv without rows still has its header."""
    open_rows("csv", pa.schema([("a", pa.int64()), ("b,c", pa.int64())])).close()

    assert capsys.readouterr().out == 'a,"b,c"\n'


def test_formats_are_chosen() -> None:
    """Without a terminal, the default format is json."""
    assert choose_format(None) == "json"
    assert choose_format(None, as_json=True) == "json"
    assert choose_format("table") == "table"
    for given_, as_json in (("xml", False), ("csv", True)):
        with pytest.raises(UsageError):
            choose_format(given_, as_json=as_json)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1_000", 1_000),
        ("240000", 240_000),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("64M", 64 << 20),
        ("64MB", 64_000_000),
        ("2kB", 2_000),
        ("2KiB", 2_048),
        ("1GiB", 1 << 30),
        ("5B", 5),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """A size may have a unit; MB and MiB differ."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5MiB", "MiB", "1 XB", "١", "0x10", "1MiB/s"])
def test_sizes_that_are_none(text: str) -> None:
    """A bad size is refused."""
    with pytest.raises(UsageError):
        parse_size(text)


def test_numbers_for_people() -> None:
    """Sizes have three digits."""
    assert [bytes_text(n) for n in (0, 999, 1_000, 999_400, 999_600, 4_120_000)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "999 kB",
        "1 MB",
        "4.12 MB",
    ]
    assert [count_text(n, "row") for n in (0, 1, 12_345)] == ["0 rows", "1 row", "12,345 rows"]
