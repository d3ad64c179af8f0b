"""Sources without files: their creation, ingestion and descriptions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cli.conftest import Cli
from kit.doc_tours import Tour
from tidelog.cli.source_description import times_from
from tidelog.collection.catalog.catalog import SourceInfo


def test_a_generator_is_made_and_read(cli: Cli) -> None:
    """A generator needs no file, and every description shows its settings."""
    said = cli.done("source", "create", "g", "--generator", "counter", "--set", "rows=3")
    assert "  n " in said.err + said.out

    assert cli.ingest("g", "--json").object["rows"] == 3
    assert [row["n"] for row in cli.done("read", "g", "--json").objects] == [0, 1, 2]
    found = cli.done("source", "describe", "g", "--json").object
    assert (found["kind"], found["files"], found["format"]) == ("generator", None, "rows")
    assert found["settings"] == {"rows": "3", "shape": "counter", "start": "946684800000000"}
    assert cli.done("source", "status", "g", "--json").object["reached"] == {"counter": 3}


def test_a_log_is_a_source_by_its_name(cli: Cli) -> None:
    """The records of a log become rows, or the fields of their json do."""
    cli.done("log", "create", "orders")
    cli.done("log", "append", "orders", given=b'{"id": 1}\n{"id": 2}\nx\n')
    cli.done("source", "create", "raw", "--log", "orders")
    cli.done("source", "create", "fields", "--log", "orders", "--format", "json")

    for name, rows in (("raw", 3), ("fields", 2)):
        assert cli.ingest(name, "--json").object["rows"] == rows
    assert [row["id"] for row in cli.done("read", "fields", "--json").objects] == [1, 2]
    (error,) = cli.done("read", "fields_errors", "--json").objects
    assert (error["file"], error["text"]) == ("orders", "x")
    held = [
        line["cursor"] for line in cli.done("log", "cursor", "list", "orders", "--json").objects
    ]
    assert [name.rpartition("_o")[0] for name in held] == ["source_fields", "source_raw"]


def test_a_collection_is_a_source_by_its_name(cli: Cli, tmp_path: Path) -> None:
    """The lines of files are a raw collection, and another source decodes them."""
    (tmp_path / "1.log").write_text('{"id": 1}\nx\n')
    cli.done("source", "create", "raw", "--files", f"{tmp_path}/*.log", "--format", "text")
    options = ("--collection", "raw", "--format", "json", "--schema", "id bigint")
    cli.done("source", "create", "fields", *options, "--column", "line")
    cli.done("source", "create", "same", "--collection", "raw")
    cli.ingest("raw")

    assert cli.ingest("fields", "--json").object["rows"] == 1
    assert cli.ingest("same", "--json").object["rows"] == 2
    assert [row["id"] for row in cli.done("read", "fields", "--json").objects] == [1]
    (error,) = cli.done("read", "fields_errors", "--json").objects
    assert (error["file"], error["text"]) == ("raw", "x")
    found = cli.done("source", "describe", "fields", "--json").object
    assert (found["kind"], found["settings"]["column"]) == ("collection", "line")
    assert list(cli.done("source", "status", "fields", "--json").object["reached"]) == ["raw"]


def test_the_origin_of_times_is_told() -> None:
    """The times of a source are from the clock, from a column, or from another collection."""
    one = SourceInfo(id="i", name="s", rendition="r", url="", patterns=(), format="json")
    assert times_from(one) == "the clock"
    assert times_from(msgspec.structs.replace(one, time_column="at")) == "at"
    other = msgspec.structs.replace(one, kind="collection", settings={"collection": "raw"})
    assert times_from(other) == "the collection raw"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--collection", "raw", "--log", "l"), "--log and --collection exclude each other"),
        (("--collection", "s"), "would read its own rows"),
        (("--collection", "raw", "--column", "v"), "--column names the text to decode"),
        (("--collection", "raw", "--evolve"), "with their times: remove --evolve"),
        (("--log", "l", "--column", "v"), "--column names a column of --collection"),
        (("--collection", "raw"), "no location exists"),
        ((), "pass --files, --log, --kafka, --generator, --collection or --kind"),
        (("--files", "x", "--log", "y"), "--files and --log exclude each other"),
        (("--generator", "counter", "--set", "rows"), "--set 'rows': write NAME=VALUE"),
        (("--generator", "counter", "--set", "a=1", "--set", "a=2"), "each name once"),
        (("--generator", "dice"), "--generator must be one of counter, key-value, not 'dice'"),
        (
            ("--generator", "counter", "--format", "parquet"),
            "must be one of rows, json, csv, avro, text, bytes, not 'parquet'",
        ),
        (("--generator", "counter", "--format", "json"), "has no text to decode"),
        (("--log", "l", "--format", "avro"), "needs --avro-schema: the text of the schema"),
        (("--log", "l", "--avro-schema", "no/file"), "--avro-schema 'no/file' cannot be read"),
        (("--generator", "counter", "--delimiter", ";"), "need --format csv"),
        (("--kind", "pigeon"), "no kind of source named 'pigeon'"),
        (("--kafka", "x:1"), "--kafka needs --topic: the topics to read"),
        (("--topic", "t", "--log", "l"), "--topic names a topic of --kafka: pass that"),
        (
            ("--kafka", "x:1", "--topic", "t", "--set", "sasl.password=open sesame"),
            "--set sasl.password would be stored, so it must not have the secret itself",
        ),
        (("--kafka", "x:1", "--topic", "t", "--set", "acks=all"), "--set acks is not a setting"),
        (
            ("--log", "l", "--include", "time"),
            "--include adds columns to decoded text, and the format 'rows' has all columns",
        ),
        (("--log", "no/../../.."), "no log named"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(
    cli: Cli, arguments: tuple[str, ...], said: str
) -> None:
    """A mistake gives one sentence, and makes no location."""
    done = cli("source", "create", "s", *arguments)

    assert done.status in (1, 2)
    assert said in done.complaint
    assert not (cli.folder / "lake").exists()


def test_what_lateness_holds_back_comes_in_at_the_end(cli: Cli) -> None:
    """--final releases the rows within the lateness, and describe shows it."""
    made = ("--generator", "counter", "--set", "rows=3000", "--time-column", "time")
    cli.done("source", "create", "g", *made, "--lateness", "1s")

    assert cli.ingest("g", "--json").object["rows"] == 2_000
    assert cli.ingest("g", "--json", "--final").object["rows"] == 1_000
    assert cli.done("source", "describe", "g", "--json").object["lateness_ms"] == 1_000
    refused = cli("source", "create", "h", "--generator", "counter", "--lateness", "1s")
    assert refused.status == 2
    assert "--lateness needs --time-column" in refused.complaint


def test_the_page_of_sources_ingests_each_row(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log and the generator of the page give 1,000 rows each: the generator has 1,000 keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDELOG_LOCATION", cli.location)
    Tour().run("docs/guides/sources.md")

    assert len(cli.done("read", "numbers", "--json").objects) == 1_000
    assert len(cli.done("read", "pairs", "--json").objects) == 1_000


def test_files_of_several_places(cli: Cli) -> None:
    """Each place is shown as given; places in different stores are refused."""
    for number, folder in enumerate(("a", "b")):
        cli.write_lines(f"{folder}/1.jsonl", {"n": number})
    places = ("--files", cli.folder / "a", "--files", cli.folder / "b" / "*.jsonl")
    cli.done("source", "create", "both", *places)
    told = cli.done("source", "describe", "both", "--json").object["files"]
    assert told == [f"file://{cli.folder}/a/**", f"file://{cli.folder}/b/*.jsonl"]
    shown = cli.done("source", "describe", "both").out
    assert all(place in shown.replace("\n", "").replace(" ", "") for place in told)
    cli.done("ingest", "both")
    assert cli.done("read", "both", "--format", "csv").out.splitlines()[1:] == ["0", "1"]
    for other, words in (
        (("--files", "s3://b/a"), "different stores"),
        (("--log", "x"), "exclude"),
    ):
        refused = cli("source", "create", "x", "--files", "a", *other)
        assert refused.status == 2
        assert words in refused.complaint


def test_a_source_takes_new_fields_by_itself(cli: Cli, tmp_path: Path) -> None:
    """The output names the new columns, and the description tells the option."""
    (tmp_path / "1.jsonl").write_text('{"id": 1}\n')
    cli.done("source", "create", "c", "--files", str(tmp_path / "*.jsonl"), "--evolve")
    cli.ingest("c")
    (tmp_path / "2.jsonl").write_text('{"id": 2, "x": 5}\n')
    assert "the source took the new column 'x'" in cli.ingest("c").err
    assert {"id": 2, "x": 5} in cli.done("read", "c", "--json").objects
    assert cli.done("source", "describe", "c", "--json").object["evolve"] is True
