"""``tidelog log`` with absurd arguments and closed standard files: no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Cli
from cli.test_log_maintenance import fill
from tidelog.wal.append import bodies

COMMAND = (sys.executable, "-m", "tidelog.cli.main")
NAMES = ("\udc80", "a\0b", "9" * 400, "", "../..", "a\nb", "\x1b[31m", "💥")
LARGE = ("9" * 400, "9" * 5_000, "-" + "9" * 30, str(2**64))
NUMBERS = (*LARGE, "1e999", "nan", "a\0b", "\udc80", "0x1", "")


def is_clean(cli: Cli, *arguments: str) -> bool:
    """Return True if a command succeeded, or gave one foreseen sentence."""
    said = cli("log", *arguments)
    if said.status == 0:
        return True
    return said.status in (1, 2, 3) and "not foreseen" not in said.complaint


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_no_name_of_anything_ends_in_a_traceback(cli: Cli, name: str) -> None:
    """A name may be that of a log, a cursor, a pin, a stream, a successor, a protocol or a file."""
    fill(cli, "a", 2)
    verbs = [
        *([verb, name] for verb in ("create", "describe", "scan", "scrub", "seal", "rebuild")),
        *(["cursor", verb, "a", name] for verb in ("create", "delete")),
        *(["pin", verb, "a", name] for verb in ("create", "drop")),
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
        ["drop", name, "--yes", "--grace=0"],
        ["seal", "a", f"--successor={name}"],
    ]
    assert [verb for verb in verbs if not is_clean(cli, *verb)] == []


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: ascii(number)[:40])
def test_no_number_ends_in_a_traceback(cli: Cli, number: str) -> None:
    """A number may be a position, a count, a share, seconds or a rate."""
    fill(cli, "a", 2)
    cli.done("log", "cursor", "create", "a", "c")
    verbs = [
        ["scan", "a", f"--from={number}"],
        ["scan", "a", f"--to={number}"],
        ["scan", "a", f"--limit={number}"],
        ["scrub", "a", f"--from={number}"],
        ["cursor", "move", "a", "c", f"--at={number}"],
        ["cursor", "create", "a", "d", f"--at={number}"],
        ["pin", "create", "a", "p", f"--to={number}"],
        ["fork", "a", "f", f"--from={number}"],
        ["copy", "a", "b", f"--from={number}"],
        ["rebuild", "a", f"--from={number}"],
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
        (0, ["drop", "a"], 2, "not a terminal: pass --yes to"),
        (1, ["scan", "a"], 1, "standard output is closed"),
        (2, ["scan", "nosuch"], 2, ""),
    ],
)
def test_a_standard_file_that_is_closed_is_told(
    cli: Cli, closed: int, arguments: list[str], status: int, told: str
) -> None:
    """A closed standard file, as by ``<&-``, gives one message and changes nothing."""
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
    """The error counts the records that were appended before the failure."""
    cli.done("log", "create", "a")
    path = cli.folder / "lines"
    path.write_text("one\ntwo\n")

    def refuse(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.read", refuse)
    said = cli("log", "append", "a", Path(path))
    assert said.status == 2
    assert "cannot be read to its end" in said.err
    assert "0 records appended before the failure" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("options", [[], ["--whole"]], ids=["lines", "whole"])
def test_what_is_too_long_for_a_record_is_not_read_to_its_end(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """An endless line and a huge file are refused before they fill the memory."""
    monkeypatch.setattr(bodies, "RECORD_BYTES_MAX", 2**20)
    cli.done("log", "create", "a")
    file = cli.folder / "endless"
    with file.open("wb") as made:
        made.write(b"one\n" * (not options))
        made.truncate(2**27)
    seen = 0
    read = os.read

    def counted(descriptor: int, size: int) -> bytes:
        nonlocal seen
        seen += len(found := read(descriptor, size))
        return found

    monkeypatch.setattr(os, "read", counted)
    said = cli("log", "append", "a", *options, str(file))

    assert said.status == 2
    assert "is too long for a record, which has at most 1048576 bytes" in said.err
    assert seen <= 2**22
    bodies_there = [one["body"] for one in cli.done("log", "scan", "a").objects]
    assert bodies_there == ["one"] * (not options), "what came before is in"


def test_pipes_and_devices_are_read_as_files_are(cli: Cli) -> None:
    """A shell's ``<(...)`` is a pipe, and /dev/null an empty file; a directory is refused."""
    cli.done("log", "create", "a")
    pipe = cli.folder / "pipe"
    os.mkfifo(pipe)
    writing = threading.Thread(target=pipe.write_bytes, args=(b"one\ntwo\n",))
    writing.start()

    told = cli.done("log", "append", "a", str(pipe)).object

    writing.join()
    assert (told["first"], told["last"]) == (1, 2)
    assert cli.done("log", "append", "a", os.devnull).object["records"] == 0
    assert "is a directory" in cli("log", "append", "a", str(cli.folder)).complaint
