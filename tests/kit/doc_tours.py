"""The commands and the Python of a page, run in order, with the output that the page shows.

Commands of tidelog run in this process, all others in bash, unless a comment before the block
states otherwise: see `kit.doc_blocks`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kit.doc_blocks import Block, blocks_of, commands_of
from tidelog.cli.main import main

_DATA = "file:///data"  # The folder of the locations that pages show.


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
            if block.mark == "first":
                "".join(map(run_line, commands_of(block.said)))
            if block.language == "text":
                if output is not None:
                    assert block.text == output, f"{page} shows:\n{block.text}not:\n{output}"
                    self.compared_count += 1
                output = None
            elif not block.is_run:
                output = None
            elif block.language == "sh":
                output = "".join(map(run_line, block.commands()))
            elif block.language == "python":
                output = self._print(block, page) if self._run_python(block) else None

    def _print(self, block: Block, page: str) -> str:
        with redirect_stdout(StringIO()) as printed:
            text = block.text.replace(_DATA, f"file://{Path.cwd()}")
            exec(compile(text, page, "exec"), self.names)
        return printed.getvalue()


def run_line(line: str) -> str:
    """Run a line of shell; return the output of its commands, as a terminal shows it."""
    if "<<END" in line:
        subprocess.run(["bash", "-c", line], check=True)
        return ""
    return "".join(run_command(command) for command in line.split(" && "))


def run_command(command: str) -> str:
    """Run a command; return its output, except the reports of an ingestion."""
    before, piped, rest = command.rpartition(" | ")
    words = shlex.split(rest)
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        os.environ[name] = value.replace("$PWD", str(Path.cwd()))
        return ""
    if words[0] != "tidelog":
        done = subprocess.run(["bash", "-c", command], check=False, capture_output=True)
        assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
        return done.stdout.decode()
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
        status = main([os.path.expandvars(word) for word in words[1:]])
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
