"""Foreseeable mistakes: each gives a sentence and the right exit status, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.conftest import EVENTS, UPSERT, Cli, refused
from kit.s3_servers import SeaweedServer
from kit.server_process import free_ports
from tidelog.collection.ingest.compute import Job
from tidelog.collection.ingest.engine import LocalEngine, TickParts
from tidelog.collection.source.port import RawSource
from tidelog.location import open_location

FAILED, STORE_FAILED = 1, 3
CREDENTIALS = "access_key_id=a&secret_access_key=b&region=us-east-1"


@pytest.fixture
def ingested(events: Cli) -> Cli:
    events.ingest("events")
    return events


@pytest.fixture
def unchanged(events: Cli) -> Iterator[None]:
    """The location is the same after the test as before it."""
    before = events.contents()
    yield
    assert events.contents() == before


@pytest.mark.parametrize("url", ["ftp://host/lake", "hdfs://host/lake", "s3:/bucket", "s3://"])
def test_an_unknown_scheme(cli: Cli, url: str) -> None:
    """An unknown URL scheme or an incomplete URL is a usage error."""
    refused(cli.run("--location", url, "read", "events"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("format", ["csv", "json"])
def test_text_of_wide_characters_is_told_as_such(cli: Cli, encoding: str, format: str) -> None:
    """Spreadsheets and Windows shells write UTF-16; the error must name it, not odd fields."""
    text = "id,name\n1,one\n2,two\n" if format == "csv" else '{"id": 1}\n{"id": 2}\n'
    (cli.folder / "raw").mkdir()
    (cli.folder / "raw" / f"a.{format}").write_bytes(text.encode(encoding))
    place = str(cli.folder / "raw")
    said = cli("source", "create", "s", "--files", place, "--format", format)
    assert said.status == 2
    assert "tidelog reads UTF-8: convert it" in said.complaint


def test_no_location_at_all(cli: Cli) -> None:
    """There is no default location, so that no data lands in the current directory."""
    refused(cli.run("read", "events"), "--location", "TIDELOG_LOCATION")


def test_a_location_that_ends_with_the_command(cli: Cli) -> None:
    """A collection in memory would be lost before its ingestion."""
    refused(cli.run("--location", "memory://", "source", "list"), "memory://")


def test_an_unreachable_store(cli: Cli) -> None:
    """The command gives up, and names the store's fault, not the user's."""
    url = f"s3://bucket/lake?endpoint=http://127.0.0.1:{free_ports(1)[0]}&{CREDENTIALS}"
    said = cli.run("--location", url, "read", "events")

    refused(said, "endpoint", status=STORE_FAILED)
    assert "secret_access_key" not in said.err


def test_wrong_credentials(cli: Cli, seaweed: SeaweedServer) -> None:
    """The error names the key to check, and never shows it."""
    unknown = seaweed.url("lake", access_key_id="nobody")
    wrong = seaweed.url("lake", secret_access_key="not-the-secret")

    for url in (unknown, wrong):
        said = cli.run("--location", url, "read", "events")
        refused(said, "key", status=STORE_FAILED)
        assert "not-the-secret" not in said.err


def test_a_bucket_that_does_not_exist(cli: Cli, seaweed: SeaweedServer) -> None:
    """A missing bucket is an error, since a bucket has an owner and policies."""
    said = cli.run("--location", seaweed.url("lake", bucket="nowhere"), "source", "list")

    assert said.status in (2, STORE_FAILED), said.err
    assert said.complaint


READING: list[tuple[str, ...]] = [
    ("read", "events"),
    ("changes", "events", "--since", "0"),
    ("collection", "list"),
    ("collection", "describe", "events"),
    ("source", "list"),
    ("source", "describe", "events"),
    ("source", "status", "events"),
    ("source", "drop", "events", "--yes"),
    ("ingest", "events", "--engine", "local"),
]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_location_that_does_not_exist(cli: Cli, command: tuple[str, ...]) -> None:
    """Only the creation of a source makes a location: a typing mistake must not."""
    refused(cli(*command), "no location", "source create")
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("command", [*READING, ("source", "create", "x", "--files", ".")])
def test_a_location_of_a_newer_format(events: Cli, command: tuple[str, ...]) -> None:
    """An older version must not write to a newer format, which the newer one could not read."""
    mark = events.folder / "lake" / "tidelog.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"format": 99}))
    before = events.contents()

    given = (*command[:-1], str(events.folder / "events")) if "create" in command else command
    refused(events(*given), "newer", "99", "upgrade")
    assert events.contents() == before


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".hidden", "ü", "x" * 129, "../up"])
def test_a_bad_name(cli: Cli, name: str) -> None:
    """Names become parts of commands and of paths."""
    files = cli.write_lines("rows.jsonl", {"x": 1})

    refused(cli("source", "create", name, "--files", files), "letters")
    assert not (cli.folder / "lake").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--envelope=upsert", "--key=nokey"), ("--key", "nokey", "at, id, event, name")),
        (("--time-column=when",), ("--time-column", "when")),
        (("--time-column=event",), ("event", "timestamps, dates or integers")),
        (("--envelope=upsert",), ("--key",)),
        (("--key=id",), ("--envelope upsert",)),
        (("--delete-when=true",), ("--envelope upsert",)),
        (("--format=xml",), ("--format", "parquet")),
        (("--envelope=debezium",), ("--envelope", "upsert")),
        (("--time-column=at", "--time-unit=days"), ("--time-unit",)),
        (("--shards=0",), ("--shards",)),
        (("--schema=nonsense",), ("--schema",)),
        (("--schema=x int; drop table y",), ("--schema",)),
        (("--schema=x int", "--time-column=at"), ("--time-column", "'at'")),
        ((*UPSERT[:-1], "--delete-when=event ="), ("--delete-when",)),
        ((*UPSERT[:-1], "--delete-when=random() < 0.5"), ("--delete-when", "random")),
        ((*UPSERT[:-1], "--delete-when=nothing = 1"), ("--delete-when", "nothing")),
        (("--format=parquet",), ("parquet", "--format")),
    ],
)
def test_a_source_that_cannot_be(
    cli: Cli, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Every option is checked before anything is made, even the location."""
    files = cli.write_lines("events/1.jsonl", *EVENTS)

    refused(cli("source", "create", "events", "--files", files, *options), *words)
    assert not (cli.folder / "lake").exists()


@pytest.mark.parametrize("names", [["a", "a"], ["id", "id"]])
def test_a_parquet_file_with_a_name_twice(cli: Cli, names: list[str]) -> None:
    """A join in pandas or DuckDB writes such files."""
    columns: list[Any] = [pa.array([1]), pa.array([2])]
    pq.write_table(pa.Table.from_arrays(columns, names=names), cli.folder / "a.parquet")

    said = cli("source", "create", "x", "--files", cli.folder / "*.parquet", "--format=parquet")

    refused(said, "two columns have the same name")


@pytest.mark.parametrize("file", [b"PAR1PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"PAR1\0\0\0\0PAR1"])
def test_a_parquet_file_that_is_torn(cli: Cli, file: bytes) -> None:
    """The error blames the file, not the store, whatever its last bytes are."""
    (cli.folder / "a.parquet").write_bytes(file)

    said = cli("source", "create", "x", "--files", cli.folder / "*.parquet", "--format=parquet")

    refused(said, "'a.parquet' cannot be read as parquet")


@pytest.mark.parametrize("files", ["nowhere/*.jsonl", "nowhere", "empty"])
def test_files_that_match_nothing(cli: Cli, files: str) -> None:
    """Without files, a schema must be given, since none can be inferred."""
    (cli.folder / "empty").mkdir()

    said = cli("source", "create", "events", "--files", cli.folder / files)
    refused(said, "--schema", "--files")
    assert not (cli.folder / "lake").exists()


def test_a_name_twice(events: Cli, unchanged: None) -> None:
    """An existing name is refused, and so is a name of another collection's errors."""
    files = events.folder / "events" / "*.jsonl"
    told = {"events": "'events' already exists", "events_errors": "conflicts with 'events'"}
    for name, why in told.items():
        refused(events("source", "create", name, "--files", files), why)


@pytest.mark.parametrize(
    "command",
    [*[c for c in READING if len(c) > 2 or c[0] == "read"], ("read", "events_errors")],
    ids=" ".join,
)
def test_a_name_that_is_none(events: Cli, command: tuple[str, ...]) -> None:
    """The error lists the existing names."""
    renamed = [word.replace("events", "evnts") for word in command]

    refused(events(*renamed), "'evnts", "events")


def test_nothing_is_complete_yet(events: Cli) -> None:
    """A collection without any ingestion has no contents, not empty contents."""
    refused(events("read", "events"), "tidelog ingest")
    refused(events("changes", "events", "--since", "0"), "tidelog ingest")


@pytest.mark.parametrize("as_of", ["5001", "1970-01-01T00:00:06Z", "2999-01-01"])
def test_as_of_past_upper(ingested: Cli, as_of: str) -> None:
    """A time that is not complete is refused with the newest complete time."""
    refused(ingested("read", "events", "--as-of", as_of), "1970-01-01T00:00:05Z")
    said = ingested("changes", "events", "--since", "0", "--until", as_of)
    refused(said, "1970-01-01T00:00:05Z")


def test_as_of_below_since(ingested: Cli) -> None:
    """A time before since is refused with the earliest readable time."""
    asyncio.run(_let_go(ingested.location, 3_000))

    refused(ingested("read", "events", "--as-of", "2999"), "1970-01-01T00:00:03Z")
    refused(ingested("changes", "events", "--since", "1"), "1970-01-01T00:00:03Z")
    assert len(ingested.done("read", "events", "--as-of", "3000").objects) == 2


async def _let_go(url: str, time: int) -> None:
    ingester = await (await open_location(url)).sources.ingester("events")
    for shard in ingester.outputs:
        for hold in list(shard.state.holds):
            await shard.move_hold(hold, time)


@pytest.mark.parametrize("as_of", ["tomorrow", "2013-13-01", "-5", "1.5", "", "9" * 19, "nan"])
def test_as_of_is_not_a_time(ingested: Cli, as_of: str) -> None:
    """A text that is no time is refused."""
    refused(ingested("read", "events", f"--as-of={as_of}"))
    refused(ingested("changes", "events", f"--since={as_of}"))


def test_changes_that_end_before_they_begin(ingested: Cli) -> None:
    """Swapped bounds are refused, with both options in the error."""
    said = ingested("changes", "events", "--since", "4000", "--until", "3000")

    refused(said, "--until", "--since")


@pytest.mark.parametrize(
    "where",
    ["name =", "nome = 'one'", "name", "id > 'x'", "count(*) > 1", "(select 1) = 1", "", "id; --"],
)
def test_wrong_sql(ingested: Cli, where: str) -> None:
    """A bad condition is refused before any output, and cannot become another statement."""
    said = ingested("read", "events", f"--where={where}")

    refused(said, "--where")
    assert said.out == ""


def test_a_file_that_was_rewritten(ingested: Cli) -> None:
    """A rewritten file is ingested as another file; the run and the status report it."""
    (ingested.folder / "events/1.jsonl").write_text('{"at": 1000, "id": 77}\n' * 40)
    said = ingested.done("ingest", "events", "--engine", "local", "--json")

    assert "was rewritten" in said.objects[-1]["notes"]["1.jsonl"]
    status = ingested.done("source", "status", "events").object
    assert "was rewritten" in status["notes"]["1.jsonl"]
    refused(ingested("source", "acknowledge", "events", "2.jsonl"), "'2.jsonl'")
    ingested.done("source", "acknowledge", "events", "1.jsonl")
    assert ingested.done("source", "status", "events").object["notes"] == {}


def test_one_run_ingests_one_source(ingested: Cli) -> None:
    """The hint must not send the user to quotes."""
    refused(ingested("ingest", "events", "others"), "name one source")


def test_a_null_key_is_set_aside(events: Cli) -> None:
    """A row with a null key becomes a bad row; the others are ingested."""
    events.write_lines("events/2.jsonl", {"at": 9_000, "id": None, "event": "start", "name": "x"})
    said = events.ingest("events", "--json")

    assert said.object["bad"] == 1
    (error,) = events.done("read", "events_errors").objects
    assert (error["file"], error["offset"]) == ("2.jsonl", 0)
    assert "id" in error["reason"]
    assert [row["id"] for row in events.done("read", "events").objects] == [1, 3]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ({"at": 9_000, "id": None, "event": "start"}, "2.jsonl at 0"),
        ({"at": 9_000, "id": 9, "event": "start", "new": 1}, "new (1)"),
        ("nonsense", "2.jsonl at 0"),
    ],
)
def test_strict_stops_before_the_rows_are_taken(
    events: Cli, line: dict[str, Any] | str, word: str
) -> None:
    """A strict run records nothing, so the file can be corrected and ingested again."""
    path = events.write_lines("events/2.jsonl", line)
    before = events.contents()
    said = events("ingest", "events", "--engine", "local", "--strict", "--json")

    refused(said, word, "--strict", status=FAILED)
    assert said.out == ""
    assert {k: v for k, v in events.contents().items() if "consensus" in k} == {
        k: v for k, v in before.items() if "consensus" in k
    }
    path.write_text(json.dumps({"at": 9_000, "id": 9, "event": "start", "name": "mended"}) + "\n")
    events.ingest("events", "--strict")
    assert [row["id"] for row in events.done("read", "events").objects] == [1, 3, 9]


def test_a_schema_that_does_not_fit(cli: Cli) -> None:
    """Each row that does not fit the schema is a bad row, whose reason names the column."""
    files = cli.write_lines("events/1.jsonl", *EVENTS)
    spec = ("--files", files, "--schema", "at bigint, id bigint, name int")
    cli.done("source", "create", "events", *spec)
    said = cli.ingest("events", "--json").object

    assert said["bad"] == 4
    assert said["dropped"] == {"event": 1}
    assert {"name" in row["reason"] for row in cli.done("read", "events_errors").objects} == {True}


def test_a_source_dropped_while_it_is_ingested(
    events: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ingester stops at its next tick with an error; the source stays dropped."""
    compute = LocalEngine.compute
    ticks = 0

    async def drop_at_the_second(self: LocalEngine, job: Job, source: RawSource) -> TickParts:
        nonlocal ticks
        ticks += 1
        if ticks == 2:
            await (await open_location(events.location)).sources.drop("events")
        return await compute(self, job, source)

    monkeypatch.setattr(LocalEngine, "compute", drop_at_the_second)
    said = events("ingest", "events", "--engine", "local", "--max-bytes-per-tick", "60", "--json")

    refused(said, "'events'", "dropped", status=FAILED)
    assert said.out == ""
    assert ticks == 2
    assert events.done("source", "list").out == ""
    assert not list((events.folder / "lake" / "status").glob("*"))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--once", "--follow"), "--once"),
        (("--engine", "flink"), "--engine"),
        (("--max-bytes-per-tick", "many"), "--max-bytes-per-tick"),
        (("--max-bytes-per-tick", "0"), "--max-bytes-per-tick"),
        (("--follow", "--interval", "0"), "--interval must be from 100ms"),
        (("--folow",), "--folow"),
        (("--master", "host:7077"), "spark://HOST:7077"),
        (("--master", "spark://host"), "spark://HOST:7077"),
        (("--master", "yarn", "--engine", "local"), "--engine local"),
        (("--conf", "spark.executor.memory=2g", "--engine", "local"), "--conf"),
        (("--conf", "spark.executor.memory"), "spark.executor.memory=4g"),
        (("--conf", "memory=2g"), "memory=2g"),
    ],
)
def test_ingest_options_that_are_wrong(
    events: Cli, unchanged: None, options: tuple[str, ...], word: str
) -> None:
    """Bad options are refused, and the location is unchanged."""
    refused(events("ingest", "events", *options), word)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("frobnicate",), ("frobnicate", "--help")),
        (("read",), ("NAME", "tidelog read --help")),
        (("read", "events", "--format", "xml"), ("--format", "table, json, csv")),
        (("read", "events", "--format", "csv", "--json"), ("--json",)),
        (("read", "events", "--limit", "-1"), ("--limit",)),
        (("read", "events", "--location", "x"), ("before the command",)),
        (("changes", "events"), ("--since",)),
        (("source", "create", "x"), ("--files",)),
        (("source", "create", "x", "--files", "a.jsonl", "b.jsonl"), ("quotes",)),
    ],
)
def test_commands_that_are_wrong(
    cli: Cli, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """A wrong command gives one sentence and a pointer to the help, not a page of usage."""
    refused(cli(*arguments), *words)


def test_a_location_that_is_a_file(cli: Cli) -> None:
    """The error blames the name, not the disk."""
    files = cli.write_lines("events/1.jsonl", *EVENTS)
    (cli.folder / "lake").write_text("a file in the way")

    refused(cli("source", "create", "events", "--files", files), "pass a directory")
    assert (cli.folder / "lake").read_text() == "a file in the way"


def test_a_location_that_is_something_else(cli: Cli) -> None:
    """A tidelog.json of another program is an error, not a location."""
    (cli.folder / "lake").mkdir()
    (cli.folder / "lake" / "tidelog.json").write_text("hello")

    refused(cli("read", "events"), "tidelog.json", status=FAILED)


def test_a_working_directory_that_is_gone(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this check, a library that asks for the directory ends the process."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    refused(cli("collection", "list"), "working directory", "cd")


def test_a_system_that_starts_no_more_threads(events: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lack of threads has a remedy, so it is not reported as a fault of tidelog."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)

    refused(events("read", "events"), "limit of memory or threads", "ulimit", status=FAILED)
