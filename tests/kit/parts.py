"""The two parts of the suite: `make test` runs the first, `make test-all` the other.

A path in `REST` is a folder or a file below `tests`. Its modules are not even imported by
`make test`, because each worker would spend the time. A run of named paths ignores the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
REST = {
    "chaos": "processes under kill -9",
    "cli/keyed/test_follow.py": "commands that follow keyed logs",
    "cli/test_interrupted.py": "each command killed at its requests",
    "cli/test_maintenance.py": "commands that follow",
    "cluster": "a Spark cluster",
    "collection/test_checkpoint.py": "sources after many runs",
    "collection/test_envelope.py": "upserts against a model",
    "collection/test_maintenance.py": "maintenance of many shards",
    "collection/test_moves_at_each_request.py": "files moved at each request of a run",
    "test_consensus_migration.py": "moves of consensus, killed at each request",
    "conformance/test_ambiguous.py": "lost answers, on each store",
    "conformance/test_copy.py": "copies of logs, on each store",
    "conformance/test_init_open.py": "logs made and opened by many at once, on each store",
    "fuzz": "hostile bytes",
    "http/client/test_model.py": "the HTTP client against a model",
    "keyed/test_arrow_tables.py": "tables of more than 2 GiB",
    "keyed/test_engine.py": "keyed logs against a model",
    "keyed/test_part_damage.py": "each byte of a keyed part damaged",
    "messy": "folders of messy files",
    "persist/test_contents.py": "each way of reading a shard against a model",
    "persist/test_scrub.py": "each byte of a shard damaged",
    "scenarios": "Materialize's scenarios of shards, on each consensus",
    "schedules": "random schedules of files that change",
    "services": "servers that package managers install first",
    "sim": "simulation, crash points, canaries",
    "spark": "Spark",
    "store/test_wrapped_sim.py": "simulation on wrapped stores",
    "test_demo.py": "the demo, whose ingester is killed",
    "test_iterators.py": "loops left early, of each kind",
    "test_wheel.py": "the wheel, in an environment of its own",
    "wal/read/test_damaged_tree.py": "each object of a log's tree damaged",
    "wal/test_slot_damage.py": "each byte of a slot damaged",
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
    """Return the lines at the end of a run of the first part, which list the tests left out."""
    if _part(config) != "test":
        return []
    width = max(map(len, REST))
    return [
        "`make test` leaves these out; `make test-all` runs them:",
        *(f"  tests/{path:<{width}}  {why}" for path, why in sorted(REST.items())),
    ]


def skips(reasons: Iterable[str]) -> list[str]:
    """Return the lines at the end of a run that count the skipped tests by the reason."""
    return [
        f"skipped {count} tests: {why.removeprefix('Skipped: ')}"
        for why, count in sorted(Counter(reasons).items())
    ]


def _part(config: pytest.Config) -> str:
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return "all"
    part: str = config.getoption("--part")
    return part
