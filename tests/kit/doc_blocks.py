"""The fenced blocks of a page. Its Python runs with the location that the page shows replaced.

A comment before a block changes how `kit.doc_tours` runs it:

- ``<!-- first: COMMANDS -->`` runs hidden commands before the block;
- ``<!-- run by tests/x.py -->`` leaves the block to a test that names the page;
- ``<!-- not run: REASON -->`` leaves it out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SHOWN_LOCATION = re.compile(r"file:///data/[a-z/]+")
_FENCED = re.compile(
    r"(?:^<!-- (?P<mark>first|run by|not run):? (?P<said>[^\n]*?) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_HEREDOC = re.compile(r"<<END\n.*?^END$", re.MULTILINE | re.DOTALL)
# The environment of the tests is installed already, and other tests run Spark.
_ELSEWHERE = re.compile(r"^(pip|make|python3 -m venv) |--engine spark|--master")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: commands, Python, or the output of the block before it."""

    language: str
    text: str
    mark: str = ""
    said: str = ""

    @property
    def is_run(self) -> bool:
        """Return True if the block runs with its page."""
        return self.language in ("sh", "python") and self.mark not in ("run by", "not run")

    def commands(self) -> list[str]:
        """Return the commands, each with its here-document, without comments."""
        return commands_of(self.text)


def commands_of(text: str) -> list[str]:
    """Return the commands of a text, as `Block.commands` does."""
    bodies: list[str] = []

    def stow(found: re.Match[str]) -> str:
        bodies.append(found.group())
        return f"<<{len(bodies) - 1}>>"

    joined = _HEREDOC.sub(stow, text).replace("\\\n", " ")
    lines = (re.sub(r"(^|\s+)#.*", "", line) for line in joined.splitlines())
    whole = (re.sub(r"<<(\d+)>>", lambda at: bodies[int(at[1])], line) for line in lines)
    return [line for line in whole if line and not _ELSEWHERE.search(line)]


def blocks_of(page: str, section: str = "") -> list[Block]:
    """Return the fenced blocks of a page, or of its section below one heading, in order."""
    text = (ROOT / page).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [Block(**block.groupdict("")) for block in _FENCED.finditer(text)]


def python_of(page: str) -> list[str]:
    """Return the blocks of Python on a page."""
    return [block.text for block in blocks_of(page) if block.language == "python"]


def block_with(page: str, words: str) -> str:
    """Return the one block of Python on a page that has these words."""
    found = [text for text in python_of(page) if words in text]
    assert len(found) == 1, f"{page}: {len(found)} blocks with {words!r}"
    return found[0]


def run_page(page: str, *, location: Path) -> dict[str, Any]:
    """Run all Python of a page as one program, as `run_block` does one block of it."""
    return _run("\n".join(python_of(page)), page, location, {})


def run_block(page: str, words: str, *, location: Path, **names: Any) -> dict[str, Any]:
    """Run a block with the location that it shows replaced; return the names that it leaves."""
    return _run(block_with(page, words), page, location, names)


def _run(text: str, page: str, location: Path, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(_SHOWN_LOCATION.sub(f"file://{location}", text), page, "exec"), names)
    return names


def commands_in(page: str) -> list[str]:
    """Return the commands of tidelog that a page shows in blocks, each as one line."""
    shown = "".join(block.text for block in blocks_of(page) if block.language == "sh")
    return re.findall(r"^tidelog .*$", shown.replace("\\\n", " "), re.MULTILINE)
