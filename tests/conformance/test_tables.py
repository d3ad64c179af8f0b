"""The tables of scenarios at the heads of these files name tests that exist.

The head of each file lists the scenarios of wal3's own tests on its subject, and the test that
covers each. A scenario marked "not there" is missing in wal3's tests. These scenarios do not apply
to tidelog:

| scenario of wal3's | shown by |
| --- | --- |
| push, pull and fork of its log service equal a model | not ours: there is no such service here |
| its dirty log: marks, roll-up, purges, coalescing | not ours: a log has no index of logs here |
| its compaction cursor never moves back; reinserts | not ours: the service's rules |
| replication: quorums, masks, read repair | not ours: the store replicates; UUID logs are refused |
| Spanner: publishing, collection, bounds | not ours: manifests are in the store |
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("test_*.py"))
ROW = re.compile(r"\| (?P<scenario>[^|]+) \| (?P<shown>[^|]+) \|")
SHOWN = re.compile(r"(?:(?P<file>[\w/]+\.py): )?(?P<test>test_\w+)")
TITLE = "| scenario of wal3's | shown by |"


def rows_of(text: str) -> Iterator[tuple[str, str]]:
    lines = iter((ast.get_docstring(ast.parse(text)) or "").splitlines())
    for line in lines:
        if line == TITLE:
            next(lines)
            break
    for line in lines:
        if (row := ROW.fullmatch(line)) is None:
            return
        yield row["scenario"], row["shown"]


def complaints_of(text: str, here: Path) -> Iterator[str]:
    """Yield each row that names no test, or a missing test."""
    for scenario, shown in rows_of(text):
        if re.match(r"not (ours|yet): \w", shown):
            continue
        for name in shown.split(", "):
            if (found := SHOWN.fullmatch(name)) is None:
                yield f"{scenario}: {name} is no test"
                continue
            file = HERE.parent / found["file"] if found["file"] else here
            defined = re.compile(rf"^(async )?def {found['test']}\(", re.MULTILINE)
            if not file.exists() or not defined.search(file.read_text()):
                yield f"{scenario}: there is no {name}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_table_names_is_there(file: Path) -> None:
    """Each row of a table names an existing test, also after a test is renamed or dropped."""
    text = file.read_text()

    assert list(rows_of(text)), "its head has no table of scenarios"
    assert list(complaints_of(text, file)) == []


@pytest.mark.parametrize(
    "shown",
    ["test_nothing", "wal/test_log.py: test_nothing", "nowhere.py: test_x", "by hand", "not"],
)
def test_a_table_that_lies_is_caught(shown: str) -> None:
    """The canary: a table that names no test, or a missing one, is a complaint."""
    text = f'"""Head.\n\n{TITLE}\n| --- | --- |\n| something | {shown} |\n"""\n'

    assert list(complaints_of(text, Path(__file__)))
