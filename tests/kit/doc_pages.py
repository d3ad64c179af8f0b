"""Pages of the documentation as programs: their blocks of shell and Python, run in order.

Commands of tidelog run in this process, all other commands in bash. A comment before a block can
change what happens to it:

- ``<!-- first: COMMANDS -->`` runs hidden commands before the block;
- ``<!-- run by tests/x.py -->`` leaves the block to a test that names the page;
- ``<!-- not run: REASON -->`` leaves it out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUN = ("sh", "python")
SHOWN = ("text", "json", "toml", "mermaid")  # Diagrams, output, files: nothing to run.
DATA = "file:///data"  # The folder of all locations that the pages show.
_FENCED = re.compile(
    r"(?:^<!-- (?P<mark>first|run by|not run):? (?P<said>.*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page, and its comment."""

    page: str
    language: str
    text: str
    mark: str = ""
    said: str = ""


# How a page's commands run: words after ``tidelog`` and standard input, to standard output.
Command = Callable[[list[str], bytes | None], str]


def pages() -> list[str]:
    """Return the paths of all pages."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a page's text, in order."""
    for found in _FENCED.finditer(text):
        words = {name: found[name] or "" for name in ("language", "text", "mark", "said")}
        yield Block(page=page, **words)


@dataclass(slots=True)
class Page:
    """A run of one page in a folder of its own, which has the location ``lake``."""

    folder: Path
    tidelog: Command
    names: dict[str, Any]

    def run(self, block: Block) -> None:
        """Run a block; an assertion names the line that fails."""
        if block.mark == "first":
            self.shell(block.said, block.page)
        if block.language == "sh":
            self.shell(block.text, block.page)
        else:
            text = block.text.replace(DATA, f"file://{self.folder}")
            exec(compile(text, block.page, "exec"), self.names)

    def shell(self, text: str, page: str) -> None:
        for line in lines(text):
            for command in re.split(r"\s+&&\s+", line):
                self._command(command, page)

    def _command(self, command: str, page: str) -> None:
        given: bytes | None = None
        for segment in re.split(r"\s+\|\s+", command):
            words = segment.split(maxsplit=1)
            if words[0] == "export":
                name, _, value = words[1].partition("=")
                os.environ[name] = os.path.expandvars(value)
            elif words[0] == "tidelog":
                typed = [os.path.expandvars(word) for word in shlex.split(segment)[1:]]
                given = self.tidelog(typed, given).encode()
            else:
                done = subprocess.run(
                    ["bash", "-c", segment], input=given, capture_output=True, check=False
                )
                assert done.returncode == 0, f"{page}: {segment}: {done.stderr.decode()}"
                given = done.stdout


def lines(text: str) -> Iterator[str]:
    """Yield the commands of a block, each on one line and without its comment."""
    for line in text.replace("\\\n", " ").splitlines():
        command = re.sub(r"(^|\s+)#.*", "", line).strip()
        if command:
            yield command
