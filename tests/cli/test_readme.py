"""README's commands and its Python, run as they stand there, one after the other."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from cli.conftest import Cli
from kit.doc_blocks import ROOT, run_block
from tidelog.demo.flights import Flights

DAYS = ("2013-01-14", "2013-01-15", "2013-01-16")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# These need Spark, or are of the makefile: the demo and the cluster's tests run them.
ELSEWHERE = ("make demo", "make test", "--engine spark", "--master")
SHORTER = ("verify --seconds 20", "verify --seconds 2")


def shown() -> list[str]:
    """Return README's commands, each on a line, without what is said of them."""
    found = FENCED.findall((ROOT / "README.md").read_text())
    text = "".join(block for language, block in found if not language).replace("\\\n", " ")
    lines = (re.sub(r"(^|\s+)#.*", "", line) for line in text.splitlines())
    return [line for line in lines if line and not any(word in line for word in ELSEWHERE)]


@pytest.fixture
def tour(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A directory with the demo's input, of three days."""
    events = cli.folder / "demo-data" / "events"
    with Flights.load(cli.folder / "load") as flights:
        flights.write_events(events)
    for path in events.iterdir():
        if not path.stem.endswith(DAYS):
            path.unlink()
    assert len(list(events.iterdir())) == len(DAYS)
    monkeypatch.chdir(cli.folder)
    return cli


def do(tour: Cli, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one line of the shell's, of which tidelog's commands in this process."""
    for command in line.split(" && "):
        before, piped, rest = command.rpartition(" | ")
        typed = subprocess.run(["bash", "-c", before], check=True, capture_output=True).stdout
        words = shlex.split(rest)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            monkeypatch.setenv(name, value.replace("$PWD", str(Path.cwd())))
        elif words[2:3] == ["follow"]:
            follow(words[1:])
        else:
            assert words[0] == "tidelog", command
            said = tour.run(*words[1:], given=typed if piped else None)
            assert said.status == 0, f"{command}: {said.err}"


def follow(words: list[str]) -> None:
    """Follow a log until Ctrl-C, as README says of it."""
    # Where the tests run in the background Ctrl-C is ignored, and would be by their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    following = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        following.wait(3)
    except subprocess.TimeoutExpired:
        following.send_signal(signal.SIGINT)
    try:
        _, err = following.communicate(timeout=60)
    finally:
        following.kill()
    assert following.returncode == 130, err


def test_whoever_copies_readme_finds_that_it_works(
    tour: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that fails there is the first thing that anybody sees."""
    lines = shown()
    assert len(lines) > 25, lines

    for line in lines:
        do(tour, line.replace(*SHORTER), monkeypatch)

    place = tour.folder / "demo-data" / "tour"
    updates = pa.table({"k": [1], "_time": [0], "_diff": [1]})
    found = run_block(
        "README.md",
        "compare_and_append",
        location=place,
        schema=pa.schema({"k": pa.int64()}),
        updates=updates,
    )
    assert found["datetime"] is datetime
    assert found["noon"].to_arrow().num_rows > 0
    assert found["some"].to_arrow().num_rows == 9
