"""Static checks of the code: rules, format and types. `test_tidy` checks the shape of the tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kit.processes import end_with_parent

ROOT = Path(__file__).resolve().parents[2]
CODE = ("src", "tests", "sim", "bench", "examples", "docs/reference")


@pytest.mark.parametrize(
    "command",
    [("mypy",), ("ruff", "check", *CODE), ("ruff", "format", "--check", *CODE)],
    ids=["types", "rules", "format"],
)
def test_nothing_is_to_be_said_of_the_code(command: tuple[str, ...]) -> None:
    """Types, rules and format have no fault; a failure shows the whole output of the tool."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )

    assert done.returncode == 0, done.stdout + done.stderr
