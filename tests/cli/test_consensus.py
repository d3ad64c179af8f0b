"""``--consensus``: a location whose writers are told apart by a database, from its making on."""

from __future__ import annotations

import json

import pytest

from cli.conftest import Cli
from tidelog.consensus.port import ENVIRONMENT


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_location_knows_where_its_consensus_is(
    cli: Cli, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told once, when it is made; not its password; and none of its own is left in the store."""
    place = f"sqlite:{cli.folder / 'c.db'}"
    if kind == "postgres":
        place = request.getfixturevalue("postgres").url().replace("tidelog@", "tidelog:secret@")
    cli.write_lines("raw/a.jsonl", *({"n": n} for n in range(10)))
    made = ("source", "create", "s", "--files", str(cli.folder / "raw"))
    assert cli.run("--location", cli.location, "--consensus", place, *made).status == 0
    cli.ingest("s")
    assert len(cli.done("read", "s", "--format", "json").objects) == 10
    mark = (cli.folder / "lake" / "tidelog.json").read_text()
    assert json.loads(mark)["consensus"] == kind
    assert "secret" not in mark
    assert not (cli.folder / "lake" / "consensus").exists()

    # The environment may say it, with the password; another place is refused.
    monkeypatch.setenv(ENVIRONMENT, place)
    assert len(cli.done("read", "s", "--format", "json").objects) == 10
    monkeypatch.setenv(ENVIRONMENT, "store")
    said = cli("read", "s")
    assert (said.status, "was made with consensus" in said.complaint) == (2, True)
    assert "secret" not in said.complaint


def test_a_database_that_is_not_there_makes_no_location(cli: Cli) -> None:
    """Or each command after would fail; the message says where it was looked for."""
    cli.write_lines("raw/a.jsonl", {"n": 1})
    made = ("source", "create", "s", "--files", str(cli.folder / "raw"))
    for place in (
        f"sqlite:{cli.folder}/none/c.db",
        "postgresql://u:secret@127.0.0.1:1/d",
    ):
        said = cli.run("--location", cli.location, "--consensus", place, *made)
        assert said.status == 3
        assert "secret" not in said.err
    assert not (cli.folder / "lake" / "tidelog.json").exists()
    said = cli.run("--location", cli.location, "--consensus", "etcd://here", *made)
    assert (said.status, "'sqlite:PATH'" in said.complaint) == (2, True)
