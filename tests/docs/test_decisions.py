"""The records of decisions: each has a status, a date, a context, a decision and consequences."""

from __future__ import annotations

import re

import pytest

from kit.doc_blocks import ROOT

PAGES = sorted((ROOT / "docs/decisions").glob("*.md"))
HEAD = re.compile(
    r"# (?P<number>\d+)\. \S.*\n\n"
    r"- Status: (?:accepted|superseded by \[decision \d+\]\(\S+\))(?:; .+)?\n"
    r"- Date: \d{4}-\d\d-\d\d\n\n## "
)
SECTIONS = ["Context", "Decision", "Consequences"]
GOOD = """# 7. Fence a log in the log itself

- Status: accepted
- Date: 2026-11-21

## Context
A suspended writer may wake up.

## Decision
### The fence
An opener puts a fence.

## Consequences
Each open leaves an object.
"""


def faults_of(name: str, text: str) -> list[str]:
    """Return the parts of a record that are missing or out of order."""
    head = HEAD.match(text)
    faults = []
    if head is None:
        faults.append("the page must begin with its title, status and date")
    elif f"{int(head['number']):04}-" != name[:5]:
        faults.append("the number of the title must be that of the file")
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    if parts[::2] != SECTIONS:
        faults.append(f"the headings must be {SECTIONS}, not {parts[::2]}")
    return faults + [
        f"{parts[i]} is empty" for i in range(0, len(parts), 2) if not parts[i + 1].strip()
    ]


def test_each_decision_has_all_its_parts() -> None:
    """A reader finds the reason and the date of a decision in the same places on each page."""
    faults = {page.name: faults_of(page.name, page.read_text()) for page in PAGES}

    assert len(faults) > 20
    assert {name: some for name, some in faults.items() if some} == {}


@pytest.mark.parametrize(
    "part",
    [
        "# 7. Fence a log in the log itself\n\n",
        "7. ",
        "- Status: accepted\n",
        "accepted",
        "- Date: 2026-11-21\n",
        "-21",
        "## Context\n",
        "## Decision\n",
        "## Consequences\n",
        "Each open leaves an object.\n",
    ],
)
def test_a_record_without_a_part_is_a_fault(part: str) -> None:
    """The canary: the check finds each missing part, and a wrong number."""
    assert faults_of("0007-fences.md", GOOD) == []
    assert faults_of("0008-pins.md", GOOD) != []
    assert faults_of("0007-fences.md", GOOD.replace(part, "", 1)) != []
