"""Each command of the tool occurs on a page of the docs."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every command below a click group, as it is typed after ``tidelog``."""
    below: dict[str, object] = getattr(command, "commands", {})
    if not below:
        yield " ".join(path)
    for name, each in below.items():
        if not getattr(each, "hidden", False):
            yield from commands(each, (*path, name))


def undocumented(names: Iterator[str], text: str) -> list[str]:
    return [name for name in names if not re.search(rf"\btidelog {re.escape(name)}\b", text)]


def test_every_command_is_on_a_page() -> None:
    """The generated reference lists each verb; a page must also show its use."""
    typer_main = importlib.import_module("typer.main")
    app = importlib.import_module("tidelog.cli.main").make_app()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)

    assert undocumented(commands(typer_main.get_command(app)), text) == []


def test_a_command_that_no_page_shows_is_found() -> None:
    """The canary: only a command that can be typed counts, not its words in a sentence."""
    text = "To read, run `tidelog read URL`; a source can be created."

    assert undocumented(iter(["read", "source create"]), text) == ["source create"]
