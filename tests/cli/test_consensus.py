"""``--consensus``: a location whose consensus is a database since its creation."""

from __future__ import annotations

import json
import shutil

import pytest

from cli.conftest import Cli
from tidelog.consensus.port import ENVIRONMENT


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_location_knows_where_its_consensus_is(
    cli: Cli, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The location stores the kind of its consensus, without a password or records."""
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

    # The environment may give the place with the password; another place is refused.
    monkeypatch.setenv(ENVIRONMENT, place)
    assert len(cli.done("read", "s", "--format", "json").objects) == 10
    monkeypatch.setenv(ENVIRONMENT, "store")
    said = cli("read", "s")
    assert (said.status, "was created with consensus" in said.complaint) == (2, True)
    assert "secret" not in said.complaint


def test_a_database_that_is_not_there_makes_no_location(cli: Cli) -> None:
    """Without this check, each later command would fail."""
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


def test_consensus_is_moved_while_the_location_stays(cli: Cli) -> None:
    """A move there and back keeps the contents; a repeated move has nothing to do."""
    cli.write_lines("raw/a.jsonl", *({"n": n} for n in range(10)))
    cli.done("source", "create", "s", "--files", str(cli.folder / "raw"))
    cli.ingest("s")
    place = f"sqlite:{cli.folder / 'c.db'}"
    told = cli.done("consensus", "move", "--to", place, "--json").object
    assert told["consensus"] == place
    assert told["keys"] == 4  # The catalog, rows, bad rows, and progress of the source.
    assert json.loads((cli.folder / "lake" / "tidelog.json").read_text())["consensus"] == "sqlite"
    cli.write_lines("raw/b.jsonl", {"n": 10})
    cli.ingest("s")
    again = cli.done("consensus", "move", "--to", place, "--json").object
    assert again == {"consensus": place, "keys": 0, "records": 0}
    back = cli.done("consensus", "move", "--to", "store", "--json").object
    assert (back["consensus"], back["keys"]) == ("store", 4)
    cli.write_lines("raw/c.jsonl", {"n": 11})
    cli.ingest("s")
    rows = cli.done("read", "s", "--format", "json").objects
    assert sorted(row["n"] for row in rows) == list(range(12))
    assert cli.done("scrub").status == 0


@pytest.mark.parametrize(
    ("place", "status", "told"),
    [
        ("etcd://x", 2, "'sqlite:PATH'"),
        ("sqlite:", 2, "'sqlite:PATH'"),
        ("sqlite:/none/x/c.db", 3, "the consensus file cannot be used"),
        ("postgresql://u:secret@127.0.0.1:1/d", 3, "PostgreSQL does not answer"),
    ],
)
def test_a_place_that_cannot_be_is_told_before_anything_moves(
    cli: Cli, place: str, status: int, told: str
) -> None:
    """A bad target gives one sentence without a password, and changes no file."""
    cli.done("shard", "create", "s", "--schema", "n int")
    before = cli.contents()
    said = cli("consensus", "move", "--to", place)
    assert (said.status, told in said.complaint) == (status, True), said.err
    assert "secret" not in said.err
    assert cli.contents() == before
    assert cli("consensus", "move").status == 2


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("how", ["made", "moved"])
def test_a_database_that_knows_nothing_of_the_location_is_refused(
    cli: Cli, kind: str, how: str, request: pytest.FixtureRequest
) -> None:
    """A wrong database would look like an empty location, and a move from it would lose data."""
    kept, away = cli.folder / "kept", cli.folder / "away"
    kept.mkdir()
    place = f"sqlite:{kept / 'c.db'}"
    if kind == "postgres":
        place = request.getfixturevalue("postgres").url()
    told = ("--consensus", place) if how == "made" else ()
    made = ("shard", "create", "s", "--schema", "n int")
    assert cli.run("--location", cli.location, *told, *made).status == 0
    if how == "moved":
        cli.done("consensus", "move", "--to", place)
    cli.done("shard", "append", "s", "--time", "0", given=b'{"n": 7}')

    if kind == "sqlite":
        kept.rename(away)
    else:
        rename_location(place, cli, "gone-{}")
    for asked in (
        ("shard", "read", "s"),
        ("shard", "list"),
        made,
        ("consensus", "move", "--to", "store"),
    ):
        said = cli(*asked)
        assert (said.status, said.out, "restore it" in said.complaint) == (1, "", True)
    if kind == "sqlite":
        assert not kept.exists()
        kept.mkdir()
        # A database made there for another location is no better.
        other = ("--location", str(cli.folder / "other"), "--consensus", place)
        assert cli.run(*other, "shard", "create", "t", "--schema", "n int").status == 0
        said = cli("shard", "read", "s")
        assert (said.status, "has no entry for this location" in said.complaint) == (1, True)
        shutil.rmtree(kept)
        away.rename(kept)
    else:
        rename_location(place, cli, "{}", was="gone-{}")

    assert cli.done("shard", "read", "s").objects == [{"n": 7, "_diff": 1}]
    assert cli.done("consensus", "move", "--to", "store", "--json").object["keys"] == 1
    assert cli.done("shard", "read", "s").objects == [{"n": 7, "_diff": 1}]


def rename_location(server: str, cli: Cli, name: str, *, was: str = "{}") -> None:
    """Give PostgreSQL's records of a location to another location."""
    import psycopg

    own = json.loads((cli.folder / "lake" / "tidelog.json").read_text())["id"]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "UPDATE tidelog_records SET location = %s WHERE location = %s",
            (name.format(own), was.format(own)),
        )
