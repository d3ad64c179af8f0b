"""Appends next to another writer: the command names the writer that it takes over from."""

from __future__ import annotations

import re

import tidelog
from cli.conftest import Cli

LINES = b'{"key": "a", "value": "1"}\n'
TAKEN = r"was open for the writer (\S+:\d+): this command fenced that writer"


def test_a_command_names_the_writer_that_it_takes_a_keyed_log_from(cli: Cli) -> None:
    """The fenced writer may be a server, whose user must learn the reason."""
    cli.done("keyed", "create", "k")
    assert "fenced that writer" not in cli.done("keyed", "append", "k", given=LINES).err
    with tidelog.connect(cli.location) as lake, lake.keyed.open("k") as log:
        log.append([(b"a", b"2")])
        assert re.search(TAKEN, cli.done("keyed", "append", "k", given=LINES).err)
    assert "fenced that writer" not in cli.done("keyed", "append", "k", given=LINES).err


def test_a_command_names_the_writer_that_it_takes_a_log_from(cli: Cli) -> None:
    """The same holds for a log without keys."""
    cli.done("log", "create", "other")
    with tidelog.connect(cli.location) as lake, lake.logs.create("plain") as log:
        log.append([b"1"])
        assert re.search(TAKEN, cli.done("log", "append", "plain", given=b"2\n").err)
    assert "fenced that writer" not in cli.done("log", "append", "plain", given=b"3\n").err
