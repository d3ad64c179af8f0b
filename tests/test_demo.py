"""The demo, on the engine that needs no Java; `make demo` runs it on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.cli.main import main
from tidelog.demo import run_demo
from tidelog.demo.flights import Flights
from tidelog.demo.run import DemoFailed
from tidelog.errors import UsageError


def test_the_demo_kills_resumes_and_finds_what_the_csv_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the first thing a stranger runs."""
    run_demo(tmp_path / "demo", engine="local")
    run_demo(tmp_path / "demo", engine="local")

    said = capsys.readouterr().out
    assert "Wrote 52,796 events" in said
    assert "2013-01-15T14:00:00Z    157    157  ok" in said
    assert said.count("Killed it with -9") == 2
    assert said.count("All checks hold") == 2


def test_the_demo_fails_where_the_collection_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: a check that cannot fail would show nothing."""
    honest = Flights.in_air
    monkeypatch.setattr(Flights, "in_air", lambda self, at: honest(self, at) + 1)

    with pytest.raises(DemoFailed, match="differ"):
        run_demo(tmp_path / "demo", engine="local")


def test_the_demo_clears_only_an_earlier_demo(tmp_path: Path) -> None:
    """It clears what an earlier demo left, and nothing else."""
    (tmp_path / "thesis.txt").write_text("mine")

    with pytest.raises(UsageError, match="thesis"):
        run_demo(tmp_path, engine="local")

    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_an_unknown_engine_is_told_before_the_earlier_demo_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip of the keyboard is misuse, and costs nothing."""
    status = main(["demo", "--folder", str(tmp_path / "demo"), "--engine", "sprak"])

    assert status == 2
    assert "--engine must be spark or local, not 'sprak'" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
