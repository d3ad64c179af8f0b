"""``tidelog ingest --all``: one process, one status, one summary, and the exit status of errors."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cli.conftest import Cli, refused
from cli.test_main import on_terminal, spawn
from kit.sources import bind
from tidelog.cli.main import status_of
from tidelog.errors import GoneError, LocationError, SourcesFailed, UsageError
from tidelog.location import open_location


async def bind_all(url: str, name: str) -> None:
    """Bind the files of a source, like a command that is killed afterwards."""
    assert await bind(await (await open_location(url)).sources.ingester(name))


@pytest.fixture
def two(cli: Cli) -> Cli:
    """The sources ``a`` and ``b`` of files, with two rows and one."""
    cli.write_lines("a/1.jsonl", {"n": 1}, {"n": 2})
    cli.write_lines("b/1.jsonl", {"n": 3})
    for name in "ab":
        cli.done("source", "create", name, "--files", cli.folder / name)
    return cli


@contextmanager
def following(cli: Cli, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command with --all and --follow, and kill it at the end if it still runs."""
    whole = ("ingest", "--all", "--follow", "--engine", "local", "--interval", "100ms", "--json")
    process = spawn("--location", cli.location, *whole, *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def line_of(process: subprocess.Popen[str], source: str, key: str) -> dict[str, object]:
    """Return the next line about a source that has a key."""
    assert process.stderr is not None
    for text in process.stderr:
        found: dict[str, object] = json.loads(text)
        if found["source"] == source and key in found:
            return found
    raise AssertionError(f"no line of {source} with {key}")


def test_all_sources_are_ingested_with_one_summary(two: Cli) -> None:
    """Each line of a tick names its source. The summary has each source, and the sums."""
    said = two.done("ingest", "--all", "--engine", "local", "--json")

    assert {report["source"] for report in said.reports} == {"a", "b"}
    summary = said.object
    assert (summary["rows"], summary["failed"]) == (3, {})
    sources = summary["sources"]
    assert {name: one["rows"] for name, one in sources.items()} == {"a": 2, "b": 1}
    assert {one["engine"] for one in sources.values()} == {"local"}
    assert summary["store"]["put_count"] == sum(o["store"]["put_count"] for o in sources.values())
    assert all(one["complete_to"] for one in sources.values())
    assert two.done("source", "status", "a", "--json").object["run"]["rows"] == 2
    assert len(two.done("read", "a").objects) == 2


def test_a_location_without_sources_is_no_failure(cli: Cli) -> None:
    """A scheduled command may run before the first source exists."""
    cli.done("log", "create", "l")

    said = cli.done("ingest", "--all", "--json")
    assert (said.object["sources"], said.object["rows"]) == ({}, 0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "needs the NAME of a source, or --all"),
        (("x", "--all"), "--all and the name 'x' exclude each other"),
        (("--all", "--once", "--follow"), "--once and --follow exclude each other"),
        (("--all", "--interval", "1s"), "--interval needs --follow"),
        (("--all", "--max-bytes-per-tick", "0"), "is not a number of bytes"),
    ],
)
def test_wrong_usage_is_refused_before_the_location_is_opened(
    cli: Cli, words: tuple[str, ...], told: str
) -> None:
    """The location does not exist, and the error is not about that."""
    refused(cli("ingest", *words), told)


def test_a_read_only_connection_refuses(two: Cli) -> None:
    """Ingestion writes, so the command is refused, and nothing changes."""
    before = two.contents()

    said = two.run("--location", two.location, "--read-only", "ingest", "--all")
    refused(said, "the connection is read-only")
    assert two.contents() == before


def test_a_failed_source_is_reported_and_the_others_continue(two: Cli) -> None:
    """The exit status is that of the error. Both the line and the summary name the source."""
    asyncio.run(bind_all(two.location, "b"))
    (two.folder / "b/1.jsonl").unlink()

    said = two("ingest", "--all", "--engine", "local", "--json")
    complaint = refused(said, "1 of 2 sources failed: b: ", "source skip b 1.jsonl", status=1)
    assert "Traceback" not in complaint
    (line,) = [report for report in said.reports if "error" in report]
    assert (line["source"], line["kind"], "pause_seconds" in line) == ("b", "gone", False)
    assert said.object["failed"]["b"]["kind"] == "gone"
    assert said.object["sources"]["a"]["rows"] == 2
    assert two("source", "status", "b", "--check", "--json").status == 1


def test_the_exit_status_is_the_one_that_all_errors_share() -> None:
    """Different errors give status 1."""
    store, gone = LocationError("x"), GoneError("x")

    assert status_of(SourcesFailed("x", {"a": store, "b": store})) == 3
    assert status_of(SourcesFailed("x", {"a": UsageError("x")})) == 2
    assert status_of(SourcesFailed("x", {"a": store, "b": gone})) == 1


def test_sigterm_ends_all_sources_after_their_ticks(two: Cli) -> None:
    """The process takes a source that is created meanwhile, and ends with a summary."""
    two.write_lines("c/1.jsonl", {"n": 4})
    with following(two) as process:
        line_of(process, "a", "tick")
        two.done("source", "create", "c", "--files", two.folder / "c")
        line_of(process, "c", "tick")
        two.done("source", "drop", "b", "--yes")
        assert line_of(process, "b", "error")["kind"] == "gone"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)

        assert (process.returncode, "Traceback" in err) == (0, False)
        summary = json.loads(out)
        assert {name: one["rows"] for name, one in summary["sources"].items()} == {
            "a": 2,
            "b": 1,
            "c": 1,
        }
    assert [len(two.done("read", name).objects) for name in "ac"] == [2, 1]


def test_ctrl_c_ends_all_sources_cleanly(two: Cli) -> None:
    """Ctrl-C prints one line and no traceback, and loses no committed row."""
    with following(two) as process:
        line_of(process, "b", "tick")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)

        assert (process.returncode, out) == (130, "")
        assert err.splitlines()[-1] == "tidelog: interrupted"
        assert "Traceback" not in err
    two.done("ingest", "--all")
    assert [len(two.done("read", name).objects) for name in "ab"] == [2, 1]


def test_a_terminal_shows_a_line_for_each_source_and_the_sums(two: Cli) -> None:
    """Errors name their source, and the end has no traceback."""
    shown = on_terminal("--location", two.location, "ingest", "--all", "--engine", "local")
    assert "a: 2 rows in 1 tick in this process" in shown
    assert "b: 1 row in 1 tick in this process" in shown
    assert "2 sources: 3 rows in 2 ticks, 0 late, 0 bad" in shown

    two.write_lines("b/2.jsonl", {"n": 5})
    asyncio.run(bind_all(two.location, "b"))
    (two.folder / "b/2.jsonl").unlink()
    shown = on_terminal(
        "--location", two.location, "ingest", "--all", "--engine", "local", status=1
    )
    assert "\nb: " in shown
    assert "tidelog: 1 of 2 sources failed: b: " in shown
