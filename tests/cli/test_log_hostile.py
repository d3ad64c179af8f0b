"""``tidelog log`` with arguments that nobody types, and without the usual files: no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Cli
from cli.test_log_upkeep import fill

COMMAND = (sys.executable, "-m", "tidelog.cli.main")
NAMES = ("\udc80", "a\0b", "9" * 400, "", "../..", "a\nb", "\x1b[31m", "💥")
NUMBERS = ("9" * 400, "-" + "9" * 30, "1e999", "nan", "a\0b", "\udc80", "0x1", "", str(2**64))


def is_clean(cli: Cli, *arguments: str) -> bool:
    """Say whether a command did it, or said in one sentence why not, which was foreseen."""
    said = cli("log", *arguments)
    if said.status == 0:
        return True
    return said.status in (1, 2, 3) and "not foreseen" not in said.complaint


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_no_name_of_anything_ends_in_a_traceback(cli: Cli, name: str) -> None:
    """A log, a cursor, a pin, a stream, a successor, a protocol, a file."""
    fill(cli, "a", 2)
    verbs = [
        *([verb, name] for verb in ("create", "describe", "scan", "scrub", "seal", "rebuild")),
        *(["cursor", verb, "a", name] for verb in ("create", "delete")),
        *(["pin", verb, "a", name] for verb in ("create", "release")),
        *(["stream", verb, "a", name] for verb in ("open", "close")),
        ["scan", "a", f"--pin={name}"],
        ["scan", "a", f"--stream={name}"],
        ["scan", "a", f"--format={name}"],
        ["append", "a", name],
        ["fork", "a", name],
        ["copy", "a", name],
        ["copy", "a", "b", f"--protocol={name}"],
        ["adopt", f"{cli.folder}/{name}", "c"],
        ["export", "a", f"{cli.folder}/to/{name}"],
        ["destroy", name, "--yes", "--grace=0"],
        ["seal", "a", f"--successor={name}"],
    ]
    assert [verb for verb in verbs if not is_clean(cli, *verb)] == []


@pytest.mark.parametrize("number", NUMBERS, ids=ascii)
def test_no_number_ends_in_a_traceback(cli: Cli, number: str) -> None:
    """Positions, counts, shares, seconds and paces."""
    fill(cli, "a", 2)
    cli.done("log", "cursor", "create", "a", "c")
    verbs = [
        ["scan", "a", f"--from={number}"],
        ["scan", "a", f"--to={number}"],
        ["scan", "a", f"--limit={number}"],
        ["scrub", "a", f"--from={number}"],
        ["cursor", "move", "a", "c", f"--at={number}"],
        ["pin", "create", "a", "p", f"--to={number}"],
        ["fork", "a", "f", f"--from={number}"],
        ["copy", "a", "b", f"--from={number}"],
        ["rebuild", "a", f"--start={number}"],
        ["collect", "a", f"--grace={number}"],
        ["collect", "a", "--grace=0", f"--keep-from={number}"],
        ["collect", "a", "--grace=0", f"--keep-records={number}"],
        ["collect", "a", "--grace=0", f"--share-max={number}"],
        ["collect", "a", "--grace=0", f"--deletes-per-second={number}"],
    ]
    assert [verb for verb in verbs if not is_clean(cli, *verb)] == []


@pytest.mark.parametrize(
    ("closed", "arguments", "status", "told"),
    [
        (0, ["append", "a"], 2, "standard input is closed"),
        (0, ["destroy", "a"], 2, "nobody is there to ask"),
        (1, ["scan", "a"], 1, "standard output is closed"),
        (2, ["scan", "nosuch"], 2, ""),
    ],
)
def test_a_standard_file_that_is_closed_is_told(
    cli: Cli, closed: int, arguments: list[str], status: int, told: str
) -> None:
    """As a shell does with ``<&-``; nothing was begun, and no message becomes output."""
    fill(cli, "a", 1)
    before = cli.contents()
    close: Callable[[], None] = lambda: os.close(closed)  # noqa: E731
    ended = subprocess.run(
        [*COMMAND, "--location", cli.location, "log", *arguments],
        preexec_fn=close,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (status, "")
    assert told in ended.stderr
    assert ended.stderr.count("\n") == bool(told)
    assert cli.contents() == before


def test_a_file_that_cannot_be_read_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of it that were acknowledged stay, and are counted."""
    cli.done("log", "create", "a")
    path = cli.folder / "lines"
    path.write_text("one\ntwo\n")

    def refuse(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tidelog.cli.log.feed.os.read", refuse)
    said = cli("log", "append", "a", Path(path))
    assert said.status == 2
    assert "cannot be read to its end" in said.err
    assert "0 records had been appended" in said.err
    assert "Traceback" not in said.err
