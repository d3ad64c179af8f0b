"""Csv files of users: options are guessed, shown and corrected; no row is lost silently."""

from __future__ import annotations

import pytest

from cli.conftest import Cli


def made(cli: Cli, text: str, *options: str) -> dict[str, object]:
    """Write a file, and create a source of it."""
    folder = cli.folder / "raw"
    folder.mkdir(exist_ok=True)
    (folder / "1.csv").write_text(text)
    made = cli.done(
        "source", "create", "s", "--files", folder, "--format", "csv", *options, "--json"
    )
    return made.object


def read(cli: Cli) -> list[dict[str, object]]:
    return cli.done("read", "s", "--format", "json").objects


def test_what_is_guessed_is_shown_and_obeyed(cli: Cli) -> None:
    """Guessed options are printed, and used by the ingestion."""
    created = made(cli, "id;day;note\n1;13.01.2024;'a\n2;NA;b\n")
    cli.ingest("s")

    assert created["csv"] == {
        "delimiter": ";",
        "quote": '"',
        "nulls": ["NA"],
        "date_format": "%d.%m.%Y",
        "timestamp_format": None,
        "header": True,
        "multiline": False,
    }
    assert read(cli) == [
        {"id": 1, "day": "2024-01-13", "note": "'a"},
        {"id": 2, "day": None, "note": "b"},
    ]


def test_options_say_what_is_not_guessed(cli: Cli) -> None:
    """Each option overrides the guess, together with --schema."""
    created = made(
        cli,
        "1:'x:y':02/01/2024:02/01/2024 03.04:nil\n",
        *("--delimiter", ":", "--quote", "'", "--null", "nil", "--null", "none"),
        *("--date-format", "%d/%m/%Y", "--timestamp-format", "%d/%m/%Y %H.%M"),
        *("--no-header", "--multiline", "--key", "day", "--envelope", "upsert"),
        *("--schema", "id int, text varchar, day date, at timestamp, n int"),
    )
    cli.ingest("s")

    assert created["csv"] == {
        "delimiter": ":",
        "quote": "'",
        "nulls": ["nil", "none"],
        "date_format": "%d/%m/%Y",
        "timestamp_format": "%d/%m/%Y %H.%M",
        "header": False,
        "multiline": True,
    }
    (row,) = read(cli)
    assert (row["id"], row["text"], row["day"], row["n"]) == (1, "x:y", "2024-01-02", None)
    assert str(row["at"]).startswith("2024-01-02")


def test_a_torn_last_record_waits_unless_it_is_said_to_be_whole(cli: Cli) -> None:
    """A record without a line end waits, since its file may still be growing; --final takes it."""
    made(cli, "n,m\n1,2\n3,4", "--schema", "n int, m int")
    first = cli.ingest("s", "--json").object
    torn = read(cli)
    (cli.folder / "raw" / "1.csv").write_text("n,m\n1,2\n3,45\n6,7")
    cli.ingest("s")
    grown = read(cli)
    cli.ingest("s", "--final")

    assert (torn, first["left_bytes"]) == ([{"n": 1, "m": 2}], 3)
    assert "--final" in first["waiting"]["1.csv"]
    assert grown == [{"n": 1, "m": 2}, {"n": 3, "m": 45}]
    assert read(cli) == [*grown, {"n": 6, "m": 7}]


def test_half_a_json_object_waits_and_is_a_bad_row_if_it_is_all_there_is(cli: Cli) -> None:
    """Half an object is reported as left; --final makes it a bad row."""
    folder = cli.folder / "raw"
    folder.mkdir()
    (folder / "1.json").write_text('{"n": 1}\n{"n": ')
    cli.done("source", "create", "s", "--files", folder)

    first, last = cli.ingest("s", "--json").object, cli.ingest("s", "--final", "--json").object

    assert (first["rows"], first["bad"], first["left_bytes"]) == (1, 0, 6)
    assert (last["rows"], last["bad"], last["left_bytes"]) == (0, 1, 0)


def test_a_file_whose_header_lacks_most_columns_waits_and_is_named(cli: Cli) -> None:
    """A file with another header waits and is named; later files are ingested."""
    made(cli, "a,b,c\n1,2,3\n")
    other, third = cli.folder / "raw" / "2.csv", cli.folder / "raw" / "3.csv"
    other.write_text("A,B,C\n4,5,6\n")
    third.write_text("c,a,b\n9,7,8\n")

    waiting = cli.ingest("s", "--json").object["waiting"]
    told = cli.done("source", "status", "s").object["run"]["waiting"]
    before = read(cli)
    other.write_text("c,a,more\n6,4,x\n")
    cli.ingest("s")

    assert list(waiting) == list(told) == ["2.csv"]
    assert "lacks most of the source's columns (a, b, c)" in waiting["2.csv"]
    assert [row["a"] for row in before] == [1, 7]
    assert [(row["a"], row["b"], row["c"]) for row in read(cli)] == [
        (1, 2, 3),
        (7, 8, 9),
        (4, None, 6),
    ]


@pytest.mark.parametrize(
    "options",
    [
        ("--format", "json", "--delimiter", ";"),
        ("--format", "parquet", "--no-header"),
        ("--format", "csv", "--quote", "xx"),
        ("--format", "csv", "--date-format", "%Q"),
    ],
)
def test_options_that_do_not_go_together_are_refused(cli: Cli, options: tuple[str, ...]) -> None:
    """Bad options, and options of another format, are refused."""
    said = cli("source", "create", "s", "--files", cli.folder / "none", *options)

    assert said.status == 2
    assert said.complaint


def test_names_that_sql_does_not_tell_apart_are_refused(cli: Cli) -> None:
    """Names keep their case, so two that differ by case alone are refused."""
    folder = cli.folder / "raw"
    folder.mkdir()
    (folder / "1.csv").write_text("id,ID\n1,2\n")

    said = cli("source", "create", "s", "--files", folder, "--format", "csv")

    assert said.status == 2
    assert "'ID'" in said.complaint
    made_ = cli.done(
        "source", "create", "s", "--files", folder, "--format", "csv", "--schema", "ID int"
    )
    assert made_.status == 0
    cli.ingest("s")
    assert read(cli) == [{"ID": 2}]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_column_name_is_no_sql(cli: Cli, format: str) -> None:
    """A column name with SQL in it stays data."""
    name = "x\" INT); SELECT error('ran'); --"
    folder = cli.folder / "raw"
    folder.mkdir()
    escaped = name.replace('"', '""' if format == "csv" else '\\"')
    text = f'"{escaped}",b\n1,2\n' if format == "csv" else f'{{"{escaped}": 1, "b": 2}}\n'
    (folder / f"1.{format}").write_text(text)

    created = cli.done("source", "create", "s", "--files", folder, "--format", format, "--json")
    cli.ingest("s")

    assert [c["name"] for c in created.object["schema"]] == [name, "b"]
    assert read(cli) == [{name: 1, "b": 2}]


def test_a_first_file_that_is_no_csv_does_not_keep_others_from_telling(cli: Cli) -> None:
    """A file that is no csv waits if another file gives the schema; alone, it is refused."""
    (cli.folder / "in").mkdir()
    (cli.folder / "in" / "0.csv").write_bytes(b"\xff\xfd\x00garbage\n")
    said = cli("source", "create", "c", "--files", cli.folder / "in", "--format", "csv")
    assert said.status == 2
    assert "'0.csv' cannot be read as csv: some bytes are not UTF-8; convert" in said.err

    (cli.folder / "in" / "1.csv").write_text("a,b\n1,x\n")
    cli.done("source", "create", "c", "--files", cli.folder / "in", "--format", "csv")
    cli.ingest("c")
    assert cli.done("read", "c").object == {"a": 1, "b": "x"}


def test_a_column_with_a_comma_in_its_name_can_be_named(cli: Cli) -> None:
    """In lists of columns and in schemas, such a name is in double quotes."""
    path = cli.folder / "odd.csv"
    path.write_text('id,"a, b",note\n1,x,y\n2,z,w\n')
    common = ("--files", path, "--format", "csv", "--envelope", "upsert")
    cli.done("source", "create", "guessed", *common, "--key", '"a, b",id')
    cli.done(
        "source", "create", "told", *common, "--key", "id", "--schema", 'id bigint, "a, b" text'
    )
    for name in ("guessed", "told"):
        cli.ingest(name)
        found = cli.done("read", name, "--columns", '"a, b"', "--where", "id = 2", "--json")
        assert found.object == {"a, b": "z"}
    failed = cli("read", "told", "--columns", "a")
    assert 'the columns are id, "a, b"' in failed.complaint
