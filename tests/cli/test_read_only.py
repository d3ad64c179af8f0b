"""``tidelog --read-only``: reading commands, and commands that are refused."""

from __future__ import annotations

import os
from typing import Any

import pytest

from cli.conftest import Cli, refused
from tidelog.cli.command import READS
from tidelog.keyed.logs import KeyedLogs
from tidelog.server.keyed_logs import KeyedPlace
from tidelog.store.wrappers.read_only import READ_ONLY_VARIABLE, is_read_only


@pytest.fixture
def filled(cli: Cli) -> Cli:
    cli.done("log", "create", "l")
    cli.done("log", "append", "l", given=b"a\nb\n")
    cli.done("table", "create", "t", "--schema", "n int, v text", "--key", "n")
    cli.done("table", "insert", "t", given=b'{"n": 1, "v": "x"}\n')
    return cli


@pytest.mark.parametrize(
    "words",
    [
        "log scan l",
        "log list",
        "read t",
        "changes t --since 0",
        "history t",
        "inspect",
        "scrub",
        "sql 'SELECT * FROM t'",
    ],
)
def test_reading_commands_print_the_same(filled: Cli, words: str) -> None:
    """The option changes no output, and a read changes no file."""
    arguments = words.replace("'", "").split(" ", 1 if words.startswith("sql") else -1)
    before = filled.contents()
    expected = filled.done(*arguments)

    said = filled.run("--read-only", "--location", filled.location, *arguments)

    assert (said.status, said.out) == (0, expected.out)
    assert filled("--read-only", *arguments).out == expected.out
    assert filled.contents() == before


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("log append", "l"),
        ("log create", "m"),
        ("table drop", "t --yes"),
        ("compact", ""),
        ("collect", ""),
        ("ingest", "s"),
    ],
)
def test_writing_commands_are_refused(filled: Cli, name: str, rest: str) -> None:
    """The message names the option, and nothing changes."""
    before = filled.contents()

    said = filled("--read-only", *name.split(), *rest.split())

    refused(said, f"the connection is read-only: run 'tidelog {name}' without --read-only")
    assert filled.contents() == before


def test_no_location_is_created(cli: Cli) -> None:
    """A reading command fails with the usual error, and a writing one is refused."""
    refused(cli("--read-only", "log", "list"), "no location exists")
    refused(cli("--read-only", "log", "create", "l"), "read-only")

    assert not (cli.folder / "lake").exists()


def test_the_demo_is_refused_before_it_deletes_a_folder(cli: Cli) -> None:
    """The demo creates a location of its own."""
    kept = cli.folder / "demo" / "lake"
    kept.mkdir(parents=True)

    refused(cli("--read-only", "demo", "--folder", cli.folder / "demo"), "read-only")

    assert kept.exists()


def test_the_option_applies_to_one_command(filled: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later command in the same process writes; the environment applies to each of them."""
    filled.done("--read-only", "log", "list")
    assert READ_ONLY_VARIABLE not in os.environ
    filled.done("log", "append", "l", given=b"c\n")

    monkeypatch.setenv(READ_ONLY_VARIABLE, "on")
    refused(filled("log", "create", "m"), "without TIDELOG_READ_ONLY=on")
    filled.done("--read-only", "log", "list")
    assert os.environ[READ_ONLY_VARIABLE] == "on"

    monkeypatch.setenv(READ_ONLY_VARIABLE, "yes")
    refused(filled("log", "list"), "TIDELOG_READ_ONLY must be on or off, not 'yes'")


def test_the_option_stands_before_the_command(filled: Cli) -> None:
    """After the command it belongs to `tidelog serve` only."""
    refused(
        filled("log", "list", "--read-only"),
        "no such option: --read-only; write it before the command",
    )


def test_help_of_a_writing_command_is_shown(cli: Cli) -> None:
    """Only the command itself is refused."""
    said = cli("--read-only", "table", "create", "--help")

    assert said.status == 0
    assert "Create a table" in said.out
    assert "table create" not in READS


@pytest.mark.parametrize("words", [("--read-only", "serve"), ("serve", "--read-only")])
def test_a_read_only_server_writes_nothing(
    filled: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    """Both options make a server that refuses appends and whose connection is read-only."""
    opened: list[tuple[KeyedPlace, bool]] = []

    def routers(place: KeyedPlace, *_: object, is_read_only: bool, **__: object) -> list[Any]:
        opened.append((place, is_read_only))
        return []

    async def ended(*_: object) -> None:
        """Serve no request."""

    monkeypatch.setattr("tidelog.server.keyed_router.routers_of", routers)
    monkeypatch.setattr("tidelog.server.serving.serve", ended)

    filled.done(*words, "--port", "0")

    ((place, refuses_appends),) = opened
    assert isinstance(place, KeyedLogs)
    assert (refuses_appends, is_read_only(place.store)) == (True, True)
