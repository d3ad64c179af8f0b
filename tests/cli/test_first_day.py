"""First use by a new user: shown times, costs and mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import duckdb
import pytest

import tidelog
from cli.conftest import Cli
from tidelog.errors import UsageError

DAY = ({"k": 1, "at": "2025-03-01T00:00:00Z"}, {"k": 2, "at": "2025-03-01T05:00:00Z"})


@pytest.fixture
def days(cli: Cli) -> Iterator[Cli]:
    """An ingested source of days, whose rows may arrive two hours late."""
    cli.write_lines("days/1.jsonl", *DAY)
    made = ("source", "create", "days", "--files", cli.folder / "days")
    cli.done(*made, "--time-column", "at", "--lateness", "120m")
    cli.ingest("days")
    # Text for people is printed as on a terminal.
    with patch("tidelog.cli.output.is_json", return_value=False):
        yield cli


def test_times_are_told_as_they_were_asked_for(days: Cli) -> None:
    """Durations are shown as options take them, timestamps without a unit, with defaults."""
    made = ("source", "create", "ms", "--files", days.folder / "days", "--schema", "k int, at int")
    days.done(*made, "--time-column", "at", "--max-ahead", "any")

    said = days.done("source", "describe", "days").out
    assert "at, held back by 2h (--lateness), --max-ahead 1d" in said
    assert "at (integers in ms), --max-ahead any" in days.done("source", "describe", "ms").out


def test_status_tells_that_rows_are_held_back(days: Cli) -> None:
    """Rows within the lateness are read but not visible; the status says so."""
    said = " ".join(days.done("source", "status", "days").out.split())

    assert "lag none" in said
    assert "waiting none dropped fields none noted none" in said
    assert "held back rows newer than 'complete to'" in said
    assert "2h newer arrive, or: tidelog ingest days --final" in said
    size = (days.folder / "days" / "1.jsonl").stat().st_size
    assert f"in {size} bytes of input" in said
    with patch("tidelog.cli.output.is_json", return_value=True):
        found = days.done("source", "status", "days").object
        assert (found["lateness_ms"], found["held_bytes"]) == (7_200_000, size)
    days.ingest("days", "--final")
    assert "held back nothing" in " ".join(days.done("source", "status", "days").out.split())


def test_source_create_names_the_types_that_it_does_not_keep(cli: Cli) -> None:
    """UUIDs and INTERVALs become bytes, which the command reports."""
    columns = "uuid() AS id, INTERVAL '1 day' AS span, 1 AS n"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT {columns}) TO '{cli.folder / 'a.parquet'}'")

    refused = cli("source", "create", "p", "--files", cli.folder / "*.parquet")
    assert "add --format parquet" in refused.complaint
    said = cli.done(
        "source", "create", "p", "--files", cli.folder / "*.parquet", "--format", "parquet"
    )

    assert "column 'id' has UUIDs: their 16 bytes are stored as BLOB" in said.err
    assert "column 'span' has INTERVALs" in said.err


def test_status_fails_if_it_is_asked_to(cli: Cli) -> None:
    """With --check, the exit status shows a monitor whether the source needs attention."""
    cli.write_lines("raw/a.jsonl", {"n": 1})
    cli.done("source", "create", "s", "--files", cli.folder / "raw")
    cli.ingest("s")
    assert cli.done("source", "status", "s", "--check").object["lag_bytes"] == 0
    (cli.folder / "raw" / "b.jsonl").write_text('{"n": ')
    cli.ingest("s")

    said = cli("source", "status", "s", "--check")
    assert (said.status, said.err) == (1, "")
    assert list(said.object["run"]["waiting"]) == ["b.jsonl"]
    assert cli("source", "status", "s").status == 0
    cli.write_lines("raw/a.jsonl", {"n": 2}, {"n": 3})
    assert cli("ingest", "s", "--engine", "local").object["rows"] == 2
    assert cli("source", "status", "s", "--check").status == 1


def test_costs_of_a_small_run_are_told(cli: Cli) -> None:
    """A small cost is shown, and with no more digits than the prices have."""
    from tidelog.cli.ingest_report import end_line
    from tidelog.collection.ingest.summary import Summary
    from tidelog.store.wrappers.metered import Usage

    used = Usage(get_count=5, put_count=4, list_count=1)

    assert "$0.000027; 0 bytes stored: $0 a month" in end_line("s", "local", Summary(store=used))
    assert str(used.to_dict()["dollars"]) == "2.7e-05"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("changes", "days", "--since", "2030-01-01"), "no time after --since is complete yet"),
        (("read", "days", "--where", 'k > "noon"'), "write a text in single quotes: 'noon'"),
        (("source", "create", "g", "--generator", "dice"), "must be one of counter, key-value"),
        (("source", "create", "days_errors", "--generator", "counter"), "conflicts with 'days'"),
        (("read", "days", "--limit", "-1"), "'--limit': '-1' is less than 0; see"),
        (
            ("collection", "drop", "days"),
            "no such command 'drop'; to drop its source as well: tidelog source drop",
        ),
        (("log", "destroy", "days"), "no such command 'destroy'; to remove a named thing for good"),
    ],
)
def test_a_mistake_is_told_as_it_was_made(days: Cli, arguments: tuple[str, ...], told: str) -> None:
    """The error names the word that the user wrote, and a remedy."""
    said = days(*arguments)

    assert (said.status, told in said.err) == (2, True), said.err


def test_a_text_is_no_list_of_columns(days: Cli) -> None:
    """A string for columns is refused, even if each of its letters is a column."""
    told = r"columns must be a list of names.*\['k'\]"

    with tidelog.connect(days.location) as lake, pytest.raises(UsageError, match=told):
        lake.collection("days").snapshot(columns="k")


def test_dropping_a_source_wants_a_word(events: Cli) -> None:
    """A drop is permanent, so a script needs --yes."""
    said = events("source", "drop", "events")

    assert said.status == 2
    assert "pass --yes" in said.err
    assert [one["name"] for one in events.done("source", "list").objects] == ["events"]


def test_status_tells_of_fields_that_the_schema_lacks(events: Cli) -> None:
    """The status keeps the dropped fields, since a cron job's output is rarely read."""
    events.write_lines("events/2.jsonl", {"at": 9_000, "id": 9, "event": "start", "new": True})

    assert events.ingest("events", "--json").object["dropped"] == {"new": 1}
    assert events.done("source", "status", "events").object["run"]["dropped"] == {"new": 1}


@pytest.mark.parametrize("name", ["rows.xlsx", "rows.csv.gz"])
def test_a_name_that_says_another_format_is_refused(events: Cli, name: str) -> None:
    """Json lines in a file with another format's name would fail later, in another program."""
    said = events("read", "events", "-o", events.folder / name)

    assert said.status == 2
    assert "pass --format" in said.err
    assert not (events.folder / name).exists()


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("text", [None, "", "\ufeff\n \r\n"])
def test_an_empty_folder_gives_no_schema(cli: Cli, format: str, text: str | None) -> None:
    """An empty or missing folder gives no schema: a mistyped path would be permanent."""
    folder = cli.folder / "inbx"
    if text is not None:
        folder.mkdir()
        (folder / "1").write_text("" if format == "parquet" else text)

    said = cli("source", "create", "s", "--files", folder, "--format", format)
    assert said.status == 2
    assert f"no data at {folder} to infer a schema from" in said.complaint
    cli.done("source", "create", "s", "--files", folder, "--format", format, "--schema", "a int")


def test_a_place_of_several_that_has_nothing_is_named(cli: Cli) -> None:
    """One mistyped path among several is named, though the others have files."""
    cli.write_lines("in/1.jsonl", {"n": 1})
    cli.write_lines("done/2.jsonl", {"n": 2})
    there, gone = cli.folder / "in", cli.folder / "dnoe" / "*.jsonl"

    said = cli.done("source", "create", "s", "--files", there, "--files", gone)
    assert f"No files at {gone} yet" in said.err
    assert f"No files at {there}" not in said.err
    said = cli.done("source", "create", "t", "--files", there, "--files", cli.folder / "done")
    assert "nothing at" not in said.err


def test_a_format_that_files_names_say_is_told(cli: Cli) -> None:
    """The format is not guessed from a name, but the error points to it."""
    path = cli.folder / "a.csv"
    path.write_text("a,b\n1,2\n")

    said = cli("source", "create", "s", "--files", path)
    assert (said.status, said.complaint.endswith("suggests csv: add --format csv")) == (2, True)
    cli.done("source", "create", "s", "--files", path, "--format", "csv")
    lines = cli.write_lines("b.jsonl", {"n": 1, "m": 2})
    said = cli("source", "create", "t", "--files", lines, "--format", "csv")
    assert (said.status, "begins with a json object" in said.complaint) == (2, True)
