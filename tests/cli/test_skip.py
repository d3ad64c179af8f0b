"""``tidelog source skip``: what stops a source says how to go on, and that works."""

from __future__ import annotations

from cli.conftest import Cli


def test_a_rewritten_file_is_skipped_as_the_error_says(cli: Cli) -> None:
    """And the status lists it, for people and for programs."""
    cli.write_lines("raw/a.jsonl", {"n": 1})
    cli.done("source", "create", "s", "--files", cli.folder / "raw")
    cli.ingest("s")
    cli.write_lines("raw/a.jsonl", {"n": 2}, {"n": 3})
    cli.write_lines("raw/b.jsonl", {"n": 4})
    stopped = cli("ingest", "s", "--engine", "local", "--json")

    assert stopped.status == 1
    assert stopped.complaint.endswith("go on without it: tidelog source skip s a.jsonl")
    refused = cli("source", "skip", "s", "b.jsonl")
    assert (refused.status, "nothing to skip" in refused.complaint) == (2, True)
    said = cli.done("source", "skip", "s", "a.jsonl", "--json")
    assert said.object == {"name": "s", "path": "a.jsonl", "skipped": True}
    cli.ingest("s")
    assert cli.done("read", "s", "--format", "json").objects == [{"n": 1}, {"n": 4}]
    assert list(cli.done("source", "status", "s", "--json").object["skipped"]) == ["a.jsonl"]


def test_a_source_that_reads_no_files_has_none_to_skip(cli: Cli) -> None:
    """One sentence says so."""
    cli.done("source", "create", "s", "--generator", "counter")

    said = cli("source", "skip", "s", "x")
    assert (said.status, "reads no files" in said.complaint) == (2, True)
