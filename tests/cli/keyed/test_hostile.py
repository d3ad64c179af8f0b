"""``tidelog keyed`` with bad input, and with keys of any bytes: no traceback."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.conftest import Cli
from tidelog.cli.keyed.write import json_records
from tidelog.errors import UsageError

WRONG = [
    ("scan", "k", "--key", "a", "--prefix", "b"),
    ("scan", "k", "--key", "a", "--from-key", "b"),
    ("scan", "k", "--from-key", "b", "--to-key", "a"),
    ("scan", "k", "--key", "zz", "--key-form", "hex"),
    ("scan", "k", "--key", "a", "--key-form", "base64"),
    ("scan", "k", "--key", "a", "--key-form", "nix"),
    ("scan", "k", "--key", "a" * 16_385),
    ("scan", "k", "--from", "-1"),
    ("scan", "k", "--from", "3", "--to", "2"),
    ("scan", "k", "--from", "9" * 30),
    ("scan", "k", "--limit", "-1"),
    ("scan", "k", "--from-time", "tomorrow"),
    ("scan", "k", "--from-time", "2020-01-01", "--from", "3"),
    ("scan", "k", "--format", "xml"),
    ("scan", "nobody"),
    ("scan", "../k"),
    ("follow", "k", "--new", "--from", "3"),
    ("follow", "nobody"),
    ("count", "k"),
    ("count", "nobody", "--key", "a"),
    ("keys", "k", "--from-segment", "9"),
    ("keys", "k", "--from-segment", "3", "--to-segment", "1"),
    ("append", "k", "no-such-file"),
    ("append", "k", "--format", "raw"),
    ("append", "k", "--format", "xml"),
    ("append", "nobody", "--key", "a"),
    ("configure", "k"),
    ("retain", "k"),
    ("configure", "k", "--seal-bytes", "much"),
    ("configure", "k", "--seal-age", "0s"),
    ("retain", "k", "--retain-segments", "0"),
    ("retain", "k", "--retain-segments", "9" * 30),
    ("retire", "k"),
    ("retire", "k", "--retain-segments", "1"),
    ("drop", "k"),
    ("drop", "nobody", "--yes"),
    ("create", "k"),
    ("create", "a/b"),
    ("fork", "k", "k"),
    ("fork", "nobody", "x"),
    ("checkpoint", "drop", "k", "nobody"),
    ("checkpoint", "create", "k", "a/b"),
    ("seal", "nobody"),
    ("compact", "nobody"),
]


@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(words)[:40])
def test_misuse_is_told_in_a_sentence(keyed: Cli, words: tuple[str, ...]) -> None:
    """Misuse exits with 2, and appends nothing."""
    said = keyed.run("--location", keyed.location, "keyed", *words, given=b"")

    assert said.status == 2, said.err
    assert said.complaint
    assert keyed.done("keyed", "describe", "k").object["next_sequence"] == 1


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[1]",
        b'{"key": "a"}',
        b'{"value": "a"}',
        b'{"key": 1, "value": "a"}',
        b'{"key": "a", "value": {"b": 1}}',
        b'{"key": "a", "key_base64": "YQ==", "value": ""}',
        b'{"key_base64": "!", "value": ""}',
        b'{"key": "a", "value": "b", "valeu": "c"}',
        b'{"key": "\\ud800", "value": ""}',
        b'{"key": "\xff", "value": ""}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_record_is_named(keyed: Cli, line: bytes) -> None:
    """The error names the line."""
    lines = b'{"key": "a", "value": "1"}\n' + line + b"\n"
    said = keyed.run("--location", keyed.location, "keyed", "append", "k", given=lines)

    assert said.status == 2, said.err
    assert "line 2: " in said.err
    assert "Traceback" not in said.err


def test_a_value_that_is_no_text_is_told_how_to_be_one(keyed: Cli) -> None:
    """A new user's JSON often has a number or an object as the value."""
    said = keyed.run("--location", keyed.location, "keyed", "append", "k", given=b'{"value": 3}\n')
    assert "value is not text: put it in quotes" in said.err


@pytest.mark.parametrize(
    "words", [("scan", "k", "--checkpoint", "x"), ("checkpoint", "drop", "k", "x")]
)
def test_a_checkpoint_that_is_not_there_says_which_verb_lists_them(
    cli: Cli, words: tuple[str, ...]
) -> None:
    """A missing checkpoint is reported with the verb that lists checkpoints."""
    cli.done("keyed", "create", "k")

    said = cli.run("--location", cli.location, "keyed", *words)
    assert "'tidelog keyed checkpoint list' lists them" in said.err


def test_a_log_without_keys_is_named_where_a_keyed_one_is_asked_for(cli: Cli) -> None:
    """A log without keys is named if a user takes it for a keyed log."""
    cli.done("log", "create", "plain")

    said = cli.run("--location", cli.location, "keyed", "scan", "plain")
    assert "a log without keys has that name ('tidelog log scan plain')" in said.err


def test_the_list_of_verbs_has_whole_sentences(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptions are not cut on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    for words in (("keyed",), ("keyed", "checkpoint")):
        assert "..." not in cli.run(*words, "--help").out.partition("Options:")[2]


def test_a_location_that_is_not_there_is_made_by_keyed_create_too(cli: Cli) -> None:
    """The error names ``keyed create`` to a user of keyed logs."""
    assert "'tidelog keyed create'" in cli.run("--location", cli.location, "keyed", "list").err


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.binary(max_size=40), value=st.binary(max_size=40))
def test_keys_of_any_bytes_go_in_and_out(keyed: Cli, key: bytes, value: bytes) -> None:
    """Any key survives as hex and as base64, and any value in JSON."""
    before = keyed.done("keyed", "describe", "k").object["next_sequence"]
    told = base64.b64encode(key).decode()
    line = json.dumps({"key": key.hex(), "value_base64": base64.b64encode(value).decode()})
    keyed.done("keyed", "append", "k", "--key-form", "hex", given=line.encode() + b"\n")

    for form, written in (("hex", key.hex()), ("base64", told)):
        options = ("--key", written, "--key-form", form, "--from", str(before))
        found = keyed.done("keyed", "scan", "k", *options).object
        assert found["key"] == written
        told_value = found.get("value")
        back = (
            told_value.encode()
            if told_value is not None
            else base64.b64decode(found["value_base64"])
        )
        assert back == value
        assert keyed.done("keyed", "count", "k", *options).object["count"] == 1


@given(line=st.binary(max_size=60))
def test_no_line_raises_anything_else(line: bytes) -> None:
    """Any line gives records or a UsageError."""
    try:
        records = json_records(None, "text")([line])
    except UsageError:
        return
    assert all(isinstance(part, bytes) for record in records for part in record)
