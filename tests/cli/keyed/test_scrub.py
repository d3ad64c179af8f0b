"""``tidelog keyed scrub``: it reports an intact log, or each damaged object."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from cli.conftest import Cli, cli

__all__ = ["cli"]


@pytest.fixture
def stored(cli: Cli) -> Path:
    """Return an object of a run of the keyed log ``k``."""
    cli.done("keyed", "create", "k")
    cli.done("keyed", "append", "k", "--key", "a", given=b"1\n2\n3\n")
    cli.done("keyed", "compact", "k", "--full")
    (found,) = (
        path
        for path in (cli.folder / "lake").rglob("*.parquet")
        if "run" in path.parts and ".keys." not in path.name
    )
    return found


def test_a_whole_log_is_told_to_be_so(cli: Cli, stored: Path) -> None:
    """An intact log is reported with the amount read, as text and as JSON."""
    found = cli.done("keyed", "scrub", "k").object
    assert (found["is_clean"], found["records"], found["runs"]) == (True, 3, 1)
    with patch("tidelog.cli.output.is_json", return_value=False):
        assert cli.done("keyed", "scrub", "k").err.startswith("3 records in 1 run read")
    assert cli("keyed", "scrub", "nobody").status == 2


@pytest.mark.parametrize("is_gone", [False, True])
def test_damage_is_told_with_its_object(cli: Cli, stored: Path, is_gone: bool) -> None:
    """A damaged or missing object is named, with exit status 1."""
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 1
    stored.chmod(0o644)
    stored.unlink()
    if not is_gone:
        stored.write_bytes(data)
    said = cli("keyed", "scrub", "k")

    assert said.status == 1
    assert not said.object["is_clean"]
    assert stored.name in said.object["problems"][0]
    assert "is damaged" in said.complaint
