"""``tidelog compact``, ``collect`` and ``scrub`` also maintain keyed logs."""

from __future__ import annotations

import sys

import pytest

from cli.conftest import Cli, cli

__all__ = ["cli"]


def appended(cli: Cli, name: str, times: int) -> None:
    for n in range(times):
        cli.done("keyed", "append", name, "--key", "a", given=f"v{n}\n".encode())


@pytest.fixture
def two(cli: Cli) -> Cli:
    """A location with the keyed logs ``k`` and ``m``."""
    for name in ("k", "m"):
        cli.done("keyed", "create", name)
    appended(cli, "k", 3)
    return cli


def test_unless_named_keyed_logs_are_compacted_and_collected_too(two: Cli) -> None:
    """Compaction makes runs and reports retired segments; collection deletes replaced objects."""
    before = two.done("keyed", "scan", "k", "--key", "a", "--json").objects
    two.done("keyed", "retain", "k", "--retain-segments", "1")
    found = {one["name"]: one for one in two.done("compact", "--full", "--json").objects}
    assert [*found] == ["(catalog)", "k", "m"]
    assert (found["k"], found["m"]) == (
        {"name": "k", "runs": 1, "retired": 0},
        {"name": "m", "runs": 0, "retired": 0},
    )
    assert two.done("keyed", "scan", "k", "--key", "a", "--json").objects == before

    two.done("keyed", "seal", "k")
    appended(two, "k", 2)
    told = two.done("compact", "--full", "k").err
    assert told == "k: 1 run written, 1 segment retired\n"
    assert two.done("compact", "m").err == "m: nothing to compact\n"
    gone = {o["name"]: o["deleted"] for o in two.done("collect", "--grace", "0s", "--json").objects}
    assert gone["k"] >= 2
    assert gone["m"] == 0
    assert len(two.done("keyed", "scan", "k", "--key", "a", "--json").objects) == 2


def test_a_scrub_of_all_finds_what_is_damaged_in_keyed_logs(two: Cli) -> None:
    """A scrub of everything names the damaged keyed log, reads the others, and exits with 1."""
    two.done("compact", "--full", "k")
    clean = two.done("scrub", "--json").objects
    assert {one["name"]: one["is_clean"] for one in clean if "is_clean" in one} == {
        "k": True,
        "m": True,
    }
    lake = two.folder / "lake"
    part = next(lake.glob("keyed/k/run/*/*-0000.parquet"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    found = two("scrub", "--json")
    assert found.status == 1
    problems = {one["name"]: one["problems"] for one in found.objects if "problems" in one}
    assert problems["m"] == []
    assert problems["k"][0].startswith(f"{part.relative_to(lake)}: ")
    assert "k: damaged" in found.complaint


def test_people_are_told_of_each_log_by_its_name(two: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets one line for each log."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert "m: 0 records in 0 runs read, 0 bytes, and 0 records" in two.done("scrub", "m").err


def test_a_name_of_nothing_is_told(two: Cli) -> None:
    """An unknown name is reported even next to a known one, with a hint to keyed logs."""
    assert "no collection named 'x'" in two("compact", "k", "x").complaint
    assert "read it with 'tidelog keyed scan k'" in two("log", "describe", "k").complaint
    assert "'tidelog log list'" in two("log", "describe", "x").complaint


@pytest.mark.parametrize("verb", ["create", "configure"])
def test_segments_of_a_few_bytes_are_a_slip(two: Cli, verb: str) -> None:
    """256 was meant as 256MiB."""
    name = "n" if verb == "create" else "k"
    refused = two("keyed", verb, name, "--seal-bytes", "256")
    assert refused.status == 2
    assert "must be 64KiB or more" in refused.complaint
    two.done("keyed", verb, name, "--seal-bytes", "64KiB")
