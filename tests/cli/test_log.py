"""``tidelog log``: lines come out as they went in; mistakes give a sentence."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from cli.conftest import Cli
from tidelog.cli.records import write_records
from tidelog.errors import Fenced
from tidelog.location import open_location

COMMAND = (sys.executable, "-m", "tidelog.cli.main")


def feed(cli: Cli, name: str, data: bytes, *options: str) -> str:
    """Append standard input; return the output."""
    return cli.done("log", "append", name, *options, given=data).out


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_lines_come_out_as_they_went_in(cli: Cli, protocol: str) -> None:
    """Lines of any length survive, with either line end, and a last one without."""
    cli.done("log", "create", "orders", "--protocol", protocol)
    lines = [b"a", b"", "grün".encode(), b"x" * 3_000_000, b"end"]

    first = feed(cli, "orders", b"\n".join(lines))
    again = feed(cli, "orders", b"one\r\ntwo\r\n")

    assert '"first":1,"last":5' in first
    assert '"first":6,"last":7' in again
    found = cli.done("log", "scan", "orders").objects
    wanted = [*(line.decode() for line in lines), "one", "two"]
    assert [record["body"] for record in found] == wanted
    assert [record["position"] for record in found] == list(range(1, 8))
    raw = cli.done("log", "scan", "orders", "--format", "raw")
    assert raw.out == "".join(line + "\n" for line in wanted)
    assert cli.done("log", "scan", "orders", "--from", "2", "--limit", "1").object["body"] == ""
    assert cli.done("log", "scan", "orders", "--from", "8").objects == []
    assert cli.done("log", "scan", "orders", "--limit", "0").objects == []


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_read_begins_and_ends_at_a_position_or_a_time(cli: Cli, protocol: str) -> None:
    """--from-time and --to-time accept a printed time: microseconds or ISO 8601."""
    cli.done("log", "create", "a", "--protocol", protocol)
    for number in range(5):
        feed(cli, "a", b"%d\n" % number)
        time.sleep(0.002)
    told = cli.done("log", "scan", "a").objects
    third = told[2]["timestamp_us"]
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=third)

    def scan(*options: str) -> list[int]:
        return [one["position"] for one in cli.done("log", "scan", "a", *options).objects]

    assert scan("--from", "2", "--to", "4") == [2, 3]
    assert scan("--to", "99") == [1, 2, 3, 4, 5]
    for written in (str(third), moment.isoformat()):
        assert scan("--to-time", written) == [1, 2]
        assert scan("--from-time", written) == [3, 4, 5]
        assert scan("--from-time", written, "--to", "5") == [3, 4]
        assert scan("--from-time", written, "--to", "2") == []
    assert scan("--from-time", str(third), "--to-time", str(third + 1)) == [3]
    assert scan("--from-time", "2200-01-01") == []


def test_whoever_follows_is_told_what_they_wait_for(cli: Cli) -> None:
    """A mistyped position or stream gives a warning, or the command would wait in silence."""
    cli.done("log", "create", "a")
    feed(cli, "a", b"1\n2\n")
    cli.done("log", "seal", "a")

    said = cli.done("log", "follow", "a", "--from", "99", "--stream", "b")
    assert "ends before 99; the next position is 3" in said.err
    assert "The stream 'b' is not open" in said.err
    assert cli.done("log", "follow", "a", "--from", "3").err == ""


def test_files_are_lines_or_records(cli: Cli, tmp_path: Path) -> None:
    """Files are read in the given order; bytes that are no text are shown as base64."""
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"\xff\n3")
    cli.done("log", "create", "files")

    told = cli.done("log", "append", "files", tmp_path / "a", tmp_path / "b")
    whole = cli.done("log", "append", "files", "--whole", tmp_path / "b")

    assert told.object == {"log": "files", "records": 4, "first": 1, "last": 4}
    assert whole.object["records"] == 1
    found = cli.done("log", "scan", "files", "--from", "5").object
    assert base64.b64decode(found["body_base64"]) == b"\xff\n3"
    assert cli.done("log", "scan", "files", "--limit", "2").objects[1]["body"] == "2"


def test_how_a_record_is_shown_does_not_depend_on_its_neighbours(cli: Cli) -> None:
    """One record that is no text must not turn its neighbours into base64."""
    cli.done("log", "create", "mixed")
    feed(cli, "mixed", b"one\n\xff\xfe\ntwo\n\nthree\n\x80\n")

    found = cli.done("log", "scan", "mixed", "--json").objects

    assert [(one["position"], one.get("body"), one.get("body_base64")) for one in found] == [
        (1, "one", None),
        (2, None, "//4="),
        (3, "two", None),
        (4, "", None),
        (5, "three", None),
        (6, None, "gA=="),
    ]


@pytest.mark.parametrize("format", ["csv", "table", "json"])
def test_the_format_shows_whether_a_record_is_base64(cli: Cli, format: str) -> None:
    """The text ``aMOp`` is also base64 of another text, so the format must show which it is."""
    cli.done("log", "create", "a")
    feed(cli, "a", "hé, and so on\naMOp\n".encode())
    cli.done("log", "stream", "open", "a", "s\udcff")
    feed(cli, "a", b"\xff\nplain\n\n")
    feed(cli, "a", b"in\n", "--stream", "s\udcff")

    def shown(*options: str) -> list[list[str]]:
        lines = cli.done("log", "scan", "a", "--format", format, *options).out.splitlines()
        if format == "table":  # A time may wrap below one with fewer digits: it goes by the first.
            cells = [line.split() for line in lines]
            return [[one[0], *one[2:]] for one in cells if one[0].isdecimal() and one[1:]]
        return [[line] for line in lines if line[:1] in "{1234567"]

    together = shown()
    alone = [shown("--from", str(at), "--limit", "1") for at in (1, 2, 4, 5, 6, 7)]
    told = cli.done("log", "scan", "a", "--format", format).out

    assert [line for lines in alone for line in lines] == together
    assert "plain" in told
    assert ("aMOp" in told, "cGxhaW4=" in told) == (True, False)


async def test_a_record_without_a_stream_has_no_field_for_one(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """A record without a stream or a key has no such field, whatever its neighbours have."""
    table = pa.table(
        {
            "position": [1, 2],
            "timestamp_us": [0, 0],
            "stream": pa.array([b"s", None], pa.binary()),
            "key": pa.array([b"k", None], pa.binary()),
            "body": pa.array([b"a", b"b"], pa.binary()),
        }
    )

    async def read() -> AsyncIterator[pa.Table]:
        yield table
        yield table.slice(1)

    assert await write_records(read(), "json") == 3
    _, second, third = capsysbinary.readouterr().out.splitlines()
    assert second == third == b'{"position":2,"timestamp_us":0,"body":"b"}'


def test_csv_has_columns_of_its_own_for_what_is_no_text(cli: Cli) -> None:
    """Each csv column holds only texts, or only base64."""
    cli.done("log", "create", "a")
    feed(cli, "a", b"aMOp\n\n\xff\n")

    lines = cli.done("log", "scan", "a", "--format", "csv").out.splitlines()

    assert lines[0] == "position,timestamp,stream,stream_base64,key,key_base64,body,body_base64"
    assert [line.split(",", 2)[2] for line in lines[1:]] == [",,,,aMOp,", ',,,,"",', ",,,,,/w=="]
    shown = cli.done("log", "scan", "a", "--format", "table").out.splitlines()
    assert [line.split()[2:] for line in shown[2:]] == [["aMOp"], [], ["\\xff"]]


@pytest.mark.parametrize("format", ["csv", "table"])
def test_a_time_can_be_given_back_as_it_was_printed(cli: Cli, format: str) -> None:
    """A printed time is accepted as an option, even after the year 9999."""
    times_us = [0, 253_402_300_799_999_999, 253_402_300_800_000_000, 2**63 - 1]

    async def fill() -> None:
        async with await (await open_location(cli.location)).log("a") as log:
            for time_us in times_us:
                await log.append([b"x"], timestamp_us=time_us)

    cli.done("log", "create", "a")
    asyncio.run(fill())

    for position in range(1, 5):
        only = ("--from", str(position), "--limit", "1", "--format", format)
        line = cli.done("log", "scan", "a", *only).out.splitlines()[-1]
        printed = line.replace(",", " ").split()[1]
        since = cli.done("log", "scan", "a", "--from-time", printed, "--limit", "1").object
        assert since["position"] == position
        before = cli.done("log", "scan", "a", "--to-time", printed).objects
        assert len(before) == position - 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--from", "9" * 5_000], "'--from': '999"),
        (["--from", "9" * 5_000], "is a number with too many digits"),
        (["--from", "-" + "9" * 4_000], "is not a position"),
        (["--from", "9" * 4_000], "whole number"),
        (["--to", "9" * 5_000], "'--to': '999"),
        (["--from-time", "9" * 5_000], "is not a time"),
        (["--to-time", "x" * 5_000], "is not a time"),
    ],
    ids=lambda value: value[0] + value[1][:2] if isinstance(value, list) else "",
)
def test_a_mistake_of_thousands_of_characters_is_told_shortly(
    cli: Cli, options: list[str], told: str
) -> None:
    """The error stays short, and quotes only the beginning of the text."""
    cli.done("log", "create", "a")

    said = refused(cli, 2, "scan", "a", *options)

    assert told in said
    assert len(said) < 400


@pytest.mark.parametrize("below", ["", "/", "/lake"])
def test_a_location_that_is_a_link_to_nowhere_is_told_as_one(cli: Cli, below: str) -> None:
    """The error must name the link, since the user can remove no file and choose no key."""
    link = cli.folder / "link"
    link.symlink_to("nowhere")

    for arguments in (("log", "create", "a"), ("log", "list")):
        said = cli.run("--location", f"{link}{below}", *arguments)
        assert said.status == 2
        assert f"{link} is a broken symbolic link" in said.complaint


def test_a_log_is_followed_while_it_grows_until_it_is_sealed(cli: Cli) -> None:
    """A follower prints each record at once, and ends at the seal."""
    cli.done("log", "create", "live")
    following = subprocess.Popen(
        [*COMMAND, "--location", cli.location, "log", "follow", "live", "--format", "raw"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    for number in range(3):
        feed(cli, "live", b"%d\n" % number)
        assert following.stdout.readline() == f"{number}\n"
    cli.done("log", "create", "next")
    cli.done("log", "seal", "live", "--successor", "next")
    assert following.communicate(timeout=120)[0] == ""
    assert following.returncode == 0


def test_standard_input_is_sent_as_it_comes(cli: Cli) -> None:
    """An endless input must not wait for its end."""
    cli.done("log", "create", "pipe")
    feeding = subprocess.Popen(
        [*COMMAND, "--location", cli.location, "log", "append", "pipe"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert feeding.stdin is not None
    feeding.stdin.write(b"first\nhalf of")
    feeding.stdin.flush()
    deadline = time.monotonic() + 120
    while not cli.done("log", "scan", "pipe").objects:
        assert time.monotonic() < deadline, "what was written never came"
    out, _ = feeding.communicate(b" a line\n", timeout=120)
    assert b'"records":2' in out
    bodies = [record["body"] for record in cli.done("log", "scan", "pipe").objects]
    assert bodies == ["first", "half of a line"]


def test_logs_are_listed_and_described(cli: Cli) -> None:
    """Logs are listed by name with their bounds; a folder of foreign files is no log."""
    assert cli.run("--location", cli.location, "log", "list").status == 2
    cli.done("log", "create", "b", "--protocol", "manifest")
    cli.done("log", "create", "a")
    feed(cli, "a", b"1\n2\n")
    foreign = Path(cli.location.removeprefix("file://")) / "log" / "c" / "notes.txt"
    foreign.parent.mkdir()
    foreign.write_text("mine")

    listed = cli.done("log", "list").objects
    told = cli.done("log", "describe", "a").object

    assert [(one["name"], one["protocol"], one["records"]) for one in listed] == [
        ("a", "slot", 2),
        ("b", "manifest", 0),
    ]
    assert listed[0].items() <= told.items()
    assert (told["oldest"], told["next"], told["sealed"]) == (1, 3, False)
    assert told["manifest"]["fragments"] == 1
    assert told["epoch"]["number"] == 1


def test_a_sealed_log_says_where_to_go_on(cli: Cli) -> None:
    """A sealed log refuses appends and names its successor."""
    cli.done("log", "create", "old")
    feed(cli, "old", b"1\n")
    assert "create the successor first" in refused(cli, 2, "seal", "old", "--successor", "new")
    assert "its own successor" in refused(cli, 2, "seal", "old", "--successor", "old")
    cli.done("log", "create", "new")
    cli.done("log", "seal", "old", "--successor", "new")

    assert "append to new" in refused(cli, 1, "append", "old", stdin=b"2\n")
    assert "sealed" in refused(cli, 1, "seal", "old")
    told = cli.done("log", "describe", "old").object
    assert (told["sealed"], told["successor"], told["next"]) == (True, "new", 2)


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_damage_is_told_with_its_place(cli: Cli, protocol: str) -> None:
    """Scrub prints every damaged object and exits with 1; a scan refuses the log."""
    cli.done("log", "create", "d", "--protocol", protocol)
    for number in range(3):
        feed(cli, "d", b"%d\n" % number)
    assert cli.done("log", "scrub", "d").object["records"] == 3
    folder = Path(cli.location.removeprefix("file://")) / "log" / "d"
    places = sorted(folder.rglob("*.parquet"), key=os.path.getsize)[-3:]
    places[0].write_bytes(places[0].read_bytes().replace(b"PAR1", b"RAP1"))
    places[2].unlink()

    found = cli.run("--location", cli.location, "log", "scrub", "d")
    assert cli.run("--location", cli.location, "log", "scrub", "d", "--from", "4").status == 0

    assert found.status == 1
    assert {Path(p["path"]).name for p in found.object["problems"]} >= {
        places[0].name,
        places[2].name,
    }
    assert "damaged" in found.complaint
    assert cli.run("--location", cli.location, "log", "scan", "d").status == 1


@pytest.mark.parametrize(
    ("protocol", "told", "status"), [("slot", "rebuild d", 1), ("manifest", "restore", 0)]
)
def test_a_log_without_its_manifest_is_listed_as_such(
    cli: Cli, protocol: str, told: str, status: int
) -> None:
    """In wal3's form a killed copy looks the same, and must not fail the list."""
    for name in ("d", "whole"):
        cli.done("log", "create", name, "--protocol", protocol)
        feed(cli, name, b"1\n")
    folder = Path(cli.location.removeprefix("file://")) / "log" / "d"
    (folder / "manifest" / "MANIFEST").unlink()

    found = cli.run("--location", cli.location, "log", "list")

    assert found.status == status
    assert told in found.err
    assert "whole" in found.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["create", "../up"], "cannot be the name of a log"),
        (["create", "x", "--protocol", "raft"], "slot, manifest"),
        (["create", "there"], "already"),
        (["append", "nosuch"], "no log"),
        (["append", "there", "no/such/file"], "no such file"),
        (["append", "there", "--whole"], "name them"),
        (["scan", "nosuch"], "no log"),
        (["scan", "there", "--from", "-1"], "positions begin at 1"),
        (["scan", "there", "--limit", "-1"], "--limit must be 0 or more, not -1"),
        (["scan", "there", "--format", "xml"], "table, json, csv, raw"),
        (["scan", "there", "--format", "raw", "--json"], "exclude each other"),
        (["scan", "there", "--from", "abc"], "'--from': 'abc' is not a whole number"),
        (["scan", "there", "--from", "oldest"], "'--from': 'oldest' is not a whole number"),
        (
            ["scan", "there", "--from", "5", "--to", "3"],
            "--to 3 selects no position: the range begins at 5",
        ),
        (["scan", "there", "--to", "1"], "--to 1 selects no position: the range begins at 1"),
        (["scan", "there", "--to", "-1"], "--to -1 is not a position: positions begin at 1"),
        (["scan", "there", "--from-time", "soon"], "number of microseconds"),
        (["scan", "there", "--from-time", "1960-01-01"], "since 1970"),
        (["scan", "there", "--from-time", "0", "--from", "3"], "--from-time exclude"),
        (["scan", "there", "--stream", "a"], "no records of the stream 'a'"),
        (["stream", "meta", "there", "a"], "the text is missing"),
        (["stream", "meta", "there", "a", "x", "--meta", "y"], "exclude each other"),
        (["scan", "there", "--to-time", "soon"], "not a time"),
        (["scan", "there", "--stream", ""], "1 to 1024 bytes"),
        (["scan", "classic", "--key", "a"], "no keys"),
        (["scan", "there", "--pin", "p", "--key", "a"], "omit the other options"),
        (["scan", "classic", "--stream", "a"], "no streams"),
        (["stream", "open", "there", ""], "1 to 1024 bytes"),
        (["stream", "open", "there", "a", "--meta", "x" * 1_025], "at most 1024"),
        (["stream", "open", "classic", "a"], "no streams"),
        (["stream", "list", "classic"], "no streams"),
        (["stream", "list", "nosuch"], "no log"),
        (["scrub", "there", "--from", "-1"], "positions begin at 1"),
        (["scrub", "there", "--from", "5", "--to", "5"], "selects no position"),
        (["scrub", "there", "--from", "99"], "has not reached that position"),
        (["collect", "there", "--keep-from", "99"], "has not reached that position"),
        (["collect", "there", "--keep-from-time", "soon"], "not a time"),
        (["collect", "there", "--share-max", "abc"], "'--share-max': 'abc' is not a number"),
        (["follow", "there", "--new", "--from", "3"], "exclude"),
        (["seal", "there", "--successor", "a/b"], "cannot be the name of a log"),
        (["seal", "classic"], "cannot be sealed"),
        (["describe", "nosuch"], "no log"),
        (["scrub", "nosuch"], "no log"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_told_in_a_sentence(cli: Cli, arguments: list[str], told: str) -> None:
    """A mistake exits with 2, and makes or loses nothing."""
    cli.done("log", "create", "there")
    cli.done("log", "create", "classic", "--protocol", "manifest")

    assert told in refused(cli, 2, *arguments)
    assert [one["name"] for one in cli.done("log", "list").objects] == ["classic", "there"]


def test_a_location_has_to_be_there_to_be_read(cli: Cli) -> None:
    """A read does not create the location."""
    assert "log create" in refused(cli, 2, "scan", "x")
    assert not Path(cli.location.removeprefix("file://")).exists()


def refused(cli: Cli, status: int, *arguments: str, stdin: bytes | None = None) -> str:
    said = cli.run("--location", cli.location, "log", *arguments, given=stdin)
    assert said.status == status, said.err
    return said.err if stdin else said.complaint


def test_who_is_ousted_while_appending_is_told_what_to_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command has no handle to open again, so the error gives another remedy."""
    cli.done("log", "create", "a")

    async def oust(*_: object) -> None:
        raise Fenced("another writer took over the log", slot=5)

    monkeypatch.setattr("tidelog.cli.feed.Feed.lines", oust)
    said = cli.run("--location", cli.location, "log", "append", "a", given=b"1\n")
    assert said.status == 1
    assert "append only the records that the log lacks; a full repeat would store" in said.err
    assert "open it again" not in said.err


def test_tables_are_for_people(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets readable times, and a tree for the manifest."""
    cli.done("log", "create", "t")
    feed(cli, "t", b"one\n")
    shown = cli.done("log", "scan", "t", "--format", "table").out.splitlines()
    assert shown[0].split() == ["position", "timestamp", "body"]
    assert shown[2].split()[0] == "1"
    assert shown[2].split()[1].endswith("Z")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "1 fragment: 1 to 1" in cli.done("log", "describe", "t").out
    assert cli.done("log", "list").out.splitlines()[2].split()[:3] == ["t", "slot", "1"]
    assert "Sealed" in cli.done("log", "seal", "t").err


@pytest.mark.parametrize("kind", ["log", "keyed"])
def test_a_terminal_shows_the_first_records(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A terminal shows 100 records, a limit changes that, and a pipe gets all."""
    key = () if kind == "log" else ("--key", "a")
    cli.done(kind, "create", "t")
    feed = "".join(f"{n}\n" for n in range(130)).encode()
    cli.done(kind, "append", "t", *key, given=feed)
    whole = cli.done(kind, "scan", "t", "--format", "table")
    assert (len(whole.out.splitlines()), whole.err) == (2 + 130, "")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    shown = cli.done(kind, "scan", "t")
    assert len(shown.out.splitlines()) == 2 + 100
    assert shown.err == "... 30 more rows: pass --limit N, or write to a file for all rows\n"
    assert len(cli.done(kind, "scan", "t", "--limit", "120").out.splitlines()) == 2 + 120


def test_records_are_appended_and_read_by_key(cli: Cli) -> None:
    """A key may be any bytes, even empty; a record without a key shows none."""
    cli.done("log", "create", "k")
    feed(cli, "k", b"none\n")
    feed(cli, "k", b"1\n2\n", "--key", "a")
    feed(cli, "k", b"3\n", "--key", "")
    feed(cli, "k", b"4\n", "--key", "a\udcff")

    found = cli.done("log", "scan", "k", "--key", "a").objects
    assert [(one["position"], one["body"]) for one in found] == [(2, "1"), (3, "2")]
    assert cli.done("log", "scan", "k", "--key", "", "--format", "raw").out == "3\n"
    assert cli.done("log", "scan", "k", "--key", "b").out == ""
    shown = cli.done("log", "scan", "k").objects
    assert [{name: one[name] for name in one if "key" in name} for one in shown] == [
        {}, {"key": "a"}, {"key": "a"}, {"key": ""}, {"key_base64": "Yf8="},
    ]  # fmt: skip
    lines = cli.done("log", "scan", "k", "--format", "csv").out.splitlines()
    assert [line.split(",")[4:6] for line in lines[3:]] == [["a", ""], ['""', ""], ["", "Yf8="]]
    table = cli.done("log", "scan", "k", "--key", "a\udcff", "--format", "table").out.splitlines()
    assert table[0].split() == ["position", "timestamp", "key", "body"]
    assert table[2].split()[2:] == ["a\\xff", "4"]
    cli.done("log", "seal", "k")
    cli.done("log", "copy", "k", "copied")
    cli.done("log", "fork", "k", "forked")
    for verb, name in (("follow", "k"), ("scan", "copied"), ("scan", "forked")):
        found = cli.done("log", verb, name, "--key", "a").objects
        assert [one["body"] for one in found] == ["1", "2"]


def test_what_has_no_place_for_keys_is_told(cli: Cli) -> None:
    """A key that is too long, or that wal3's form cannot hold, exits with 2 and writes nothing."""
    cli.done("log", "create", "k")
    cli.done("log", "create", "classic", "--protocol", "manifest")
    for verb in ("append", "scan", "follow"):
        assert "at most 16384 bytes" in refused(cli, 2, verb, "k", "--key", "k" * 16_385)
    assert "no keys" in refused(cli, 2, "append", "classic", "--key", "a", stdin=b"1\n")
    feed(cli, "k", b"none\n")
    feed(cli, "k", b"1\n", "--key", "a")
    out = (cli.folder / "out").as_uri()
    for arguments in (("export", "k", out), ("copy", "k", "other", "--protocol", "manifest")):
        assert "record 2 has a key" in refused(cli, 2, *arguments)
    assert [one["name"] for one in cli.done("log", "list").objects] == ["classic", "k"]


def test_streams_are_opened_written_and_read(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are opened, appended to, read alone, described and closed from the shell."""
    cli.done("log", "create", "s")
    told = refused(cli, 2, "append", "s", "--stream", "a", stdin=b"1\n")
    assert "open it first (stream=a)" in told
    opened = cli.done("log", "stream", "open", "s", "a", "--meta", "mine").object
    assert opened == {"log": "s", "stream": "a", "position": 1}
    cli.done("log", "stream", "open", "s", "b\udcff")
    feed(cli, "s", b"none\n")
    feed(cli, "s", b"1\n2\n", "--stream", "a")

    alone = cli.done("log", "scan", "s", "--stream", "a").objects
    assert [(one["position"], one["stream"], one["body"]) for one in alone] == [
        (4, "a", "1"),
        (5, "a", "2"),
    ]
    assert len(cli.done("log", "scan", "s").objects) == 3
    assert len(cli.done("log", "scan", "s", "--control").objects) == 5
    assert cli.done("log", "scan", "s", "--limit", "2").objects[-1]["position"] == 4
    assert cli.done("log", "scan", "s", "--to-time", "2000-01-01T00:00:00Z").objects == []
    assert len(cli.done("log", "scan", "s", "--to-time", "2200-01-01").objects) == 3
    table = cli.done("log", "scan", "s", "--format", "table").out.splitlines()
    assert [line.split() for line in table if line.startswith("position")] == [
        ["position", "timestamp", "body"],
        ["position", "timestamp", "stream", "body"],
    ]

    assert cli("log", "scan", "s", "--stream", "c").status == 2
    there = cli.done("log", "scan", "s", "--stream", "c", "--from", "2")
    assert (there.out, "no records of the stream 'c'" in there.err) == ("", True)
    assert cli.done("log", "scan", "s", "--stream", "b\udcff").out == ""
    cli.done("log", "stream", "meta", "s", "a", "--meta", "ours")
    assert cli.done("log", "stream", "list", "s").objects[0]["meta"] == "ours"
    cli.done("log", "stream", "meta", "s", "a", "yours")
    assert cli.done("log", "stream", "list", "s").objects == [
        {"stream": "a", "position": 1, "meta": "yours"},
        {"stream_base64": "Yv8=", "position": 2, "meta": ""},
    ]
    assert "already open" in refused(cli, 2, "stream", "open", "s", "a")
    cli.done("log", "stream", "close", "s", "a")
    assert "cannot be closed" in refused(cli, 2, "stream", "close", "s", "a")
    assert "open it first" in refused(cli, 2, "stream", "meta", "s", "a", "x")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.done("log", "stream", "list", "s").out.splitlines()[2].split() == ["b\\xff", "2"]
    assert "is closed" in cli.done("log", "stream", "close", "s", "b\udcff").err
    assert "No stream is open" in cli.done("log", "stream", "list", "s").err


def test_create_says_which_protocol_fences(cli: Cli) -> None:
    """The help of create says that wal3's form does not fence, before a user chooses it."""
    told = " ".join(cli.run("log", "create", "--help").out.split())

    assert "a new writer fences the former one" in told
    assert "writers are not fenced" in told
