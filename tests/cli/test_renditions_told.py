"""Renditions in the shell: messages and listings, checks, copies, sources of collections."""

from __future__ import annotations

import pytest

from cli.conftest import Cli, refused
from cli.test_main import on_terminal
from tidelog.cli.engine import LateSpark
from tidelog.collection.formats.times import format_time
from tidelog.collection.ingest.copy_job import CopyJob, StepParts
from tidelog.collection.ingest.engine import LocalEngine


def shown(cli: Cli, *arguments: str) -> str:
    """Return the output of a command on a terminal of 50 columns, each space once."""
    return " ".join(on_terminal("--location", cli.location, *arguments).split())


@pytest.fixture
def parts(cli: Cli) -> Cli:
    """A source of two rows, and a rendition of it with a key, both ingested."""
    cli.write_lines("in/1.jsonl", {"n": 1, "code": "a"}, {"n": 2, "code": "a"})
    cli.done("source", "create", "parts", "--files", cli.folder / "in")
    cli.done("ingest", "parts")
    key = ("--envelope", "upsert", "--key", "code")
    cli.done("rendition", "create", "keyed", "--of", "parts", *key)
    return cli


def test_rendition_with_a_key_is_compared_by_names_of_columns(parts: Cli) -> None:
    """A key moves its columns to the front, which is no difference of the rows."""
    parts.done("ingest", "keyed")

    found = parts.done("rendition", "diff", "parts", "keyed").objects
    backwards = parts.done("rendition", "diff", "keyed", "parts").objects

    (row,) = found
    assert (row["n"], row["code"], row["_diff"]) == (1, "a", -1)
    assert backwards[0]["_diff"] == 1


def test_diff_names_the_last_time_compared(parts: Cli) -> None:
    """Later updates of one rendition are not compared, so zero differences need their time."""
    parts.done("ingest", "keyed")
    until = parts.done("rendition", "describe", "parts").object["upper"] - 1

    said = shown(parts, "rendition", "diff", "parts", "parts")
    given = shown(parts, "rendition", "diff", "parts", "parts", "--as-of", str(until))

    assert "0 updates in which 'parts' and 'parts' differ, up to 20" in said
    assert f"differ, up to {until}" in given


def test_other_columns_are_named_with_their_rendition(parts: Cli) -> None:
    """The user must see which rendition has which columns."""
    parts.done(
        "rendition", "create", "text", "--of", "parts", "--schema", "n varchar, code varchar"
    )

    said = parts.run("--location", parts.location, "rendition", "diff", "parts", "text")

    refused(said, "'parts' has n BIGINT, code VARCHAR; 'text' has n VARCHAR, code VARCHAR")


def test_empty_rendition_is_refused_with_the_command_that_fills_it(parts: Cli) -> None:
    """A time in 1970 would not tell a newcomer that the rendition is empty."""
    said = parts.run(
        "--location", parts.location, "collection", "handover", "parts", "--to", "keyed"
    )
    read = parts.run("--location", parts.location, "read", "keyed_errors")

    refused(said, "'keyed' has no complete time yet: run 'tidelog ingest keyed'")
    refused(read, "no complete time yet: run 'tidelog ingest keyed' first")


def test_name_of_a_rendition_is_not_a_collection(parts: Cli) -> None:
    """A list of existing collections would not say why the name is not one of them."""
    for verb in ("list", "history"):
        said = parts.run("--location", parts.location, "rendition", verb, "keyed")
        refused(said, "'keyed' is a rendition of the collection 'parts': name that one")


def test_options_of_decoding_that_a_copy_refuses_are_named_as_options(parts: Cli) -> None:
    """The user wrote options, so the message names options."""
    schema = ("--schema", "n int, code varchar")

    said = parts.run(
        "--location", parts.location, "rendition", "create", "b", "--of", "parts", "--copy", *schema
    )

    refused(said, "leave out --schema, or --copy")


def test_copy_of_a_dropped_rendition_is_called_a_copy(parts: Cli) -> None:
    """Its rows did not come from the source, also after the drop."""
    parts.done("rendition", "create", "b", "--of", "parts", "--copy")
    parts.done("ingest", "b")
    parts.done("collection", "handover", "parts", "--to", "b")
    parts.done("ingest", "parts")
    parts.done("rendition", "drop", "keyed", "--yes")
    parts.done("rendition", "drop", "parts", "--yes")

    assert "copied from a dropped rendition" in shown(parts, "rendition", "describe", "b")


def test_times_of_renditions_are_never_broken(parts: Cli) -> None:
    """If a terminal is too narrow for three times, a rendition becomes lines of name and value."""
    parts.done("ingest", "keyed")
    at = parts.done("collection", "handover", "parts", "--to", "keyed").object["at"]

    said = shown(parts, "rendition", "list", "parts")

    assert f"read before {format_time(at)}" in said
    assert f"read from {format_time(at)}" in said


def test_check_fails_if_no_row_can_be_compared(parts: Cli) -> None:
    """Ticks without rows prove nothing about the rows whose file is gone."""
    parts.done("ingest", "parts", "--final")
    (parts.folder / "in" / "1.jsonl").unlink()

    said = parts.run("--location", parts.location, "source", "check", "parts")

    assert said.status == 1
    assert "Computed 0 rows" in said.err
    assert "'1.jsonl' is gone" in said.err


def test_source_of_a_collection_is_described_in_words_and_times(cli: Cli) -> None:
    """The creation of the input and an address of 13 digits mean nothing to a user."""
    (cli.folder / "in").mkdir()
    (cli.folder / "in" / "1.log").write_text('{"n": 1}\n')
    cli.done("source", "create", "raw", "--files", cli.folder / "in", "--format", "text")
    cli.done("ingest", "raw")
    cli.done("source", "create", "codes", "--collection", "raw", "--format", "json")
    cli.done("ingest", "codes")

    status = shown(cli, "source", "status", "codes")
    described = shown(cli, "source", "describe", "codes")

    assert "read to raw: 20" in status
    assert "the collection raw, column line format" in described
    assert "created=" not in described


@pytest.mark.parametrize(("least", "engine"), [(1 << 30, "local"), (1, "spark")])
def test_a_large_copy_is_done_on_spark(
    events: Cli, monkeypatch: pytest.MonkeyPatch, *, least: int, engine: str
) -> None:
    """The stored bytes that are not copied yet decide. The rows are those of the other one."""
    events.done("ingest", "events", "--engine", "local")
    events.done("rendition", "create", "copy", "--of", "events", "--shards", "2", "--copy")
    ran: list[str] = []

    async def copy(late: LateSpark, job: CopyJob) -> StepParts:
        ran.append(late.name)
        local = LocalEngine(store=late.location.store, clock=late.location.clock)
        return await local.copy(job)

    monkeypatch.setattr("tidelog.cli.engine.LateSpark.copy", copy)
    monkeypatch.setattr("tidelog.cli.engine.SPARK_BYTES_MIN", least)
    monkeypatch.setattr("tidelog.cli.engine._has_java", lambda: True)

    said = events.done("ingest", "copy", "--json").object

    assert (said["engine"], bool(ran)) == (engine, engine == "spark")
    assert said["rows"] > 0
    assert events.done("rendition", "diff", "events", "copy", "--json").out == ""


@pytest.mark.parametrize(
    ("source", "rendition", "why"),
    [
        (
            "--forget-bindings",
            "--shards=2",
            "the source does not keep its bindings: see --keep-bindings",
        ),
        ("--evolve", "--shards=2", "the source may add columns"),
        ("--shards=1", "--time-column=n", "its ticks differ by --time-column"),
    ],
)
def test_reason_for_times_of_its_own_is_one(
    cli: Cli, source: str, rendition: str, why: str
) -> None:
    """A user cannot choose between two possible reasons."""
    cli.write_lines("in/1.jsonl", {"n": 1, "code": "a"})
    cli.done("source", "create", "parts", "--files", cli.folder / "in", source)

    said = shown(cli, "rendition", "create", "b", "--of", "parts", rendition)

    assert f"It has times of its own, because {why}." in said


def test_wrong_name_of_a_rendition_is_not_called_that_of_a_source(parts: Cli) -> None:
    """The message names the thing that the user wanted to create."""
    said = parts.run("--location", parts.location, "rendition", "create", "a b", "--of", "parts")

    refused(said, "'a b' cannot be the name of a rendition")


def test_collection_is_described_with_the_name_of_its_rendition(parts: Cli) -> None:
    """A user does not know the ids of renditions."""
    parts.done("ingest", "keyed")
    parts.done("collection", "handover", "parts", "--to", "keyed")
    parts.done("ingest", "parts")

    assert "renditions keyed, 1 shard, active" in shown(parts, "collection", "describe", "parts")
    (found,) = parts.done("collection", "describe", "parts").object["renditions"]
    assert found["name"] == "keyed"


def test_history_ends_with_a_sentence_about_its_last_time(parts: Cli) -> None:
    """A newcomer does not know the word upper."""
    said = parts.done("rendition", "history", "parts")

    assert "No other change comes before 20" in said.err


def test_holds_and_drops_name_the_sources_that_read_a_collection(cli: Cli) -> None:
    """The name of such a hold has an id, which a user has never seen."""
    cli.done("table", "create", "raw", "--schema", "line varchar")
    cli.done("source", "create", "codes", "--collection", "raw", "--format", "text")
    purpose = "the source 'codes' reads from here"

    (hold,) = [
        one
        for one in cli.done("hold", "list", "raw", "--json").object["holds"]
        if one["hold"].startswith("source-")
    ]
    inspected = cli.done("inspect", "raw", "--json").objects[0]
    told = shown(cli, "inspect", "raw")
    dropped = cli.done("table", "drop", "raw", "--yes")

    assert hold["purpose"] == purpose
    assert inspected["purposes"][hold["hold"]] == purpose
    assert f"({purpose})" in told
    assert dropped.object["read_by"] == ["codes"]
    assert "The source 'codes' reads it: its rows stay" in dropped.err


def test_drop_of_a_source_names_each_source_that_reads_it(parts: Cli) -> None:
    """Those sources get no more rows, so the user must know before the next ingestion."""
    for name in ("b", "a"):
        parts.done("source", "create", name, "--collection", "parts")
    parts.done("rendition", "drop", "keyed", "--yes")

    dropped = parts.done("source", "drop", "parts", "--yes")

    assert dropped.object["read_by"] == ["a", "b"]
    assert "The sources a, b read it: their rows stay" in dropped.err


def test_hold_of_a_copy_is_named(parts: Cli) -> None:
    """The hold keeps the copied rendition, and its name has an id."""
    parts.done("rendition", "create", "b", "--of", "parts", "--copy")

    held = parts.done("hold", "list", "parts", "--json").object["holds"]

    assert "the rendition 'b' copies from here" in [one["purpose"] for one in held]
