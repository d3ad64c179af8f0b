"""``tidelog keyed``: every verb, and its output."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest

from cli.conftest import Cli, CommandOutput

LINES = b"""\
{"key": "a", "value": "1"}
{"key": "b", "value": "2"}

{"key": "a", "value": "3", "sequence": 77, "timestamp_us": 5}
"""


@pytest.fixture
def filled(keyed: Cli) -> Cli:
    """Two records of a, and one of b."""
    assert keyed.done("keyed", "append", "k", given=LINES).object["records"] == 3
    return keyed


def scanned(cli: Cli, *options: str) -> list[tuple[str, str]]:
    found = cli.done("keyed", "scan", "k", *options).objects
    return [(one["key"], one["value"]) for one in found]


def test_records_are_scanned_as_they_are_asked_for(filled: Cli) -> None:
    """A scan takes a key, a prefix, a range or all, with bounds, a limit and an order."""
    every = [("a", "1"), ("b", "2"), ("a", "3")]
    sequences = [one["sequence"] for one in filled.done("keyed", "scan", "k").objects]

    assert sorted(scanned(filled)) == sorted(every)
    assert scanned(filled, "--key", "a") == [("a", "1"), ("a", "3")]
    assert scanned(filled, "--key", "a", "--newest", "--limit", "1") == [("a", "3")]
    assert scanned(filled, "--prefix", "b") == [("b", "2")]
    assert scanned(filled, "--from-key", "a", "--to-key", "b", "--limit", "1") == [("a", "1")]
    assert scanned(filled, "--from-key", "b") == [("b", "2")]
    assert scanned(filled, "--key", "a", "--from", str(max(sequences))) == [("a", "3")]
    assert scanned(filled, "--key", "a", "--to", str(max(sequences))) == [("a", "1")]
    assert scanned(filled, "--key", "nobody") == []
    assert scanned(filled, "--from-time", "2200-01-01") == []
    assert len(scanned(filled, "--from-time", "2000-01-01")) == 3
    assert scanned(filled, "--limit", "0") == []


def test_what_scan_writes_append_takes(filled: Cli) -> None:
    """A pipe from scan to append copies a log."""
    filled.done("keyed", "create", "other")
    written = filled.done("keyed", "scan", "k", "--key", "a").out.encode()
    filled.done("keyed", "append", "other", given=written)

    found = filled.done("keyed", "scan", "other").objects
    assert [(one["key"], one["value"]) for one in found] == [("a", "1"), ("a", "3")]


def test_lines_are_values_of_one_key(keyed: Cli) -> None:
    """A line is one value, even if empty; with json, the key may come from --key."""
    keyed.done("keyed", "append", "k", "--key", "x", given=b"one\r\n\ntwo")
    keyed.done(
        "keyed", "append", "k", "--key", "x", "--format", "json", given=b'{"value": "three"}\n'
    )

    raw = keyed.done("keyed", "scan", "k", "--key", "x", "--format", "raw").out
    assert raw == "one\n\ntwo\nthree\n"
    assert keyed.done("keyed", "count", "k", "--key", "x").object["count"] == 4
    about = keyed.done("keyed", "count", "k", "--key", "x", "--approximate").object
    assert about["least"] <= 4 <= about["most"]


def test_tables_and_csv_have_the_same_columns(filled: Cli) -> None:
    """Csv has base64 columns for bytes that are no text."""
    filled.done("keyed", "append", "k", "--key", "z", given=b"\xff\n")
    csv = filled.done("keyed", "scan", "k", "--key", "z", "--format", "csv").out.splitlines()
    table = filled.done("keyed", "scan", "k", "--key", "z", "--format", "table").out

    assert csv[0] == "key,key_base64,sequence,timestamp,value,value_base64"
    assert csv[1].startswith("z,,")
    assert csv[1].endswith(",,/w==")
    assert "\\xff" in table


def test_maintenance_from_seal_to_collect(filled: Cli) -> None:
    """A segment is sealed, compacted, retired by the retention and collected."""
    sealed = filled.done("keyed", "seal", "k").object["sealed"]
    assert filled.done("keyed", "seal", "k").object["sealed"] is None
    filled.done("keyed", "append", "k", "--key", "new", given=b"x\n")
    assert filled.done("keyed", "compact", "k", "--full").object["runs"] >= 1
    segments = filled.done("keyed", "segments", "k").objects
    assert [one["limit"] is None for one in segments] == [False, True]
    assert segments[0]["records"] == 3
    first = str(segments[0]["id"])
    listed = filled.done("keyed", "keys", "k", "--to-segment", str(int(first) + 1)).objects
    assert [one["key"] for one in listed] == ["a", "b"]

    kept = filled.done("keyed", "retain", "k", "--retain-segments", "1").object
    assert kept["retention"]["segments"] == 1
    sealing = filled.done("keyed", "configure", "k", "--seal-age", "1h").object["sealing"]
    assert sealing["age_us"] == 3_600_000_000
    retired = filled.done("keyed", "retire", "k").object
    assert (retired["retired"], retired["oldest"]) == (1, sealed["limit"])
    filled.done("keyed", "collect", "k")
    assert scanned(filled) == [("new", "x")]
    gone = filled("keyed", "scan", "k", "--from", "1")
    assert (gone.status, "were retired" in gone.complaint) == (1, True)
    assert filled.done("keyed", "describe", "k").object["oldest"] == sealed["limit"]


def test_checkpoints_and_forks_have_names(filled: Cli) -> None:
    """Checkpoints and forks are created, listed and dropped; a fork has its own appends."""
    filled.done("keyed", "checkpoint", "create", "k", "c")
    assert [one["name"] for one in filled.done("keyed", "checkpoint", "list", "k").objects] == ["c"]
    filled.done("keyed", "append", "k", "--key", "a", given=b"late\n")
    assert scanned(filled, "--key", "a", "--checkpoint", "c") == [("a", "1"), ("a", "3")]
    assert filled("keyed", "scan", "k", "--checkpoint", "nobody").status == 2
    again = filled("keyed", "checkpoint", "create", "k", "c")
    assert (again.status, "already" in again.complaint) == (2, True)
    filled.done("keyed", "checkpoint", "drop", "k", "c")
    assert filled("keyed", "checkpoint", "drop", "k", "c").status == 2
    filled.done("keyed", "fork", "k", "trial")
    filled.done("keyed", "append", "trial", "--key", "a", given=b"4\n")

    assert [one["name"] for one in filled.done("keyed", "list").objects] == ["k", "trial"]
    assert len(filled.done("keyed", "scan", "trial", "--key", "a").objects) == 4
    assert len(scanned(filled, "--key", "a")) == 3
    filled.done("keyed", "drop", "trial", "--yes")
    assert [one["name"] for one in filled.done("keyed", "list").objects] == ["k"]


def test_people_are_told_in_sentences(filled: Cli) -> None:
    """On a terminal, each verb describes its result in words."""

    def said(*words: str, given: bytes | None = None) -> CommandOutput:
        return filled.done("keyed", *words, given=given)

    with patch("tidelog.cli.output.is_json", return_value=False):
        assert said("count", "k", "--key", "a").out == "2 records\n"
        assert said("seal", "k").err.startswith("Sealed the segment 0")
        assert "sealed at 1.07 GB" in said("describe", "k").out
        assert "run" in said("compact", "k", "--everything").err
        assert "1h" in said("configure", "k", "--seal-age", "1h").err
        assert "keeps the last 1d" in said("retain", "k", "--retain-age", "1d").err
        assert said("retire", "k").err.startswith("0 segments dropped;")
        assert "deleted" in said("collect", "k").err
        assert said("append", "k", given=LINES).err.startswith("3 records appended, sequences ")
        assert "is a fork of" in said("fork", "k", "other").err
        assert "Dropped the keyed log" in said("drop", "other", "--yes").err
        assert "keeps sequences" in said("checkpoint", "create", "k", "c").err
        assert "active" in said("segments", "k").out
        assert "other" not in said("list").out


def test_a_log_that_others_took_over_is_told(keyed: Cli) -> None:
    """A fenced append exits with 1, and names the cause."""
    from tidelog.errors import Fenced

    with patch("tidelog.cli.feed.Feed.lines", side_effect=Fenced("taken")):
        said = keyed.run("--location", keyed.location, "keyed", "append", "k", given=LINES)
    assert said.status == 1
    assert "another process took over" in said.err


def test_json_is_valid_line_by_line(filled: Cli) -> None:
    """Each line is an object of its own."""
    for line in filled.done("keyed", "scan", "k").out.splitlines():
        assert set(json.loads(line)) == {"key", "sequence", "timestamp_us", "value"}
