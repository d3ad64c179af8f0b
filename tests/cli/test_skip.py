"""``tidelog source skip``: the error that stops a source names this remedy, and it works.

The page is docs/guides/follow-a-folder.md.
"""

from __future__ import annotations

import asyncio

from cli.conftest import Cli
from kit.sources import bind
from tidelog.location import open_location


async def bind_all(url: str, name: str) -> None:
    """Bind the files of a source, like a command that is killed afterwards."""
    assert await bind(await (await open_location(url)).sources.ingester(name))


def test_a_file_that_is_gone_is_skipped_as_the_error_says(cli: Cli) -> None:
    """The status lists a skipped file, and a later file of the same name is ingested."""
    cli.write_lines("raw/a.jsonl", {"n": 1})
    cli.done("source", "create", "s", "--files", cli.folder / "raw")
    cli.ingest("s")
    cli.write_lines("raw/b.jsonl", {"n": 2}, {"n": 3})
    cli.write_lines("raw/c.jsonl", {"n": 4})
    asyncio.run(bind_all(cli.location, "s"))
    (cli.folder / "raw/b.jsonl").unlink()
    stopped = cli("ingest", "s", "--engine", "local", "--json")

    assert stopped.status == 1
    assert stopped.complaint.endswith("continue without it: tidelog source skip s b.jsonl")
    refused = cli("source", "skip", "s", "c.jsonl")
    assert (refused.status, "does not block the source" in refused.complaint) == (2, True)
    said = cli.done("source", "skip", "s", "b.jsonl", "--json")
    assert said.object == {"name": "s", "path": "b.jsonl", "skipped": True}
    cli.ingest("s")
    assert list(cli.done("source", "status", "s", "--json").object["skipped"]) == ["b.jsonl"]
    cli.write_lines("raw/b.jsonl", {"n": 5})
    cli.ingest("s")
    rows = cli.done("read", "s", "--format", "json").objects
    assert sorted(row["n"] for row in rows) == [1, 4, 5]


def test_a_source_without_lost_rows_has_none_to_skip(cli: Cli) -> None:
    """Generated rows are never lost, and the error says that nothing blocks the source."""
    cli.done("source", "create", "s", "--generator", "counter")

    said = cli("source", "skip", "s", "x")
    assert (said.status, "does not block the source" in said.complaint) == (2, True)


def test_collected_records_of_a_log_are_skipped_as_the_error_says(cli: Cli) -> None:
    """The errors of the source name the lost positions. The status names the log."""
    cli.done("log", "create", "l")
    for number in range(3):
        cli.done("log", "append", "l", given=b"%d\n" % number)
    cli.done("source", "create", "s", "--log", "l")
    (cursor,) = cli.done("log", "cursor", "list", "l").objects
    cli.done("log", "cursor", "drop", "l", cursor["cursor"])
    cli.done("log", "cursor", "create", "l", "other")
    cli.done("log", "cursor", "move", "l", "other", "--at", "3")
    cli.done("log", "collect", "l", "--grace", "0")
    stopped = cli("ingest", "s", "--engine", "local", "--json")

    assert stopped.status == 1
    assert "records 1 to 2 of the log 'l' were collected" in stopped.complaint
    assert "continue without the lost records: tidelog source skip s l" in stopped.complaint.lower()
    said = cli.done("source", "skip", "s", "l", "--json")
    assert said.object == {"name": "s", "path": "l", "skipped": True}
    cli.ingest("s")
    assert [row["position"] for row in cli.done("read", "s").objects] == [3]
    (bad,) = cli.done("read", "s_errors").objects
    assert (bad["file"], bad["offset"]) == ("l", 1)
    assert bad["reason"] == "'tidelog source skip' skipped the rows up to 3"
    assert list(cli.done("source", "status", "s", "--json").object["skipped"]) == ["l"]
