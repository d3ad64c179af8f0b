"""The scenario numbers: each has a test or a reason, and the table in README.md is right."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LAST = 66
ROW = re.compile(r"^\| T(\d+) \| (.+) \|$")
ID = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NONE = "none yet: "


def rows_of(text: str) -> dict[int, str]:
    """Return the table's entry of each number."""
    return {int(m[1]): m[2] for line in text.splitlines() if (m := ROW.match(line))}


def names_in(path: Path) -> set[str]:
    found = ast.parse(path.read_text()).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in found if isinstance(node, kinds)}


def numbers_here() -> set[int]:
    names = {name for path in HERE.glob("test_*.py") for name in names_in(path)}
    return {int(m[1]) for name in names if (m := re.match(r"test_t(\d\d)_", name))}


def problems(rows: dict[int, str], here: set[int]) -> list[str]:
    """Return one sentence for each fault of the table."""
    found = [f"T{n} has no row" for n in range(1, LAST + 1) if n not in rows]
    for number, told in rows.items():
        ids = ID.findall(told)
        says_here = told.startswith("here")
        if says_here != (number in here):
            found.append(f"T{number}: whether a test of it is in this folder is told wrongly")
        if not says_here and not ids and not told.startswith(NONE):
            found.append(f"T{number} has neither a test nor a reason")
        for path, name in ids:
            if not (ROOT / path).exists() or name not in names_in(ROOT / path):
                found.append(f"T{number}: {path}::{name} is not there")
    return found


def test_each_number_has_a_test_that_exists_or_a_reason() -> None:
    """Each number has an existing test or a reason. A reader finds each scenario in one place."""
    assert problems(rows_of((HERE / "README.md").read_text()), numbers_here()) == []


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (None, "has no row"),
        ("here", "told wrongly"),
        ("somewhere", "neither a test nor a reason"),
        ("`tests/persist/test_shard.py::test_no_such`", "is not there"),
        ("`tests/persist/no_such.py::test_no_such`", "is not there"),
    ],
)
def test_a_table_that_is_wrong_is_found(told: str | None, sentence: str) -> None:
    """Each rule of the check can fail."""
    rows = dict.fromkeys(range(1, LAST + 1), "none yet: x")
    del rows[9]
    if told is not None:
        rows[9] = told
    (found,) = problems(rows, set())
    assert sentence in found
