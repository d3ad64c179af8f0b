"""The commands of collections, on a table: its unapplied commits count, and no source is needed."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import tidelog
from cli.conftest import Cli, refused

MINUTE_MS = 60_000
FUTURE = 4_000_000_000_000  # Past the clock's time, at which the table is created.


@pytest.fixture
def lake(cli: Cli) -> Cli:
    """A location with a table ``t`` of two inserts, one minute after the other."""
    with tidelog.connect(cli.location, create=True) as lake:
        table = lake.tables.create("t", "a bigint", shards=2)
        for n in range(2):
            rows = pa.table({"a": list(range(8 * n, 8 * n + 8))})
            table.insert(rows, at=FUTURE + MINUTE_MS * n)
    return cli


def test_a_table_is_listed_described_and_read(lake: Cli) -> None:
    """The commands show rows that the shards do not have yet."""
    listed = lake.done("collection", "list", "--json").object
    assert (listed["name"], listed["rows"]) == ("t", 16)
    described = lake.done("collection", "describe", "t", "--json").object
    assert (described["key"], described["upper"]) == ([], listed["upper"])
    assert lake.done("sql", "SELECT count(*) AS n FROM t", "--format", "json").object == {"n": 16}
    read = lake.done("read", "t", "--format", "json")
    assert sorted(json.loads(line)["a"] for line in read.out.splitlines()) == list(range(16))
    changes = lake.done("changes", "t", "--since", str(listed["upper"] - 2), "--format", "json")
    assert sorted(one["a"] for one in changes.objects) == list(range(8, 16))
    upper = {one["upper"] for one in lake.done("inspect", "t", "--json").objects}
    assert upper == {listed["upper"]}


def test_the_retention_of_a_table_is_set(lake: Cli) -> None:
    """`retain` names the command that gives up times later, and takes effect at once."""
    refused(lake("collection", "retain", "t", "30s"), "pass --yes")
    told = lake.done("collection", "retain", "t", "30s", "--yes").err
    assert "later runs of 'tidelog compact' give up more" in told
    newest = lake.done("collection", "list", "--json").object
    assert newest["since"] == newest["upper"] - 1 - 30_000
    refused(lake("read", "t", "--as-of", str(newest["since"] - 1)), "is readable since")


def test_holds_of_a_table_are_created_and_moved(lake: Cli) -> None:
    """A hold can be at a time of commits that the shards do not have yet."""
    upper = lake.done("collection", "list", "--json").object["upper"]
    lake.done("hold", "create", "t", "mine", "--at", str(upper - 1))
    lake.done("hold", "create", "t", "early")
    lake.done("hold", "move", "t", "early", "--at", str(upper - 1), "--yes")
    refused(lake("hold", "move", "t", "early", "--at", str(upper), "--yes"), "newest contents")
    listed = lake.done("hold", "list", "t", "--json").object["holds"]
    assert {one["hold"]: one["since"] for one in listed} == {
        "early": upper - 1,
        "history": 0,
        "mine": upper - 1,
    }


def test_maintenance_of_a_location_has_its_tables(lake: Cli) -> None:
    """Compaction, collection and scrubs work on tables, with and without names."""
    lake.done("compact", "t", "--full")
    lake.done("compact")
    lake.done("collect", "t", "--grace", "0s")
    collected = lake.done("collect", "--sweep", "--grace", "0s", "--json").objects
    assert {"t", "(tables)"} <= {one["name"] for one in collected}
    scrubbed = lake.done("scrub", "--json").objects
    assert sum(one["updates"] for one in scrubbed if one["name"] == "t") == 16


@pytest.mark.parametrize(
    "command",
    [("source", "drop", "t", "--yes"), ("source", "describe", "t"), ("ingest", "t", "--once")],
    ids=lambda command: command[1],
)
def test_commands_of_sources_refuse_a_table(lake: Cli, command: tuple[str, ...]) -> None:
    """A table has no source, and the message says so."""
    refused(lake(*command), "'t' is a table, so it has no source: write and alter it as")
    assert lake.done("collection", "list", "--json").object["name"] == "t"
