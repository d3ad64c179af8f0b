"""The whole flow by commands alone: from a directory of files to rows at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from cli.conftest import EVENTS, Cli

ROWS = pa.table(
    {
        "city": ["Zürich", "Oslo", "Bern", "Oslo", None],
        "day": pa.array([15_000, 15_001, 15_001, None, 15_003], pa.date32()),
        "degrees": [1.5, -3.25, None, 7.0, 0.0],
        "count": [1, 2, 3, 4, 5],
    }
)


def write_json(table: pa.Table, path: Path) -> None:
    import json

    rows = table.to_pylist()
    path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "json": write_json,
    "csv": pcsv.write_csv,
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=2),
}


@pytest.mark.parametrize("format", WRITERS)
def test_files_of_each_format_are_ingested_and_read_back_equal(cli: Cli, format: str) -> None:
    """Files of each format are read back equal, and every verb of the flow works."""
    folder = cli.folder / "raw"
    folder.mkdir()
    WRITERS[format](ROWS.slice(0, 3), folder / f"1.{format}")
    created = cli.done(
        "source", "create", "weather", "--files", folder, "--format", format, "--json"
    ).object
    first = cli.ingest("weather", "--json").object
    WRITERS[format](ROWS.slice(3), folder / f"2.{format}")
    status = cli.done("source", "status", "weather").object
    second = cli.ingest("weather", "--json").object

    assert [c["type"] for c in created["schema"]] == ["VARCHAR", "DATE", "DOUBLE", "BIGINT"]
    assert (first["rows"], second["rows"]) == (3, 2)
    assert status["lag_bytes"] == (folder / f"2.{format}").stat().st_size
    expected = [
        {"city": row["city"], "day": row["day"] and row["day"].isoformat()}
        | {"degrees": row["degrees"], "count": row["count"]}
        for row in ROWS.to_pylist()
    ]
    found = cli.done("read", "weather", "--format", "json").objects
    assert sorted(found, key=lambda row: row["count"]) == expected
    assert cli.done("read", "weather", "--where", "count > 3", "--json").objects != []
    described = cli.done("collection", "describe", "weather", "--json").object
    assert (described["name"], described["rows"]) == ("weather", 5)
    assert [c["name"] for c in cli.done("collection", "list").objects] == ["weather"]
    assert [s["format"] for s in cli.done("source", "list").objects] == [format]
    assert cli.done("source", "status", "weather").object["lag_bytes"] == 0
    assert cli.ingest("weather", "--json").object["left_bytes"] == 0
    assert cli.done("source", "drop", "weather", "--yes", "--json").object["dropped"]
    assert cli.done("collection", "list").out == ""


def test_rows_are_read_as_of_any_time(events: Cli) -> None:
    """The main promise: a read returns the newest row of each key as of any time."""
    events.ingest("events")

    def names(as_of: str) -> list[str]:
        rows = events.done("read", "events", "--as-of", as_of, "--format", "json").objects
        return [row["name"] for row in rows]

    assert names("0") == []
    assert names("1000") == ["one"]
    assert names("1970-01-01T00:00:02Z") == ["one", "two"]
    assert names("1970-01-01T01:00:03+01:00") == ["uno", "two"]
    assert names("4999") == ["uno"]
    assert names("5000") == ["uno", "three"]
    newest = events.done("read", "events").objects
    assert [row["name"] for row in newest] == ["uno", "three"]


def test_changes_lead_from_one_time_to_another(events: Cli) -> None:
    """Changes cover the times after since, up to until, each with its time and diff."""
    events.ingest("events")

    found = events.done("changes", "events", "--since", "2000", "--until", "4000", "--json").objects
    brief = [(row["_time"], row["_diff"], row["id"], row["name"]) for row in found]
    assert brief == [(3_000, -1, 1, "one"), (3_000, 1, 1, "uno"), (4_000, -1, 2, "two")]
    to_the_end = events.done("changes", "events", "--since", "4000").objects
    assert [row["name"] for row in to_the_end] == ["three"]


def test_each_tick_is_a_line_and_the_sum_an_object(events: Cli) -> None:
    """Each tick prints a JSON line, and the end prints an object with the totals."""
    said = events.ingest("events", "--json", "--max-bytes-per-tick", "60")

    assert [line["tick"] for line in said.reports] == list(range(1, len(said.reports) + 1))
    assert len(said.reports) > 2
    assert sum(line["rows"] for line in said.reports) == said.object["rows"] == len(EVENTS)
    assert said.object["ticks"] == len(said.reports)
    assert said.object["bytes"] == (events.folder / "events/1.jsonl").stat().st_size
    assert said.object["store"]["put_count"] > 0
    assert 0 < said.object["dollars"] < 0.01
    edges = [(line["lower"], line["upper"]) for line in said.reports]
    assert [upper for _, upper in edges[:-1]] == [lower for lower, _ in edges[1:]]


def test_ingesting_again_takes_what_is_new_and_nothing_twice(events: Cli) -> None:
    """The next run takes appended lines and new files, and nothing twice."""
    events.ingest("events")
    with (events.folder / "events/1.jsonl").open("a") as file:
        file.write('{"at": 6000, "id": 4, "event": "start", "name": "four"}\n')
    events.write_lines("events/2.jsonl", {"at": 7_000, "id": 5, "event": "start", "name": "five"})

    assert events.ingest("events", "--json").object["rows"] == 2
    assert events.ingest("events", "--json").object["rows"] == 0
    assert [row["id"] for row in events.done("read", "events").objects] == [1, 3, 4, 5]


def test_times_from_the_clock_move_on_though_nothing_comes(cli: Cli) -> None:
    """Without a time column, an idle run still advances the complete time."""
    files = cli.write_lines("one.jsonl", {"x": 1})
    cli.done("source", "create", "plain", "--files", files)
    first = cli.ingest("plain", "--json").object
    idle = cli.ingest("plain", "--json").object

    assert (first["ticks"], first["rows"]) == (1, 1)
    assert (idle["ticks"], idle["rows"]) == (1, 0)
    assert idle["upper"] > first["upper"]


def test_times_may_be_relative(events: Cli) -> None:
    """Relative times work, and ``now`` is at most the newest complete time."""
    events.ingest("events")

    newest = events.done("read", "events").out
    assert events.done("read", "events", "--as-of", "now").out == newest
    late = events("read", "events", "--as-of", "-1h")
    assert (late.status, "is complete up to 1970-01-01T00:00:05Z" in late.complaint) == (2, True)
    since = events("changes", "events", "--since", "yesterday")
    assert "no time after --since is complete yet" in since.complaint
    assert "now, yesterday or -1h" in events("read", "events", "--as-of", "noon").complaint
    events.done("log", "create", "l")
    events.done("log", "append", "l", given=b"a\n")
    assert len(events.done("log", "scan", "l", "--from-time", "-1h").objects) == 1
    assert events.done("log", "scan", "l", "--from-time", "now").out == ""


def test_a_row_comes_as_often_as_it_is_there(cli: Cli) -> None:
    """Without a key, equal rows are repeated, and a limit counts each of them."""
    cli.write_lines("raw/1.jsonl", *[{"x": 1}] * 3, {"x": 0})
    cli.done("source", "create", "plain", "--files", cli.folder / "raw")
    cli.ingest("plain")

    assert [row["x"] for row in cli.done("read", "plain").objects] == [1, 1, 1, 0]
    assert [row["x"] for row in cli.done("read", "plain", "--limit", "2").objects] == [1, 1]
    assert cli.done("read", "plain", "--limit", "0").objects == []


def test_rows_come_in_the_order_of_their_key(cli: Cli) -> None:
    """Two reads of one time give the same bytes, and a limit gives the same rows."""
    lines = [{"k": (i * 37) % 100, "v": i} for i in range(100)]
    files = cli.write_lines("rows.jsonl", *lines)
    cli.done("source", "create", "rows", "--files", files, "--envelope", "upsert", "--key", "k")
    cli.ingest("rows")

    assert [row["k"] for row in cli.done("read", "rows", "--limit", "5").objects] == list(range(5))
    assert cli.done("read", "rows").out == cli.done("read", "rows").out


def test_several_shards_are_one_collection(cli: Cli) -> None:
    """The number of shards shows in describe, and in no row."""
    lines = [{"k": i, "v": i} for i in range(50)]
    files = cli.write_lines("rows.jsonl", *lines)
    spec = ("--files", files, "--envelope", "upsert", "--key", "k", "--shards", "3")
    cli.done("source", "create", "rows", *spec)
    cli.ingest("rows")

    found = cli.done("read", "rows").objects
    assert [row["k"] for row in found] == list(range(50))
    table = cli.done("read", "rows", "--format", "table").out.splitlines()[2:]
    assert [int(line.split()[0]) for line in table] == list(range(50))
    (rendition,) = cli.done("collection", "describe", "rows").object["renditions"]
    assert len(rendition["shards"]) == 3
    assert len(cli.done("read", "rows", "--limit", "7").objects) == 7


def test_csv_output_is_read_by_others(events: Cli) -> None:
    """Csv output can be read by any csv reader."""
    events.ingest("events")

    said = events.done("read", "events", "--format", "csv")
    assert list(csv.DictReader(io.StringIO(said.out))) == [
        {"id": "1", "at": "3000", "event": "start", "name": "uno"},
        {"id": "3", "at": "5000", "event": "start", "name": "three"},
    ]


def test_a_table_is_for_people(events: Cli) -> None:
    """A table right-aligns numbers and formats times; standard error names the times read."""
    events.ingest("events")

    since = ("--since", "1970-01-01T00:00:04Z")
    said = events.done("changes", "events", *since, "--format", "table")
    assert said.out.splitlines() == [
        "_time                 _diff  id    at  event  name",
        "--------------------  -----  --  ----  -----  -----",
        "1970-01-01T00:00:05Z      1   3  5000  start  three",
    ]
    assert said.err == "1 change after 1970-01-01T00:00:04Z up to 1970-01-01T00:00:05Z\n"
    empty = events.done("read", "events", "--where", "false", "--format", "table")
    assert empty.out.splitlines()[0] == "id  at  event  name"
    assert empty.err == "0 rows as of 1970-01-01T00:00:05Z\n"


def test_relative_files_are_absolute_from_creation_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is resolved at creation, since a later ingest may run elsewhere."""
    cli.write_lines("here/events/1.jsonl", {"x": 1})
    monkeypatch.chdir(cli.folder / "here")
    cli.done("source", "create", "plain", "--files", "./events/*.jsonl")
    monkeypatch.chdir(cli.folder)

    assert cli.ingest("plain", "--json").object["rows"] == 1


def test_the_environment_replaces_the_option_location(
    events: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment variable replaces --location."""
    monkeypatch.setenv("TIDELOG_LOCATION", str(events.folder / "lake"))

    assert events.run("source", "list").object["name"] == "events"


def test_bad_rows_are_counted_and_can_be_read(events: Cli) -> None:
    """Bad rows are set aside with their place, and do not stop the ingestion."""
    events.write_lines("events/2.jsonl", "nonsense", {"at": 9_000, "id": "x", "event": "start"})
    said = events.ingest("events", "--json")

    assert said.object["bad"] == 2
    found = events.done("read", "events_errors").objects
    assert [(row["file"], row["offset"]) for row in found] == [("2.jsonl", 0), ("2.jsonl", 9)]
    assert found[0]["text"] == "nonsense"
    status = events.done("source", "status", "events").object
    assert (status["bad"], status["run"]["bad"]) == (2, 2)


def test_a_given_schema_is_obeyed(cli: Cli) -> None:
    """With --schema, no files need to exist yet."""
    spec = ("--files", cli.folder / "later", "--schema", "day date, n decimal(6, 2)")
    created = cli.done("source", "create", "plain", *spec, "--json").object
    cli.write_lines("later/1.jsonl", {"day": "2013-01-15", "n": 2.5})
    cli.ingest("plain")

    assert [c["type"] for c in created["schema"]] == ["DATE", "DECIMAL(6, 2)"]
    assert cli.done("read", "plain").object == {"day": "2013-01-15", "n": 2.5}


@pytest.mark.parametrize("option", ["--files", "--log"])
def test_a_source_with_a_secret_in_its_url_is_refused(cli: Cli, option: str) -> None:
    """A source's URL is stored where others can read it, so credentials in it are refused."""
    place = "s3://bucket/raw?endpoint=http://127.0.0.1:1&region=us-east-1"
    secrets = "&access_key_id=KEYID&secret_access_key=S3CR3T"
    said = cli("source", "create", "far", option, place + secrets, "--schema", "x int")

    assert said.status == 2
    assert "must not have credentials: remove access_key_id and secret_access_key" in said.err
    assert "?profile=NAME" in said.err
    assert not {"S3CR3T", "KEYID"} & set(said.err.replace("=", "&").split("&"))
    assert cli.contents() == {}


def test_a_profile_in_the_files_url_is_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile name is no secret, and shows which rights a source uses."""
    keys = cli.folder / "credentials"
    keys.write_text("[raw]\naws_access_key_id=KEYID\naws_secret_access_key=S3CR3T\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    place = "s3://bucket/raw?endpoint=http://127.0.0.1:1&region=us-east-1&profile=raw"
    cli.done("source", "create", "far", "--files", place, "--schema", "x int", "--json")

    (told,) = cli.done("source", "describe", "far").object["files"]
    assert told.startswith("s3://bucket/raw/**?endpoint=")
    assert told.endswith("&profile=raw")


def test_status_tells_of_the_last_run(events: Cli) -> None:
    """The status of the last run is readable after its process has ended."""
    before = events.done("source", "status", "events").object
    events.ingest("events")
    after = events.done("source", "status", "events").object

    assert before["run"] is None
    assert before["lag_bytes"] == (events.folder / "events/1.jsonl").stat().st_size
    assert (after["lag_bytes"], after["files"], after["late"]) == (0, 1, 0)
    assert after["complete_to"] == "1970-01-01T00:00:05Z"
    assert after["run"]["rows"] == len(EVENTS)
    assert after["run"]["error"] is None
    assert not after["run"]["running"]
    assert after["run"]["updated"] >= after["run"]["started"]


def test_columns_may_be_called_as_they_are(cli: Cli) -> None:
    """A column may have an underscore name as in Kafka's exports, but not tidelog's prefix."""
    row = {"k": 1, "_offset": 2, "_rank": 3, "_delete": True, "_own": 4}
    cli.write_lines("in/1.jsonl", row)
    spec = ("--files", cli.folder / "in", "--envelope", "upsert", "--key", "k")
    cli.done("source", "create", "odd", *spec)
    cli.ingest("odd")

    assert cli.done("read", "odd").objects == [row]
    said = cli(
        "source", "create", "own", "--files", cli.folder / "in", "--schema", "_tidelog_x int"
    )
    assert said.status == 2
    assert "a column cannot be named _tidelog_x, which is reserved for tidelog" in said.complaint


def test_files_that_are_not_finished_wait_and_stop_no_other(cli: Cli) -> None:
    """An unfinished file is reported, and ingested once it is complete."""
    whole = pa.BufferOutputStream()
    pq.write_table(pa.table({"k": [1]}), whole)
    data = whole.getvalue().to_pybytes()
    (cli.folder / "in").mkdir()
    for name in ("b.parquet", "c.parquet.tmp", "d.parquet._COPYING_", ".b.parquet.crc"):
        (cli.folder / "in" / name).write_bytes(data)
    (cli.folder / "in" / "a.parquet").write_bytes(data[:-20])
    spec = ("--files", cli.folder / "in", "--format", "parquet", "--schema", "k bigint")
    cli.done("source", "create", "late", *spec)

    why = {
        "a.parquet": "the file is not parquet, or is incomplete: wait for its writer, or move it "
        "away"
    }
    assert cli.ingest("late").object["waiting"] == why
    assert cli.done("read", "late").objects == [{"k": 1}]
    assert cli.done("source", "status", "late").object["run"]["waiting"] == why

    (cli.folder / "in" / "a.parquet").write_bytes(data)
    assert cli.ingest("late").object["waiting"] == {}
    assert len(cli.done("read", "late").objects) == 2


def test_a_location_among_its_own_files_is_refused(cli: Cli) -> None:
    """A source must not ingest the location's own files, which each run would add to."""
    cli.write_lines("1.jsonl", {"k": 1})
    said = cli("source", "create", "loop", "--files", cli.folder)
    assert said.status == 2
    assert "the location is in the source's folder" in said.complaint
    assert not (cli.folder / "lake").exists()

    cli.done("source", "create", "fine", "--files", cli.folder / "*.jsonl")


FAR = 253_370_764_800_000  # In the year 9999.


def test_a_time_far_in_the_future_is_a_bad_row(events: Cli) -> None:
    """A time far in the future is a bad row, or all later rows would be late."""
    mad = {"at": FAR, "id": 8, "event": "start", "name": "mad"}
    events.write_lines("events/2.jsonl", mad, {**mad, "at": 6_000, "id": 9, "name": "sane"})
    said = events.ingest("events", "--json").object

    assert (said["bad"], said["upper"]) == (1, 6_001)
    (error,) = events.done("read", "events_errors").objects
    assert error["file"] == "2.jsonl"
    assert "further ahead of the clock than max_ahead allows" in error["reason"]
    events.write_lines("events/3.jsonl", {**mad, "at": 7_000, "id": 10})
    assert events.ingest("events", "--json").object["late"] == 0


def test_max_ahead_any_accepts_times_far_ahead(cli: Cli) -> None:
    """Plans and forecasts have times far ahead; --max-ahead any accepts them."""
    cli.write_lines("in/1.jsonl", {"at": FAR})
    spec = ("--files", cli.folder / "in", "--time-column", "at")
    cli.done("source", "create", "any", *spec, "--max-ahead", "any")
    assert cli.ingest("any", "--json").object["upper"] == FAR + 1

    said = cli("source", "create", "few", *spec, "--max-ahead", "soon")
    assert said.status == 2
    assert "--max-ahead 'soon' is not a duration: write a number and its unit" in said.complaint


def test_a_row_that_is_older_than_its_key_changes_nothing(events: Cli) -> None:
    """A row older than its key's newest row, or than its deletion, changes nothing."""
    events.ingest("events")
    before = events.done("read", "events").objects
    gone = {"at": 100, "event": "start", "name": "old"}
    events.write_lines("events/2.jsonl", *({**gone, "id": number} for number in (1, 2, 3)))
    said = events.ingest("events", "--json").object

    assert (said["rows"], said["late"]) == (3, 3)
    assert events.done("read", "events").objects == before


def test_late_rows_are_counted(events: Cli) -> None:
    """A row before the complete time counts as late, and gets the next time."""
    events.ingest("events")
    events.write_lines("events/2.jsonl", {"at": 1_500, "id": 8, "event": "start", "name": "late"})
    said = events.ingest("events", "--json").object

    assert (said["rows"], said["late"]) == (1, 1)
    assert events.done("source", "status", "events").object["late"] == 1
    assert [row["id"] for row in events.done("read", "events").objects] == [1, 3, 8]
