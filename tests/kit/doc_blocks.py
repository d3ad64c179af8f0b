"""The code that the documents show, to be run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SHOWN_LOCATION = re.compile(r"file:///data/[a-z/]+")
_SHELL = re.compile(r"^```(?:sh)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def block_with(page: str, words: str) -> str:
    """Return the one block of Python on a page that has these words."""
    found = [block for block in _BLOCK.findall((ROOT / page).read_text()) if words in block]
    assert len(found) == 1, f"{page}: {len(found)} blocks with {words!r}"
    return str(found[0])


def run_page(page: str, *, location: Path) -> dict[str, Any]:
    """Run all Python of a page as one program, as `run_block` does one block of it."""
    blocks = "\n".join(_BLOCK.findall((ROOT / page).read_text()))
    names: dict[str, Any] = {}
    exec(compile(_SHOWN_LOCATION.sub(f"file://{location}", blocks), page, "exec"), names)
    return names


def commands_in(page: str) -> list[str]:
    """Return the commands of tidelog that a page shows in blocks, each as one line."""
    shown = "".join(_SHELL.findall((ROOT / page).read_text())).replace("\\\n", " ")
    return re.findall(r"^tidelog .*$", shown, re.MULTILINE)


def run_block(page: str, words: str, *, location: Path, **names: Any) -> dict[str, Any]:
    """Run a block with the location that it shows replaced; return the names that it leaves."""
    shown = _SHOWN_LOCATION.sub(f"file://{location}", block_with(page, words))
    exec(compile(shown, page, "exec"), names)
    return names


def blocks_of_section(page: str, heading: str, language: str) -> str:
    """Return the blocks of one language below a heading of the second level, joined."""
    text = (ROOT / page).read_text()
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
