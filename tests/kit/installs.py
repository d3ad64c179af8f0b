"""Servers that a package manager installs once, in the system's folder for temporary files.

Later runs use the files again. Workers of pytest may ask for a server at the same time.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

INSTALL_S: Final = 300
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog</groupId>
  <artifactId>tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""


class CannotInstall(Exception):
    """A server cannot be installed; the message has the reason."""


@contextmanager
def skipped_without() -> Iterator[None]:
    """Skip the test, or the tests of a fixture, if a server cannot be installed."""
    try:
        yield
    except CannotInstall as error:
        pytest.skip(str(error))


def installed(name: str, install: Callable[[Path], None]) -> Path:
    """Return the folder of a server, which ``install`` fills the first time.

    Raises:
        CannotInstall: ``install`` raised it; the next call tries again.
    """
    folder = Path(tempfile.gettempdir()) / f"tidelog-{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    whole = folder / "installed"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            install(folder)
            whole.touch()
    return folder


def run(command: Sequence[str], folder: Path, *, server: str) -> None:
    """Run a package manager in ``folder``.

    Raises:
        CannotInstall: the command fails, or takes more than `INSTALL_S`.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotInstall(
            f"{server} is not installed: {command[0]} did not end in {INSTALL_S} s"
        ) from None
    if done.returncode:
        told = (done.stdout + done.stderr).strip()[-300:]
        raise CannotInstall(f"{server} is not installed: {command[0]} failed: {told}")


def copy_jars(folder: Path, dependencies: str, *, server: str) -> None:
    """Copy jars from Maven Central, and those that they need, into ``folder / "jars"``.

    Args:
        folder: where Maven works.
        dependencies: elements ``<dependency>`` of Maven's project file.
        server: the name of the server in errors.

    Raises:
        CannotInstall: Maven is missing or fails.
    """
    (folder / "pom.xml").write_text(_POM.format(dependencies))
    _run_maven(folder, "copy-dependencies", f"-DoutputDirectory={folder / 'jars'}", server=server)


def unpack_archive(folder: Path, artifact: str, *, server: str) -> None:
    """Unpack one archive of Maven Central into ``folder / "unpacked"``.

    Args:
        folder: where Maven works.
        artifact: ``GROUP:NAME:VERSION:TYPE:CLASSIFIER``.
        server: the name of the server in errors.

    Raises:
        CannotInstall: as `copy_jars`.
    """
    told = [f"-Dartifact={artifact}", f"-DoutputDirectory={folder / 'unpacked'}"]
    _run_maven(folder, "unpack", *told, server=server)


def _run_maven(folder: Path, goal: str, *told: str, server: str) -> None:
    if shutil.which("mvn") is None:
        raise CannotInstall(f"{server} is not installed: mvn is missing")
    options = ["--batch-mode", "--quiet", "--strict-checksums"]
    run(["mvn", *options, f"{_PLUGIN}:{goal}", *told], folder, server=server)


def require_java(least: int, *, server: str) -> None:
    """Raise `CannotInstall` if PATH has no Java of at least the version ``least``."""
    if shutil.which("java") is None:
        raise CannotInstall(f"{server} is not installed: java is missing")
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', done.stderr)
    if version is None or int(version[1]) < least:
        found = done.stderr.strip().partition("\n")[0]
        raise CannotInstall(f"{server} is not installed: it needs Java {least}, found {found}")
