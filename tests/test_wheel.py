"""The wheel: an environment that has only the wheel and its requirements runs tidelog.

The requirements are linked from the environment of the tests, so they have the versions of the
lock, and the test needs no network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import tidelog
from kit.doc_blocks import ROOT, blocks_of

INSTALL = "README.md", "docs/start/install.md"
UNUSED = shutil.ignore_patterns("__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the tree, where no earlier build left files."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "src", tree / "src", ignore=UNUSED)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    # Older setuptools cannot build wheels alone. The lock has a newer one, which needs no network.
    is_old = Version(version("setuptools")) < Version("70.1")
    alone = [] if is_old else ["--no-build-isolation"]
    pip("wheel", *alone, "--wheel-dir", str(tree / "dist"), str(tree))
    [built] = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an environment with the wheel and its requirements, and no extra."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for required in requirements_of(metadata_of(wheel).get_all("Requires-Dist", [])):
        for name in {file.parts[0] for file in required.files or () if file.parts[0] != ".."}:
            (packages / name).symlink_to(Path(str(required.locate_file(name))))
    pip("--python", str(folder), "install", "--no-index", "--no-compile", str(wheel))
    return folder


def test_the_wheel_has_each_file_of_the_source_tree(wheel: Path) -> None:
    """Without its data files, `tidelog serve` and Spark fail only at the user's."""
    source = ROOT / "src"
    files = [path for path in source.rglob("*") if path.is_file() and not unused(path)]

    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert packed == {path.relative_to(source).as_posix() for path in files}


def test_pages_name_extras_that_the_wheel_has(wheel: Path) -> None:
    """Pip only warns of an unknown extra, and installs nothing for it."""
    extras = set(metadata_of(wheel).get_all("Provides-Extra", []))
    pages = "".join((ROOT / page).read_text() for page in INSTALL)

    named = set(re.findall(r"[\w]+", ",".join(re.findall(r"(?:tidelog|'\.)\[([\w,]+)\]", pages))))

    assert named
    assert named <= extras


def test_the_first_commands_run_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    """A new user has the wheel, its requirements and README, and no clone."""
    python, command = environment / "bin/python", environment / "bin/tidelog"
    variables = {"PATH": f"{environment}/bin:{os.defpath}", "HOME": str(tmp_path)}

    def run(*words: str | Path) -> str:
        return subprocess.run(
            words, cwd=tmp_path, env=variables, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    has_pandas = "import importlib.util as u; print(u.find_spec('pandas'), u.find_spec('pyspark'))"
    assert run(python, "-c", has_pandas) == "None None\n", "an extra is installed"
    assert run(command, "--version") == f"tidelog {tidelog.__version__}\n"
    assert "collection" in run(command, "--help")
    shown = run("bash", "-ec", _shown("Sixty seconds", "sh"))
    assert shown.endswith("one\ntwo\n")
    prices = [json.loads(line) for line in shown.splitlines() if line.startswith('{"item"')]
    assert [(row["item"], row["price"]) for row in prices[:3]] == [
        ("jam", 8), ("rye", 2), ("tea", 5),
    ]  # fmt: skip
    program = _shown("Spark and Python", "python").partition("\nimport")[2]
    assert run(python, "-c", f"import{program}").endswith("\n3\n")


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def requirements_of(requirements: Sequence[str]) -> Iterator[Distribution]:
    """Yield the packages that these require, directly or not, without extras and once each."""
    seen: set[str] = set()
    waiting = list(requirements)
    while waiting:
        wanted = Requirement(waiting.pop())
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = distribution(wanted.name)
        assert wanted.specifier.contains(found.version, prereleases=True), str(wanted)
        if (name := canonicalize_name(wanted.name)) not in seen:
            seen.add(name)
            waiting += found.requires or ()
            yield found


def unused(path: Path) -> bool:
    return any(part == "__pycache__" or part.endswith(".egg-info") for part in path.parts)


def pip(*words: str) -> None:
    common = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*common, *words, "--no-deps"], check=True)


def _shown(section: str, language: str) -> str:
    """Return the blocks of one language in a section of README, joined."""
    found = blocks_of("README.md", section)
    return "".join(block.text for block in found if block.language == language)
