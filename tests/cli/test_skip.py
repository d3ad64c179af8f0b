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


def test_a_source_that_reads_no_files_has_none_to_skip(cli: Cli) -> None:
    """A source without files has none to skip, and the error says so."""
    cli.done("source", "create", "s", "--generator", "counter")

    said = cli("source", "skip", "s", "x")
    assert (said.status, "reads no files" in said.complaint) == (2, True)
