"""The two parts of the suite: `make test` runs the first, `make test-all` the other.

A path in `REST` is a folder or a file below `tests`. Its modules are not even imported by
`make test`, because each worker would spend the time. A run of named paths ignores the parts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
REST = {
    "chaos": "processes under kill -9",
    "cluster": "a Spark cluster",
    "fuzz": "hostile bytes",
    "messy": "folders of messy files",
    "schedules": "random schedules of files that change",
    "sim": "simulation, crash points, canaries",
    "spark": "Spark",
}


def add_option(parser: pytest.Parser) -> None:
    """Add ``--part`` to the command line."""
    parser.addoption(
        "--part",
        choices=("test", "rest", "all"),
        default="all",
        help="run the tests of `make test`, those that it leaves out, or all",
    )


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Return True if the part of this run does not include the file or folder ``path``."""
    part = _part(config)
    if part == "all" or not path.is_relative_to(TESTS) or path == TESTS:
        return False
    inside = path.relative_to(TESTS).as_posix()
    in_rest = any(inside == rest or inside.startswith(f"{rest}/") for rest in REST)
    if part == "test":
        return in_rest
    return not in_rest and not any(rest.startswith(f"{inside}/") for rest in REST)


def summary(config: pytest.Config) -> list[str]:
    """Return the lines that end a run of the first part: its tests were not all."""
    if _part(config) != "test":
        return []
    width = max(map(len, REST))
    return [
        "`make test` leaves these out; `make test-all` runs them:",
        *(f"  tests/{path:<{width}}  {why}" for path, why in sorted(REST.items())),
    ]


def _part(config: pytest.Config) -> str:
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return "all"
    part: str = config.getoption("--part")
    return part
