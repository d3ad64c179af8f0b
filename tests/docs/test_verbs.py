"""Commands in the docs: each occurs on a page, and the table of verbs matches the code.

The table also has methods and routes. No retired verb is left.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import Mock

import typer.main

import tidelog
from kit.doc_blocks import ROOT
from tidelog import aio
from tidelog.cli.main import make_app
from tidelog.server.exposition import ServerMetrics
from tidelog.server.keyed_router import KeyedRouter
from tidelog.server.limits import ServerLimits

RETIRED = {"destroy", "delete", "release", "finalize", "downgrade", "listen", "snapshot", "place"}
# The words of Python for two acts; the page gives the reasons.
RETIRED_IN_PYTHON = RETIRED - {"listen", "snapshot"}
# The words of SQL for rows of a table; the page gives the reasons.
OF_ROWS = {"Table.delete", "TableTransaction.delete", "table delete"}
PAIRS = {
    "from": "to",
    "from-key": "to-key",
    "from-segment": "to-segment",
    "from-time": "to-time",
    "since": "until",
}
RETIRED_OPTIONS = {"first", "last", "first-segment", "last-segment", "start", "end", "rows"}


def table_of(heading: str) -> list[list[str]]:
    """Return the rows of a table below a heading of the page, without its head."""
    text = (ROOT / "docs/reference/verbs.md").read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(column: int) -> set[str]:
    """Return the names in code of a column of the table of acts."""
    return {name for row in table_of("Acts") for name in re.findall(r"`([^`]+)`", row[column])}


def commands() -> Iterator[tuple[str, Any]]:
    """Return each command with its path."""

    def below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        for name, each in getattr(command, "commands", {}).items():
            yield from below(f"{path} {name}".strip(), each)
        if not hasattr(command, "commands"):
            yield path, command

    return below("", typer.main.get_command(make_app()))


def options() -> dict[str, set[str]]:
    """Return the long options of each command, without their dashes."""
    return {
        path: {
            name.lstrip("-") for each in command.params for name in each.opts if name[:2] == "--"
        }
        for path, command in commands()
    }


def public_classes() -> list[type]:
    exported = [getattr(module, name) for module in (tidelog, aio) for name in module.__all__]
    return [each for each in exported if inspect.isclass(each)]


def test_each_command_of_the_table_exists() -> None:
    """A reader types the command of the table."""
    assert len(named(2)) > 40
    assert named(2) - {path for path, _ in commands()} == set()


def test_each_method_of_the_table_exists_in_both_interfaces() -> None:
    """The blocking and the awaited class have the method."""
    for name in sorted(named(1)):
        kind, _, method = name.partition(".")
        assert inspect.isroutine(getattr(getattr(tidelog, kind), method, None)), name
        assert inspect.isroutine(getattr(getattr(aio, kind), method, None)), name
    assert len(named(1)) > 40


def test_each_route_of_the_table_exists() -> None:
    """The router has the method and the path, and the verbs of each keyed log are in the table."""
    router = KeyedRouter(Mock(), ServerMetrics(), ServerLimits(), log="orders").router()
    known = {f"{each.method} {each.path}" for each in router.endpoints}
    paths = {path for route in known if "{name}" in (path := route.partition(" ")[2])}

    assert named(3) - known == set()
    assert paths - {route.partition(" ")[2] for route in named(3)} == set()


def test_no_command_uses_a_retired_verb() -> None:
    """A second verb for an act would send a reader to two pages."""
    paths = {path for path, _ in commands()} - OF_ROWS
    assert [path for path in sorted(paths) if RETIRED & set(path.split())] == []


def test_no_public_method_uses_a_retired_verb() -> None:
    """The first word of a method is its verb."""
    methods = [
        f"{kind.__name__}.{name}"
        for kind in public_classes()
        for name in dir(kind)
        if name.partition("_")[0] in RETIRED_IN_PYTHON and inspect.isroutine(getattr(kind, name))
    ]
    assert sorted(set(methods) - OF_ROWS) == []


def test_a_range_has_one_pair_of_options() -> None:
    """The end of a range has the option that belongs to its start; no alias exists."""
    starts = {end: start for start, end in PAIRS.items()}
    for path, names in options().items():
        # `--to` is the new resolver, or the new rendition, and not the end of a range.
        if path in ("consensus move", "collection handover"):
            continue
        assert names & RETIRED_OPTIONS == set(), path
        for end in names & set(starts):
            assert starts[end] in names, (path, end)

    pairs = {row[1] for row in table_of("Ranges")}
    assert pairs == {f"`--{start}`, `--{end}`" for start, end in PAIRS.items()}


def undocumented(names: Iterable[str], text: str) -> list[str]:
    return [name for name in names if not re.search(rf"\btidelog {re.escape(name)}\b", text)]


def test_every_command_is_on_a_page() -> None:
    """The generated reference lists each verb; a page must also show its use."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)

    assert undocumented((path for path, command in commands() if not command.hidden), text) == []


def test_a_command_that_no_page_shows_is_found() -> None:
    """The canary: only a command that can be typed counts, not its words in a sentence."""
    text = "To read, run `tidelog read URL`; a source can be created."

    assert undocumented(["read", "source create"], text) == ["source create"]
