"""The parts of the suite, and the lock of its environment."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kit.parts import REST, TESTS, is_left_out, skips, summary

ROOT = TESTS.parent
PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", re.MULTILINE)


class _Run:
    """The options of a run of the whole suite."""

    args_source = pytest.Config.ArgsSource.TESTPATHS

    def __init__(self, part: str) -> None:
        self.part = part

    def getoption(self, name: str) -> str:
        assert name == "--part"
        return self.part


def _is_left_out(part: str, path: Path) -> bool:
    """Return True if the run leaves out the file or a folder above it, as pytest asks."""
    run: pytest.Config = _Run(part)  # type: ignore[assignment] # the two names that it reads
    folders = (above for above in path.parents if above.is_relative_to(TESTS))
    return any(is_left_out(each, run) for each in (path, *folders))


def test_each_file_is_in_one_part() -> None:
    """Each file is in one part: in no part it would never run, and in both it would cost twice."""
    files = sorted(TESTS.rglob("test_*.py"))

    in_both = [path for path in files if _is_left_out("test", path) == _is_left_out("rest", path)]

    assert in_both == []
    assert sum(_is_left_out("test", path) for path in files) > 20
    assert not any(_is_left_out("all", path) for path in files)


def test_each_path_that_is_left_out_exists() -> None:
    """Otherwise the tests of a moved folder would silently run in `make test` again."""
    assert [path for path in REST if not (TESTS / path).exists()] == []


def test_a_run_of_the_first_part_names_each_path_that_it_leaves_out() -> None:
    """A developer must know which tests `make test` did not run, and the command that does."""
    first: pytest.Config = _Run("test")  # type: ignore[assignment] # the two names that it reads
    every: pytest.Config = _Run("all")  # type: ignore[assignment] # the two names that it reads

    head, *lines = summary(first)

    assert "make test-all" in head
    assert [line.split()[0] for line in lines] == [f"tests/{path}" for path in sorted(REST)]
    assert summary(every) == []


def test_skipped_tests_are_counted_by_their_reason() -> None:
    """Tests of a server that is not installed must not vanish from the end of a run."""
    java = "Skipped: Kafka is not installed: java is missing"

    assert skips([java, "Skipped: other", java]) == [
        "skipped 2 tests: Kafka is not installed: java is missing",
        "skipped 1 tests: other",
    ]
    assert skips([]) == []


@pytest.mark.parametrize(("lock", "extra"), [("dev", "dev"), ("demo", "demo")])
def test_the_lock_holds_each_dependency_in_its_range(lock: str, extra: str) -> None:
    """`make lock` must follow a change of pyproject.toml, or users get other versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned: dict[str, list[str]] = {}
    for name, version in PINNED.findall((ROOT / "locks" / f"{lock}.txt").read_text()):
        pinned.setdefault(name.lower(), []).append(version)

    asked = _requirements(project, ["", extra])

    assert len(asked) > 8
    assert [
        f"{each}: {pinned.get(each.name.lower())}"
        for each in asked
        if not all(map(each.specifier.contains, pinned.get(each.name.lower(), ["none"])))
    ] == []


def test_each_pin_has_hashes() -> None:
    """An archive that was replaced at the registry must not be installed."""
    for lock in ("tools", "dev", "demo"):
        text = (ROOT / "locks" / f"{lock}.txt").read_text()
        blocks = re.split(r"\n(?=\S)", text.strip())
        assert blocks
        assert [block for block in blocks if "--hash=sha256:" not in block] == []


def _requirements(project: dict[str, object], extras: list[str]) -> list[Requirement]:
    """Return the requirements of the project and ``extras``, with the project's own extras."""
    optional: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment] # TOML
    plain: list[str] = project["dependencies"]  # type: ignore[assignment] # TOML
    found: list[Requirement] = []
    for extra in extras:
        for each in map(Requirement, optional[extra] if extra else plain):
            if each.name == "tidelog":
                found += _requirements(project, sorted(each.extras))
            else:
                found.append(each)
    return found
