"""``tidelog verify``: its report, and its errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli.conftest import Cli, refused
from kit.s3_servers import SeaweedServer
from tidelog.verify.checker import Checker, LogDiffers, first_cut


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_run_reports_what_it_did(cli: Cli, protocol: str) -> None:
    """A run makes its own location, reports its numbers, and leaves no log behind."""
    said = cli.done("verify", "--seconds", "1", "--protocol", protocol, "--streams", "9")
    found = said.object

    assert found["protocol"] == protocol
    assert (found["writers"], found["readers"], found["streams"]) == (2, 2, 9)
    assert (found["mismatch"], found["problems"]) == (None, [])
    assert found["records"] >= found["appends"] > 0
    assert found["collections"] >= 1
    assert found["lag_p50_us"] <= found["lag_p99_us"]
    assert cli.done("log", "list").objects == []


def test_it_runs_in_memory(cli: Cli) -> None:
    """A run works in memory."""
    said = cli.run("--location", "memory://", "verify", "--seconds", "0.5", "--writers", "1")

    assert said.status == 0, said.err
    assert said.object["takeovers"] == 0


def test_it_runs_on_s3(cli: Cli, seaweed: SeaweedServer) -> None:
    """A run works on S3; its log survives an export to wal3's form and an adoption."""
    url = seaweed.url("verified")
    said = cli.run("--location", url, "verify", "--seconds", "1", "--keep", "--seed", "8")

    assert said.status == 0, said.err
    assert said.object["records"] > 0
    place = seaweed.url("given")
    there = cli.run("--location", url, "log", "export", "verify-8-cuts", place)
    assert there.status == 0, there.err
    assert "secret" not in there.out + there.err
    back = cli.done("log", "adopt", place).object
    assert back["name"] == "given"
    assert back["records"] == there.object["records"] > 0


def test_a_run_that_was_kept_goes_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept run continues with the same seed; a terminal gets a report for people."""
    first = cli.done("verify", "--seconds", "0.5", "--seed", "3", "--keep").object
    assert [one["name"] for one in cli.done("log", "list").objects] == ["verify-3", "verify-3-cuts"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = cli.done("verify", "--seconds", "0.5", "--seed", "3").out

    assert f"replayed from position {first['records'] + 1:,}" in shown
    assert "wrong         nothing" in shown
    assert "records/s" in shown
    assert "takeover" in shown


def test_what_is_wrong_is_told_and_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mismatch gives the report with all facts to repeat it, one sentence, and status 1."""

    def take(checker: Checker, table: object) -> None:
        raise checker.refuse_end(7)

    monkeypatch.setattr(Checker, "take", take)
    said = cli("verify", "--seconds", "5", "--seed", "4")

    assert said.status == 1
    assert "'verify-4'" in said.complaint
    assert said.object["mismatch"]["position"] == 7
    assert said.object["mismatch"]["seed"] == 4
    assert "verify-4" in [one["name"] for one in cli.done("log", "list").objects]
    assert isinstance(first_cut(4, 2).checker("x").refuse_end(1), LogDiffers)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seconds", "0"], "more than 0 s"),
        (["--seconds", "nan"], "more than 0 s"),
        (["--days", "1000"], "at most a year"),
        (["--days", "1", "--seconds", "1"], "exclude"),
        (["--writers", "0"], "writers must be from 1"),
        (["--readers", "100"], "readers must be from 1"),
        (["--streams", "0"], "streams must be from 1"),
        (["--streams", "many"], "'many' is not a whole number"),
        (["--protocol", "raft"], "slot, manifest"),
        (["--seed", "-1"], "seed must be from 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_told_before_a_location_is_made(
    cli: Cli, arguments: list[str], told: str
) -> None:
    """A bad number makes no location."""
    refused(cli("verify", *arguments), told)
    assert not Path(cli.folder / "lake").exists()
