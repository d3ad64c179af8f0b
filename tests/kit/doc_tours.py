"""The commands and the Python of a page, run in order, with the output that the page shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kit.doc_blocks import ROOT
from tidelog.cli.main import main

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<END\n.*?^END$", re.MULTILINE | re.DOTALL)
# The tests run in an environment that is installed, and Spark's tests run Spark.
_ELSEWHERE = re.compile(r"^(pip|make|python3 -m venv) |--engine spark|--master")


class Terminal(TextIOWrapper):
    """A standard output that claims to be a terminal, as the one of a page's reader is."""

    def __init__(self) -> None:
        self._bytes = BytesIO()
        super().__init__(self._bytes, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """Return the text printed so far."""
        return self._bytes.getvalue().decode()


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: commands, Python, or the output of the block before it."""

    language: str
    text: str

    def commands(self) -> list[str]:
        """Return the commands, each with its here-document, without comments."""
        bodies: list[str] = []

        def stow(found: re.Match[str]) -> str:
            bodies.append(found.group())
            return f"<<{len(bodies) - 1}>>"

        joined = _HEREDOC.sub(stow, self.text).replace("\\\n", " ")
        lines = (re.sub(r"(^|\s+)#.*", "", line) for line in joined.splitlines())
        whole = (re.sub(r"<<(\d+)>>", lambda at: bodies[int(at[1])], line) for line in lines)
        return [line for line in whole if line and not _ELSEWHERE.search(line)]


def blocks_of(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(*found) for found in _FENCED.findall((ROOT / page).read_text())]


class Tour:
    """Runs the blocks of a page in the current folder, as a reader who copies each of them."""

    def __init__(self, run_python: Callable[[Block], bool] = lambda _: True) -> None:
        self._run_python = run_python
        self.names: dict[str, Any] = {}
        self.compared_count = 0

    def run(self, page: str) -> None:
        """Run a page; each block of ``text`` must equal the output of the block before it."""
        output: str | None = None
        for block in blocks_of(page):
            if block.language == "text":
                if output is not None:
                    assert block.text == output, f"{page} shows:\n{block.text}not:\n{output}"
                    self.compared_count += 1
                output = None
            elif block.language == "sh":
                output = "".join(map(run_line, block.commands()))
            elif block.language == "python":
                output = self._print(block, page) if self._run_python(block) else None

    def _print(self, block: Block, page: str) -> str:
        with redirect_stdout(StringIO()) as printed:
            exec(compile(block.text, page, "exec"), self.names)
        return printed.getvalue()


def run_line(line: str) -> str:
    """Run a line of shell; return the output of its commands, as a terminal shows it."""
    if "<<END" in line or not re.match(r"export |(.* \| )?tidelog ", line):
        subprocess.run(["bash", "-c", line], check=True)
        return ""
    return "".join(run_command(command) for command in line.split(" && "))


def run_command(command: str) -> str:
    """Run a command, with tidelog in this process; all but ingestion reports are returned."""
    before, piped, rest = command.rpartition(" | ")
    words = shlex.split(rest)
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        os.environ[name] = value.replace("$PWD", str(Path.cwd()))
        return ""
    assert words[0] == "tidelog", command
    if "follow" in words[1:4]:
        return follow(words[1:])
    typed = subprocess.run(["bash", "-c", before], check=True, capture_output=True).stdout
    out, err = Terminal(), StringIO()
    given = Path(".typed")
    given.write_bytes(typed)
    with (
        given.open() as file,
        patch.multiple(sys, stdin=file if piped else sys.stdin, stdout=out, stderr=err),
    ):
        status = main(words[1:])
    given.unlink()
    assert status == 0, f"{command}: {err.getvalue()}"
    return "" if words[1] == "ingest" else out.text() + footer(err.getvalue())


def footer(reports: str) -> str:
    """Return the lines of standard error that describe the table above them."""
    return "".join(re.findall(r"^\d+ (?:rows?|changes?) .*\n", reports, re.MULTILINE))


def follow(words: list[str]) -> str:
    """Follow a log until Ctrl-C."""
    # A background job ignores Ctrl-C, and its children would inherit that.
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
    return ""
