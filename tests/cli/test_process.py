"""The command as a process: it ends at once, but only after all output is written."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import typer

from cli.conftest import Cli
from tidelog.cli import main as main_module
from tidelog.cli.main import main, make_app

# ``late`` writes "taken apart" if Python tears down the module; an exit handler prints "told".
SCRIPT = """
import atexit, sys
class Late:
    def __del__(self, out=sys.stderr.fileno(), write=__import__("os").write):
        write(out, b"taken apart")
late = Late()
from tidelog.cli import main as module
def work(arguments=None):
    atexit.register(lambda: print("told"))
    {body}
module.main = work
from tidelog.cli.process import run
run()
"""


def run_process(body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, env=environment
    )


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_runs_exit_handlers_and_returns_the_status(status: int) -> None:
    """Exit handlers run and buffers are flushed, but Python's teardown is skipped."""
    done = run_process(f"print('written'); return {status}")

    assert (done.returncode, done.stdout.split()) == (status, ["written", "told"])
    assert done.stderr == ""


def test_a_command_that_did_not_end_well_is_left_to_python() -> None:
    """A failing command keeps its traceback and Python's own teardown."""
    done = run_process("raise KeyError('why')")

    assert done.returncode == 1
    assert "KeyError: 'why'" in done.stderr
    assert "taken apart" in done.stderr


def test_who_interrupts_while_libraries_are_loaded_is_told_so() -> None:
    """An interrupt during the third of a second of imports is reported as one."""
    script = """
import sys
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Slow())
from tidelog.cli.process import run
run()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (130, "tidelog: interrupted\n")


@pytest.mark.parametrize(
    ("words", "only"),
    [
        (["read", "x"], "read"),
        (["--location", "read", "log", "list"], "log"),
        (["--location=x", "changes"], "changes"),
        (["--location"], None),
        (["--help"], None),
        (["raed"], None),
        ([], None),
    ],
)
def test_only_the_verb_that_is_asked_for_is_loaded(words: list[str], only: str | None) -> None:
    """If the verb is unclear, all verbs are loaded, for the help and the hints."""
    asked: list[str | None] = []

    def make(only: str | None) -> typer.Typer:
        asked.append(only)
        return APP

    main_module._made.cache_clear()
    with patch.object(main_module, "make_app", make):
        main(words)
    main_module._made.cache_clear()

    assert asked == [only]


APP = make_app()


def test_one_verb_says_what_it_says_among_all(cli: Cli) -> None:
    """A verb that is loaded alone has its own help, and no other verb is registered."""
    whole = [name for name in ("read", "source", "log") if cli.run(name, "--help").status == 0]

    assert whole == ["read", "source", "log"]
    assert [c.name for c in make_app("read").registered_commands] == ["read"]
    assert [g.name for g in make_app("log").registered_groups] == ["log"]
