"""``tidelog hold``: holds are created, moved, taken over and dropped by name."""

from __future__ import annotations

from typing import Any

import pytest

from cli.conftest import Cli


@pytest.fixture
def lake(cli: Cli) -> Cli:
    """A location with a collection ``c`` complete up to 9.5 s, and a shard ``s`` up to 9."""
    cli.write_lines("in/1.jsonl", *({"k": n % 3, "at": 1_000 * n} for n in range(10)))
    place = str(cli.folder / "in")
    cli.done(
        *("source", "create", "c", "--files", place, "--time-column", "at", "--retain", "1s"),
        *("--schema", "k bigint, at bigint"),
    )
    cli.ingest("c")
    cli.write_lines("in/more.jsonl", {"k": 3, "at": 9_500})
    cli.ingest("c")
    rows = cli.write_lines("s.jsonl", {"k": 1, "_time": 3, "_diff": 1})
    cli.done("shard", "create", "s", "--schema", "k bigint")
    cli.done("shard", "append", "s", rows, "--upper", "9")
    return cli


def holds(cli: Cli, name: str) -> dict[str, dict[str, Any]]:
    found = cli.done("hold", "list", name, "--json").object
    return {one["hold"]: one for one in found["holds"]}


def test_a_hold_of_a_shard_is_created_moved_and_dropped(lake: Cli) -> None:
    """The times of a shard's hold are whole numbers."""
    placed = lake.done("hold", "create", "s", "mine", "--at", "2")
    assert "The hold 'mine' of 's' is at 2" in placed.err
    assert holds(lake, "s")["mine"]["since"] == 2
    assert lake("hold", "move", "s", "mine", "--at", "5", "--yes").status == 0
    assert holds(lake, "s")["mine"]["since"] == 5
    assert lake("hold", "drop", "s", "mine").status == 0
    assert "mine" not in holds(lake, "s")


def test_a_hold_of_a_collection_keeps_what_retention_would_give_up(lake: Cli) -> None:
    """A hold keeps its time readable across ingestion and compaction, until it is dropped."""
    since = lake.done("hold", "create", "c", "audit", "--json").object["since"]
    assert since == 8_500
    lake.write_lines("in/2.jsonl", {"k": 1, "at": 90_000})
    lake.ingest("c")
    lake.done("compact", "--full")
    then = ("read", "c", "--as-of", "1970-01-01T00:00:08.500Z", "--format", "json")
    assert len(lake.done(*then).objects) == 9
    assert {"audit", "history"} <= set(holds(lake, "c"))
    lake.done("hold", "drop", "c", "audit")
    lake.write_lines("in/3.jsonl", {"k": 1, "at": 99_000})
    lake.ingest("c")
    assert lake(*then).status == 2


def test_a_greater_token_takes_over(lake: Cli) -> None:
    """T34, from a shell: the old owner gets an error that names the newer token."""
    assert lake("hold", "create", "s", "sink", "--token", "3").status == 0
    assert lake("hold", "create", "s", "sink", "--token", "4").status == 0
    refused = lake("hold", "move", "s", "sink", "--at", "4", "--token", "3", "--yes")
    assert refused.status == 1
    assert "newer owner" in refused.err
    assert "token=4" in refused.err
    assert holds(lake, "s")["sink"]["token"] == 4


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("list", "nobody"), 2, "no shard named 'nobody'; existing shards: s"),
        (("create", "s", "h", "--at", "soon"), 2, "is not a time of a shard"),
        (("create", "s", "h", "--at", "99"), 2, "at most, the upper"),
        (
            ("create", "c", "h", "--at", "1970-01-01T00:00:00Z"),
            2,
            "at least, the earliest readable",
        ),
        (("move", "s", "nothing", "--at", "5", "--yes"), 2, "no hold named 'nothing'"),
        (("move", "s", "history", "--at", "5"), 2, "pass --yes"),
        (("move", "s", "history", "--at", "99", "--yes"), 2, "at most, the upper"),
        (("drop", "c", "nothing"), 2, "existing holds:"),
        (("create", "s", "h", "--token", "0"), 2, "--token"),
        (("list", "c", "--shard"), 2, "no shard named 'c'"),
        (("create", "c", "ingest"), 2, "the ingester owns the hold"),
        (
            ("move", "c", "ingest", "--at", "1970-01-01T00:00:09Z", "--yes"),
            2,
            "the ingester owns the hold",
        ),
        (("drop", "c", "ingest"), 2, "the ingester owns the hold"),
        (
            ("move", "c", "history", "--at", "1970-01-01T00:00:09.501Z", "--yes"),
            2,
            "newest contents",
        ),
        (("create", "s", ""), 2, "cannot be the name of a hold"),
    ],
)
def test_mistakes_are_told(
    lake: Cli, arguments: tuple[str, ...], status: int, message: str
) -> None:
    """A mistake changes nothing, and the error gives the remedy."""
    before = [holds(lake, name) for name in "cs"]
    ran = lake("hold", *arguments)
    assert ran.status == status, ran.err
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert [holds(lake, name) for name in "cs"] == before


def test_the_newest_contents_stay_whatever_is_given_up(lake: Cli) -> None:
    """A hold may not give up the newest contents, which the next tick needs."""
    newest = "1970-01-01T00:00:09.500Z"
    lake.done("hold", "move", "c", "history", "--at", newest, "--yes")
    lake.done("compact", "--full")
    assert len(lake.done("read", "c", "--format", "json").objects) == 11
    lake.write_lines("in/2.jsonl", {"k": 1, "at": 90_000})
    lake.ingest("c")
    assert len(lake.done("read", "c", "--format", "json").objects) == 12


def test_a_first_write_to_a_shard_keeps_its_past_until_that_is_moved(lake: Cli) -> None:
    """A new hold that moves forward gives up nothing that the history hold still keeps."""
    assert holds(lake, "s")["history"]["since"] == 0
    lake.done("hold", "create", "s", "mine")
    told = lake.done("hold", "move", "s", "mine", "--at", "5", "--yes")
    assert "The earliest readable time of 's' is 0" in told.err
    assert "of 's' is 3" in lake.done("hold", "move", "s", "history", "--at", "3", "--yes").err


def test_retention_says_what_holds_more_than_it_keeps(lake: Cli) -> None:
    """A retention names the hold that keeps more than it does."""
    lake.write_lines("in/2.jsonl", {"k": 1, "at": 90_000})
    lake.ingest("c")
    lake.done("hold", "create", "c", "audit")
    told = lake.done("collection", "retain", "c", "10s", "--yes").err
    assert "after the hold 'audit' is moved or dropped and the next tick or" in told
    assert "after" not in lake.done("collection", "retain", "c", "forever", "--yes").err
