"""The command line, called as a function, on a location and files of the test's own."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tidelog.cli.main import main


@dataclass(frozen=True)
class CommandOutput:
    """The output of a command, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Return standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> dict[str, Any]:
        (only,) = self.objects
        return only

    @property
    def reports(self) -> list[dict[str, Any]]:
        """Return the JSON lines of standard error."""
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]

    @property
    def complaint(self) -> str:
        """Return standard error, which must be one sentence and no traceback."""
        lines = [line for line in self.err.splitlines() if not line.startswith("{")]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("tidelog: "), self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("tidelog: ")


def refused(said: CommandOutput, *words: str, status: int = 2) -> str:
    """Check that a command was refused with one sentence that has the words; return it."""
    complaint = said.complaint
    assert said.status == status, complaint
    for word in words:
        assert word in complaint, complaint
    return complaint


class Cli:
    """Runs commands on one location, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.location = (folder / "lake").as_uri()
        self._capsys = capsys

    def run(self, *arguments: str | Path, given: bytes | None = None) -> CommandOutput:
        """Run a command, with standard input if ``given``."""
        self._capsys.readouterr()
        words = [str(argument) for argument in arguments]
        if given is None:
            status = main(words)
        else:
            typed = self.folder / ".typed"
            typed.write_bytes(given)
            with typed.open() as stdin, patch.object(sys, "stdin", stdin):
                status = main(words)
        said = self._capsys.readouterr()
        return CommandOutput(status, said.out, said.err)

    def __call__(self, *arguments: str | Path) -> CommandOutput:
        """Run a command on the location."""
        return self.run("--location", self.location, *arguments)

    def done(self, *arguments: str | Path, given: bytes | None = None) -> CommandOutput:
        """Run a command on the location; it must succeed."""
        said = self.run("--location", self.location, *arguments, given=given)
        assert said.status == 0, said.err
        return said

    def ingest(self, name: str, *arguments: str) -> CommandOutput:
        return self.done("ingest", name, "--engine", "local", *arguments)

    def write_lines(self, name: str, *objects: dict[str, Any] | str) -> Path:
        """Write a file of JSON lines below the folder; a string is written unchanged."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [line if isinstance(line, str) else json.dumps(line) for line in objects]
        path.write_text("".join(line + "\n" for line in lines))
        return path

    def contents(self) -> dict[str, bytes]:
        """Return every file of the location with its bytes, except hints and locks."""
        root = self.folder / "lake"
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.relative_to(root).parts[0] not in (".tidelog", "status")
        }


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("TIDELOG_LOCATION", raising=False)
    monkeypatch.delenv("TIDELOG_DEBUG", raising=False)
    return Cli(tmp_path, capsys)


EVENTS = (
    {"at": 1_000, "id": 1, "event": "start", "name": "one"},
    {"at": 2_000, "id": 2, "event": "start", "name": "two"},
    {"at": 3_000, "id": 1, "event": "start", "name": "uno"},
    {"at": 4_000, "id": 2, "event": "stop", "name": None},
    {"at": 5_000, "id": 3, "event": "start", "name": "three"},
)


@pytest.fixture
def events(cli: Cli) -> Cli:
    """The command line, with a source ``events`` that is created but not ingested yet."""
    cli.write_lines("events/1.jsonl", *EVENTS)
    said = cli("source", "create", "events", "--files", cli.folder / "events" / "*.jsonl", *UPSERT)
    assert said.status == 0, said.err
    return cli


UPSERT = (
    "--format=json",
    "--envelope=upsert",
    "--key=id",
    "--time-column=at",
    "--delete-when=event = 'stop'",
)
